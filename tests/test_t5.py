"""T5 equals Hugging Face's, both versions, over drawn configurations: states, probs, logits, loss, every gradient, and what it writes."""
import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, replace
from unittest.mock import patch

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention as TheirAttention
from transformers.models.t5.modeling_t5 import T5LayerNorm

from lockstep import few_and_many, on_drawn, one_thread, parts_add_up, update_by_hand  # noqa: F401
from minibert.attention import MultiHeadAttention, attend
from minibert.core.seeds import seeded
from minibert.gpt import with_cache
from minibert.hub.files import build_model
from minibert.model import attentions
from minibert.nn.shortcuts import FastAttention
from minibert.train.optimizers import make_optimizers
from minibert.parity import assert_same, randomise_
from minibert.train.recipe import TrainingConfig
from minibert.t5 import T5Config, T5ForConditionalGeneration, generate_from, relative_buckets, shift_right
from minibert.training import Run, train_step
from minibert.weights import from_hf, load_pretrained, save_pretrained, to_hf

SMALL = T5Config(101, d_model=24, d_kv=5, d_ff=37, num_layers=2, num_heads=4, dropout_rate=0.0)
NEWER = replace(SMALL, feed_forward_proj="gated-gelu", tie_word_embeddings=False, scale_decoder_outputs=False)


@contextmanager
def exact_norms():
    "Their norm takes its variance in float32: in here, in the type of what it norms."
    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
    with patch.object(T5LayerNorm, "forward", norm): yield


def reference(config, seed=0):
    "Hugging Face's model of these sizes, every parameter random, in float64; the head is what the config says."
    theirs = hf.T5ForConditionalGeneration(hf.T5Config(**config.to_dict(), attn_implementation="eager"))
    if not config.tie_word_embeddings:
        theirs.lm_head.weight = torch.nn.Parameter(torch.empty(config.vocab_size, config.d_model))
    return randomise_(theirs, seed).double().eval()


@st.composite
def cases(draw):
    heads, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10_000))
    S, T, B = draw(st.integers(2, 40)), draw(st.integers(1, 40)), draw(st.integers(1, 3))
    V, buckets = draw(st.integers(7, 90)), draw(st.integers(4, 32))
    config = T5Config(
        vocab_size=V, d_model=draw(st.sampled_from([6, 11, 16])), d_kv=draw(st.sampled_from([1, 3, 8])),
        d_ff=draw(st.sampled_from([7, 37])), num_layers=draw(st.integers(1, 3)),
        num_decoder_layers=draw(st.sampled_from([None, 1, 2])), num_heads=heads,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=buckets // 2 + draw(st.sampled_from([1, 5, 112])),
        layer_norm_epsilon=draw(st.sampled_from([1e-6, 1e-3])), dropout_rate=0.1,
        feed_forward_proj=draw(st.sampled_from(["relu", "gated-gelu"])),
        tie_word_embeddings=draw(st.booleans()), scale_decoder_outputs=draw(st.booleans()),
        pad_token_id=draw(st.integers(0, 3)), decoder_start_token_id=draw(st.integers(0, 3)))
    g = seeded(seed)
    ids, labels = torch.randint(V, (B, S), generator=g), torch.randint(V, (B, T), generator=g)
    real = (torch.arange(S) < torch.randint(1, S + 1, (B, 1), generator=g)).long()
    if draw(st.booleans()): real = real.flip(1)
    told = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=g)
    return config, ids, real, labels.masked_fill(~told, -100), told.long(), seed


