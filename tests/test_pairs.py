"""Pairs, wider than chapter 09: any corpus, any length, real text."""
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from minibert.core.errors import UserError
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.core.seeds import seeded
from minibert.data.pairs import cut_lengths, draw_pairs, read_batch
from minibert.pairs import PairSampler, collate
from minibert.text.cleaning import SPECIALS
from minibert.tokenizer import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer([*SPECIALS, *"abcdefghij", "##k", "##l"])
V = TOKENIZER.vocab_size


def corpus_of(sizes, seed=0):
    "A corpus whose documents have sentences of these many tokens."
    lengths = [n for document in sizes for n in document]
    ids = np.random.default_rng(seed).integers(5, V, sum(lengths)).astype(np.uint16)
    starts = np.cumsum([0, *lengths]), np.cumsum([0, *map(len, sizes)])
    return Corpus(ids, *(s.astype(np.int64) for s in starts), dict(vocab_size=V, vocabulary=TOKENIZER.fingerprint))


def draw(corpus, count, length, short, generator):
    "Pairs as a sampler of this corpus draws them."
    return draw_pairs(PairSampler(corpus, TOKENIZER, length).places, count, length, short, generator)


def check(batch, corpus, length):
    "Everything that must hold for a batch, said plainly, row by row."
    sentence_of = np.repeat(np.arange(corpus.n_sentences), np.diff(corpus.sentence_starts))
    document_of = np.repeat(np.arange(corpus.n_documents), np.diff(corpus.document_starts))
    longest = 0
    for k in range(len(batch["input_ids"])):
        x, types, real, at, y = (batch[name][k].tolist() for name in (
            "input_ids", "token_type_ids", "attention_mask", "positions", "labels"))
        n, sep = sum(real), at.index(-1, 1)
        longest = max(longest, n)
        a, b = at[1:sep], at[sep + 1:n - 1]
        assert real == [1] * n + [0] * (len(x) - n) and n <= length and a and b
        assert [x[0], x[sep], x[n - 1]] == [TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.sep_id]
        assert at == [-1, *a, -1, *b, -1] + [-1] * (len(x) - n)
        assert types == [0] * (sep + 1) + [1] * (n - sep - 1) + [0] * (len(x) - n)
        assert x[n:] == [TOKENIZER.pad_id] * (len(x) - n)
        truth = [corpus.ids[p] if p >= 0 else None for p in at]
        assert all(t is not None and t == v for t, v in zip(truth, y) if v != -100)
        assert all(t is None or v != -100 or t == seen for t, v, seen in zip(truth, y, x))
        assert any(v != -100 for v in y)
        for run in (a, b):
            assert run == list(range(run[0], run[-1] + 1))
            assert len({document_of[sentence_of[p]] for p in run}) == 1
        same = document_of[sentence_of[a[0]]] == document_of[sentence_of[b[0]]]
        assert same == (batch["next_sentence_label"][k] == 0)
        if same: assert b[0] > a[-1]
    assert longest == len(x)


sentences = st.lists(st.integers(1, 12), min_size=2, max_size=9)


@settings(max_examples=150, deadline=None)
@given(st.lists(sentences, min_size=2, max_size=8), st.integers(5, 40), st.integers(1, 6),
       st.sampled_from([0.0, 0.1, 1.0]), st.booleans(), st.integers(0, 10_000))
def test_any_corpus(sizes, length, batch_size, short, whole_words, seed):
    corpus = corpus_of(sizes, seed)
    sampler = PairSampler(corpus, TOKENIZER, length, seed=seed, short=short, whole_words=whole_words)
    check(sampler.batch(seed, batch_size, positions=True), corpus, length)


@pytest.mark.parametrize("sizes", [
    [[1, 1], [1, 1]], [[500, 1], [1, 500]], [[300, 300]] * 2, [[1] * 400, [2, 2]], [[3, 4]] * 500,
])
def test_odd_corpora(sizes):
    corpus = corpus_of(sizes)
    for length in (5, 6, 33, 128):
        check(PairSampler(corpus, TOKENIZER, length).batch(0, 64, positions=True), corpus, length)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(2, 100))
