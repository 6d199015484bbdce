"""Checkpoints from elsewhere: GPT-2 and T5 as the hub keeps them, with their tokenizers; what the command makes of them."""
import json
import struct
import subprocess
import sys
from functools import cache
from importlib.util import find_spec

import pytest
import tokenizers as tk
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from command import call, refused
from minibert.core.errors import UserError
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.gpt import generate
from minibert.text.foreign import FileTokenizer, open_tokenizer
from minibert.parity import assert_same, randomise_
from minibert.nn.sampling import encode_prompts
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import load_pretrained
from minibert.data.windows import count_bytes
from test_t5 import exact_norms

TEXTS = [" ".join(document) for document in load_documents("stories", limit=60)]
HARD = ["", " ", "  two  spaces ", "tabs\tand\nlines\r\n", "Élan, naïve café", "日本語 текст", "👩‍🚀 and 🎈", "ﬁne ｆｕｌｌ ①",
        "<|endoftext|> in a text", "a <extra_id_0> b<extra_id_99> .", "</s> <pad>", "x" * 300, "\u0301\u200b\ufeff"]


# --- folders as the hub keeps them ---


@cache
def bpe(vocab_size=400):
    "GPT-2's pipeline over a few hundred pieces."
    made = tk.Tokenizer(tk.models.BPE())
    made.pre_tokenizer, made.decoder = tk.pre_tokenizers.ByteLevel(add_prefix_space=False), tk.decoders.ByteLevel()
    made.train_from_iterator(TEXTS, tk.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False, initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet()))
    return made


@cache
def unigram():
    "T5's pipeline: pieces with their scores, and a hundred sentinels behind them in reverse; learned twice, pieces of one score would change places."
    made = tk.Tokenizer(tk.models.Unigram())
    made.pre_tokenizer = tk.pre_tokenizers.Sequence([tk.pre_tokenizers.WhitespaceSplit(), tk.pre_tokenizers.Metaspace()])
    made.decoder = tk.decoders.Metaspace()
    made.train_from_iterator(TEXTS, tk.trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    pieces = [(piece, score) for piece, score in json.loads(made.to_str())["model"]["vocab"]]
    pieces += [(f"<extra_id_{n}>", 0.0) for n in range(99, -1, -1)]
    made.model = tk.models.Unigram(pieces, unk_id=2)
    made.add_special_tokens([piece for piece, _ in pieces[:3] + pieces[-100:]])
    made.post_processor = tk.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made, pieces


def spiece(pieces):
    "The pieces as SentencePiece writes them."
    def field(number, value): return bytes([number << 3 | 2, len(value)]) + value
    kinds = {"<pad>": 3, "</s>": 3, "<unk>": 2}
    rows = [field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kinds.get(piece, 1)]) for piece, score in pieces]
    return b"".join(field(1, row) for row in rows) + field(2, bytes([3 << 3, 1]) + b"\xc0\x02\x02")


OLD_GPT2 = dict(  # gpt2's own config.json, small
    activation_function="gelu_new", architectures=["GPT2LMHeadModel"], attn_pdrop=0.1, bos_token_id=0, embd_pdrop=0.1, eos_token_id=0,
    initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gpt2", n_ctx=48, n_embd=24, n_head=4, n_layer=2, n_positions=48,
    resid_pdrop=0.1, summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True, summary_type="cls_index",
    summary_use_proj=True, task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}}, vocab_size=400)
OLD_T5 = dict(  # t5-small's, small
    architectures=["T5WithLMHeadModel"], d_ff=37, d_kv=5, d_model=24, decoder_start_token_id=0, dropout_rate=0.1, eos_token_id=1,
    initializer_factor=1.0, is_encoder_decoder=True, layer_norm_epsilon=1e-06, model_type="t5", n_positions=512, num_heads=4, num_layers=2,
    output_past=True, pad_token_id=0, relative_attention_num_buckets=32, vocab_size=328,
    task_specific_params={"summarization": {"early_stopping": True, "max_length": 200, "num_beams": 4, "prefix": "summarize: "}})
