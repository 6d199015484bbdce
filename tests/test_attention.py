"""Attention over drawn shapes: two forms, few rows, padding, order, turning positions."""
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep import one_thread  # noqa: F401
from minibert.nn import shortcuts
from minibert.attention import MultiHeadAttention, attend, merge_heads, split_heads
from minibert.nn.block import BlockAttention, BlockConfig, BlockEmbeddings
from minibert.nn.shortcuts import FastAttention, take_mask_rows, take_rows
from minibert.config import BertConfig
from minibert.embeddings import Embeddings
from minibert.model import additive_mask
from minibert.speed import FastBlockEncoder, FastEncoder
from minibert.parity import assert_same, randomise_
from minibert.nn.rotary import rotary_angles, rotate

LOWEST = torch.finfo(torch.float64).min
drawn = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def attention_of(kind, H, D, S=512):
    "BERT's attention, or a RoFormer's, with every parameter random."
    sizes = dict(vocab_size=11, hidden_size=D, num_hidden_layers=1, num_attention_heads=H,
                 intermediate_size=4, max_position_embeddings=S)
    return MultiHeadAttention(BertConfig(**sizes)) if kind == "bert" else BlockAttention(BlockConfig(**sizes))


def past(S): return torch.full((1, 1, S, S), LOWEST, dtype=torch.float64).triu(1)


@st.composite
def cases(draw, kinds=("bert", "roformer")):
    "A randomised module, hidden vectors (B, S, D), a mask (B, 1, 1, S) with at least one real key, a seed."
    B, S, H = draw(st.integers(1, 4)), draw(st.integers(1, 23)), draw(st.integers(1, 5))
    K, kind, seed = 2 * draw(st.integers(1, 6)), draw(st.sampled_from(kinds)), draw(st.integers(0, 999))
    module = randomise_(attention_of(kind, H, H * K, S).double(), seed).eval()
    real = normal(B, S, seed=seed + 1) > draw(st.sampled_from([-9.0, 0.0, 1.0]))  # all, half, a sixth
    real[:, draw(st.integers(0, S - 1))] = True
    mask = (~real).double()[:, None, None] * LOWEST
    return module, normal(B, S, H * K, seed=seed + 2), mask, seed


def backwards(result, module, hidden):
    weight = normal(*result.shape, seed=5)
    return [result, *torch.autograd.grad((result * weight).sum(), [hidden, *module.parameters()])]


@drawn
@given(cases())
def test_explicit_is_sdpa(case):
    "Results and all gradients."
    module, hidden, mask, _ = case
    hidden.requires_grad_()
    fast, probs = module(hidden, mask), module.probs(hidden, mask)
    context, same = attend(*module.heads_of(hidden), mask)
    explicit = module.output(merge_heads(context))
    assert_same(probs, same)
    assert_same(probs.sum(-1), torch.ones_like(probs[..., 0]))
    assert_same(backwards(fast, module, hidden), backwards(explicit, module, hidden), tol=1e-10)


@drawn
@given(cases(), st.integers(1, 30), st.booleans())
def test_rows_are_rows_of_the_dense(case, R, causal):
    "Also repeated and unordered rows; the gradients are those of reading the dense result there."
    module, hidden, mask, seed = case
    hidden.requires_grad_()
    B, S, _ = hidden.shape
    rows = torch.randint(S, (B, R), generator=torch.Generator().manual_seed(seed))
    if causal: mask = torch.minimum(mask, past(S))
    where = (rows,) if isinstance(module, BlockAttention) else ()
    given = take_rows(hidden, rows), take_mask_rows(mask, rows), hidden, *where
    few, read = module(*given), take_rows(module(hidden, mask), rows)
    assert_same(backwards(few, module, hidden), backwards(read, module, hidden), tol=1e-10)
    some, every = module.probs(*given), module.probs(hidden, mask)
    assert_same(some, every.gather(2, rows[:, None, :, None].expand_as(some)))


STACKS = {
    "bert": (FastEncoder, BertConfig, {}),
    "pre-norm": (FastBlockEncoder, BlockConfig, dict(norm_first=True, positions="absolute")),
    "other": (FastBlockEncoder, BlockConfig, dict(norm_first=True, norm="rms", gated=True, bias=False)),
}


@drawn
@given(st.sampled_from(sorted(STACKS)), st.integers(1, 3), st.integers(2, 9), st.integers(1, 12), st.booleans(), st.integers(0, 99))
def test_rows_of_every_kind_of_stack(kind, B, S, R, causal, seed):
    "Post-norm or pre-norm, rotary or not, all words or the past: states and gradients."
    stack, config, changes = STACKS[kind]
    encoder = randomise_(stack(config(11, 12, 2, 2, 5, **changes)).double(), seed).eval()
    hidden = normal(B, S, 12, seed=seed).requires_grad_()
    rows = torch.randint(S, (B, R), generator=torch.Generator().manual_seed(seed))
    mask = past(S) if causal else None
    dense, few = take_rows(encoder(hidden, mask)[-1], rows), encoder.at(rows, hidden, mask)
    assert_same(backwards(few, encoder, hidden), backwards(dense, encoder, hidden), tol=1e-10)


