"""Checkpoints both ways: what real files hold, what is refused, and that transformers opens what we write."""
import builtins
import errno
import json
import os
import pickle
import shutil
import warnings
from dataclasses import asdict

import huggingface_hub
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from minibert.hub.compare import compare_with_hf, comparison_table
from minibert.config import BertConfig
from minibert.core.errors import UserError, explain
from minibert.heads import BertForPreTraining, fill_mask, next_sentence
from minibert.nn.block import BlockConfig, BlockForPreTraining
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import from_hf, load_encoder, load_pretrained, name_table, save_pretrained, to_hf

WORDS = ("[PAD] [UNK] [CLS] [SEP] [MASK] . anna tom sam she he it lost found her his the red blue green ball kite "
         "book under on in bed tree box ##s ##ed").split()
CONFIG = BertConfig(vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=37, max_position_embeddings=24)
ROTARY = BlockConfig(**asdict(CONFIG) | dict(model_type="roformer"))
SENTENCE = "anna lost her [MASK] ball ."


def our_model(config): return (BlockForPreTraining if config is ROTARY else BertForPreTraining)(config)


def their_model(kind=None, seed=0, **more):
    config = hf.BertConfig(**asdict(CONFIG), attn_implementation="eager", **more)
    return randomise_((kind or hf.BertForPreTraining)(config), seed).eval()


@pytest.fixture(scope="module")
def theirs(): return their_model()


@pytest.fixture(scope="module")
def tokenizer(): return WordPieceTokenizer(WORDS)


@pytest.fixture
def folder(theirs, tmp_path):
    "A checkpoint as transformers writes it."
    theirs.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def quiet(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a notice where none is due is a failure
        return call(*args, **kwargs)


def equal(ours, theirs, tol=0): assert_same(ours.state_dict(), from_hf(theirs).state_dict(), tol=tol)


def rewrite(folder, change):
    "Change the dictionary in the folder's model.safetensors."
    state = load_file(folder / "model.safetensors")
    save_file(change(state), folder / "model.safetensors", {"format": "pt"})


def refused(call, *args, error=UserError, says=(), **kwargs):
    with pytest.raises(error) as caught: call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message, message
    for word in says: assert word in message, message
    return message


# --- the table ---


@pytest.mark.parametrize("config", [CONFIG, ROTARY, BertConfig.preset("base")], ids=["absolute", "rotary", "base"])
def test_the_table_is_a_bijection_of_equal_shapes(config):
    table, rotary = name_table(config), config.model_type == "roformer"
    assert len(set(table.values())) == len(table)
    with torch.device("meta"):
        ours = our_model(config).state_dict()
        kind = (hf.RoFormerForMaskedLM, hf.RoFormerConfig) if rotary else (hf.BertForPreTraining, hf.BertConfig)
        theirs = kind[0](kind[1](**config.to_dict())).state_dict()
    assert table.keys() == ours.keys()
    for a, b in table.items():
        if b in theirs: assert ours[a].shape == theirs[b].shape
    apart = set(table.values()) ^ theirs.keys()
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    none = {"roformer.pooler.dense.weight", "roformer.pooler.dense.bias", "cls.seq_relationship.weight",
            "cls.seq_relationship.bias", "roformer.encoder.embed_positions.weight"}
    assert apart == (tied | none if rotary else tied)


# --- what real files hold ---


def test_a_folder_of_theirs(folder, theirs):
    ours = quiet(load_pretrained, folder)
    assert not ours.training and ours.config == CONFIG
    equal(ours, theirs)
    assert all(p.requires_grad for p in ours.parameters())
    quiet(load_pretrained, str(folder))


def drop_prefix(state): return {n.removeprefix("bert."): t for n, t in state.items()}
def gamma_beta(state):
    return {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in state.items()}
def positions(state): return state | {"bert.embeddings.position_ids": torch.arange(24)[None]}
def decoder(state):
    return state | {"cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"].clone(),
                    "cls.predictions.decoder.bias": state["cls.predictions.bias"].clone()}
def only_decoder_bias(state):
    state = dict(state)
    return state | {"cls.predictions.decoder.bias": state.pop("cls.predictions.bias")}
def everything_old(state): return drop_prefix(positions(gamma_beta(decoder(state))))


@pytest.mark.parametrize("change", [drop_prefix, gamma_beta, positions, decoder, only_decoder_bias, everything_old])
def test_old_spellings(folder, theirs, change):
    rewrite(folder, change)
    equal(quiet(load_pretrained, folder), theirs)