NEW_T5 = {key: value for key, value in OLD_T5.items() if key not in ("task_specific_params", "n_positions")} | dict(
    architectures=["T5ForConditionalGeneration"], feed_forward_proj="gated-gelu", num_decoder_layers=3, tie_word_embeddings=False)


def gpt2_folder(folder, kind):
    "gpt2 leaves the prefix out and holds the masks; distilgpt2 has the prefix, the tied head and older masks."
    folder.mkdir()
    theirs = randomise_(hf.GPT2LMHeadModel(hf.GPT2Config(**OLD_GPT2)), 1)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    mask, values = torch.ones(48, 48).tril()[None, None], dict(OLD_GPT2)
    if kind == "gpt2":
        state = {name.removeprefix("transformer."): tensor for name, tensor in state.items() if name != "lm_head.weight"}
        state |= {f"h.{n}.attn.bias": mask.clone() for n in range(2)}
        bpe().model.save(str(folder))
        (folder / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    else:
        state |= {f"transformer.h.{n}.attn.bias": mask.bool().clone() for n in range(2)}
        state |= {f"transformer.h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(2)}
        values |= dict(_num_labels=1, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
        bpe().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(values))
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return theirs.eval()


def t5_folder(folder, kind):
    "t5-small holds the table under three names and a bias that nothing reads; v1.1 is a pickle with a head, and has no tokenizer.json."
    folder.mkdir()
    values = OLD_T5 if kind == "t5-small" else NEW_T5
    theirs = hf.T5ForConditionalGeneration(hf.T5Config(**values))
    if kind != "t5-small": theirs.lm_head.weight = torch.nn.Parameter(torch.empty(328, 24))
    randomise_(theirs, 1)
    state, (made, pieces) = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}, unigram()
    assert len(pieces) <= 328  # as in theirs, where the table has 28 rows more than there are pieces
    for stack in "encoder", "decoder": state[f"{stack}.embed_tokens.weight"] = state["shared.weight"].clone()
    (folder / "config.json").write_text(json.dumps(values))
    if kind == "t5-small":
        del state["lm_head.weight"]
        state["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(32, 4)
        made.save(str(folder / "tokenizer.json"))
        save_file(state, folder / "model.safetensors", {"format": "pt"})
    else:
        (folder / "spiece.model").write_bytes(spiece(pieces[:-100]))
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return theirs.eval()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    "A folder for each name, and their model of it."
    home = tmp_path_factory.mktemp("hub")
    made = {kind: gpt2_folder(home / kind, kind) for kind in ("gpt2", "distilgpt2")}
    made |= {kind: t5_folder(home / kind, kind) for kind in ("t5-small", "t5-v1_1-small")}
    return home, made


# --- weights ---


@pytest.mark.parametrize("kind", ["gpt2", "distilgpt2"])
def test_gpt2_opens_as_the_hub_keeps_it(hub, kind):
    home, models = hub
    ours, theirs = load_pretrained(home / kind).double(), models[kind].double()
    ids = torch.arange(60).view(2, 30)
    assert_same(ours(ids).logits, theirs(ids).logits)
    theirs.float()


@pytest.mark.parametrize("kind", ["t5-small", "t5-v1_1-small"])
def test_t5_opens_as_the_hub_keeps_it(hub, kind):
    home, models = hub
    ours, theirs = load_pretrained(home / kind).double(), models[kind].double()
    ids, told = torch.arange(60).view(2, 30), torch.arange(24).view(2, 12)
    with exact_norms(): assert_same(ours(ids, None, told).logits, theirs(ids, decoder_input_ids=told).logits)
    assert ours.config.tie_word_embeddings == ours.config.scale_decoder_outputs == (kind == "t5-small")
    assert ours.config.relative_attention_max_distance == 128
    theirs.float()


# --- tokenizers ---


@pytest.mark.parametrize("kind", ["gpt2", "distilgpt2", "t5-small"])
def test_a_tokenizer_reads_and_spells_as_theirs(hub, kind):
    ours, theirs = open_tokenizer(hub[0] / kind), hf.AutoTokenizer.from_pretrained(hub[0] / kind)
    assert type(ours) is FileTokenizer and ours.vocab_size == len(theirs)
    assert ours.special_ids == sorted(theirs.all_special_ids) and ours.sep_id == theirs.eos_token_id
    assert ours.pad_id == (ours.sep_id if theirs.pad_token_id is None else theirs.pad_token_id)

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=60), st.text("anna lost her ball .,'\n🎈é日", max_size=60)))
    def same(text):
        ids = ours.ids(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.tokenize(text) == theirs.convert_ids_to_tokens(ids)
        for skip in True, False: assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
        if kind != "t5-small" and "<|" not in text: assert ours.decode(ids) == text  # bytes lose nothing
    same()
    for text in HARD + TEXTS[:20]: same.hypothesis.inner_test(text)


def test_a_spiece_model_alone_is_the_same_tokenizer(hub):
    a, b = (open_tokenizer(hub[0] / kind) for kind in ("t5-small", "t5-v1_1-small"))
    assert [a.ids(text) for text in HARD + TEXTS] == [b.ids(text) for text in HARD + TEXTS]
    assert (a.vocab, a.special_ids, a.sep_id, a.pad_id) == (b.vocab, b.special_ids, b.sep_id, b.pad_id)


def test_our_own_folders_keep_their_tokenizer(tmp_path):
    WordPieceTokenizer.train(TEXTS, vocab_size=200).save_pretrained(tmp_path)
    assert type(open_tokenizer(tmp_path)) is WordPieceTokenizer
    (tmp_path / "tokenizer.json").unlink()
    assert type(open_tokenizer(tmp_path)) is WordPieceTokenizer


def test_start_end_and_sentinels(hub):
    gpt, t5 = (open_tokenizer(hub[0] / kind) for kind in ("gpt2", "t5-small"))
    sizes = load_pretrained(hub[0] / "gpt2").config
    ids, real = encode_prompts(gpt, ["", "anna lost"], sizes, start=gpt.sep_id)
    assert ids[0, -1] == gpt.vocab["<|endoftext|>"] and real[0].sum() == 1 and ids.shape == real.shape
    assert ids[1].tolist() == [gpt.sep_id, *gpt.ids("anna lost")]
    with pytest.raises(UserError, match="no token"): encode_prompts(gpt, [""], sizes)
    wanted = hf.AutoTokenizer.from_pretrained(hub[0] / "t5-small")("anna <extra_id_0> ball <extra_id_1>.")["input_ids"]
    assert [*t5.ids("anna <extra_id_0> ball <extra_id_1>."), t5.sep_id] == wanted
    assert {t5.vocab["<extra_id_0>"], t5.vocab["<extra_id_1>"]} <= set(wanted)
    assert t5.vocab["<extra_id_0>"] == t5.vocab_size - 1 and t5.pad_id == 0 and t5.sep_id == 1


def test_what_is_saved_opens_again_in_both(hub, tmp_path):
    for kind in "gpt2", "t5-small", "t5-v1_1-small":
        ours = open_tokenizer(hub[0] / kind)
        ours.save_pretrained(tmp_path / kind)
        (tmp_path / kind / "config.json").write_text((hub[0] / kind / "config.json").read_text())
        again, theirs = open_tokenizer(tmp_path / kind), hf.AutoTokenizer.from_pretrained(tmp_path / kind)
        assert again.fingerprint == ours.fingerprint and (again.sep_id, again.pad_id) == (ours.sep_id, ours.pad_id)
        for text in HARD: assert ours.ids(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_tokens_that_were_added_later(tmp_path):
    bpe().model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "added_tokens.json").write_text('{"<user>": 401, "<pad>": 400}')
    ours = open_tokenizer(tmp_path)
    assert ours.vocab_size == 402 and ours.ids("a<user>")[-1] == 401 and ours.pad_id == 400


@pytest.mark.parametrize("change, place", [
    (lambda f: (f / "merges.txt").unlink(), "merges.txt"),
    (lambda f: (f / "vocab.json").unlink(), "vocab.json"),
    (lambda f: (f / "vocab.json").write_text("{"), "copy or download"),
    (lambda f: (f / "tokenizer_config.json").write_text('{"eos_token": "<end>"}'), "'<end>'"),
    (lambda f: (f / "tokenizer.json").write_text('{"model": {"type": "WordLevel"}}'), "WordLevel"),
    (lambda f: (f / "tokenizer.json").write_text('{"model": {"type": "BPE"}}'), "copy or download"),
    (lambda f: [file.unlink() for file in f.iterdir()], "vocab.txt")])
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path, change, place):
    bpe().model.save(str(tmp_path))
    change(tmp_path)
    with pytest.raises(UserError, match=place): open_tokenizer(tmp_path)


