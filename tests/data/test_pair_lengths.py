"""Pairs as long as asked: what is too long loses from both ends, and the share of short ones is the one that was asked for."""
import numpy as np
import pytest

from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.pairs import PairSampler, draw_pairs
from minibert.text.cleaning import SPECIALS
from minibert.tokenizer import WordPieceTokenizer


def drawn(documents, sentences, tokens, count, length, short):
    "Pairs from a corpus of equal documents of equal sentences."
    starts = np.arange(documents * sentences + 1) * tokens, np.arange(documents + 1) * sentences
    tokenizer = WordPieceTokenizer(SPECIALS)
    corpus = Corpus(np.zeros(starts[0][-1], np.uint16), *starts, dict(vocab_size=5, vocabulary=tokenizer.fingerprint))
    return draw_pairs(PairSampler(corpus, tokenizer, length).places, count, length, short, seeded(0))


def test_what_is_too_long_loses_from_both_ends_alike():
    "A and B of 50 tokens in 27 places: 36 and 37 tokens go, each from the front or the back by lot."
    pairs = drawn(100, 2, 50, count=10_000, length=30, short=0.0)
    assert {*pairs.a_length} == {14} and {*pairs.b_length} == {13}
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


def test_a_share_near_nothing_still_hides_a_token_of_each_text():
    documents = load_documents("stories", limit=20)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=200)
    for share, least, most in ((5e-324, 1, 1), (1.0, 13, 13)):
        batch = PairSampler(Corpus.build(documents, tokenizer), tokenizer, 16, short=0, probability=share).batch(0, 8)
        hidden = (batch["labels"] >= 0).sum(1)
        assert least <= hidden.min() <= hidden.max() <= most
