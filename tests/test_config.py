"The config: what it reads and writes, and whether its predictions hold."
from dataclasses import asdict
import json
import os

import pytest
import torch
import transformers as hf

from minibert.config import SIZES, BertConfig, count_parameters
from minibert.core.files import config_text, read_json, write_whole
from minibert.heads import BertForPreTraining
from minibert.nn.block import BlockConfig, BlockForPreTraining
from minibert.speed import FastBertForPreTraining, FastBlockForPreTraining
from minibert.perf.memory import layer_activations, training_memory




def test_presets():
    for size, (layers, D, H) in SIZES.items():
        config = BertConfig.preset(size, vocab_size=99)
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (layers, D, H)
        assert config.intermediate_size == 4 * D and config.head_size == 64 and config.vocab_size == 99
    with pytest.raises(KeyError, match="huge"): BertConfig.preset("huge")
    with pytest.raises(TypeError, match="vocab_sise"): BertConfig.preset("tiny", vocab_sise=9)
    with pytest.raises(AssertionError): BertConfig(hidden_size=100)
    with pytest.raises(AssertionError): BlockConfig(hidden_size=20, num_attention_heads=4)  # heads of 5


@pytest.mark.parametrize("kind", ["bert", "roformer"])
def test_json_both_ways(tmp_path, kind):
    kinds = dict(bert=BertConfig, roformer=BlockConfig)
    ours = kinds[kind](101, 24, 3, 4, 37, "relu", 0.0, 0.2, 19, 5, 0.05, 1e-7, 7)
    path = tmp_path / "config.json"
    path.write_text(config_text(ours.to_dict()))
    theirs = hf.AutoConfig.from_pretrained(tmp_path)
    assert type(theirs) is (hf.BertConfig if kind == "bert" else hf.RoFormerConfig)
    assert all(getattr(theirs, k) == v for k, v in ours.to_dict().items())
    theirs.save_pretrained(tmp_path)
    assert kinds[kind].from_dict(read_json(path)) == ours
    assert kinds[kind].from_dict(ours.to_dict()) == kinds[kind].from_dict(asdict(ours)) == ours


@pytest.mark.parametrize("kind", [hf.BertConfig, hf.RoFormerConfig])
def test_what_hugging_face_writes_by_default_is_read(tmp_path, kind):
    kind().save_pretrained(tmp_path)
    config = BertConfig.from_dict(read_json(tmp_path / "config.json"))
    assert config.vocab_size == kind().vocab_size
    assert BertConfig.from_dict(kind().to_dict()) == config




def test_write_whole(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_whole(path, "grün\n")
    assert path.read_bytes() == "grün\n".encode()
    write_whole(str(path), b"\x00")
    assert path.read_bytes() == b"\x00"
    with pytest.raises(FileNotFoundError, match=r"b.+a"): write_whole(tmp_path / "b" / "a", "")
    with pytest.raises((AttributeError, TypeError)): write_whole(path, 5)
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError): write_whole(path, b"new")
    assert path.read_bytes() == b"\x00" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("kind", ["bert", "roformer"])
@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_of_the_built_model(size, kind):
    config, model = (BertConfig, BertForPreTraining) if kind == "bert" else (BlockConfig, BlockForPreTraining)
    config = config.preset(size, type_vocab_size=3)
    with torch.device("meta"): model = model(config)
    counts = count_parameters(config)
    if kind == "roformer":  # it has no table of positions
        for part in ("model", "total"): counts[part] -= counts["positions"]
        counts["positions"] = 0
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    assert counts["model"] == sum(p.numel() for p in model.bert.parameters())
    parts = [name for name in counts if name not in ("model", "total")]
    assert sum(counts[name] for name in parts) == counts["total"]


def kept_bytes(config, batch, length, predicted, padding=3):
    "Bytes that autograd keeps of one forward pass with both losses, without parameters."
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind = FastBlockForPreTraining if isinstance(config, BlockConfig) else FastBertForPreTraining
        model = kind(config).train()
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
    kind = BlockConfig if "model_type" in change else BertConfig
    config = kind.preset(size, vocab_size=2003, **change)
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