def test_a_damaged_spiece_model_is_named(tmp_path):
    whole = spiece(unigram()[1][:-100])
    for content in whole[:-2], b"version https://git-lfs", b"\xff" * 40, whole[:-7] + bytes([2 << 3 | 2, 2, 3 << 3, 2]):
        (tmp_path / "spiece.model").write_bytes(content)
        with pytest.raises(UserError, match=str(tmp_path)): open_tokenizer(tmp_path)


def test_without_the_library_of_that_format_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(UserError, match="pip install sentencepiece"): open_tokenizer(tmp_path)


@pytest.mark.slow
def test_the_library_is_asked_for_only_where_it_is_needed(hub, tmp_path):
    code = ("import sys, minibert.cli.main; assert not {'tokenizers', 'transformers'} & {*sys.modules}\n"
            "sys.modules['tokenizers'] = None\n"
            f"sys.exit(minibert.cli.main.main(['generate', {str(hub[0] / 'gpt2')!r}, 'anna']))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install tokenizers" in done.stderr and done.stderr.count("\n") == 1


# --- the command ---


def test_generate_continues_a_text(hub):
    home, models = hub
    said, _ = call("generate", home / "gpt2", "anna lost é 🎈", "--tokens", 12, "--temperature", 0)
    tokenizer = open_tokenizer(home / "gpt2")
    ids, _ = encode_prompts(tokenizer, ["anna lost é 🎈"], load_pretrained(home / "gpt2").config, start=tokenizer.sep_id)
    theirs = models["gpt2"].generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=0)
    assert said == tokenizer.decode(theirs[0].tolist()) + "\n" and said.startswith("anna lost é 🎈")
    steps = torch.stack([*generate(load_pretrained(home / "gpt2"), ids, 12, temperature=0, stop=0)], 1)
    assert steps[0].tolist() == theirs[0, ids.shape[1]:].tolist()
    for seed in range(6):  # characters come in several pieces: what is printed is what is written
        said, _ = call("generate", home / "distilgpt2", "", "--tokens", 30, "--seed", seed)
        model, start = load_pretrained(home / "distilgpt2"), torch.tensor([[0]])
        row = torch.stack([*generate(model, start, 30, temperature=0.8, seed=seed, stop=0)], 1)[0].tolist()
        assert said == tokenizer.decode(row) + "\n"