def test_a_plain_model_starts_its_heads_fresh_and_says_so(tmp_path):
    plain = their_model(hf.BertModel)
    plain.save_pretrained(tmp_path)
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match="no MLM head, NSP head"): ours = load_pretrained(tmp_path)
    with pytest.warns(UserWarning): again = load_pretrained(tmp_path)
    assert_same(ours.state_dict(), again.state_dict(), tol=0)  # fresh, but the same every time
    assert 0.01 < ours.mlm_head.dense.weight.std() < 0.03 and not ours.nsp_head.bias.any()
    inputs = {n: t for n, t in reference_batch(CONFIG).items() if "label" not in n}
    with torch.no_grad(): a, b = ours.bert(**inputs), plain(**inputs)
    assert_same(a.last_hidden_state, b.last_hidden_state, mask=inputs["attention_mask"], tol=1e-5)
    assert_same(a.pooler_output, b.pooler_output, tol=1e-5)


def test_fresh_heads_leave_the_global_random_numbers_alone():
    state = their_model(hf.BertModel).state_dict()
    before = torch.get_rng_state()
    with pytest.warns(UserWarning): from_hf(state, CONFIG)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind, missing", [(hf.BertForMaskedLM, "pooler, NSP head"), (hf.BertForNextSentencePrediction, "MLM head")])
def test_one_head_alone(tmp_path, kind, missing):
    model = their_model(kind)
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=f"no {missing}:"): ours = load_pretrained(tmp_path)
    held = [n for n in name_table(CONFIG).values() if n in model.state_dict()]
    assert_same({n: to_hf(ours)[n] for n in held}, {n: model.state_dict()[n] for n in held}, tol=0)


@pytest.mark.parametrize("kind, name", [(hf.BertForMultipleChoice, "classifier"), (hf.BertForQuestionAnswering, "qa_outputs")])
def test_a_foreign_head_is_ignored_and_that_is_said(tmp_path, kind, name):
    their_model(kind).save_pretrained(tmp_path)
    with pytest.warns(UserWarning) as notices: load_pretrained(tmp_path, architecture="BertForPreTraining")
    assert [name in str(n.message) and "ignored" in str(n.message) for n in notices] == [True, False]


def test_a_classifier_opened_as_what_it_grew_from(tmp_path):
    their_model(hf.BertForSequenceClassification).save_pretrained(tmp_path)
    with pytest.warns(UserWarning) as notices: ours = load_pretrained(tmp_path, architecture="BertForPreTraining")
    assert "classifier" in str(notices[0].message) and "no MLM head, NSP head" in str(notices[1].message)
    encoder = quiet(load_encoder, tmp_path)
    assert_same(encoder.state_dict(), ours.bert.state_dict(), tol=0)


@pytest.mark.parametrize("said", [True, False])
def test_tied_weights_are_known_by_the_tensors_not_by_the_flag(folder, theirs, said):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": said}))
    rewrite(folder, decoder)
    equal(quiet(load_pretrained, folder), theirs)
    rewrite(folder, own_decoder)
    refused(load_pretrained, folder, says=["ties"])


def test_shards(tmp_path, theirs):
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    equal(quiet(load_pretrained, tmp_path), theirs)


def old_pickle(folder, state, legacy=False):
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)


@pytest.mark.parametrize("legacy", [False, True])
def test_an_old_pickle_is_read_as_data(folder, theirs, legacy):
    old_pickle(folder, theirs.state_dict(), legacy)
    equal(quiet(load_pretrained, folder), theirs)


