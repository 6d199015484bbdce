"""Each variant's fast form equals its plain one, with BERT's parts it is BERT, and the parts do what their formulas say."""
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from lockstep import few_and_many, on_drawn, one_thread  # noqa: F401
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.hub.families import FAMILIES, find_family
from minibert.model import attentions
from minibert.nn.variants import FastVariantForPreTraining, VariantConfig, VariantForPreTraining, VariantModel, VariantParts
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.speed import FastBertForPreTraining
from minibert.train.gradients import Gradients
from minibert.weights import load_pretrained, save_pretrained

SIZES = dict(vocab_size=101, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=37, max_position_embeddings=20)
HINTS = get_type_hints(VariantParts)
CHOICES = {field.name: get_args(HINTS[field.name]) or (False, True) for field in fields(VariantParts)}
ALL = dict(norm="rms", placement="pre", positions="relative", activation="relu2", gated=True, bias=False, qk_norm=True, value_residual=True, tied=False)


def learn(model, batch):
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@st.composite
def cases(draw):
    parts = {name: draw(st.sampled_from(values)) for name, values in CHOICES.items()}
    sizes = SIZES | dict(num_hidden_layers=draw(st.integers(1, 3)))
    return VariantConfig(**sizes, **parts), draw(st.integers(1, 4)), draw(st.integers(5, 17)), draw(st.integers(0, 10_000))


def check_fast(case):
    config, size, length, seed = case
    batch = reference_batch(config, size, length, seed)
    plain, fast = (randomise_(kind(config), seed).double().eval() for kind in (VariantForPreTraining, FastVariantForPreTraining))
    assert_same(learn(fast, batch), learn(plain, batch))
    assert_same(learn(fast, FastVariantForPreTraining.prepared(batch)), learn(plain, batch))


@few_and_many
def test_the_fast_form_equals_the_plain_one(count): on_drawn(check_fast, count, cases())


def test_with_all_defaults_it_is_bert_to_the_bit():
    bert, ours = FastBertForPreTraining(BertConfig(**SIZES), seeded(3)), FastVariantForPreTraining(VariantConfig(**SIZES), seeded(3))
    assert list(ours.state_dict()) == list(bert.state_dict())
    assert_same(ours.state_dict(), bert.state_dict(), tol=0)
    batch = reference_batch(bert.config)
    for model in (bert, ours): randomise_(model, 5).double().eval()
    assert_same(learn(ours, batch), learn(bert, batch), tol=0)


@pytest.mark.parametrize("name, value", [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_part_alone_trains_in_bfloat16_and_is_another_model(name, value):
    config = VariantConfig(**SIZES, **{name: value})
    model, bert = (FastVariantForPreTraining(c, seeded(1)).train() for c in (config, VariantConfig(**SIZES)))
    batch = reference_batch(config)
    sums = Gradients(precision="bfloat16")(model, batch)
    assert all(torch.isfinite(loss) for loss in sums.values()) and all(p.grad.isfinite().all() for p in model.parameters())
    assert len(attentions(model.bert, **{n: batch[n] for n in ("input_ids", "attention_mask")})) == 3
    zero = name == "zero_init" and value  # the same parts, with other first weights
    changed = value != getattr(VariantConfig, name)
    same = [*model.state_dict()] == [*bert.state_dict()]
    if same and not zero:
        for each in (model, bert): randomise_(each, 5).double().eval()
        assert (abs(model(**batch).loss - bert(**batch).loss) > 1e-4) == changed


@pytest.mark.parametrize("parts", [ALL, ALL | dict(placement="sandwich", norm="layer", bias=True), dict(zero_init=True, positions="sinusoidal")])
def test_a_checkpoint_holds_every_part(parts, tmp_path):
    model = randomise_(FastVariantForPreTraining(VariantConfig(**SIZES, **parts)), 3).eval()
    save_pretrained(model, None, tmp_path / "a")
    again = load_pretrained(tmp_path / "a")
    assert type(again) is FastVariantForPreTraining or type(again) is VariantForPreTraining
    assert again.config == model.config
    assert_same(again.state_dict(), model.state_dict(), tol=0)
    batch = reference_batch(model.config)
    assert_same(again(**batch).loss, model(**batch).loss, tol=1e-6)


def test_its_table_of_names_is_the_identity():
    _, family = find_family("variant")
    rows = [line.split() for line in family.table.splitlines()]
    assert all(ours == theirs for ours, theirs in rows) and ("variant", "VariantForPreTraining") in FAMILIES


def test_distances_alone_tell_the_order():
    "With T5's bias and without positions at the bottom: a shifted text has the same states, a shuffled one hasn't."
    for positions, knows in ("relative", True), ("rotary", True), ("none", False):
        model = randomise_(VariantModel(VariantConfig(**SIZES, positions=positions)), 5).double().eval()
        ids = torch.randint(5, 101, (1, 9), generator=seeded(2))
        order = torch.tensor([0, 2, 1, *range(3, 9)])
        padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)  # moved by three
        state, shuffled, moved = (model(x, attention_mask=(x > 0).long()).last_hidden_state for x in (ids, ids[:, order], padded))
        assert (state[:, order] - shuffled).abs().max().gt(1e-3) == knows
        assert_same(moved[:, 3:], state)


def test_an_untied_head_has_a_matrix_of_its_own():
    model = randomise_(VariantForPreTraining(VariantConfig(**SIZES, tied=False)), 1).double().eval()
    batch = reference_batch(model.config)
    ids, hidden = batch["input_ids"], model.bert(batch["input_ids"]).last_hidden_state
    head = model.mlm_head
    expected = F.linear(head.norm(F.gelu(head.dense(hidden))), model.decoder.weight, head.bias)
    assert_same(model(ids).prediction_logits, expected)
    relu = VariantForPreTraining(replace(model.config, activation="relu2"))
    assert relu.mlm_head.activation is F.gelu  # the activation is the layers' alone


def test_fresh_sublayers_add_nothing_with_zero_init():
    config = VariantConfig(**SIZES, placement="pre", zero_init=True)
    fresh = FastVariantForPreTraining(config, seeded(1)).eval()
    first, *others, _ = fresh.bert(reference_batch(config)["input_ids"]).hidden_states
    for state in others: assert_same(state, first, tol=0)
    usual = FastVariantForPreTraining(replace(config, zero_init=False), seeded(1))
    a, b = fresh.state_dict(), usual.state_dict()
    zeroed = {name for name in a if not torch.equal(a[name], b[name])}
    assert zeroed == {f"bert.encoder.layers.{k}.{part}.weight" for k in range(3) for part in ("attention.output", "feed_forward.down")}