@pytest.mark.parametrize("kind", ["t5-small", "t5-v1_1-small"])
def test_a_t5_answers_and_fills_gaps(hub, kind):
    home, models = hub
    tokenizer, names = open_tokenizer(home / kind), [f"<extra_id_{n}>" for n in range(100)]
    said, _ = call("generate", home / kind, "summarize: anna lost her ball.", "--tokens", 15, "--temperature", 0)
    ids = torch.tensor([[*tokenizer.ids("summarize: anna lost her ball."), 1]])
    theirs = models[kind].generate(ids, max_new_tokens=15, do_sample=False, use_cache=False)
    assert said == tokenizer.decode(theirs[0].tolist()) + "\n"
    assert [tokenizer.pieces[gap] for gap in tokenizer.sentinels] == names
    a, b = (call("generate", home / kind, text, "--tokens", 15, "--seed", 1)[0] for text in (
        "anna [MASK] her [MASK] [MASK].", "anna <extra_id_0> her <extra_id_1>."))
    assert a == b and a.startswith("anna") and "extra_id" not in a
    assert "no text" in refused("generate", home / kind, " ")


def test_evaluate_measures_bits_of_the_text_itself(hub, tmp_path):
    folder, tokenizer = hub[0] / "gpt2", open_tokenizer(hub[0] / "gpt2")
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS[:40]))
    figures = json.loads(call("evaluate", folder, "--dataset", tmp_path / "text.txt", "--json")[0])
    documents = list(load_documents(str(tmp_path / "text.txt"), None, "validation"))
    corpus = Corpus.build(documents, tokenizer)
    assert any(len(document) > 1 for document in documents)
    assert count_bytes(corpus, tokenizer) == sum(len(" ".join(document).encode()) + 1 for document in documents)
    nats, tokens = figures["clm_loss"], len(corpus.ids) + corpus.n_documents
    wanted = nats * tokens / 0.6931471805599453 / count_bytes(corpus, tokenizer)
    assert figures["bits_per_byte"] == pytest.approx(wanted)