def check_equal(case):
    config, ids, real, labels, told, seed = case
    theirs = reference(config, seed)
    ours = from_hf(theirs).eval()
    assert ours.config == config
    with exact_norms():
        b = theirs(ids, real, labels=labels, output_hidden_states=True, output_attentions=True)
        b.loss.backward()
    batch = dict(input_ids=ids, attention_mask=real, decoder_input_ids=shift_right(labels, config))
    a, probs, L = ours(**batch), attentions(ours, **batch), config.num_layers
    assert_same(a.encoder_hidden_states, b.encoder_hidden_states, real)
    assert_same(a.decoder_hidden_states, b.decoder_hidden_states)
    for x, y in zip(probs[:L], b.encoder_attentions, strict=True):
        assert_same(x.transpose(1, 2), y.transpose(1, 2), real)
    assert_same(probs[L::2], list(b.decoder_attentions))
    assert_same(probs[L + 1::2], list(b.cross_attentions))
    assert_same(a.logits, b.logits)
    assert_same(a.logits, theirs(ids, real, labels=labels).logits, tol=1e-5)  # their norm as it comes
    out = ours(ids, real, labels=labels)
    assert_same(out.loss, b.loss)
    assert ours.counts(dict(labels=labels)) == {"span": int((labels != -100).sum())} == {"span": len(out.logits)}
    out.loss.backward()
    moved = T5ForConditionalGeneration(config).double()
    moved.load_state_dict({name: p.grad for name, p in ours.named_parameters()})
    grads = to_hf(moved)
    assert_same({name: grads[name] for name, _ in theirs.named_parameters()},
                {name: p.grad for name, p in theirs.named_parameters()})
    hidden = dict(decoder_input_ids=shift_right(labels, config), decoder_attention_mask=told)
    with exact_norms(), torch.no_grad(): b = theirs(ids, real, **hidden)
    assert_same(ours(ids, real, **hidden).logits, b.logits, told)


@few_and_many
def test_equal_to_hugging_face(count): on_drawn(check_equal, count, cases())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(4, 64), st.integers(1, 300), st.booleans())
def test_buckets_are_theirs(buckets, more, both_sides):
    distance, far = torch.arange(-400, 401), buckets // 2 + more
    assert torch.equal(relative_buckets(distance, both_sides, buckets, far),
                       TheirAttention._relative_position_bucket(distance, both_sides, buckets, far))


def test_where_the_buckets_of_chapter_21_begin():
    which = relative_buckets(-torch.arange(151), True)
    assert [(which == k).nonzero()[0].item() for k in which.unique()] == [*range(9), 12, 16, 23, 32, 46, 64, 91]


@pytest.mark.parametrize("config", [SMALL, NEWER], ids=["1.0", "1.1"])
def test_every_parameter_gets_a_gradient(config):
    "Except one row of the encoder's table: no distance falls into the bucket of a later key at distance 0."
    model = T5ForConditionalGeneration(config, seeded(0))
    ids = torch.randint(101, (2, 150), generator=seeded(1))
    model(ids, labels=ids.flip(1)).loss.backward()
    for name, p in model.named_parameters():
        rows = p.grad.abs().flatten(1).sum(1) if p.dim() > 1 else p.grad.abs()
        if name == "encoder.bias.table.weight": assert rows.nonzero().flatten().tolist() == [*range(16), *range(17, 32)]
        elif name.endswith("table.weight"): assert (rows > 0).all(), name
        else: assert rows.sum() > 0, name


@pytest.mark.parametrize("config", [SMALL, NEWER], ids=["1.0", "1.1"])
def test_initial_weights(config):
    config = replace(config, vocab_size=2000, d_model=96, d_kv=16, d_ff=256)
    model, D = T5ForConditionalGeneration(config, seeded(0)), 96
    wanted = {"query": (D * 16) ** -0.5, "output": 64 ** -0.5, "down": 256 ** -0.5, "words": 1.0}
    for name, p in model.named_parameters():
        if p.dim() < 2: assert (p == 1).all()
        else:
            share = p.std().item() / wanted.get(name.split(".")[-2], D ** -0.5)
            assert abs(share - 1) < 5 / (2 * p.numel()) ** 0.5, name
    for other in config, replace(config, tie_word_embeddings=True, scale_decoder_outputs=False):
        model = T5ForConditionalGeneration(other, seeded(0))
        ids = torch.randint(2000, (8, 30), generator=seeded(1))
        assert abs(model(ids, labels=ids.flip(1)).loss.item() - 7.6) < 2  # ln 2000 = 7.6, and not 150


def test_no_token_of_the_answer_sees_the_next_one():
    model = T5ForConditionalGeneration(SMALL, seeded(0)).double().eval()
    ids, told = torch.randint(101, (1, 7), generator=seeded(1)), torch.randint(101, (1, 12), generator=seeded(2))
    before = model(ids, None, told).logits
    for k in range(12):
        other = told.clone()
        other[0, k] = (other[0, k] + 1) % 101
        changed = (model(ids, None, other).logits != before).any(-1)[0]
        assert not changed[:k].any() and changed[k:].all()
    for k in range(7):  # and every token of it sees all of the text
        other = ids.clone()
        other[0, k] = (other[0, k] + 1) % 101
        assert (model(other, None, told).logits != before).any(-1).all()