def test_cut_lengths(a, b, room):
    left_a, left_b = a, b
    while left_a + left_b > room:
        if left_a > left_b: left_a -= 1
        else: left_b -= 1
    assert [int(n) for n in cut_lengths(np.array(a), np.array(b), room)] == [left_a, left_b]


def test_every_boundary_and_every_token_is_met():
    "In short documents each inner boundary is cut alike often, and no token is left out."
    corpus = corpus_of([[3, 3, 3, 3, 3]] * 40)
    pairs = draw(corpus, 40_000, 64, 0.0, seeded(0))
    cuts = np.bincount(pairs.a_length, minlength=13)[3:13:3] / 40_000
    assert np.abs(cuts - 0.25).max() < 5 * (0.25 * 0.75 / 40_000) ** 0.5
    used = np.zeros(corpus.n_tokens, int)
    for start, size in ((pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length)):
        np.add.at(used, (start[:, None] + np.arange(15))[np.arange(15) < size[:, None]], 1)
    assert used.min() > 0


def test_half_and_half_at_every_length():
    corpus = corpus_of([[5, 2, 7, 4, 3, 6]] * 30)
    for length in (5, 12, 30, 64):
        share = draw(corpus, 20_000, length, 0.1, seeded(length)).is_random.mean()
        assert abs(share - 0.5) < 5 * 0.5 / 20_000**0.5


def told_by_length(pairs, half):
    "Accuracy on the second half of what votes by the two lengths; its standard error."
    place = pairs.a_length // 6 * 100 + pairs.b_length // 6
    votes = np.bincount(place[:half], np.where(pairs.is_random, 1, -1)[:half], minlength=place.max() + 1)
    right = (votes[place[half:]] > 0) == pairs.is_random[half:]
    return right.mean(), 0.5 / len(right) ** 0.5


@pytest.mark.parametrize("length", [32, 64, 128])
@pytest.mark.parametrize("sizes", ["even", "ragged", "long"])
def test_length_does_not_tell(length, sizes):
    rng = np.random.default_rng(1)
    shapes = {
        "even": lambda: rng.integers(6, 12, 8), "ragged": lambda: rng.geometric(0.08, rng.integers(2, 14)),
        "long": lambda: rng.geometric(0.05, 200) + 2,
    }
    corpus = corpus_of([shapes[sizes]().tolist() for _ in range(60 if sizes == "long" else 2000)])
    accuracy, error = told_by_length(draw(corpus, 60_000, length, 0.1, seeded(9)), 30_000)
    assert abs(accuracy - 0.5) < 5 * error


@pytest.mark.parametrize("sizes", ["short", "long"])
def test_a_stand_in_is_as_long_as_the_b_it_replaces(sizes, monkeypatch):
    "The same draw with every true B left in its place has the same lengths, row by row."
    rng = np.random.default_rng(2)
    documents = [rng.integers(4, 15, 8 if sizes == "short" else 300).tolist() for _ in range(600 if sizes == "short" else 20)]
    corpus = corpus_of(documents)
    drawn = draw(corpus, 5000, 64, 0.1, seeded(4))
    monkeypatch.setattr("minibert.data.pairs.draw_elsewhere", lambda places, wanted, generator: (0, wanted.b))
    true = draw(corpus, 5000, 64, 0.1, seeded(4))
    assert np.array_equal(drawn.is_random, true.is_random)
    agree = (drawn.a_length == true.a_length) & (drawn.b_length == true.b_length)
    assert agree[~drawn.is_random].all() and agree.mean() > 0.99