@drawn
@given(cases(kinds=("bert",)), st.integers(1, 9), st.integers(0, 99))
def test_a_memory_answers_in_place_of_x(case, Q, seed):
    "Cross-attention: those who ask find what they would find among the memory, and nothing of each other."
    module, memory, mask, _ = case
    x = normal(len(memory), Q, memory.shape[2], seed=seed)
    both = torch.cat([memory, x], 1)
    wide = F.pad(mask, (0, Q), value=LOWEST)
    assert_same(module(x, mask, memory), module(both, wide)[:, -Q:])


@drawn
@given(cases(kinds=("roformer",)))
def test_a_cache_of_states_writes_what_the_whole_text_gives(case):
    "One word after the other, each asking those before it, at its own position."
    module, hidden, _, _ = case
    B, S, _ = hidden.shape
    whole = module(hidden, past(S))
    for n in range(S):
        here = torch.full((B, 1), n)
        assert_same(module(hidden[:, n : n + 1], None, hidden[:, : n + 1], here), whole[:, n : n + 1])


@drawn
@given(cases(), st.integers(1, 9), st.sampled_from([1.0, 1e6, 1e12]))
def test_padding_changes_nothing(case, more, size):
    "Neither what lies under it nor how much of it stands behind."
    module, hidden, mask, seed = case
    clean, probs = module(hidden, mask), module.probs(hidden, mask)
    pad = (mask[:, 0, 0] < 0)[..., None]
    dirty = torch.where(pad, size * normal(*hidden.shape, seed=seed + 9), hidden)
    again, seen = module(dirty, mask), module.probs(dirty, mask)
    assert not probs.masked_select(mask < 0).any() and not seen.masked_select(mask < 0).any()
    assert_same(again.masked_fill(pad, 0), clean.masked_fill(pad, 0))
    longer = torch.cat([hidden, size * normal(len(hidden), more, hidden.shape[2], seed=seed)], 1)
    wider = F.pad(mask, (0, more), value=LOWEST)
    assert_same(module(longer, wider)[:, : hidden.shape[1]], clean)


@drawn
@given(cases(kinds=("bert",)))
def test_order_is_unknown_without_rotary(case):
    module, hidden, mask, seed = case
    order = torch.randperm(hidden.shape[1], generator=torch.Generator().manual_seed(seed))
    assert_same(module(hidden[:, order], mask[..., order]), module(hidden, mask)[:, order])


@drawn
@given(cases(kinds=("roformer",)), st.integers(0, 500))
def test_rotary_knows_differences_only(case, shift):
    "The same text further on (masked positions before it) finds the same."
    module, hidden, mask, _ = case
    B, S, D = hidden.shape
    later = torch.cat([torch.zeros(B, shift, D, dtype=torch.float64), hidden], 1)
    wide = F.pad(mask, (shift, 0), value=LOWEST)
    moved, probs = module(later, wide), module.probs(later, wide)
    plain, seen = module(hidden, mask), module.probs(hidden, mask)
    assert_same(moved[:, shift:], plain)
    assert_same(probs[:, :, shift:, shift:], seen)


@drawn
@given(st.integers(1, 8), st.integers(1, 400), st.integers(0, 400), st.integers(0, 99))
def test_rotary_scores_shift(planes, S, shift, seed):
    q, k = normal(2, 1, 2 * planes, seed=seed)
    cos, sin = rotary_angles(S + shift, 2 * planes, dtype=torch.float64)
    turned = [rotate(x.expand(S + shift, -1), cos, sin) for x in (q, k)]
    here, there = (a @ b.T for a, b in ([x[:S] for x in turned], [x[shift:] for x in turned]))
    assert_same(there, here, tol=1e-10)
    assert_same(turned[0].norm(dim=-1), q.norm(dim=-1).expand(S + shift))


def test_rotary_is_not_blind_to_order():
    "The negative control: with rotary positions a permutation does change what is found."
    module = randomise_(attention_of("roformer", 4, 24).double())
    hidden, order = normal(2, 7, 24), torch.arange(6, -1, -1)
    assert (module.eval()(hidden[:, order]) - module(hidden)[:, order]).abs().max() > 1e-3


def test_rotate_gradients_and_precisions():
    x = normal(2, 3, 5, 6).requires_grad_()
    angles = rotary_angles(5, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, *angles), x)
    for dtype, tol in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        low = rotate(x.to(dtype), *rotary_angles(5, 6))
        assert low.dtype == dtype
        assert_same(low.double(), rotate(x, *angles), tol=tol)


