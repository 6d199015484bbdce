"""Masking, wider than chapter 08: any shape, any vocabulary, words against a plain loop."""
import pytest
import torch
from hypothesis import given, settings, strategies as st

from minibert.core.seeds import seeded
from minibert.masking import choose_tokens, mask_tokens, number_words


@st.composite
def batches(draw):
    "Ids, what may be chosen, which pieces continue a word."
    B, S, V = draw(st.integers(1, 5)), draw(st.integers(1, 24)), draw(st.integers(2, 40))
    g = seeded(draw(st.integers(0, 10_000)))
    ids = torch.randint(V, (B, S), generator=g)
    maskable = torch.rand(B, S, generator=g) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    continues = torch.rand(V, generator=g) < draw(st.sampled_from([0.0, 0.4, 0.9]))
    return ids, maskable, continues, V, draw(st.sampled_from([0.0, 0.15, 0.6, 1.0]))


def words_of(ids, maskable, continues):
    "The slow way: lists of places that make one word."
    words = []
    for place, (x, text) in enumerate(zip(ids.tolist(), maskable.tolist())):
        if not text: continue
        goes_on = continues[x] and words and words[-1][-1] == place - 1
        if goes_on: words[-1].append(place)
        else: words.append([place])
    return words


@settings(max_examples=200, deadline=None)
@given(batches(), st.booleans(), st.integers(0, 1000))
def test_hard_facts(batch, whole, seed):
    ids, maskable, continues, V, p = batch
    before = ids.clone()
    options = dict(mask_id=1, vocab_size=V, probability=p, continues=continues if whole else None)
    masked, labels = mask_tokens(ids, maskable, generator=seeded(seed), **options)
    chosen = labels != -100
    assert torch.equal(ids, before) and masked.dtype == labels.dtype == torch.int64
    assert torch.equal(labels[chosen], ids[chosen]) and torch.equal(masked[~chosen], ids[~chosen])
    assert not (chosen & ~maskable).any()
    assert torch.equal(chosen.any(1), maskable.any(1))
    assert masked.min() >= 0 and masked.max() < V
    if p == 1: assert torch.equal(chosen, maskable)
    again = mask_tokens(ids, maskable, generator=seeded(seed), **options)
    assert torch.equal(masked, again[0]) and torch.equal(labels, again[1])


@settings(max_examples=200, deadline=None)
@given(batches(), st.integers(0, 1000))
def test_words_are_never_torn(batch, seed):
    ids, maskable, continues, _, p = batch
    number = number_words(ids, maskable, continues)
    chosen = choose_tokens(ids, maskable, generator=seeded(seed), probability=p, continues=continues)
    for row in range(len(ids)):
        words = words_of(ids[row], maskable[row], continues)
        for word in words:
            assert len(set(number[row, word].tolist())) == len(set(chosen[row, word].tolist())) == 1
        firsts = number[row, [word[0] for word in words]].tolist()
        assert len(set(firsts)) == len(words)
        if p == 0 and words: assert sum(bool(chosen[row, word[0]]) for word in words) == 1
    assert number.min() >= 0 and number.max() < ids.shape[1]


def test_a_word_reads_no_lot_of_another():
    "Choosing one word tells nothing of the next: the correlation of neighbours is that of chance."
    continues = torch.tensor([False, True])
    ids = torch.tensor([[0, 1, 0, 1, 1] + [0] * 30]).expand(40_000, -1)  # long: nobody is forced
    chosen = choose_tokens(ids, torch.ones_like(ids, dtype=torch.bool), generator=seeded(1),
                           probability=0.5, continues=continues).double()
    assert abs(torch.corrcoef(chosen[:, [0, 2]].T)[0, 1]) < 5 / 200
    assert torch.equal(chosen[:, 0], chosen[:, 1]) and torch.equal(chosen[:, 2], chosen[:, 4])


@pytest.mark.parametrize("p", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_how_many(p, n):
    ids = torch.zeros(20_000, n, dtype=torch.int64)
    count = choose_tokens(ids, ids == 0, generator=seeded(2, n), probability=p).sum(1).double()
    expected = n * p + (1 - p) ** n
    assert abs(count.mean() - expected) <= 5 * count.std() / 20_000**0.5 + 1e-12


def test_80_10_10_of_the_chosen():
    V, ids = 1000, torch.full((500, 200), 7)
    masked, labels = mask_tokens(ids, ids > 0, mask_id=4, vocab_size=V, generator=seeded(3))
    x = masked[labels != -100]
    for share, expected in (((x == 4), 0.8 + 0.1 / V), ((x == 7), 0.1 + 0.1 / V), ((x != 4) & (x != 7), 0.1 - 0.2 / V)):
        assert abs(share.double().mean() - expected) < 5 * (expected * (1 - expected) / len(x)) ** 0.5
    random = x[(x != 4) & (x != 7)].bincount(minlength=V).double()
    assert (random < 5).sum() > 0 and random[:4].sum() > 0  # the specials too
    mean = random.sum() / (V - 2)
    assert abs(random.var() / mean - 1) < 0.3  # Poisson: every token alike


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    ids = torch.zeros(2, 5, dtype=torch.int64)
    mask_tokens(ids, ids == 0, mask_id=1, vocab_size=5, generator=seeded(0))
    assert torch.equal(state, torch.get_rng_state())
