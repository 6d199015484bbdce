"The config: what it refuses, what it reads and writes, and whether its predictions hold."
from dataclasses import asdict
import json
import os

import pytest
import torch
import transformers as hf

from minibert.config import SIZES, BertConfig, count_parameters
from minibert.core.files import write_whole
from minibert.heads import BertForPreTraining
from minibert.perf.memory import layer_activations, training_memory

NAN, INF = float("nan"), float("inf")
BAD = [
    ("vocab_size", 0), ("vocab_size", -1), ("vocab_size", 2.0), ("vocab_size", True), ("vocab_size", "8"),
    ("vocab_size", None), ("hidden_size", 0), ("hidden_size", 100), ("num_hidden_layers", 0),
    ("num_attention_heads", 0), ("num_attention_heads", 7), ("intermediate_size", 0),
    ("max_position_embeddings", 0), ("type_vocab_size", 0), ("hidden_act", "swish"), ("hidden_act", None),
    ("hidden_act", ["gelu"]), ("hidden_dropout_prob", -0.1), ("hidden_dropout_prob", 1.0),
    ("hidden_dropout_prob", NAN), ("hidden_dropout_prob", "0.1"), ("hidden_dropout_prob", True),
    ("attention_probs_dropout_prob", 1.5), ("attention_probs_dropout_prob", None),
    ("layer_norm_eps", 0), ("layer_norm_eps", -1e-12), ("layer_norm_eps", NAN), ("layer_norm_eps", INF),
    ("initializer_range", 0.0), ("initializer_range", True), ("pad_token_id", -1), ("pad_token_id", 30522),
    ("pad_token_id", None), ("pad_token_id", False), ("model_type", "distilbert"),
]  # fmt: skip


@pytest.mark.parametrize("name,value", BAD)
def test_an_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match="num_attention_heads|heads|" + name) as caught:
        BertConfig(**{name: value})
    assert str(caught.value).endswith(".")


def test_rotary_needs_an_even_head():
    BertConfig(hidden_size=24, num_attention_heads=4, model_type="roformer")
    with pytest.raises(ValueError, match="5 wide"):
        BertConfig(hidden_size=20, num_attention_heads=4, model_type="roformer")


def test_presets():
    for size, (layers, D, H) in SIZES.items():
        config = BertConfig.preset(size, vocab_size=99)
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (layers, D, H)
        assert config.intermediate_size == 4 * D and config.head_size == 64 and config.vocab_size == 99
    with pytest.raises(ValueError, match="choose one of tiny"): BertConfig.preset("huge")
    with pytest.raises(ValueError, match="did you mean 'vocab_size'"): BertConfig.preset("tiny", vocab_sise=9)
    with pytest.raises(ValueError, match="no field 'dropout'"): BertConfig.preset("tiny", dropout=0)


@pytest.mark.parametrize("kind", ["bert", "roformer"])
def test_json_both_ways(tmp_path, kind):
    ours = BertConfig(101, 24, 3, 4, 37, "relu", 0.0, 0.2, 19, 5, 0.05, 1e-7, 7, kind)
    ours.to_json_file(tmp_path / "config.json")
    theirs = hf.AutoConfig.from_pretrained(tmp_path)
    assert type(theirs) is (hf.BertConfig if kind == "bert" else hf.RoFormerConfig)
    assert all(getattr(theirs, k) == v for k, v in asdict(ours).items())
    theirs.save_pretrained(tmp_path)
    assert BertConfig.from_json_file(tmp_path / "config.json") == ours
    assert BertConfig.from_dict(ours.to_dict()) == BertConfig.from_dict(asdict(ours)) == ours


@pytest.mark.parametrize("kind", [hf.BertConfig, hf.RoFormerConfig])
def test_what_hugging_face_writes_by_default_is_read(tmp_path, kind):
    kind().save_pretrained(tmp_path)
    config = BertConfig.from_json_file(tmp_path / "config.json")
    assert config.vocab_size == kind().vocab_size
    assert BertConfig.from_dict(kind().to_dict()) == config