def test_pickles_in_shards(folder, theirs):
    state = {n: t.clone() for n, t in theirs.state_dict().items()}
    (folder / "model.safetensors").unlink()
    names, index = list(state), {}
    for k in range(2):
        part = names[k::2]
        torch.save({n: state[n] for n in part}, folder / f"pytorch_model-{k}.bin")
        index |= {n: f"pytorch_model-{k}.bin" for n in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    equal(quiet(load_pretrained, folder), theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_kept_both_ways(tmp_path, dtype):
    theirs = their_model().to(dtype)
    theirs.save_pretrained(tmp_path / "a")
    ours = quiet(load_pretrained, tmp_path / "a")
    assert {p.dtype for p in ours.parameters()} == {p.dtype for p in from_hf(theirs).parameters()} == {dtype}
    save_pretrained(ours, None, tmp_path / "b")
    assert json.loads((tmp_path / "b/config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    back = hf.BertForPreTraining.from_pretrained(tmp_path / "b")
    assert back.dtype == dtype
    assert_same(dict(back.state_dict()), dict(theirs.state_dict()), tol=0)


def test_the_weights_are_copies():
    theirs = their_model()
    ours, before = from_hf(theirs), theirs.bert.pooler.dense.bias.detach().clone()
    with torch.no_grad(): ours.bert.pooler.bias.zero_()
    assert torch.equal(theirs.bert.pooler.dense.bias, before)


# --- what is refused ---


def without(part): return lambda state: {n: t for n, t in state.items() if part not in n}
def cut_row(state): return state | {"bert.pooler.dense.weight": state["bert.pooler.dense.weight"][:-1].clone()}
def whole_numbers(state): return state | {"bert.pooler.dense.weight": state["bert.pooler.dense.weight"].to(torch.int8)}
def one_layer_more(state): return state | {"bert.encoder.layer.2.output.dense.bias": torch.zeros(24)}
def own_decoder(state): return state | {"cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"] + 1}
def nothing(state): return {}


@pytest.mark.parametrize("change, says", [
    (without("attention.self.key"), "lacks"), (without("transform.dense"), "lacks"), (without("pooler.dense.bias"), "lacks"),
    (without("word_embeddings"), "lacks"), (nothing, "lacks"), (cut_row, "pooler.dense.weight"), (whole_numbers, "pooler.dense.weight"),
    (one_layer_more, "layer.2.output"), (own_decoder, "decoder")])
def test_a_file_that_does_not_fit(folder, change, says):
    rewrite(folder, change)
    refused(load_pretrained, folder, says=[says, str(folder)])


def test_nothing_is_said_before_it_is_refused(folder):
    rewrite(folder, lambda state: without("cls.")(cut_row(state)) | {"classifier.weight": torch.zeros(2, 24)})
    quiet(refused, load_pretrained, folder, says=["pooler.dense.weight"])


@pytest.mark.parametrize("change, says", [
    ({"model_type": "llama"}, "llama"), ({"model_type": "distilbert"}, "distilbert"), ({"is_decoder": True}, "is_decoder"),
    ({"num_hidden_layers": 3}, "layer.2"), ({"num_hidden_layers": 1}, "layer.1"), ({"hidden_size": 28}, "LayerNorm"),
    ({"vocab_size": 7}, "word_embeddings"), ({"hidden_act": "silu"}, "hidden_act"), ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
    ({"position_embedding_type": "relative_key"}, "relative_key")])
def test_a_config_that_does_not_fit(folder, change, says):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(load_pretrained, folder, says=[says])


@pytest.mark.parametrize("share", [0, 0.0001, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_cut_short(folder, theirs, share, name, legacy):
    if name == "pytorch_model.bin": old_pickle(folder, theirs.state_dict(), legacy)
    elif legacy: pytest.skip("one format alone")
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[: int(len(raw) * share)])
    refused(load_pretrained, folder, says=[name])


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_file_of_garbage(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(bytes(range(256)) * 40)
    refused(load_pretrained, folder, says=[name])


class Trap:
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.mkdir, (self.path,)


@pytest.mark.parametrize("legacy", [False, True, None])
def test_a_malicious_pickle_does_not_run(folder, tmp_path, legacy):
    sprung = tmp_path / "sprung"
    if legacy is None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"bert.pooler.dense.bias": Trap(str(sprung))}))
    else: old_pickle(folder, {"bert.pooler.dense.bias": Trap(str(sprung))}, legacy)
    refused(load_pretrained, folder, says=["pytorch_model.bin"])
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(str(sprung))))  # the control: the trap does work
    assert sprung.exists()


def test_a_pickle_of_something_else(folder):
    old_pickle(folder, [torch.zeros(3)])
    refused(load_pretrained, folder, says=["pytorch_model.bin"])


@pytest.mark.parametrize("content", ["", "{", '{"weight_map": 3}', '{"weight_map": {}}', "[]"])
def test_a_bad_index(folder, content):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    refused(load_pretrained, folder)


def test_a_shard_that_is_not_there(tmp_path, theirs):
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    refused(load_pretrained, tmp_path, error=FileNotFoundError, says=[gone.name])


