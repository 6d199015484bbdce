"The tools that all other checks rely on: what they let pass, and what they refuse."
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from minibert.config import BertConfig
from minibert.parity import assert_same, randomise_, reference_batch

NAN, INF = math.nan, math.inf
ONE = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4)


def changed(where, value, tensor=ONE):
    tensor = tensor.clone()
    tensor[where] = value
    return tensor


def refused(*args, words="", **options):
    with pytest.raises(AssertionError) as caught: assert_same(*args, **options)
    assert words in str(caught.value)
    return str(caught.value)


def test_equal_things_pass_and_give_the_largest_difference():
    assert assert_same(ONE, ONE.clone()) == 0
    assert assert_same(ONE, ONE + 5e-10) == pytest.approx(5e-10, rel=1e-3)
    assert assert_same([ONE, (ONE, ONE + 1e-10)], (ONE, [ONE, ONE])) == pytest.approx(1e-10, rel=1e-3)
    assert assert_same({"a": ONE, "b": ONE}, OrderedDict(b=ONE, a=ONE)) == 0
    assert assert_same(ONE.clone().requires_grad_(), ONE) == 0
    assert assert_same(ONE.transpose(0, 1), ONE.transpose(0, 1).contiguous()) == 0
    assert assert_same(torch.tensor(2.0, dtype=torch.float64), 2.0) == 0
    assert assert_same(3, 3) == assert_same(True, True) == assert_same([1.0], [1.0]) == 0
    assert assert_same(np.ones(3), torch.ones(3, dtype=torch.float64)) == 0
    assert assert_same(torch.tensor([1, 2]), torch.tensor([1, 2])) == 0
    assert assert_same(torch.tensor([True]), torch.tensor([True])) == 0
    assert assert_same(ONE.bfloat16(), ONE.bfloat16()) == 0


def test_the_tolerance_is_sharp():
    assert_same(ONE, ONE + 0.5, tol=0.5)
    refused(ONE, ONE + 0.5, tol=0.49, words="0.5")
    refused(ONE, changed((0, 0, 0), 5e-324), tol=0)


def test_the_message_says_where_and_what():
    text = refused(changed((1, 2, 3), 99), ONE, name="layer 3")
    assert "layer 3" in text and "(1, 2, 3)" in text
    refused({"a": {"b": [ONE, ONE + 1]}}, {"a": {"b": [ONE, ONE]}}, words="['a']['b'][1]")
    refused(1.0, 2.0)
    refused(torch.tensor([1, 2]), torch.tensor([1, 3]), words="(1,)")
    refused(torch.tensor([True]), torch.tensor([False]))


@pytest.mark.parametrize("left,right", [
    (changed((0, 1, 2), NAN), ONE), (ONE, changed((0, 1, 2), NAN)),
    (changed((0, 1, 2), NAN), changed((0, 1, 2), NAN)),
    (changed((0, 1, 2), INF), ONE), (ONE, changed((0, 1, 2), -INF)),
    (changed((0, 1, 2), INF), changed((0, 1, 2), INF)), (changed((0, 1, 2), INF), changed((0, 1, 2), -INF)),
])  # fmt: skip
def test_what_is_not_finite_is_refused(left, right):
    refused(left, right, words="(0, 1, 2)")
    refused(left, right, tol=1e300)
    refused(left, right, mask=torch.ones(2, 3))


@pytest.mark.parametrize("left,right,words", [
    (torch.ones(4, 1), torch.ones(4), "[4, 1]"), (torch.ones(1), torch.tensor(1.0), "[1]"),
    (torch.ones(2, 3), torch.ones(3, 2), "[2, 3]"), (torch.ones(2), torch.ones(2).double(), "float64"),
    (torch.ones(2), torch.ones(2).long(), "int64"), (torch.ones(2).half(), torch.ones(2).bfloat16(), "bfloat16"),
    ([ONE], [ONE, ONE], "parts"), ({"a": ONE}, {"b": ONE}, "parts"), ({"a": ONE}, {"a": ONE, "b": ONE}, "parts"),
    ({"x": {"a": ONE}}, {"x": {"b": ONE}}, "['x']"),
])  # fmt: skip
def test_another_structure_is_refused(left, right, words):
    refused(left, right, words=words)


