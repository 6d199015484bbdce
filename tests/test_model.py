"The model's manners over drawn shapes: padding, batches, the sparse last layer, first weights, refusals."
import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibert.config import BertConfig, count_parameters
from minibert.embeddings import Embeddings
from minibert.encoder import ACTIVATIONS, EncoderLayer, FeedForward
from minibert.heads import BertForPreTraining
from minibert.model import BertModel, additive_mask, attentions, initialise_
from minibert.nn.block import Block, BlockConfig, BlockForPreTraining, BlockModel
from minibert.nn.shortcuts import needed_places, take_rows
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.speed import (
    FastBertForPreTraining, FastBlockEncoder, FastBlockForPreTraining, FastEncoder, PlainBertForPreTraining)

SIZES = dict(vocab_size=41, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=19, max_position_embeddings=24)
KINDS = [BertConfig(**SIZES), BlockConfig(**SIZES)]
BARE, FAST = (BertForPreTraining, BlockForPreTraining), (FastBertForPreTraining, FastBlockForPreTraining)
MODELS = [randomise_(kind(config)).double().eval() for kind, config in zip(FAST, KINDS)]
drawn = settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
models, seeds, lengths, batches = st.sampled_from(MODELS), st.integers(0, 999), st.integers(1, 14), st.integers(1, 5)


def dice(seed): return torch.Generator().manual_seed(seed)
def masked(batch): return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}


def in_form(model, kinds):
    "The same weights in another form."
    kind = kinds[isinstance(model, BlockForPreTraining)]
    form = kind(model.config).to(model.nsp_head.weight).train(model.training)
    form.load_state_dict(model.state_dict())
    return form


def learn(model, batch, **more):
    "Both losses and every gradient."
    model.zero_grad()
    out = model(**batch, **more)
    out.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    return dict(mlm=out.losses["mlm"].detach(), nsp=out.losses["nsp"].detach(), loss=out.loss.detach(), grads=grads)


def longer(batch, more):
    fill = dict(input_ids=0, token_type_ids=0, attention_mask=0, labels=-100)
    return {n: F.pad(t, (0, more), value=fill[n]) if n in fill else t for n, t in batch.items()}


@pytest.mark.parametrize("model", MODELS)
def test_without_token_types_all_are_zero(model):
    ids = reference_batch(model.config)["input_ids"]
    ours, said = model.bert(ids), model.bert(ids, torch.zeros_like(ids))
    assert_same(ours.last_hidden_state, said.last_hidden_state)


@drawn
@given(models, batches, lengths, st.integers(1, 10), seeds)
def test_more_padding_and_garbage_under_it_change_nothing(model, B, S, more, seed):
    batch = reference_batch(model.config, B, S, seed)
    expected, padded = learn(model, batch), longer(batch, more)
    assert_same(learn(model, padded), expected)
    padding = padded["attention_mask"] == 0
    words = torch.randint(41, padding.shape, generator=dice(seed))
    dirty = padded | dict(input_ids=words.where(padding, padded["input_ids"]))
    assert_same(learn(model, dirty), expected)


@drawn
@given(models, batches, lengths, seeds)
def test_a_batch_is_its_rows(model, B, S, seed):
    inputs = masked(reference_batch(model.config, B, S, seed))
    with torch.no_grad():
        together = model(**inputs)
        for row, n in enumerate(inputs["attention_mask"].sum(1)):
            alone = model(inputs["input_ids"][row : row + 1, :n], inputs["token_type_ids"][row : row + 1, :n])
            assert_same(alone.prediction_logits[0], together.prediction_logits[row, :n])
            assert_same(alone.seq_relationship_logits[0], together.seq_relationship_logits[row])


@drawn
@given(models, batches, lengths, st.sampled_from([0.0, 0.2, 1.0]), seeds)
def test_logits_where_they_are_read_are_exact(model, B, S, share, seed):
    batch = reference_batch(model.config, B, S, seed)
    asked = (torch.rand(B, S, generator=dice(seed)) < share) & (batch["attention_mask"] == 1)
    asked[seed % B, 0] = True  # also [CLS] may be asked, and rows may have nothing to predict
    batch["labels"] = batch["input_ids"].masked_fill(~asked, -100)
    before = batch["labels"].clone()
    sparse = learn(model, batch)
    out = model(**masked(batch))
    model.zero_grad()
    mlm = F.cross_entropy(out.prediction_logits.flatten(0, 1), batch["labels"].flatten())
    nsp = F.cross_entropy(out.seq_relationship_logits, batch["next_sentence_label"])
    (mlm + nsp).backward()
    dense = dict(mlm=mlm, nsp=nsp, loss=mlm + nsp, grads={n: p.grad for n, p in model.named_parameters()})
    assert_same(sparse, dense)
    if asked.any(): assert_same(learn(in_form(model, BARE), batch), dense)  # a mean over nothing is NaN
    assert_same(learn(model, model.prepared(batch)), sparse, tol=0)
    assert_same(model(**batch).prediction_logits, out.prediction_logits[asked])
    assert torch.equal(batch["labels"], before)