def test_an_index_does_not_reach_outside_the_folder(tmp_path, folder):
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../outside.safetensors"}}')
    refused(load_pretrained, folder, error=FileNotFoundError)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_a_bad_config_file(folder, content):
    (folder / "config.json").write_text(content)
    refused(load_pretrained, folder)


def test_folders_that_are_none(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(load_pretrained, tmp_path / "empty", error=FileNotFoundError, says=["config.json"])
    refused(load_pretrained, tmp_path / "nowhere", error=FileNotFoundError, says=["nowhere"])
    refused(load_pretrained, "./nowhere", error=FileNotFoundError, says=["nowhere"])
    refused(load_pretrained, folder / "config.json", error=FileNotFoundError, says=["config.json"])
    (folder / "model.safetensors").unlink()
    refused(load_pretrained, folder, error=FileNotFoundError, says=[str(folder)])


# --- the hub ---


def cached(theirs, cache, name="someone/tiny", commit="0" * 40):
    "A model in the cache, as the hub's client lays it out."
    repository = cache / f"models--{name.replace('/', '--')}"
    theirs.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    return name


def test_a_cached_model_needs_no_network(theirs, tmp_path):
    name = cached(theirs, tmp_path)
    equal(quiet(load_pretrained, name, cache_dir=tmp_path, local_files_only=True), theirs)
    equal(quiet(load_pretrained, name, cache_dir=tmp_path, local_files_only=True, revision="0" * 40), theirs)
    refused(load_pretrained, name, cache_dir=tmp_path, local_files_only=True, revision="other")
    refused(load_pretrained, "someone/else", cache_dir=tmp_path, local_files_only=True, says=["someone/else"])


def test_what_the_hub_answers(monkeypatch):
    import httpx
    from huggingface_hub import errors

    def client(error):
        def answer(*args, **kwargs): raise error
        return answer

    response = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))
    for error in [
        errors.RepositoryNotFoundError("no\nsuch", response=response), errors.GatedRepoError("gated", response=response),
        errors.RevisionNotFoundError("none", response=response), errors.LocalEntryNotFoundError("offline\nlines"),
        errors.HFValidationError("odd"),
    ]:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", client(error))
        refused(load_pretrained, "someone/model", says=[type(error).__name__, "someone/model"])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", client(OSError(errno.ENOSPC, "no space left")))
    refused(load_pretrained, "someone/model", error=OSError, says=["no space left"])