@pytest.mark.parametrize("left,right", [(None, ONE), (ONE, None), ("text", "text"), ([1.0, 2.0], 1.0)])
def test_what_is_no_number_is_never_the_same(left, right):
    with pytest.raises((TypeError, RuntimeError, AttributeError)): assert_same(left, right)


@pytest.mark.parametrize("nothing", [[], {}, (), torch.ones(0), torch.ones(3, 0), [ONE, []]])
def test_nothing_is_not_agreement(nothing):
    refused(nothing, nothing)


def test_the_mask_leaves_out_padding_and_nothing_else():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        clean = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for value in (5.0, NAN, INF):
            assert assert_same(changed((1, 2), value, clean), clean, mask) == 0
            assert assert_same(changed((1, 2), value, clean), clean, mask.bool()) == 0
            assert assert_same([changed((1, 1), value, clean)], [clean], mask.double()) == 0
            refused(changed((1, 0), value, clean), clean, mask, words="(1, 0")
            refused(changed((1, 2), value, clean), clean)
    refused(ONE, ONE, torch.zeros(2, 3), words="nothing to compare")
    for other, mask in ((ONE, torch.ones(3, 2)), (ONE[:, 0, 0], torch.ones(2, 3)), (ONE, torch.ones(1, 3))):
        with pytest.raises(IndexError): assert_same(other, other, mask)
    assert assert_same(ONE, ONE, torch.ones(2)) == 0  # whole rows
    assert assert_same(ONE, ONE, torch.ones(2, 3, 4)) == 0


def test_randomise_touches_every_parameter_the_same_in_every_dtype():
    def make(dtype=torch.float64):
        module = nn.Sequential(nn.Embedding(7, 24, padding_idx=0), nn.Linear(24, 37), nn.LayerNorm(37))
        return module.to(dtype)

    module = make()
    state = torch.random.get_rng_state()
    assert randomise_(module, seed=3) is module
    assert torch.equal(state, torch.random.get_rng_state())
    for parameter in module.parameters():
        assert parameter.requires_grad and parameter.isfinite().all()
        assert len(parameter.unique()) == parameter.numel() and (parameter != 0).all()
        assert 0.02 < parameter.std() < 1.5
    assert assert_same(module.state_dict(), randomise_(make(), seed=3).state_dict(), tol=0) == 0
    single = {name: value.float() for name, value in module.state_dict().items()}
    assert_same(randomise_(make(torch.float32), seed=3).state_dict(), single, tol=0)
    refused(module.state_dict(), randomise_(make(), seed=4).state_dict())


@pytest.mark.parametrize("pad", [0, 1, 7, 100])
@pytest.mark.parametrize("batch,length", [(1, 1), (1, 2), (1, 11), (2, 1), (2, 2), (2, 3), (3, 11), (5, 19)])
@pytest.mark.parametrize("types", [1, 2, 3])
def test_reference_batch_hides_nothing(pad, batch, length, types):
    config = BertConfig(101, 24, 2, 4, 37, max_position_embeddings=19, type_vocab_size=types, pad_token_id=pad)
    for seed in range(5):
        b = reference_batch(config, batch, length, seed)
        ids, real, labels = b["input_ids"], b["attention_mask"] == 1, b["labels"]
        assert ids.shape == b["token_type_ids"].shape == real.shape == labels.shape == (batch, length)
        assert b["next_sentence_label"].tolist() == [i % 2 for i in range(batch)]
        assert all(value.dtype == torch.int64 for value in b.values())
        assert ids.min() >= 0 and ids.max() < 101 and torch.equal(ids == pad, ~real)
        assert real[0].all() and real[:, 0].all() and (real[:, :-1] >= real[:, 1:]).all()
        if length > 1: assert not real[1:].all(dim=1).any()
        predicted = labels != -100
        assert predicted.any(dim=1).all() and not (predicted & ~real).any()
        assert torch.equal(labels[predicted], ids[predicted])
        segments = b["token_type_ids"]
        assert (segments[~real] == 0).all() and (segments[:, 0] == 0).all() and segments.max() <= types - 1
        if types > 1: assert (segments.amax(dim=1) == 1)[real.sum(1) > 1].all()
        assert all(torch.equal(value, reference_batch(config, batch, length, seed)[name]) for name, value in b.items())


def test_reference_batch_uses_the_smallest_vocabulary():
    two = BertConfig(2, 24, 2, 4, 37, pad_token_id=1)
    assert set(reference_batch(two)["input_ids"].flatten().tolist()) == {0, 1}