@drawn
@given(batches, st.integers(1, 30), st.floats(0, 1), seeds)
def test_needed_places(B, S, share, seed):
    wanted = torch.rand(B, S, generator=dice(seed)) < share
    labels = torch.arange(B * S).reshape(B, S).masked_fill(~wanted, -100)
    rows, answers = needed_places(labels)
    wanted[:, 0] = True
    assert rows.shape == (B, wanted.sum(1).max()) and (rows[:, 0] == 0).all()
    for row, want in zip(rows.tolist(), wanted):
        n = int(want.sum())
        assert row[:n] == want.nonzero()[:, 0].tolist() and len(set(row)) == len(row)
    picked = labels.gather(1, rows)
    assert torch.equal(picked[picked != -100], labels[labels != -100])
    assert torch.equal(picked.flatten()[answers], labels[labels != -100])


@drawn
@given(st.sampled_from(KINDS), batches, st.integers(2, 14), seeds)
def test_rows_of_the_encoder(config, B, S, seed):
    kind = FastBlockEncoder if isinstance(config, BlockConfig) else FastEncoder
    encoder = randomise_(kind(config), seed).double().eval()
    hidden = torch.randn(B, S, 12, generator=dice(seed), dtype=torch.float64)
    rows = torch.randint(S, (B, 1 + seed % S), generator=dice(seed))  # any order, also twice
    mask = additive_mask(reference_batch(config, B, S, seed)["attention_mask"], torch.float64)
    with torch.no_grad():
        dense, few = encoder(hidden, mask), encoder.at(rows, hidden, mask)
    assert len(dense) == config.num_hidden_layers + 1 and dense[0] is hidden
    assert_same(few, take_rows(dense[-1], rows))


def test_feed_forward_is_alone():
    part = randomise_(FeedForward(KINDS[0])).double()
    hidden = torch.randn(2, 7, 12, generator=dice(0), dtype=torch.float64)
    whole = part(hidden)
    for i in range(7): assert_same(part(hidden[:, i]), whole[:, i])


def test_dropout_hits_what_is_added_and_only_in_training():
    layer = randomise_(EncoderLayer(KINDS[0])).double()
    layer.dropout.p = 1.0
    hidden = torch.randn(2, 7, 12, generator=dice(0), dtype=torch.float64)
    assert_same(layer.train()(hidden), layer.output_norm(layer.attention_norm(hidden)))
    out = layer.eval()(hidden)
    assert torch.equal(out, layer(hidden)) and (out - layer.train()(hidden)).abs().max() > 0.1


def test_dropout_is_the_embeddings_last_step():
    "Else a norm would shift the zeros."
    module, ids = randomise_(Embeddings(BertConfig(31, 12, 1, 2, 4, hidden_dropout_prob=0.5)).double()), torch.arange(30)[None]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noisy = module.train()(ids)
    kept = noisy != 0
    assert 0.3 < kept.double().mean() < 0.7
    assert_same(noisy[kept], 2 * module.eval()(ids)[kept])


def test_activation():
    z = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    assert_same(ACTIVATIONS["gelu"](z), z * (1 + torch.erf(z / math.sqrt(2))) / 2)
    assert 4e-4 < (ACTIVATIONS["gelu"](z) - ACTIVATIONS["gelu_new"](z)).abs().max() < 5e-4


def test_masks():
    assert additive_mask(None, torch.float32) is None
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for kind in (torch.bool, torch.int64, torch.float32):
            mask = additive_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]).to(kind), dtype)
            assert mask.shape == (2, 1, 1, 3) and mask.dtype == dtype and mask.isfinite().all()
            assert (mask != 0).flatten().tolist() == [False, False, True, False, False, False]
    lower = additive_mask(torch.ones(2, 3, 3).tril(), torch.float64)  # a row for each query
    assert lower.shape == (2, 1, 3, 3) and torch.equal(lower[0, 0] == 0, torch.ones(3, 3).tril().bool())
    assert not additive_mask(torch.tensor([[0, 0]]), torch.float32).any()  # who sees nothing


