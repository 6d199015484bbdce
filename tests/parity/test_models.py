"""Equal to Hugging Face's BERT over drawn configurations: states, probs, logits, losses, every gradient."""
import warnings
from dataclasses import asdict

import pytest
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibert.config import BertConfig
from minibert.heads import BertForPreTraining
from minibert.model import attentions
from minibert.nn.block import BlockConfig
from minibert.speed import FastBertForPreTraining, FastBlockForPreTraining
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.weights import from_hf, name_table, to_hf

TOL = 1e-9
SIZES = dict(vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37, max_position_embeddings=20)
SMALL = BertConfig(**SIZES)
ROTARY = BlockConfig(**SIZES)
seen = {}  # what was compared: the largest difference so far


@pytest.fixture(autouse=True, scope="module")
def report():
    "One thread, for the matrices are tiny; the largest differences at the end (`pytest -s`)."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for kind, largest in sorted(seen.items()): print(f"\n{kind:32}{largest:.2e}", end="")


def same(kind, ours, theirs, **more):
    seen[kind] = max(seen.get(kind, 0.0), assert_same(ours, theirs, name=kind, tol=TOL, **more))


@st.composite
def cases(draw, kind="bert"):
    "A config, and a batch for it."
    heads = draw(st.integers(1, 4))
    head_size = draw(st.sampled_from([4, 6, 8, 10] if kind == "roformer" else [3, 4, 5, 8, 11]))
    length, vocabulary = draw(st.integers(3, 17)), draw(st.integers(12, 130))
    config = (BlockConfig if kind == "roformer" else BertConfig)(
        vocab_size=vocabulary,
        hidden_size=max(heads * head_size, 4),
        num_hidden_layers=draw(st.integers(1, 4)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(5, 48)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu"])),
        max_position_embeddings=length + draw(st.integers(0, 9)),
        type_vocab_size=draw(st.integers(2, 3)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-7, 1e-5, 1e-3])),
        pad_token_id=draw(st.sampled_from([0, 0, 1, 7])),
    )
    seed = draw(st.integers(0, 10_000))
    return config, reference_batch(config, draw(st.integers(1, 5)), length, seed), seed


def masked(batch):
    return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}


def pair(config, seed=0, dtype=torch.float64):
    "Theirs with every parameter random, and ours with the same weights, both in eval mode."
    theirs = hf.BertForPreTraining(hf.BertConfig(**asdict(config), attn_implementation="eager"))
    theirs = randomise_(theirs, seed).to(dtype).eval()
    return from_hf(theirs).eval(), theirs


def same_gradients(kind, ours, theirs, config, absent=()):
    named, own = dict(theirs.named_parameters()), dict(ours.named_parameters())
    for name, theirs_name in name_table(config).items():
        if name.startswith(absent): continue
        assert own[name].grad is not None, f"{name} has no gradient"
        same(kind, own[name].grad, named[theirs_name].grad)


def check_bert(case):
    config, batch, seed = case
    ours, theirs = pair(config, seed)
    inputs, real = masked(batch), batch["attention_mask"]
    with torch.no_grad():
        a, states, probs = ours(**inputs), ours.bert(**inputs).hidden_states, attentions(ours.bert, **inputs)
        b = theirs(**inputs, output_hidden_states=True, output_attentions=True)
    same("hidden states", states, list(b.hidden_states), mask=real)
    assert len(probs) == len(b.attentions) == config.num_hidden_layers
    for p, q in zip(probs, b.attentions):
        same("attention probs", p.transpose(1, 2), q.transpose(1, 2), mask=real)
    last = states[-1]
    same("pooler", ours.bert(**inputs).pooler_output.detach(), theirs.bert.pooler(last).detach())
    same("MLM logits", a.prediction_logits, b.prediction_logits, mask=real)
    same("NSP logits", a.seq_relationship_logits, b.seq_relationship_logits)

    c, d = ours(**batch), theirs(**batch)  # ours makes logits at the predicted positions alone
    mlm = torch.nn.functional.cross_entropy(b.prediction_logits.flatten(0, 1), batch["labels"].flatten())
    nsp = torch.nn.functional.cross_entropy(b.seq_relationship_logits, batch["next_sentence_label"])
    same("MLM loss", c.losses["mlm"], mlm)
    same("NSP loss", c.losses["nsp"], nsp)
    same("loss", c.loss, d.loss)
    bare = BertForPreTraining(config).double().eval()
    bare.load_state_dict(ours.state_dict())
    same("loss, bare", bare(**batch).loss, d.loss)
    c.loss.backward(), d.loss.backward()
    same_gradients("gradients", ours, theirs, config)


def roformer(ours):
    config = hf.RoFormerConfig(**ours.config.to_dict(), attn_implementation="eager")
    theirs = hf.RoFormerForMaskedLM(config).double().eval()
    lost, extra = theirs.load_state_dict(to_hf(ours), strict=False)
    assert not lost and {name.split(".")[1] for name in extra} == {"pooler", "seq_relationship"}
    return theirs


