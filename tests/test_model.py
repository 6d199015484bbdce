"The model's manners over drawn shapes: padding, batches, the sparse last layer, first weights, refusals."
import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibert.nn.attention_parts import take_rows
from minibert.config import BertConfig, count_parameters
from minibert.encoder import Encoder, EncoderLayer, FeedForward
from minibert.heads import BertForPreTraining
from minibert.nn.losses import needed_rows
from minibert.model import BertModel, additive_mask, initialise_
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.nn.parts import activation

SIZES = dict(vocab_size=41, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=19, max_position_embeddings=24)
KINDS = [BertConfig(**SIZES), BertConfig(**SIZES, model_type="roformer")]
MODELS = [randomise_(BertForPreTraining(config)).double().eval() for config in KINDS]
drawn = settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
models, seeds, lengths, batches = st.sampled_from(MODELS), st.integers(0, 999), st.integers(1, 14), st.integers(1, 5)


def dice(seed): return torch.Generator().manual_seed(seed)
def masked(batch): return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}


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
    assert_same(learn(model, batch, output_hidden_states=True), dense)
    assert_same(model(**batch).prediction_logits, out.prediction_logits[asked])
    assert torch.equal(batch["labels"], before)


@drawn
@given(batches, st.integers(1, 30), st.floats(0, 1), seeds)
def test_needed_rows(B, S, share, seed):
    wanted = torch.rand(B, S, generator=dice(seed)) < share
    labels = torch.arange(B * S).reshape(B, S).masked_fill(~wanted, -100)
    rows = needed_rows(labels)
    wanted[:, 0] = True
    assert rows.shape == (B, wanted.sum(1).max()) and (rows[:, 0] == 0).all()
    for row, want in zip(rows.tolist(), wanted):
        n = int(want.sum())
        assert row[:n] == want.nonzero()[:, 0].tolist() and len(set(row)) == len(row)
    picked = labels.gather(1, rows)
    assert torch.equal(picked[picked != -100], labels[labels != -100])


@drawn
@given(st.sampled_from(KINDS), batches, st.integers(2, 14), seeds)
def test_rows_of_the_encoder(config, B, S, seed):
    encoder = randomise_(Encoder(config), seed).double().eval()
    hidden = torch.randn(B, S, 12, generator=dice(seed), dtype=torch.float64)
    rows = torch.randint(S, (B, 1 + seed % S), generator=dice(seed))  # any order, also twice
    mask = additive_mask(reference_batch(config, B, S, seed)["attention_mask"], torch.float64)
    with torch.no_grad():
        dense, sparse = encoder(hidden, mask)[0], encoder(hidden, mask, rows)[0]
        probs = encoder(hidden, mask, rows, need_probs=True)[1]
    assert len(sparse) == config.num_hidden_layers + 1 and sparse[0] is hidden
    assert_same(sparse[-1], take_rows(dense[-1], rows))
    assert_same(sparse[:-1], dense[:-1], tol=0)
    assert probs[-1].shape == (B, 2, rows.shape[1], S) and probs[0].shape == (B, 2, S, S)


def test_feed_forward_is_alone():
    part = randomise_(FeedForward(KINDS[0])).double()
    hidden = torch.randn(2, 7, 12, generator=dice(0), dtype=torch.float64)
    whole = part(hidden)
    for i in range(7): assert_same(part(hidden[:, i]), whole[:, i])


def test_dropout_hits_what_is_added_and_only_in_training():
    layer = randomise_(EncoderLayer(KINDS[0])).double()
    layer.dropout.p = 1.0
    hidden = torch.randn(2, 7, 12, generator=dice(0), dtype=torch.float64)
    assert_same(layer.train()(hidden)[0], layer.output_norm(layer.attention_norm(hidden)))
    out = layer.eval()(hidden)[0]
    assert torch.equal(out, layer(hidden)[0]) and (out - layer.train()(hidden)[0]).abs().max() > 0.1