def test_a_row_of_padding_alone_is_finite_and_harmless():
    for model in MODELS:
        batch = reference_batch(model.config)
        with_empty = {n: torch.cat([t, t[:1]]) for n, t in masked(batch).items()}
        with_empty["attention_mask"][-1] = 0
        with torch.no_grad(): empty, clean = model(**with_empty), model(**masked(batch))
        assert empty.prediction_logits.isfinite().all()
        assert_same(empty.prediction_logits[:3], clean.prediction_logits)


@pytest.mark.parametrize("k", [0, 1], ids=["absolute", "rotary"])
def test_first_weights_are_a_function_of_the_seed(k):
    config, kind = KINDS[k], BARE[k]
    first = kind(config, dice(3)).state_dict()
    torch.randn(7)
    assert_same(FAST[k](config, dice(3)).state_dict(), first, tol=0)  # the names and their order, too
    assert list(FAST[k](config).state_dict()) == list(first)
    assert not torch.equal(kind(config, dice(4)).nsp_head.weight, first["nsp_head.weight"])
    names = [name for name in first if name.startswith("bert.")]
    assert_same((BertModel, BlockModel)[k](config, dice(3)).state_dict(), {n.removeprefix("bert."): first[n] for n in names}, tol=0)
    assert (first["bert.embeddings.word_embeddings.weight"][0] == 0).all()
    for name, tensor in first.items():
        if "norm.weight" in name: assert (tensor == 1).all(), name
        elif tensor.dim() == 1: assert (tensor == 0).all(), name


def test_first_weights_are_normal():
    part = initialise_(torch.nn.Linear(300, 400), std=0.05, generator=dice(0)).weight.double().flatten() / 0.05
    n = len(part)
    assert abs(part.mean()) < 5 / math.sqrt(n) and abs(part.std() - 1) < 5 / math.sqrt(2 * n)
    for level, share in ((1, 0.682689), (2, 0.954500), (3, 0.997300)):
        seen = (part.abs() < level).double().mean().item()
        assert abs(seen - share) < 5 * math.sqrt(share * (1 - share) / n)


def test_every_parameter_is_counted_once_and_learns():
    for model in MODELS:
        counts = count_parameters(model.config)
        absent = counts["positions"] * isinstance(model, BlockForPreTraining)
        assert sum(p.numel() for p in model.parameters()) == counts["total"] - absent
        grads = learn(model, reference_batch(model.config))["grads"]
        dead = [name for name, grad in grads.items() if not grad.any()]
        assert not dead


def test_lower_precision_keeps_the_loss_in_float32():
    model, batch = copy.deepcopy(MODELS[0]).float(), reference_batch(KINDS[0])
    exact = model(**batch)
    with torch.autocast("cpu", torch.bfloat16): out = model(**batch)
    assert out.prediction_logits.dtype == torch.bfloat16
    assert out.losses["mlm"].dtype == out.losses["nsp"].dtype == torch.float32
    assert abs(out.loss - exact.loss) < 0.1
    with torch.autocast("cpu", torch.bfloat16): double = MODELS[0](**batch)
    assert_same(double.loss, MODELS[0](**batch).loss)



@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_labels_that_ask_nothing_cost_nothing_and_move_nothing(dtype):
    model, batch = copy.deepcopy(MODELS[0]).to(dtype), reference_batch(KINDS[0])
    silent = batch | dict(labels=torch.full_like(batch["labels"], -100))
    assert model.counts(silent) == dict(mlm=0, nsp=3) and model.counts(batch)["mlm"] == (batch["labels"] != -100).sum()
    out = model(**silent)
    assert out.losses["mlm"] == 0 and out.loss == out.losses["nsp"] and out.prediction_logits.shape == (0, 41)
    out.losses["mlm"].backward()
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None) and model.word_embeddings.grad is not None


def test_either_label_alone():
    model, batch = MODELS[0], reference_batch(KINDS[0])
    both, inputs = model(**batch), masked(batch)
    words, pair, none = model(**inputs, labels=batch["labels"]), model(**inputs, next_sentence_label=batch["next_sentence_label"]), model(**inputs)
    assert_same([words.loss, words.losses], [both.losses["mlm"], dict(mlm=both.losses["mlm"])])
    assert_same([pair.loss, pair.losses], [both.losses["nsp"], dict(nsp=both.losses["nsp"])])
    assert none.loss is None and none.prediction_logits.shape == pair.prediction_logits.shape == (3, 11, 41)