def check_roformer(case):
    config, batch, seed = case
    ours = model(config, seed)
    theirs = roformer(ours)
    inputs, real = masked(batch), batch["attention_mask"]
    with torch.no_grad():
        a, states, probs = ours(**inputs), ours.bert(**inputs).hidden_states, attentions(ours.bert, **inputs)
        b = theirs(**inputs, output_hidden_states=True, output_attentions=True)
    same("RoFormer, hidden states", states, list(b.hidden_states), mask=real)
    for p, q in zip(probs, b.attentions):
        same("RoFormer, attention probs", p.transpose(1, 2), q.transpose(1, 2), mask=real)
    same("RoFormer, MLM logits", a.prediction_logits, b.logits, mask=real)
    c, d = ours(**inputs, labels=batch["labels"]), theirs(**inputs, labels=batch["labels"])
    same("RoFormer, MLM loss", c.loss, d.loss)
    c.loss.backward(), d.loss.backward()
    same_gradients("RoFormer, gradients", ours, theirs, config, absent=("bert.pooler", "nsp_head"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs has no pooler and no NSP head
        back = from_hf(theirs)
    own = {n: t for n, t in ours.state_dict().items() if not n.startswith(("bert.pooler", "nsp_head"))}
    assert_same({n: back.state_dict()[n] for n in own}, own, tol=0)


def drawn(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                    suppress_health_check=list(HealthCheck))


@drawn(40)
@given(cases())
def test_bert(case): check_bert(case)


@pytest.mark.slow
@drawn(240)
@given(cases())
def test_bert_wide(case): check_bert(case)


@drawn(12)
@given(cases("roformer"))
def test_roformer(case): check_roformer(case)


@pytest.mark.slow
@drawn(80)
@given(cases("roformer"))
def test_roformer_wide(case): check_roformer(case)


# --- what must change nothing ---


def model(config, seed=0):
    kind = FastBlockForPreTraining if isinstance(config, BlockConfig) else FastBertForPreTraining
    return randomise_(kind(config), seed).double().eval()


def outputs(model, inputs):
    with torch.no_grad(): states, out = model.bert(**inputs).hidden_states, model(**inputs)
    return states, out.prediction_logits, out.seq_relationship_logits


both = pytest.mark.parametrize("config", [SMALL, ROTARY], ids=["absolute", "rotary"])


@both
@pytest.mark.parametrize("more", [1, 2, 9])
def test_padding_changes_nothing(config, more):
    ours, inputs = model(config), masked(reference_batch(config))
    S = inputs["input_ids"].shape[1]
    longer = {name: torch.nn.functional.pad(t, (0, more)) for name, t in inputs.items()}
    states, logits, nsp = outputs(ours, inputs)
    more_states, more_logits, more_nsp = outputs(ours, longer)
    real = inputs["attention_mask"]
    assert_same([s[:, :S] for s in more_states], states, mask=real, tol=TOL)
    assert_same(more_logits[:, :S], logits, mask=real, tol=TOL)
    assert_same(more_nsp, nsp, tol=TOL)


@both
def test_a_batch_equals_its_rows(config):
    ours, inputs = model(config), masked(reference_batch(config, batch=5))
    states, logits, nsp = outputs(ours, inputs)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = {name: t[row : row + 1, :length] for name, t in inputs.items()}
        row_states, row_logits, row_nsp = outputs(ours, alone)
        assert_same(row_states, [s[row : row + 1, :length] for s in states], tol=TOL)
        assert_same(row_logits, logits[row : row + 1, :length], tol=TOL)
        assert_same(row_nsp, nsp[row : row + 1], tol=TOL)


@both
def test_garbage_under_padding_changes_nothing(config):
    ours, batch = model(config), reference_batch(config)
    padding = batch["attention_mask"] == 0
    assert padding.any()
    dice = torch.Generator().manual_seed(1)
    garbage = torch.randint(config.vocab_size, padding.shape, generator=dice)
    dirty = batch | {"input_ids": batch["input_ids"].where(~padding, garbage),
                     "token_type_ids": batch["token_type_ids"].where(~padding, torch.tensor(1))}
    clean_out, dirty_out = (outputs(ours, masked(b)) for b in (batch, dirty))
    for a, b in zip(clean_out[:2], dirty_out[:2]): assert_same(a, b, mask=batch["attention_mask"], tol=TOL)
    assert_same(clean_out[2], dirty_out[2], tol=TOL)
    losses, grads = [], []
    for b in (batch, dirty):
        ours.zero_grad()
        losses.append(ours(**b).loss)
        losses[-1].backward()
        grads.append({n: p.grad for n, p in ours.named_parameters()})
    assert_same(*losses, tol=TOL)
    assert_same(*grads, tol=TOL)


@both
def test_garbage_matters_where_it_is_not_padded(config):  # the negative control of the three above
    ours, inputs = model(config), masked(reference_batch(config))
    other = inputs | {"input_ids": (inputs["input_ids"] + 1) % config.vocab_size}
    with pytest.raises(AssertionError): assert_same(outputs(ours, inputs)[1], outputs(ours, other)[1], tol=TOL)


def test_one_swapped_name_is_noticed():
    ours, theirs = pair(SMALL)
    turn = {"query": "key", "key": "query"}
    state = {".".join(turn.get(part, part) for part in name.split(".")): t for name, t in theirs.state_dict().items()}
    batch = reference_batch(SMALL)
    with pytest.raises(AssertionError): assert_same(from_hf(state, SMALL).eval()(**batch).loss, theirs(**batch).loss, tol=TOL)


@pytest.mark.slow
def test_float32_is_close_to_float64_at_base_size():
    config = BertConfig.preset("base", vocab_size=8192)
    ours = randomise_(BertForPreTraining(config)).eval()
    inputs = masked(reference_batch(config, batch=2, length=128))
    single = outputs(ours, inputs)
    double = outputs(ours.double(), inputs)
    for kind, a, b, mask in zip(("states", "MLM logits", "NSP logits"), single, double, (inputs["attention_mask"],) * 2 + (None,)):
        a = a.double() if isinstance(a, torch.Tensor) else [t.double() for t in a]
        seen[f"float32 at base size, {kind}"] = assert_same(a, b, mask=mask, tol=1e-5, name=kind)