def test_a_pickle_is_fetched_only_where_there_is_nothing_better(folder, theirs, monkeypatch):
    asked = []
    def client(name, allow_patterns, revision=None):
        asked.append((name, revision, tuple(allow_patterns)))
        return str(folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", client)
    load_pretrained("someone/model", revision="v1")
    assert len(asked) == 1 and asked[0][:2] == ("someone/model", "v1") and not any("bin" in p for p in asked[0][2])
    old_pickle(folder, theirs.state_dict())
    load_pretrained("someone/model")
    assert any("pytorch_model" in p for p in asked[-1][2])


# --- out again ---


def test_to_hf_is_their_state_dict(theirs):
    ours = from_hf(theirs)
    assert_same(to_hf(ours), dict(theirs.state_dict()), tol=0)
    assert_same(from_hf(to_hf(ours), CONFIG).state_dict(), ours.state_dict(), tol=0)
    their_model(seed=1).load_state_dict(to_hf(ours))  # strict
    assert to_hf(ours)["cls.predictions.bias"].data_ptr() == ours.mlm_head.bias.data_ptr()


def opened(kind, folder, **more):
    model, info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager", **more)
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["error_msgs"]
    return model.eval(), info["unexpected_keys"]


def test_transformers_opens_what_we_save(theirs, tokenizer, tmp_path):
    ours = from_hf(theirs).eval()
    save_pretrained(ours, tokenizer, tmp_path / "run")
    back, extra = opened(hf.BertForPreTraining, tmp_path / "run")
    assert not extra
    assert_same(dict(back.state_dict()), dict(theirs.state_dict()), tol=0)
    equal(quiet(load_pretrained, tmp_path / "run"), theirs)

    theirs.save_pretrained(tmp_path / "theirs")  # a smaller class has no use for the heads, whoever wrote the file
    for kind in (hf.BertModel, hf.BertForMaskedLM):
        _, extra = opened(kind, tmp_path / "run")
        assert extra == opened(kind, tmp_path / "theirs")[1]

    auto = hf.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert len(auto) == len(WORDS)
    for text in ("anna lost her red ball .", "She FOUND it: the box!", SENTENCE):
        assert auto(text)["input_ids"] == list(tokenizer.encode(text)["input_ids"])
    back = WordPieceTokenizer.from_pretrained(tmp_path / "run")
    assert list(back.encode(SENTENCE)["input_ids"]) == list(tokenizer.encode(SENTENCE)["input_ids"])


def top(pipe, text, k=5):
    rows = pipe(text, top_k=k)
    rows = rows if isinstance(rows[0], list) else [rows]
    return [[(row["token_str"], row["score"]) for row in mask] for mask in rows]


def same_guesses(ours, theirs):
    assert [word for word, _ in ours] == [word for word, _ in theirs]
    assert max(abs(p - q) for (_, p), (_, q) in zip(ours, theirs)) < 1e-6


@pytest.mark.parametrize("config", [CONFIG, ROTARY], ids=["absolute", "rotary"])
def test_fill_mask_equals_their_pipeline(config, tokenizer, tmp_path):
    ours = randomise_(our_model(config)).eval()
    save_pretrained(ours, tokenizer, tmp_path / "run")
    pipe = hf.pipeline("fill-mask", model=str(tmp_path / "run"))
    texts = [SENTENCE, "[MASK] found it under the [MASK] .", "the [MASK] [MASK]"]
    answers = fill_mask(ours, tokenizer, texts)
    assert [len(masks) for masks in answers] == [1, 2, 2]
    for text, masks in zip(texts, answers):
        for mine, other in zip(masks, top(pipe, text)): same_guesses(mine, other)
        for mine, alone in zip(masks, fill_mask(ours, tokenizer, text)): same_guesses(mine, alone)


def test_fill_mask_takes_what_it_should(theirs, tokenizer):
    ours = from_hf(theirs).train()
    everything = fill_mask(ours, tokenizer, SENTENCE, k=10_000)[0]
    assert len(everything) == len(WORDS) and abs(sum(p for _, p in everything) - 1) < 1e-9
    assert everything[:2] == fill_mask(ours, tokenizer, SENTENCE, k=2)[0]
    assert ours.training  # the mode is put back


def test_next_sentence(theirs, tokenizer):
    ours = from_hf(theirs).double()
    a, b = "anna lost her ball .", "she found it under the bed ."
    share = next_sentence(ours, tokenizer, a, b)
    ids = torch.tensor([tokenizer.encode(a, b)["input_ids"]])
    types = torch.tensor([tokenizer.encode(a, b)["token_type_ids"]])
    with torch.no_grad(): logits = their_model().double()(ids, token_type_ids=types).seq_relationship_logits
    assert abs(share - logits.softmax(-1)[0, 0].item()) < 1e-9  # label 0: it really follows
    assert share != next_sentence(ours, tokenizer, b, a)


# --- written whole or not at all ---


class Failing:
    def save_pretrained(self, folder, **model):
        (folder / "vocab.txt").write_text("half")
        raise OSError("the disk is full")


def contents(folder): return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_save_that_fails_leaves_what_was_there(theirs, tokenizer, tmp_path):
    save_pretrained(from_hf(theirs), tokenizer, tmp_path / "run")
    before = contents(tmp_path)
    other = from_hf(their_model(seed=1))
    for folder in ("run", "new", "deep/new"):
        with pytest.raises(OSError, match="disk"): save_pretrained(other, Failing(), tmp_path / folder)
    assert contents(tmp_path) == before and not (tmp_path / "new").exists()


def test_a_folder_of_others_is_not_clobbered(theirs, tokenizer, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    save_pretrained(from_hf(their_model(seed=1)), tokenizer, tmp_path / "run")
    save_pretrained(from_hf(theirs), tokenizer, tmp_path / "run")
    assert (tmp_path / "run/notes.txt").read_text() == "mine"
    equal(load_pretrained(tmp_path / "run"), theirs)
    assert [f.name for f in tmp_path.iterdir()] == ["run"]
    refused(save_pretrained, from_hf(theirs), tokenizer, tmp_path / "run/notes.txt", error=OSError)
    assert (tmp_path / "run/notes.txt").read_text() == "mine"


def test_saving_into_the_working_folder(theirs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_pretrained(from_hf(theirs), None, ".")
    equal(load_pretrained("."), theirs)


# --- RoFormer, the same with rotary positions ---


def test_roformer_there_and_back(tokenizer, tmp_path):
    ours = randomise_(our_model(ROTARY)).eval()
    save_pretrained(ours, tokenizer, tmp_path / "run")
    theirs, extra = opened(hf.RoFormerForMaskedLM, tmp_path / "run")
    assert not extra  # pooler and NSP head, which RoFormer does not have, lie in a file of their own
    assert set(load_file(tmp_path / "run/next_sentence.safetensors")) == {
        "roformer.pooler.dense.weight", "roformer.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"}
    assert_same(quiet(load_pretrained, tmp_path / "run").state_dict(), ours.state_dict(), tol=0)
    hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "run")

    inputs = {n: t for n, t in reference_batch(ROTARY).items() if "label" not in n}
    with torch.no_grad(): a, b = ours(**inputs).prediction_logits, theirs(**inputs).logits
    assert_same(a, b, mask=inputs["attention_mask"], tol=1e-5)

    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.warns(UserWarning, match="no pooler, NSP head"): back = load_pretrained(tmp_path / "theirs")
    assert back.config == ROTARY
    assert_same(back.mlm_head.state_dict(), ours.mlm_head.state_dict(), tol=0)
    assert_same(back.bert.encoder.state_dict(), ours.bert.encoder.state_dict(), tol=0)
    assert_same(from_hf(to_hf(ours), ROTARY).state_dict(), ours.state_dict(), tol=0)


def test_a_bert_saved_over_a_roformer_does_not_read_its_leftovers(theirs, tmp_path):
    save_pretrained(randomise_(our_model(ROTARY)), None, tmp_path)
    save_pretrained(from_hf(theirs), None, tmp_path)
    equal(quiet(load_pretrained, tmp_path), theirs)


@pytest.mark.parametrize("change, says", [({"embedding_size": 12}, "embeddings"), ({"rotary_value": True}, "rotary_value")])
def test_roformers_that_are_not_ours(tmp_path, change, says):
    hf.RoFormerForMaskedLM(hf.RoFormerConfig(**ROTARY.to_dict() | change)).save_pretrained(tmp_path)
    refused(load_pretrained, tmp_path, says=[says])


# --- the comparison behind `minibert parity` ---


@pytest.mark.parametrize("config", [CONFIG, ROTARY], ids=["absolute", "rotary"])
def test_compare_with_hf(config, tokenizer, tmp_path):
    save_pretrained(randomise_(our_model(config)), tokenizer, tmp_path / "run")
    result = compare_with_hf(tmp_path / "run", ["anna lost her red ball .", "she found it ."], out=tmp_path / "out")
    assert result["same"] and result["largest"]["float32"] < 1e-5
    rotary = config is ROTARY  # theirs stores its angles in float32
    assert result["largest"]["float64"] < (1e-6 if rotary else 1e-12)
    expected = ["embeddings", "attention 1", "layer 1", "attention 2", "layer 2"]
    expected += ["MLM logits"] if rotary else ["pooler", "MLM logits", "NSP logits"]
    assert list(result["parts"]) == expected
    assert json.loads((tmp_path / "out/parity.json").read_text()) == result
    assert (tmp_path / "out/parity.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["parity.json", "parity.png"]
    assert all(part in comparison_table(result) for part in [*expected, "agree"])


def test_compare_with_a_plain_model(tokenizer, tmp_path):
    their_model(hf.BertModel).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning): result = compare_with_hf(tmp_path)
    assert result["same"] and result["skipped"] == ["MLM logits", "NSP logits"] and "pooler" in result["parts"]


def test_compare_notices_a_difference(theirs, tokenizer, tmp_path, monkeypatch):
    save_pretrained(from_hf(theirs), tokenizer, tmp_path)
    def other(folder):
        model = load_pretrained(folder)
        with torch.no_grad(): model.bert.encoder.layers[1].output_norm.bias[3] += 1e-3
        return model
    monkeypatch.setitem(compare_with_hf.__globals__, "load_pretrained", other)
    result = compare_with_hf(tmp_path)
    assert not result["same"] and "DIFFER" in result["verdict"]
    assert result["parts"]["layer 1"]["float32"]["largest"] < 1e-5 < 9e-4 < result["parts"]["layer 2"]["float32"]["largest"]


def test_compare_without_transformers(folder, monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError) as caught: compare_with_hf(folder)
    said, code = explain(caught.value)
    assert code == 2 and "minibert-course[extra]" in said
    shutil.rmtree(folder)


# --- the tokenizers are compared too ---


def test_tokenizers_that_differ_are_no_agreement(theirs, tokenizer, tmp_path, monkeypatch):
    "The same weights, but the text is cut differently: `agree` would be a lie."
    save_pretrained(from_hf(theirs), tokenizer, tmp_path)
    assert compare_with_hf(tmp_path)["ids"] is None
    cased = type(tokenizer)(tokenizer.pieces, lowercase=False)
    monkeypatch.setattr(type(tokenizer), "from_pretrained", lambda folder: cased)
    result = compare_with_hf(tmp_path, ["anna lost it .", "Anna lost it ."], out=tmp_path / "out")
    assert not result["same"] and result["largest"]["float32"] < 1e-5
    assert result["ids"] == dict(text="Anna lost it .", ours=cased.encode("Anna lost it .")["input_ids"], theirs=tokenizer.encode("Anna lost it .")["input_ids"])
    assert "DIFFER" in result["verdict"] and "'Anna lost it .' otherwise" in comparison_table(result)
    assert json.loads((tmp_path / "out/parity.json").read_text()) == result


@pytest.mark.parametrize("name, content", [
    ("added_tokens.json", {"[ENT]": len(WORDS)}), ("special_tokens_map.json", {"additional_special_tokens": ["[ENT]"]}),
    ("tokenizer_config.json", {"mask_token": "[ENT]"})])
def test_added_tokens_are_no_agreement(theirs, tokenizer, tmp_path, name, content):
    save_pretrained(from_hf(theirs), tokenizer, tmp_path)
    path = tmp_path / name
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(old | content))
    refused(compare_with_hf, tmp_path, error=ValueError, says=["[ENT]"])


def test_files_of_added_tokens_are_fetched(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns, **where: asked.extend(allow_patterns) or str(folder))
    load_pretrained("someone/model")
    assert {"added_tokens.json", "special_tokens_map.json"} <= set(asked)


def test_a_text_as_long_as_the_model_is_wide(tokenizer, tmp_path, monkeypatch):
    "The pooler's row of D values is not one of S positions, whatever S is."
    save_pretrained(randomise_(BertForPreTraining(CONFIG)), tokenizer, tmp_path)
    def other(folder):
        model = load_pretrained(folder)
        with torch.no_grad(): model.bert.pooler.bias[-1] += 0.5
        return model
    monkeypatch.setitem(compare_with_hf.__globals__, "load_pretrained", other)
    texts = ["anna " * (CONFIG.hidden_size - 2), "anna"]
    pooler = compare_with_hf(tmp_path, texts)["parts"]["pooler"]["float32"]
    batch = tokenizer.encode_batch(texts, return_tensors="pt")
    assert batch["input_ids"].shape[1] == CONFIG.hidden_size
    with torch.no_grad():
        a, b = (model.bert.pooler(model.bert(**batch).last_hidden_state[:, 0]).tanh() for model in (load_pretrained(tmp_path), other(tmp_path)))
    assert abs(pooler["mean"] - (a - b).abs().mean().item()) < 1e-6 < 1e-4 < pooler["largest"], "over all D values of both texts"


def test_nan_on_both_sides_is_no_agreement(theirs, tokenizer, tmp_path):
    "NaN is larger than nothing: the largest of several differences must not lose it."
    ours = from_hf(theirs)
    with torch.no_grad(): ours.bert.encoder.layers[1].feed_forward.up.bias[0] = float("nan")
    save_pretrained(ours, tokenizer, tmp_path)
    result = compare_with_hf(tmp_path)
    assert not result["same"] and "DIFFER" in result["verdict"] and "nan" in result["verdict"]


# --- what the operating system refuses ---


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kind, number", [(PermissionError, errno.EACCES), (OSError, errno.EMFILE)])
def test_a_file_that_may_not_be_read_is_not_called_damaged(folder, theirs, monkeypatch, file, kind, number):
    if file != "model.safetensors": old_pickle(folder, theirs.state_dict())
    real = builtins.open
    def refuse(path, *args, **options):
        if str(path).endswith(file): raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **options)
    monkeypatch.setattr(builtins, "open", refuse)
    refused(load_pretrained, folder, error=kind, says=[file, os.strerror(number)])