@pytest.mark.slow
def test_pretraining_goes_on_from_a_gpt2(hub, tmp_path):
    call("pretrain", "--model", "gpt", "--start", hub[0] / "gpt2", "--steps", 2, "--batch-size", 2, "--length", 32, "--out", tmp_path / "run")
    ours = open_tokenizer(tmp_path / "run")
    assert ours.fingerprint == open_tokenizer(hub[0] / "gpt2").fingerprint
    assert call("generate", tmp_path / "run", "anna", "--tokens", 5)[0].startswith("anna")
    assert "bits_per_byte" in call("evaluate", tmp_path / "run", "--json")[0]


@pytest.mark.parametrize("kind", ["gpt2", "distilgpt2", "t5-small", "t5-v1_1-small"])
def test_parity_of_a_checkpoint_from_elsewhere(hub, tmp_path, kind):
    said, _ = call("parity", hub[0] / kind, "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out/parity.json").read_text())
    assert result["same"] and result["written"] and result["largest"]["float64"] < 1e-12 and "agree" in said
    stacks = [""] if "gpt" in kind else ["encoder ", "decoder "]
    wanted = [f"{stack}{part}" for stack in stacks for part in ("embeddings", "attention 1", "layer 1", "attention 2", "layer 2")]
    assert {*wanted, "logits", "loss"} | (set() if "gpt" in kind else {"cross attention 1", "cross attention 2"}) <= set(result["parts"])
    assert ("were not compared" in said) == (kind == "t5-v1_1-small" and find_spec("sentencepiece") is None)
    assert (tmp_path / "out/parity.png").read_bytes()[:4] == b"\x89PNG" and all(part in said for part in wanted)


def moved(monkeypatch, folder, change):
    "The exit code and the result where ours is changed after it was opened."
    import minibert.hub.compare as compare
    from minibert.cli.main import main
    opened = load_pretrained
    def other(*args, **options):
        model = opened(*args, **options)
        with torch.no_grad(): change(model)
        return model
    monkeypatch.setattr(compare, "load_pretrained", other)
    return main(["parity", str(folder)])


def test_parity_sees_what_only_float64_can(hub, monkeypatch):
    def tiny(model): model.encoder.layers[1].output_norm.bias[3] += 1e-6
    assert moved(monkeypatch, hub[0] / "gpt2", tiny) == 1
    def cross(model): model.decoder.layers[0].cross.key.weight[0, 0] += 1e-6
    assert moved(monkeypatch, hub[0] / "t5-small", cross) == 1
    assert moved(monkeypatch, hub[0] / "t5-small", lambda model: None) == 0


