"""Checkpoints that are damaged or of another kind: each command names the file, and writes nothing."""
import json
import shutil

import pytest

from command import call, leaves_nothing, refused

ASKED = [("fill-mask", "RUN", "a [MASK]"), ("next-sentence", "RUN", "a", "b"), ("evaluate", "RUN", "--dataset", "stories"), ("inspect", "RUN", "a", "--out", "new"),
         ("parity", "RUN"), ("pretrain", "--start", "RUN", "--length", 32, "--out", "new"), ("finetune", "RUN", "--dataset", "who.csv")]


@pytest.fixture
def bare(run, tmp_path):
    "The model of a run, as somebody else may give it away: its weights, config and tokenizer."
    (tmp_path / "r").mkdir()
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(run / name, tmp_path / "r")
    (tmp_path / "who.csv").write_text("text,label\n" + "anna ran,a\ntom ran,b\n" * 20)
    return tmp_path / "r"


def ask(words, cwd): return leaves_nothing(*("r" if word == "RUN" else word for word in words), cwd=cwd)


@pytest.mark.parametrize("words", ASKED, ids=lambda words: words[0])
def test_weights_that_were_cut_off_are_named(bare, words):
    weights = bare / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "r/model.safetensors" in ask(words, bare.parent)


def without(weights): del weights["bert.encoder.layer.1.output.dense.weight"]
def foreign(weights): weights["bert.encoder.layer.9.output.dense.weight"] = weights["bert.encoder.layer.1.output.dense.weight"].clone()
def misshapen(weights): weights["bert.encoder.layer.1.output.dense.weight"] = weights["bert.encoder.layer.1.output.dense.weight"][:9].clone()


@pytest.mark.parametrize("harm", [without, foreign, misshapen])
def test_tensors_that_do_not_fit_are_named(bare, harm):
    from safetensors.torch import load_file, save_file
    weights = load_file(bare / "model.safetensors")
    harm(weights)
    save_file(weights, bare / "model.safetensors", {"format": "pt"})
    layer = "layer.9" if harm is foreign else "layer.1"
    assert f"bert.encoder.{layer}.output.dense.weight" in refused("fill-mask", bare, "a [MASK]")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff{}"], ids=["empty", "cut", "list", "binary"])
def test_a_damaged_small_file_is_named(bare, name, data):
    (bare / name).write_bytes(data)
    assert f"r/{name}" in leaves_nothing("fill-mask", "r", "a [MASK]", cwd=bare.parent)


@pytest.mark.parametrize("changes", [dict(vocab_size="9"), dict(hidden_size=None), dict(hidden_act="relu7"), dict(num_attention_heads=7),
                                     dict(position_embedding_type="relative_key")], ids=str)
def test_a_config_that_describes_no_model_of_ours_is_named(bare, changes):
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(config | changes))
    said = leaves_nothing("fill-mask", "r", "a [MASK]", cwd=bare.parent)
    assert any(name in said or str(value) in said for name, value in changes.items())


@pytest.mark.parametrize("words", [("fill-mask", "RUN", "a [MASK]"), ("classify", "RUN", "a"), ("next-sentence", "RUN", "a", "b"),
                                   ("finetune", "RUN", "--dataset", "who.csv", "--frozen"), ("pretrain", "--start", "RUN", "--length", 32, "--out", "new")], ids=lambda w: w[0])
def test_a_model_of_another_kind_is_refused(bare, gpt, words):
    shutil.rmtree(bare)
    shutil.copytree(gpt, bare)
    ask(words, bare.parent)


def test_what_transformers_saves_answers_alike(run, tmp_path):
    import transformers as hf
    hf.BertForPreTraining.from_pretrained(run).save_pretrained(tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(run / name, tmp_path)
    for words in (("fill-mask", "a [MASK]"), ("next-sentence", "it ran", "it sat")):
        assert call(words[0], tmp_path, *words[1:])[0] == call(words[0], run, *words[1:])[0]


def test_what_is_saved_over_is_opened_anew(bare):
    from minibert.tokenizer import WordPieceTokenizer
    from minibert.weights import load_pretrained, save_pretrained
    model, tokenizer = load_pretrained(bare), WordPieceTokenizer.from_pretrained(bare)
    model.nsp_head.bias.data += 1
    save_pretrained(model, None, bare)
    assert load_pretrained(bare).nsp_head.bias.data.equal(model.nsp_head.bias.data)
    WordPieceTokenizer([*tokenizer.pieces, "##quux"]).save_pretrained(bare)
    assert WordPieceTokenizer.from_pretrained(bare).pieces[-1] == "##quux"


def test_a_model_with_fewer_rows_than_its_tokenizer_has_pieces_is_refused(bare):
    from safetensors.torch import load_file, save_file
    config, weights = json.loads((bare / "config.json").read_text()), load_file(bare / "model.safetensors")
    for name, value in weights.items():
        if len(value) == config["vocab_size"]: weights[name] = value[:-4].clone()
    save_file(weights, bare / "model.safetensors", {"format": "pt"})
    (bare / "config.json").write_text(json.dumps(config | dict(vocab_size=config["vocab_size"] - 4)))
    refused("pretrain", "--start", "r", "--length", 32, "--out", "new", cwd=bare.parent)
    assert not (bare.parent / "new").exists()
