"""Baselines have not seen the answers, and an interval of a share is one."""
import numpy as np
import pytest

from minibert.data.corpus import Corpus
from minibert.data.stories import stories
from minibert.measure.baselines import unigram_baseline, words_whole
from minibert.measure.probes import share_interval
from minibert.pairs import PairSampler
from minibert.tokenizer import WordPieceTokenizer


def test_unigram_baseline_has_not_seen_the_answers():
    "The training text's commonest piece is said, and not the held-out text's."
    figures = unigram_baseline(np.array([6, 2, 0]), np.array([1, 1, 1, 0]))
    assert figures["unigram_accuracy"] == 0.25
    assert figures["unigram_loss"] == pytest.approx(-(3 * np.log(3 / 11) + np.log(7 / 11)) / 4)


def test_shares_keep_between_nothing_and_all():
    generator = np.random.default_rng(0)
    for _ in range(200):
        rows = np.sort(generator.integers(0, generator.integers(2, 9), generator.integers(4, 40)))
        if len({*rows}) < 2: continue
        values = generator.random(len(rows)) < generator.choice([0.02, 0.5, 0.98])
        low, high = share_interval(values.astype(float), rows)
        assert 0 <= low <= values.mean() + 1e-12 and values.mean() - 1e-12 <= high <= 1 and low < high


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_have_a_bound_only_where_each_is_one_piece_of_its_own(lowercase):
    "A vocabulary that keeps capitals has two pieces for one word of the grammar."
    texts = [list(story.sentences) for story in stories(20)]
    lines = [line for text in texts for line in text]
    tokenizer = WordPieceTokenizer.train([*lines, *map(str.lower, lines)], vocab_size=2000, lowercase=lowercase)
    sampler = PairSampler(Corpus.build(texts, tokenizer), tokenizer, 32)
    assert words_whole(sampler, stories(20)) is lowercase