@pytest.mark.parametrize("config", [SMALL, NEWER], ids=["1.0", "1.1"])
def test_counts_make_parts_add_up(config):
    ids, labels = torch.randint(101, (6, 9), generator=seeded(2)), torch.randint(101, (6, 5), generator=seeded(3))
    labels[1, 4:], labels[4, 2:], labels[5] = -100, -100, -100
    parts_add_up(lambda: T5ForConditionalGeneration(config, seeded(0)).double(), dict(input_ids=ids, labels=labels), "span_loss")


@pytest.mark.parametrize("config", [pytest.param(SMALL, id="1.0", marks=pytest.mark.slow), pytest.param(NEWER, id="1.1")])
def test_fifty_steps_in_lockstep_with_theirs(config):
    theirs = reference(config, 3)
    ours = from_hf(theirs).train()
    training = TrainingConfig(steps=50, batch_size=4, learning_rate=1e-3)
    mine, other = make_optimizers(ours, training), make_optimizers(theirs, training)
    with exact_norms():
        for step in range(50):
            ids, labels = (torch.randint(101, (4, n), generator=seeded(5, step, n)) for n in (16, 7))
            real = (torch.arange(16) < torch.tensor([[16], [11], [5], [1]])).long()
            labels[1, 5:] = -100
            line = train_step(Run(ours, mine, training, step), dict(input_ids=ids, attention_mask=real, labels=labels)).line
            loss = theirs(ids, real, labels=labels).loss
            loss.backward()
            norm = update_by_hand(theirs, other, line["learning_rate"], training.max_grad_norm)
            assert_same([line["loss"], line["grad_norm"]], [loss.item(), norm.item()], tol=1e-9)
    assert_same(to_hf(ours), theirs.state_dict(), tol=1e-9)


HEADS = {"1.0": SMALL, "1.1": NEWER, "tied, no scale": replace(NEWER, tie_word_embeddings=True),
         "own, scaled": replace(SMALL, tie_word_embeddings=False, scale_decoder_outputs=True)}


@pytest.mark.parametrize("config", HEADS.values(), ids=HEADS)
def test_checkpoints_go_both_ways_bit_for_bit(tmp_path, config):
    theirs = reference(config, 1).float()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_pretrained(tmp_path / "theirs")
    assert ours.config == config and (ours.head is None) == config.tie_word_embeddings
    assert to_hf(ours).keys() == theirs.state_dict().keys()
    assert all(torch.equal(a, theirs.state_dict()[name]) for name, a in to_hf(ours).items())
    save_pretrained(ours, None, tmp_path / "ours")
    again = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert type(again) is hf.T5ForConditionalGeneration
    assert all(torch.equal(a, again.state_dict()[name]) for name, a in theirs.state_dict().items())
    assert (again.lm_head.weight is again.shared.weight) == config.tie_word_embeddings
    assert again.config.scale_decoder_outputs == config.scale_decoder_outputs
    ids = torch.randint(101, (2, 9), generator=seeded(7))
    with torch.no_grad(): assert_same(again(ids, labels=ids).logits, ours(ids, None, shift_right(ids, config)).logits, tol=1e-5)
    twice = load_pretrained(tmp_path / "ours")
    assert twice.config == config and all(torch.equal(a, b) for a, b in zip(twice.parameters(), ours.parameters(), strict=True))
    assert (build_model(tmp_path / "ours").head is None) == config.tie_word_embeddings


def test_the_tensors_decide_whether_the_head_is_tied_and_not_the_flag(tmp_path):
    state = reference(NEWER, 1).float().state_dict()
    for flag in True, False:
        opened = from_hf(dict(state), replace(NEWER, tie_word_embeddings=flag))
        assert opened.head is not None and torch.equal(opened.head.weight, state["lm_head.weight"])
        tied = dict(state) | {"lm_head.weight": state["shared.weight"].clone()}
        assert from_hf(tied, replace(NEWER, tie_word_embeddings=flag)).head is None
        del tied["lm_head.weight"], tied["encoder.embed_tokens.weight"], tied["decoder.embed_tokens.weight"]
        assert from_hf(tied, replace(NEWER, tie_word_embeddings=flag)).head is None
    google = dict(state) | {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(32, 4)}
    assert_same(to_hf(from_hf(google, NEWER)), state, tol=0)
    with pytest.raises(ValueError, match="embed_tokens.weight differs"):
        from_hf(dict(state) | {"encoder.embed_tokens.weight": state["lm_head.weight"]}, NEWER)