def test_either_label_alone_learns_its_own_part():
    "MLM without NSP and the other way round: the gradients add up to those of both, and each head's come from its own loss."
    model, batch = MODELS[0], reference_batch(KINDS[0])
    def grads(*left_out):
        model.zero_grad()
        model(**{name: t for name, t in batch.items() if name not in left_out}).loss.backward()
        return {name: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    both, words, pair = grads(), grads("next_sentence_label"), grads("labels")
    assert_same({name: words[name] + pair[name] for name in both}, both)
    for name in both:
        assert words[name].any() == (not name.startswith(("nsp_head", "bert.pooler"))), name
        assert not (name.startswith("mlm_head") and pair[name].any()), name


@pytest.mark.parametrize("module", ["attention", "embeddings", "encoder", "heads", "masking", "model", "pairs"])
def test_nothing_private_of_pytorch_is_used(module, root):
    source = (root / "minibert" / f"{module}.py").read_text(encoding="utf8")
    private = re.findall(r"torch\.ops\b|\baten\b|torch\._\w+|mkldnn", source)
    assert not private, private


def test_a_block_that_is_berts_is_bert_to_the_bit():
    "States, losses and gradients, the names of the tensors and the first weights."
    config = BlockConfig(**SIZES, positions="absolute")
    batch = reference_batch(config)
    ours, bert = BlockForPreTraining(config, dice(3)), BertForPreTraining(KINDS[0], dice(3))
    assert list(ours.state_dict()) == list(bert.state_dict())
    assert_same(ours.state_dict(), bert.state_dict(), tol=0)
    for model in (ours, bert): randomise_(model, 5).double().eval()
    assert_same(ours.bert(**masked(batch)).hidden_states, bert.bert(**masked(batch)).hidden_states, tol=0)
    assert_same(learn(ours, batch), learn(bert, batch), tol=0)
    turned = BlockForPreTraining(KINDS[1], dice(3)).double().eval()
    assert (turned(**batch).loss - ours(**batch).loss).abs() > 1e-3  # the negative control


def test_the_parts_of_a_block():
    config = BlockConfig(**SIZES, norm="rms", norm_first=True, gated=True, bias=False)
    layer = randomise_(Block(config)).double().eval()
    assert not any("bias" in name for name, _ in layer.named_parameters())
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=dice(0))
    def rms(x, norm): return x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt() * norm.weight
    ff, found = layer.feed_forward, x + layer.attention(rms(x, layer.attention_norm))
    normed = rms(found, layer.output_norm)
    expected = found + (F.gelu(normed @ ff.up.weight.T) * (normed @ ff.gate.weight.T)) @ ff.down.weight.T
    assert_same(layer(x), expected)
    memory = torch.randn(2, 9, 12, dtype=torch.float64, generator=dice(1))
    assert (layer(x, memory=memory) - layer(x)).abs().max() > 0.1
    assert_same(layer(x, memory=x), layer(x))


@pytest.mark.parametrize("model", MODELS, ids=["absolute", "rotary"])
def test_the_fast_form_never_waits(model):
    "Its forward pass needs shapes alone, once the places are known; the bare one needs numbers."
    from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
    batch = reference_batch(model.config)
    def shapes(model, batch):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return model(**{name: mode.from_tensor(t) for name, t in batch.items()})
    out = shapes(model, model.prepared(batch))
    assert out.prediction_logits.shape == (int((batch["labels"] != -100).sum()), 41)
    with pytest.raises(DynamicOutputShapeException): shapes(in_form(model, BARE), batch)


@drawn
@given(models, batches, lengths, seeds)
def test_three_forms_are_one(model, B, S, seed):
    "Fast, bare and plain: both losses and every gradient."
    batch = reference_batch(model.config, B, S, seed)
    fast = learn(model, batch)
    assert_same(learn(in_form(model, BARE), batch), fast, tol=1e-12)
    if not isinstance(model, BlockForPreTraining):
        assert_same(learn(in_form(model, (PlainBertForPreTraining,)), batch), fast, tol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=["absolute", "rotary"])
def test_probs_are_seen_from_outside(model):
    batch = masked(reference_batch(model.config))
    maps, states = attentions(model.bert, **batch), model.bert(**batch).hidden_states
    assert [probs.shape for probs in maps] == [(3, 2, 11, 11)] * 2
    assert not maps[0].masked_select(batch["attention_mask"][:, None, None] == 0).any()
    mask = additive_mask(batch["attention_mask"], torch.float64)
    for layer, probs, state in zip(model.bert.encoder.layers, maps, states):
        assert_same(probs, layer.attention.probs(state, mask))
    assert not any(part._forward_hooks for part in model.modules())
