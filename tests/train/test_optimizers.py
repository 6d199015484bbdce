"""The groups of parameters, and Muon beside PyTorch's own."""
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch

from minibert.train.checkpoints import optimizer_tensors, restore_optimizers_
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.heads import BertForPreTraining
from minibert.train.optimizers import BatchedMuon, make_optimizers, parameter_groups
from minibert.parity import assert_same
from minibert.train.recipe import TrainingConfig

CONFIG = TrainingConfig(steps=10, length=32, batch_size=4, optimizer="muon")


@pytest.fixture
def small(): return BertConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                               intermediate_size=64, max_position_embeddings=64)


def fresh(config): return BertForPreTraining(config, seeded(0, 0, 2))


def test_groups_are_a_partition(small):
    model = fresh(small)
    for optimizer in ("adamw", "muon"):
        groups = parameter_groups(model, replace(CONFIG, optimizer=optimizer))
        members = [id(p) for group in groups.values() for p in group]
        assert sorted(members) == sorted({id(p) for p in model.parameters()})
        names = {id(p): n for n, p in model.named_parameters()}
        assert {names[id(p)] for p in groups["no_decay"]} == {n for n, p in model.named_parameters() if n.endswith("bias") or "norm" in n}


def muon_path(kind, shapes, steps=4, missing=(), dtype=torch.float64):
    "Weights after some steps with drawn gradients; `missing` have none in the second step."
    generator = seeded(7)
    matrices = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
    muon = kind(matrices, lr=0.02, weight_decay=0.1)
    for step in range(steps):
        for k, p in enumerate(matrices):
            gradient = torch.randn(p.shape, generator=generator, dtype=dtype) * 10.0 ** (k - 2)
            p.grad = None if step == 1 and k in missing else gradient
        muon.step()
    return [p.detach() for p in matrices], muon


@pytest.mark.parametrize("shapes", [[(6, 6)], [(6, 9), (9, 6)], [(1, 5), (5, 1), (5, 5), (9, 6), (6, 9), (5, 5)]], ids=str)
@pytest.mark.parametrize("missing", [(), (0,)])
def test_batched_muon_is_torchs(shapes, missing):
    "In float64 all the way (PyTorch's rounds to bfloat16 otherwise) the two agree to the last digits."
    with patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        ours, theirs = (muon_path(kind, shapes, missing=missing)[0] for kind in (BatchedMuon, torch.optim.Muon))
    assert assert_same(ours, theirs, tol=1e-11) < 1e-11


def test_batched_muon_is_torchs_in_bfloat16_too():
    shapes = [(32, 32), (64, 32), (32, 64), (32, 32)]
    half = partial(BatchedMuon, precision="bfloat16")
    ours, theirs, full = (muon_path(kind, shapes, dtype=torch.float32)[0] for kind in (half, torch.optim.Muon, BatchedMuon))
    assert assert_same(ours, theirs, tol=5e-3) < 5e-3  # four steps of 0.02, three digits each
    assert not all(torch.equal(a, b) for a, b in zip(ours, full))


def test_muon_rounds_to_bfloat16_only_where_it_is_asked_to(small):
    "What a float32 run computes in bfloat16 takes ninety times as long where the processor lacks the instructions."
    model, cast = fresh(small), []
    plain = torch.Tensor.to
    def to(self, *args, **kwargs):
        if torch.bfloat16 in args: cast.append(self.shape)
        return plain(self, *args, **kwargs)
    for precision in ("float32", "bfloat16"):
        muon, _ = make_optimizers(model, replace(CONFIG, precision=precision))
        for p in model.parameters(): p.grad = torch.ones_like(p)
        with patch.object(torch.Tensor, "to", to), patch.object(torch.Tensor, "bfloat16", lambda x: to(x, torch.bfloat16)): muon.step()
        assert bool(cast) == (precision == "bfloat16")


def test_memory_of_either_muon_serves_the_other():
    "A run that began with PyTorch's Muon goes on with ours, and the other way."
    shapes = [(6, 6), (9, 6), (6, 9)]
    for one, other in ((BatchedMuon, torch.optim.Muon), (torch.optim.Muon, BatchedMuon)):
        matrices, muon = muon_path(one, shapes)
        again = other([torch.nn.Parameter(p.clone()) for p in matrices], lr=0.02, weight_decay=0.1)
        restore_optimizers_([again], {k: v.clone() for k, v in optimizer_tensors([muon]).items()})
        assert assert_same(optimizer_tensors([again]), optimizer_tensors([muon])) == 0
        again.step()