def test_their_old_configs():
    old = dict(architectures=["T5ForConditionalGeneration"], d_ff=2048, d_kv=64, d_model=512, decoder_start_token_id=0, dropout_rate=0.1,
               eos_token_id=1, initializer_factor=1.0, is_encoder_decoder=True, layer_norm_epsilon=1e-06, model_type="t5", n_positions=512,
               num_heads=8, num_layers=6, output_past=True, pad_token_id=0, relative_attention_num_buckets=32, vocab_size=32128)
    assert T5Config.from_dict(old) == T5Config()
    newer = old | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, d_ff=1024, num_decoder_layers=8, num_heads=6, num_layers=8)
    read = T5Config.from_dict(newer)
    assert not read.scale_decoder_outputs
    theirs = json.loads(json.dumps(hf.T5Config(**newer).to_dict()))
    assert theirs["tie_word_embeddings"] is True  # their flag no longer says what it said
    assert replace(T5Config.from_dict(theirs), tie_word_embeddings=False) == read
    assert asdict(read) == read.to_dict()


def test_buckets_that_reach_nowhere():
    for change in dict(relative_attention_num_buckets=3), dict(relative_attention_max_distance=16):
        with pytest.raises(AssertionError): replace(SMALL, **change)


def check_cached(case, pieces):
    config, ids, real, labels, _, seed = case
    ours = from_hf(reference(config, seed)).eval()
    told = shift_right(labels, config)
    with torch.no_grad():
        whole, memory = ours(ids, real, told).logits, ours.encode(ids, real)[-1]
        reader, parts = with_cache(ours), []
        cuts = torch.randint(1, told.shape[1] + 1, (pieces,), generator=seeded(seed)).tolist()
        edges = sorted({0, *cuts, told.shape[1]})
        for start, end in zip(edges, edges[1:]):
            so_far = torch.ones(1, end, dtype=torch.long)
            parts.append(ours.logits(reader.decode(told[:, start:end], memory, real, so_far)[-1]))
            memory = memory[:, :0]  # its keys and values are kept
    assert_same(torch.cat(parts, 1), whole)


@few_and_many
def test_cached_equals_uncached(count): on_drawn(check_cached, count, cases(), st.integers(0, 3))


@pytest.mark.parametrize("config", [SMALL, NEWER], ids=["1.0", "1.1"])
@pytest.mark.parametrize("left", [True, False])
def test_greedy_is_theirs(config, left):
    theirs = reference(config, 4)
    ours, ids = from_hf(theirs).eval(), torch.randint(1, 101, (3, 9), generator=seeded(9))
    real = (torch.arange(9) < torch.tensor([[9], [4], [1]])).long()
    if left: real = real.flip(1)
    with exact_norms():
        free = theirs.generate(ids, attention_mask=real, max_new_tokens=40, do_sample=False, eos_token_id=None)[:, 1:]
        assert torch.equal(torch.stack(list(generate_from(
            from_hf(theirs.state_dict(), replace(config, eos_token_id=_absent(free))).eval(), ids, 40, real=real, temperature=0)), 1), free)
        stop = int(free[0, 3])  # a token that is written becomes the end
        said = theirs.generate(ids, attention_mask=real, max_new_tokens=40, do_sample=False, eos_token_id=stop, pad_token_id=0)[:, 1:]
    ours.config = replace(config, eos_token_id=stop)
    mine = torch.stack(list(generate_from(ours, ids, 40, real=real, temperature=0)), 1)
    assert torch.equal(mine, said)


def _absent(tokens): return next(k for k in range(101) if not (tokens == k).any())