def test_activation():
    z = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    assert_same(activation("gelu")(z), z * (1 + torch.erf(z / math.sqrt(2))) / 2)
    assert 4e-4 < (activation("gelu")(z) - activation("gelu_new")(z)).abs().max() < 5e-4
    with pytest.raises(ValueError, match="swish"): activation("swish")


def test_masks():
    assert additive_mask(None, torch.float32) is None and additive_mask(torch.ones(2, 3), torch.float32) is None
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for kind in (torch.bool, torch.int64, torch.float32):
            mask = additive_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]).to(kind), dtype)
            assert mask.shape == (2, 1, 1, 3) and mask.dtype == dtype and mask.isfinite().all()
            assert (mask != 0).flatten().tolist() == [False, False, True, False, False, False]


def test_a_row_of_padding_alone_is_finite_and_harmless():
    for model in MODELS:
        batch = reference_batch(model.config)
        with_empty = {n: torch.cat([t, t[:1]]) for n, t in masked(batch).items()}
        with_empty["attention_mask"][-1] = 0
        with torch.no_grad(): empty, clean = model(**with_empty), model(**masked(batch))
        assert empty.prediction_logits.isfinite().all()
        assert_same(empty.prediction_logits[:3], clean.prediction_logits)


@pytest.mark.parametrize("config", KINDS, ids=["absolute", "rotary"])
def test_first_weights_are_a_function_of_the_seed(config):
    first = BertForPreTraining(config, dice(3)).state_dict()
    torch.randn(7)
    assert_same(BertForPreTraining(config, dice(3)).state_dict(), first, tol=0)
    assert not torch.equal(BertForPreTraining(config, dice(4)).nsp_head.weight, first["nsp_head.weight"])
    names = [name for name in first if name.startswith("bert.")]
    assert_same(BertModel(config, dice(3)).state_dict(), {n.removeprefix("bert."): first[n] for n in names}, tol=0)
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
        assert sum(p.numel() for p in model.parameters()) == count_parameters(model.config)["total"]
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


IDS = torch.ones(2, 5, dtype=torch.long)
BAD = [
    (dict(input_ids=IDS[0]), "shape"), (dict(input_ids=IDS.double()), "float64"), (dict(input_ids=IDS.bool()), "bool"),
    (dict(input_ids=IDS[:, :0]), "no position"), (dict(input_ids=IDS.repeat(1, 6)), "30 positions"),
    (dict(input_ids=IDS * 41), "vocab_size is 41"), (dict(input_ids=-IDS), "from -1"),
    (dict(input_ids=IDS, token_type_ids=IDS * 2), "type_vocab_size is 2"),
    (dict(input_ids=IDS, token_type_ids=IDS[0]), "token_type_ids"), (dict(input_ids=IDS, attention_mask=IDS[:1]), "attention_mask"),
    (dict(input_ids=IDS, attention_mask=IDS[:, None, None]), "attention_mask"),
    (dict(input_ids=IDS, labels=IDS[:, :4]), r"\(2, 5\)"), (dict(input_ids=IDS, labels=IDS.double()), "float64"),
    (dict(input_ids=IDS, labels=IDS * 41), "41 answers"), (dict(input_ids=IDS, labels=-IDS), "from -1"),
    (dict(input_ids=IDS, next_sentence_label=IDS[:, :1]), r"shape \(2,\)"), (dict(input_ids=IDS, next_sentence_label=IDS[:, 0] * 2), "2 answers"),
]  # fmt: skip


@pytest.mark.parametrize("given,words", BAD, ids=[words for _, words in BAD])
@pytest.mark.parametrize("model", MODELS, ids=["absolute", "rotary"])
def test_bad_input_is_refused_with_a_sentence(model, given, words):
    with pytest.raises(ValueError, match=words) as caught: model(**given)
    assert str(caught.value).endswith(".")


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
    assert none.hidden_states is None and none.attentions is None


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