def test_large_activations_are_no_difference(hub, tmp_path):
    "A trained GPT-2 has states in the thousands, where float32 is coarse; nothing is wrong with it."
    theirs = hf.GPT2LMHeadModel.from_pretrained(hub[0] / "distilgpt2")
    with torch.no_grad():
        theirs.transformer.wpe.weight[:, 5] += 3000.0
        theirs.transformer.h[0].mlp.c_proj.weight *= 3000.0
    theirs.save_pretrained(tmp_path)
    bpe().save(str(tmp_path / "tokenizer.json"))
    said, _ = call("parity", tmp_path, "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out/parity.json").read_text())
    assert result["same"] and result["parts"]["layer 1"]["float32"]["value"] > 2900
    assert result["parts"]["layer 1"]["float32"]["largest"] > 1e-5


@pytest.mark.slow
def test_inspect_draws_each_kind(hub, tmp_path):
    call("inspect", hub[0] / "gpt2", "anna lost é .", "--out", tmp_path / "gpt")
    assert {file.stem for file in (tmp_path / "gpt").glob("*.png")} == {"heads", "entropy", "rollout", "layer-0", "layer-1", "next", "lens"}
    call("inspect", hub[0] / "t5-small", "anna <extra_id_0> her ball .", "--out", tmp_path / "t5")
    assert {"heads", "cross-0", "cross-1"} <= {file.stem for file in (tmp_path / "t5").glob("*.png")}
    assert "Its answer:" in (tmp_path / "t5/index.html").read_text()
    assert "leave out --pair" in refused("inspect", hub[0] / "gpt2", "anna", "--pair", "tom", "--out", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_other_commands_say_what_they_need(hub):
    for kind in "gpt2", "t5-small":
        assert refused("fill-mask", hub[0] / kind, "anna [MASK]")


# --- stories by name ---


@pytest.mark.slow
def test_tinystories_stream_as_the_hub_keeps_them(shared_data, tmp_path):
    "Splits train and validation, a column text: the data set's layout on the hub."
    folder = shared_data / "tinystories"
    call("pretrain", "--model", "gpt", "--dataset", folder, "--streaming", "--steps", 2, "--batch-size", 2, "--length", 32,
         "--vocab-size", 300, "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["bits_per_byte"] > 1
    assert (tmp_path / "run/val/corpus.json").exists()


# --- the real ones ---


@pytest.mark.hub
@pytest.mark.parametrize("name", ["gpt2", "distilgpt2", "google-t5/t5-small", "google/t5-v1_1-small"])
def test_real_checkpoints_agree(name, tmp_path):
    said, _ = call("parity", name, "--out", tmp_path)
    assert "agree" in said
    if name == "google/t5-v1_1-small": pytest.importorskip("sentencepiece")
    ours, theirs = open_tokenizer(name), hf.AutoTokenizer.from_pretrained(name)
    for text in HARD + TEXTS[:10]: assert ours.ids(text) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.hub
def test_the_real_gpt2_writes_and_is_measured():
    assert call("generate", "gpt2", "Once upon a time", "--tokens", 20, "--temperature", 0)[0].startswith("Once upon a time")
    assert 0.5 < json.loads(call("evaluate", "gpt2", "--dataset", "stories")[0])["bits_per_byte"] < 2


@pytest.mark.hub
@pytest.mark.parametrize("name", ["google-t5/t5-small", "google/t5-v1_1-small"])
def test_a_real_t5_fills_a_gap(name):
    said, _ = call("generate", name, "The capital of France is [MASK].", "--tokens", 10, "--temperature", 0)
    assert said.startswith("The capital of France is") and "extra_id" not in said


@pytest.mark.hub
def test_tinystories_stream_by_name(tmp_path):
    documents = load_documents("roneneldan/TinyStories", None, "validation", streaming=True, limit=20)
    assert len(list(documents)) == 20