def test_seeds_decide_the_draws_and_rows_end():
    model = T5ForConditionalGeneration(SMALL, seeded(0))
    ids = torch.randint(101, (4, 5), generator=seeded(1))
    run = lambda model, **how: torch.stack(list(generate_from(model, ids, 30, **how)), 1)
    assert torch.equal(run(model, seed=3), run(model, seed=3)) and not torch.equal(run(model, seed=3), run(model, seed=4))
    free = run(model, seed=3)
    model.config = replace(SMALL, eos_token_id=int(free[0, 4]))
    told, end = run(model, seed=3), model.config.eos_token_id
    for a, b in zip(told.tolist(), free.tolist()):
        n = a.index(end) if end in a else len(a)
        m = min(n, b.index(SMALL.eos_token_id) if SMALL.eos_token_id in b else n)  # the free ones may have ended too
        assert a[:m] == b[:m] and set(a[n + 1:]) <= {SMALL.pad_token_id}
    assert told[0, 4] == end and (told[0, 5:] == SMALL.pad_token_id).all()


def explicit(self, x, mask=None, memory=None):
    "Attention by its formula alone."
    context, _ = attend(*self.heads_of(x, memory), mask, self.dropout if self.training else 0.0)
    return self.output(context.transpose(1, 2).flatten(2))


def blind_mask(real, dtype):
    "Padding gets the lowest number, also where nothing else is there."
    return None if real is None else (1 - real[:, None, None].to(dtype)) * torch.finfo(dtype).min


@pytest.mark.parametrize("mask, wrong", [(None, False), (blind_mask, True)])
def test_gradients_of_a_text_that_is_all_padding(monkeypatch, mask, wrong):
    if mask is not None: monkeypatch.setattr("minibert.t5.additive_mask", mask)
    ids, labels = torch.randint(2, 101, (3, 9), generator=seeded(1)), torch.randint(2, 101, (3, 5), generator=seeded(2))
    real = (torch.arange(9) < torch.tensor([[9], [4], [0]])).long()
    found = []
    for fused in True, False:
        model = T5ForConditionalGeneration(SMALL, seeded(0)).double()
        if not fused: monkeypatch.setattr(MultiHeadAttention, "forward", explicit)
        loss = model(ids, real, labels=labels).loss
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
    assert_same(found[0][0], found[1][0])
    gap = max((a - b).abs().max() for a, b in zip(found[0][1], found[1][1]))
    assert gap > 1e-4 if wrong else gap < 1e-12


def test_dropout_stands_where_theirs_does():
    "The means and squares of the logits under dropout are theirs, so that no place is missing."
    config = replace(SMALL, dropout_rate=0.5)
    ours, theirs = from_hf(reference(config, 2)).train(), reference(config, 2).train()
    ids, told = torch.randint(101, (64, 9), generator=seeded(1)), torch.randint(101, (64, 5), generator=seeded(2))
    torch.manual_seed(0)
    with torch.no_grad(), exact_norms():
        a = torch.cat([ours(ids, None, told).logits for _ in range(12)])
        b = torch.cat([theirs(ids, decoder_input_ids=told).logits for _ in range(12)])
    for power in 1, 2:
        x, y = a.pow(power).flatten(1), b.pow(power).flatten(1)
        error = ((x.var(0) + y.var(0)) / len(x)).sqrt()
        assert (((x.mean(0) - y.mean(0)) / error).abs() < 6).all()
    assert not torch.equal(ours(ids, None, told).logits, ours(ids, None, told).logits)


def test_dropout_takes_what_theirs_takes(monkeypatch):
    "Every tensor that theirs drops from, ours drops from, and no other."
    config, dropped = replace(SMALL, dropout_rate=0.5), []
    ids, told = torch.randint(101, (3, 9), generator=seeded(1)), torch.randint(101, (3, 5), generator=seeded(2))
    whole = torch.nn.functional.dropout

    def watched(x, p=0.5, training=True, inplace=False):
        if training and p: dropped[-1][tuple(x.shape)] += 1
        return whole(x, p, training, inplace)
    monkeypatch.setattr(torch.nn.functional, "dropout", watched)
    for kind in MultiHeadAttention, FastAttention:  # fused attention drops out of sight
        monkeypatch.setattr(kind, "forward", explicit)
    for model in from_hf(reference(config, 2)), reference(config, 2):
        dropped.append(Counter())
        with exact_norms(): model.train()(input_ids=ids, decoder_input_ids=told)
    assert dropped[0] == dropped[1] and len(dropped[0]) >= 6, dropped