def test_float32_angles_are_good_enough():
    "At position 511 the angle in float32 is off by less than bfloat16 or training would notice."
    single, double = rotary_angles(512, 64), rotary_angles(512, 64, dtype=torch.float64)
    assert assert_same([x.double() for x in single], list(double), tol=1e-4) > 1e-9


@drawn
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(1, 7))
def test_heads_split_and_merge(B, S, H, K):
    x = normal(B, S, H * K)
    parts = split_heads(x, H)
    assert parts.shape == (B, H, S, K) and torch.equal(merge_heads(parts), x)
    for h in range(H): assert torch.equal(parts[:, h], x[..., h * K : (h + 1) * K])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nobody_to_look_at(dtype):
    "The mask of such a row is 0: both forms find the same, and give the same gradients."
    q, k, v = (normal(1, 2, 5, 4, seed=n).to(dtype) for n in range(3))
    real = torch.tensor([[[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1] * 5, [0] * 5]])
    def both(mask):
        "Result and gradients of both forms."
        found = []
        for way in (lambda *qkv: attend(*qkv, mask)[0], lambda *qkv: F.scaled_dot_product_attention(*qkv, mask)):
            leaves = [part.clone().requires_grad_() for part in (q, k, v)]
            found.append([result := way(*leaves), *torch.autograd.grad(result.square().sum(), leaves)])
        return found
    mask = additive_mask(real, dtype)
    assert mask.shape == (1, 1, 5, 5) and not mask[0, 0, [1, 3, 4]].any()
    explicit, fused = both(mask)
    tol = 0.3 if dtype == torch.bfloat16 else 1e-5
    assert_same(fused, explicit, tol=tol)
    everywhere = torch.full_like(mask, 1) * torch.finfo(dtype).min  # the negative control
    explicit, fused = both(everywhere)
    assert (explicit[3] - fused[3]).abs().max() > 1


@pytest.mark.parametrize("fast", ["0", "1"])
@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
@pytest.mark.parametrize("kind", ["bert", "roformer"])
def test_bfloat16_is_explicit_on_a_cpu_that_is_fast_at_it(precision, kind, fast, monkeypatch):
    "The rule of the module, and that the result is near the exact one either way."
    monkeypatch.setenv("MINIBERT_BFLOAT16", fast)
    config = BertConfig(11, 24, 1, 4, 4), BlockConfig(11, 24, 1, 4, 4)
    module = FastAttention(config[0]) if kind == "bert" else BlockAttention(config[1])
    module = randomise_(module).eval()
    hidden = normal(2, 7, 24).float()
    exact, calls = module(hidden), []
    count = lambda *given: calls.append(1) or attend(*given)  # noqa: E731
    monkeypatch.setattr(shortcuts, "attend", count)
    if precision == "autocast":
        with torch.autocast("cpu", torch.bfloat16): found = module(hidden)
    else: found = module.bfloat16()(hidden.bfloat16())
    assert calls == [1] * int(fast) and found.dtype == torch.bfloat16
    assert_same(found.float(), exact, tol=6e-2)
    module.float()(hidden)
    assert calls == [1] * int(fast)


def test_dropout_only_in_training():
    config = BertConfig(11, 24, 1, 4, 4, attention_probs_dropout_prob=0.5)
    module, hidden = randomise_(MultiHeadAttention(config).double()), normal(2, 7, 24)
    still, seen = module.eval()(hidden), module.probs(hidden)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noisy, probs = module.train()(hidden), module.probs(hidden)
        assert (noisy - still).abs().max() > 1e-3
        q, k, v = normal(3, 2, 4, 7, 6)
        assert_same(attend(q, k, v, dropout=0.5)[1], attend(q, k, v)[1])
    assert_same(probs, seen)


@drawn
@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 8), st.booleans(), st.integers(0, 99))
def test_embeddings_by_hand(B, S, spare, rotary, seed):
    "Three rows, one sum, the norm; a text too long for the table is refused."
    config, kind = (BlockConfig, BlockEmbeddings) if rotary else (BertConfig, Embeddings)
    config = config(31, 12, 1, 2, 4, max_position_embeddings=S + spare)
    module = randomise_(kind(config).double(), seed).eval()
    g = torch.Generator().manual_seed(seed)
    ids, types = torch.randint(31, (B, S), generator=g), torch.randint(2, (B, S), generator=g)
    total = module.word_embeddings.weight[ids] + module.token_type_embeddings.weight[types]
    if not rotary: total = total + module.position_embeddings.weight[:S]
    centred = total - total.mean(-1, keepdim=True)
    size = (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
    assert_same(module(ids, types), centred / size * module.norm.weight + module.norm.bias)
    if rotary: return
    with pytest.raises(IndexError):
        module(torch.ones(B, S + spare + 1, dtype=torch.long))