@pytest.mark.parametrize("values,words", [
    (dict(is_decoder=True), "is_decoder"),
    (dict(add_cross_attention=True), "add_cross_attention"),
    (dict(is_encoder_decoder=True), "is_encoder_decoder"),
    (dict(model_type="roformer", rotary_value=True), "rotary_value"),
    (dict(model_type="roformer", hidden_size=768, embedding_size=128), "embedding_size"),
    (dict(model_type="distilbert"), "distilbert"),
    (dict(model_type="bert", position_embedding_type="relative_key"), "relative_key"),
    (dict(position_embedding_type="relative_key_query"), "relative_key_query"),
    (dict(model_type="bert", position_embedding_type="rotary"), "rotary"),
    (dict(hiden_size=12), "hidden_size"),
])  # fmt: skip
def test_what_we_do_not_compute_is_refused(values, words):
    with pytest.raises(ValueError, match=words): BertConfig.from_dict(values)


def test_files_that_are_no_config(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError, match="no file"): BertConfig.from_json_file(path)
    with pytest.raises(FileNotFoundError, match="no file"): BertConfig.from_json_file(tmp_path)
    for content, words in [(b"", "no whole JSON"), (b'{"a', "no whole JSON"), (b"\xff\xfe\x00", "UTF-8"), (b"[1]", "no whole JSON")]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words): BertConfig.from_json_file(path)


def test_write_whole(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_whole(path, "grün\n")
    assert path.read_bytes() == "grün\n".encode()
    write_whole(str(path), b"\x00")
    assert path.read_bytes() == b"\x00"
    with pytest.raises(FileNotFoundError, match="no folder"): write_whole(tmp_path / "b" / "a", "")
    with pytest.raises((AttributeError, TypeError)): write_whole(path, 5)
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError): write_whole(path, b"new")
    assert path.read_bytes() == b"\x00" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("kind", ["bert", "roformer"])
@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_of_the_built_model(size, kind):
    config = BertConfig.preset(size, model_type=kind, type_vocab_size=3)
    with torch.device("meta"): model = BertForPreTraining(config)
    counts = count_parameters(config)
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    assert counts["model"] == sum(p.numel() for p in model.bert.parameters())
    parts = [name for name in counts if name not in ("model", "total")]
    assert sum(counts[name] for name in parts) == counts["total"]


def kept_bytes(config, batch, length, predicted, padding=3):
    "Bytes that autograd keeps of one forward pass with both losses, without parameters."
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForPreTraining(config).train()
        ids = torch.randint(1, config.vocab_size, (batch, length))
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found, alive = {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own: found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no address is used twice
        return tensor

    real, labels = torch.ones_like(ids), torch.full_like(ids, -100)
    if padding: real[:, -padding:] = 0
    labels[:, 1 : 1 + predicted] = ids[:, 1 : 1 + predicted]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, torch.zeros_like(ids), real, labels, torch.zeros(batch, dtype=torch.long))
    return sum(found.values())


@pytest.mark.parametrize("size", ["tiny", "mini"])
@pytest.mark.parametrize("change", [
    dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    dict(),
    dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0),
    dict(hidden_act="relu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    dict(model_type="roformer", attention_probs_dropout_prob=0.0),
])  # fmt: skip
def test_activations_are_those_that_autograd_keeps(size, change):
    config = BertConfig.preset(size, vocab_size=2003, **change)
    for batch, length, predicted in ((4, 96, 14), (2, 40, 1)):
        measured = kept_bytes(config, batch, length, predicted)
        said = training_memory(config, batch, length, predicted)["activations"]
        print(f"{size} {change} B={batch} S={length}: said {said:,}, kept {measured:,}, {said / measured - 1:+.2%}")
        assert abs(said - measured) < 0.1 * measured
    wrong = sum(layer_activations(config, 4, 96).values()) * 4
    assert abs(wrong - measured) > 0.1 * measured


def test_memory_of_a_batch_that_cannot_be():
    for batch, length, predicted in ((0, 8, 1), (1, 1, None), (1, 8, 0), (1, 8, 8)):
        with pytest.raises(ValueError, match="give 1 row"): training_memory(BertConfig(), batch, length, predicted)
    memory = training_memory(BertConfig(), 1, 8)
    assert memory["total"] == sum(v for k, v in memory.items() if k != "total")
    assert all(isinstance(v, int) for v in memory.values())


def test_a_config_is_plain_data():
    config = BertConfig.preset("tiny")
    assert json.loads(json.dumps(asdict(config))) == asdict(config)
    with pytest.raises(AttributeError): config.vocab_size = 5
