"""Checks that the bank of mistakes (tests/mutants) asked for: what they refuse, the other tests had let through."""
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import transformers as hf

from minibert.attention import MultiHeadAttention
from minibert.measure.baselines import unigram_baseline
from minibert.config import BertConfig
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.core.seeds import seeded
from minibert.heads import BertForPreTraining
from minibert.pairs import PairSampler, draw_pairs
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.tokenizer import WordPieceTokenizer
from minibert.text.cleaning import SPECIALS
from minibert.training import forward_backward, make_sampler, pretrain, train_step
from minibert.train.optimizers import make_optimizers
from minibert.train.recipe import TrainingConfig

SMALL = BertConfig(vocab_size=41, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=19)


def test_default_sizes_are_hugging_faces():
    theirs = hf.BertConfig().to_dict()
    ours = {name: value for name, value in asdict(BertConfig()).items() if name in theirs}
    assert len(ours) >= 12 and ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("need_probs", [False, True], ids=["fused", "explicit"])
def test_both_ways_of_attention_drop_out_in_training_alone(need_probs):
    part = randomise_(MultiHeadAttention(SMALL))
    hidden = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, other = (part.train()(hidden, need_probs=need_probs)[0] for _ in range(2))
    assert (one - other).abs().max() > 1e-2
    one, other = (part.eval()(hidden, need_probs=need_probs)[0] for _ in range(2))
    assert torch.equal(one, other)


def test_unigram_baseline_has_not_seen_the_answers():
    "The training text's commonest piece is said, and not the held-out text's."
    figures = unigram_baseline(np.array([6, 2, 0]), np.array([1, 1, 1, 0]))
    assert figures["unigram_accuracy"] == 0.25
    assert np.isclose(figures["unigram_loss"], -(3 * np.log(3 / 11) + np.log(7 / 11)) / 4)


def test_the_tolerance_is_absolute():
    "A millionth of a million is 1: no size of the numbers excuses a difference."
    large = torch.tensor([1e6, 1.0], dtype=torch.float64)
    off = large + torch.tensor([1e-4, 0.0], dtype=torch.float64)
    with pytest.raises(AssertionError, match=r"a difference of 0\.0001 at \(0,\)"): assert_same(off, large)


def drawn(documents, sentences, tokens, count, length, short):
    "Pairs from a corpus of equal documents of equal sentences."
    starts = np.arange(documents * sentences + 1) * tokens, np.arange(documents + 1) * sentences
    tokenizer = WordPieceTokenizer(SPECIALS)
    corpus = Corpus(np.zeros(starts[0][-1], np.uint16), *starts, dict(vocab_size=5, vocabulary=tokenizer.fingerprint))
    return draw_pairs(PairSampler(corpus, tokenizer, length).places, count, length, short, seeded(0))


def test_what_is_too_long_loses_from_both_ends_alike():
    "A and B of 50 tokens in 27 places: 36 and 37 tokens go, each from the front or the back by lot."
    pairs = drawn(100, 2, 50, count=10_000, length=30, short=0.0)
    assert set(pairs.a_length) == {14} and set(pairs.b_length) == {13}
    for starts, gone in ((pairs.a_start % 50, 36), (pairs.b_start % 50, 37)):
        assert abs(starts.mean() - gone / 2) < 5 * (gone / 4 / 10_000) ** 0.5
        assert abs(starts.var() / (gone / 4) - 1) < 5 * (2 / 10_000) ** 0.5


@pytest.mark.parametrize("short", [0.0, 0.1, 1.0])
def test_share_of_short_pairs(short):
    "Of sentences of one token every target can be met: the whole room, or by lot any length from 2 on."
    pairs = drawn(20, 200, 1, count=20_000, length=64, short=short)
    tokens = pairs.a_length + pairs.b_length
    share = short * 59 / 60
    assert abs((tokens < 61).mean() - share) <= 5 * (share * (1 - share) / 20_000) ** 0.5
    assert tokens.max() == 61 and (short == 0 or tokens.min() == 2)


FIVE = TrainingConfig(steps=5, batch_size=2, length=16, log_steps=1)


@pytest.fixture(scope="module")
def sampler():
    documents = [document[:4] for document in load_documents("stories", limit=8)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=200)
    return make_sampler(Corpus.build(documents, tokenizer), tokenizer, FIVE)


def bert(vocab_size=41, dropout=0.5):
    return BertForPreTraining(replace(SMALL, vocab_size=vocab_size, hidden_dropout_prob=dropout), seeded(0))


def test_training_drops_out_even_if_the_model_came_in_eval_mode(sampler):
    V = sampler.tokenizer.vocab_size
    wild, calm = (pretrain(bert(V, p).eval(), sampler, FIVE, progress=False)[0]["mlm_loss"] for p in (0.5, 0.0))
    assert abs(wild - calm) > 1e-4


def test_dropout_is_another_one_at_each_step_and_the_same_one_again():
    batch = reference_batch(SMALL)
    def loss(step):
        model = bert().train()
        return train_step(model, make_optimizers(model, FIVE), batch, step, FIVE)["loss"]
    assert loss(0) == loss(0) and len({loss(step) for step in range(4)}) == 4


def test_each_step_asks_for_its_own_batch(sampler, monkeypatch):
    asked, batch = [], sampler.batch
    monkeypatch.setattr(sampler, "batch", lambda step, size: asked.append((step, size)) or batch(step, size))
    pretrain(bert(sampler.tokenizer.vocab_size), sampler, FIVE, progress=False)
    assert asked == [(step, 2) for step in range(5)]


def test_parts_of_a_batch_weigh_what_they_predict():
    "Rows with 1, 2 and 5 words to predict, cut into parts: the gradient is that of the whole."
    batch = reference_batch(SMALL, batch=3)
    batch["labels"] = batch["input_ids"].masked_fill(torch.arange(11) > torch.tensor([[1], [2], [5]]), -100)
    def gradients(parts):
        model = bert(dropout=0.0).double().eval()
        losses = forward_backward(model, batch, replace(FIVE, batch_size=3, gradient_accumulation_steps=parts))
        return {name: p.grad for name, p in model.named_parameters()} | losses
    assert_same(gradients(3), gradients(1), tol=1e-10)