def test_random_bs_come_from_everywhere():
    "Stand-ins of equal documents are spread evenly over all documents but A's."
    corpus = corpus_of([[4] * 10] * 50)
    pairs = draw(corpus, 50_000, 24, 0.0, seeded(3))
    distance = (pairs.b_start // 40 - pairs.a_start // 40)[pairs.is_random] % 50
    count = np.bincount(distance, minlength=50)
    assert (pairs.b_start % 40 > 0).all()  # no B opens a document, neither true nor random
    expected = len(distance) / 49
    assert count[0] == 0 and np.abs(count[1:] - expected).max() < 5 * expected**0.5


def test_positions_beyond_32_bits():
    corpus = corpus_of([[5, 2, 7, 4]] * 30)
    far = SimpleNamespace(sentence_starts=corpus.sentence_starts + 2**40, document_starts=corpus.document_starts,
                          info=corpus.info, fingerprint=corpus.fingerprint, ids=corpus.ids)
    near, far = (draw(c, 500, 16, 0.1, seeded(0)) for c in (corpus, far))
    assert np.array_equal(near.a_start + 2**40, far.a_start) and np.array_equal(near.b_start + 2**40, far.b_start)


PROGRAM = """
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.pairs import PairSampler
from minibert.tokenizer import WordPieceTokenizer
documents = list(load_documents("stories", limit=60))
tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), 300)
batch = PairSampler(Corpus.build(documents, tokenizer), tokenizer, 48, seed=5, whole_words=True).batch(17, 4)
print({name: values.tolist() for name, values in sorted(batch.items())})
"""


def test_a_batch_is_a_function_of_seed_and_step(capsys):
    "Another process, other calls before, another global seed: the same batch."
    other = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    state = torch.get_rng_state()
    exec(PROGRAM, {})
    assert capsys.readouterr().out == other
    assert torch.equal(state, torch.get_rng_state())


def test_steps_and_seeds_differ():
    corpus = corpus_of([[5, 2, 7, 4, 3, 6]] * 30)
    batches = [PairSampler(corpus, TOKENIZER, 24, seed=s).batch(n, 8, positions=True)["positions"].tolist() for s in range(5) for n in range(20)]
    assert len({str(b) for b in batches}) == 100


def test_documents_of_one_sentence_change_no_batch():
    "They are text, and in the corpus; a pair never takes one, so what is drawn is the same as without them."
    rng = np.random.default_rng(0)
    long = [[" ".join(rng.choice([*"abcdefghij"], rng.integers(1, 6))) for _ in range(rng.integers(2, 6))] for _ in range(60)]
    mixed = [part for document in long for part in ([document] if rng.random() < 0.5 else [["k l"], document, ["a"]])]
    ours, theirs = (Corpus.build(texts, TOKENIZER) for texts in (long, [["a b"], *mixed, ["c"]]))
    assert theirs.n_documents > ours.n_documents + 30 and theirs.info["dropped"] == 0
    for length in (8, 16):
        samplers = [PairSampler(corpus, TOKENIZER, length, seed=3) for corpus in (ours, theirs)]
        for step in range(30):
            one, other = (sampler.batch(step, 32) for sampler in samplers)
            assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("texts", [[["a b", "c"]], [["a b"], ["c"], ["d"]], [["a", "b"], ["c"], ["", "d"]]])
def test_a_corpus_without_honest_pairs_is_refused(texts):
    with pytest.raises(UserError, match=f"of {len(texts)} documents"):
        PairSampler(Corpus.build(texts, TOKENIZER), TOKENIZER, 16)


def test_a_memory_map_is_not_copied(tmp_path):
    documents = [["a b c", "d e", "f g h i"]] * 5
    corpus = Corpus.build(documents, TOKENIZER, tmp_path / "corpus")
    sampler = PairSampler(corpus, TOKENIZER, 12)
    assert isinstance(corpus.sentence_starts, np.memmap)
    assert np.shares_memory(sampler.places.tokens, corpus.sentence_starts)
    check(sampler.batch(0, 8, positions=True), corpus, 12)


def test_read_batch_of_one_objective():
    corpus = corpus_of([[5, 2, 7, 4]] * 30)
    words, pairs = (PairSampler(corpus, TOKENIZER, 24, objectives=(name,)) for name in ("mlm", "nsp"))
    assert all(line.startswith("       ") for line in read_batch(words.batch(0, 4, positions=True), TOKENIZER))
    assert not any("(" in line for line in read_batch(pairs.batch(0, 4, positions=True), TOKENIZER))
    assert words.info != pairs.info == PairSampler(corpus, TOKENIZER, 24, objectives=("nsp",)).info


def test_no_second_sentence_is_random_where_nobody_asks():
    corpus = corpus_of([[5, 2, 7, 4]] * 30)
    of = lambda *names: PairSampler(corpus, TOKENIZER, 24, objectives=names).batch(0, 200, positions=True)
    words, both = of("mlm"), of("mlm", "nsp")
    documents = torch.where(words["positions"] < 0, -1, words["positions"] // 18)  # of 18 tokens each
    for row in documents.tolist(): assert len({*row} - {-1}) == 1
    assert 60 < both["next_sentence_label"].sum() < 140


def test_read_batch_without_masks():
    corpus = corpus_of([[2, 3], [3, 2]])
    pairs = draw(corpus, 4, 16, 0.0, seeded(0))
    lines = read_batch(collate(pairs, corpus.ids, TOKENIZER), TOKENIZER)
    assert len(lines) == 4 and all("(" not in line and " | " in line for line in lines)
    assert [line.startswith("random") for line in lines] == pairs.is_random.tolist()


@pytest.mark.parametrize("options", [dict(length=4), dict(short=2)])
def test_impossible_options_stop_at_once(options):
    with pytest.raises(AssertionError): PairSampler(corpus_of([[2, 2], [2, 2]]), TOKENIZER, **options)


@pytest.mark.parametrize("sizes, words", [([[2, 2], [2]], "has 1 .of 2"), ([[2, 2]], "has 1 .of 1"), ([], "has 0 .of 0")])
def test_too_few_documents(sizes, words):
    with pytest.raises(UserError, match=words): PairSampler(corpus_of(sizes), TOKENIZER)


@pytest.mark.parametrize("other", [WordPieceTokenizer(TOKENIZER.pieces[:-1]), WordPieceTokenizer(TOKENIZER.pieces, lowercase=False)],
                         ids=["a piece less", "cased"])
def test_refuses_another_tokenizer(other):
    corpus = corpus_of([[2, 2], [2, 2]])
    with pytest.raises(UserError, match="another tokenizer"): PairSampler(corpus, other)


@pytest.fixture(scope="module")
def wikitext(shared_data):
    if not (shared_data / "wikitext").exists(): pytest.skip("needs ../shared/data/wikitext")
    documents = list(load_documents(shared_data / "wikitext", "wikitext-2-v1", "validation"))
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), 2000)
    return Corpus.build(documents, tokenizer), tokenizer


def test_real_text(wikitext):
    corpus, tokenizer = wikitext
    sampler = PairSampler(corpus, tokenizer, 128, whole_words=True)
    batch = sampler.batch(0, 200, positions=True)
    at, x, y = batch["positions"], batch["input_ids"], batch["labels"]
    text, chosen = at >= 0, y != -100
    truth = torch.from_numpy(corpus.ids[at.clamp(min=0)].astype(np.int64))
    assert torch.equal(truth[chosen], y[chosen]) and torch.equal(truth[text & ~chosen], x[text & ~chosen])
    full = (batch["attention_mask"].sum(1) == 128).float().mean()
    assert full > 0.85  # nine in ten are filled to the last place
    accuracy, error = told_by_length(draw_pairs(sampler.places, 40_000, 128, 0.1, seeded(1)), 20_000)
    assert abs(accuracy - 0.5) < 5 * error
