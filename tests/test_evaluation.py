"""Figures of which the answer is known: fake models, hand-made counts, tables from books."""
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from minibert.measure.predictions import (
    Predictions, ask_batches, word_perplexity, word_pieces)
from minibert.measure.baselines import (
    Bigrams, accuracy_bound, bigram_baseline, chosen_tokens, count_bigrams,
    count_pieces, unigram_baseline)
from minibert.config import BertConfig
from minibert.core.precision import evaluating
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.evaluation import accuracy_by, evaluate, evaluate_pretraining, row_interval, wilson
from minibert.data.stories import best_masked_accuracy, stories
from minibert.heads import BertForPreTraining, PreTrainingOutput
from minibert.pairs import PairSampler
from minibert.tokenizer import WordPieceTokenizer

TRAIN = stories(60)
VAL = stories(30, split="validation")


@pytest.fixture(scope="module")
def tokenizer(): return WordPieceTokenizer.train(s for story in stories(1500) for s in story.sentences)


@pytest.fixture(scope="module")
def train(tokenizer): return Corpus.build([s.sentences for s in TRAIN], tokenizer)


@pytest.fixture(scope="module")
def sampler(tokenizer):
    return PairSampler(Corpus.build([s.sentences for s in VAL], tokenizer), tokenizer, length=48, seed=3)


@pytest.fixture(scope="module")
def bert(tokenizer):
    config = BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=48, initializer_range=0.3)
    return BertForPreTraining(config, seeded(1))


class Fake(nn.Module):
    "Says what `answer` (labels -> pieces) says, with probability `sure`; all pairs are next ones."

    def __init__(self, V, answer, sure=0.9):
        super().__init__()
        self.V, self.answer, self.sure = V, answer, sure

    def forward(self, input_ids, token_type_ids, attention_mask, labels, next_sentence_label):
        labels = labels[labels != -100]
        logits = torch.full((len(labels), self.V), math.log((1 - self.sure) / (self.V - 1)))
        logits[torch.arange(len(labels)), self.answer(labels)] = math.log(self.sure)
        pairs = torch.tensor([[2.0, 0.0]]).expand(len(input_ids), 2)
        return PreTrainingOutput(None, logits, pairs, {})


def made(label, prediction, **columns):
    "Predictions by hand; what is not given is one."
    n = len(label)
    values = dict(label=label, prediction=prediction, loss=np.ones(n), top=np.ones(n), row=np.arange(n))
    return Predictions(**{name: np.asarray(value) for name, value in (values | columns).items()})


# --- the model and what it is asked

def test_a_perfect_model_is_perfect(sampler):
    figures = evaluate_pretraining(Fake(sampler.tokenizer.vocab_size, lambda y: y), sampler, batches=4)
    assert figures["mlm_accuracy"] == 1 and figures["mlm_accuracy_interval"][1] == 1
    assert figures["mlm_loss"] == pytest.approx(-math.log(0.9), abs=1e-6)
    assert figures["mlm_perplexity"] == pytest.approx(1 / 0.9, abs=1e-6)
    low, high = figures["mlm_loss_interval"]
    assert high - low < 1e-6


def test_a_model_that_always_says_the_same_has_the_share_of_it(sampler):
    V, piece = sampler.tokenizer.vocab_size, sampler.tokenizer.vocab["the"]
    labels = torch.cat([b[b != -100] for b in (sampler.batch(n, 16)["labels"] for n in range(4))])
    figures = evaluate_pretraining(Fake(V, lambda y: torch.full_like(y, piece)), sampler, batches=4, batch_size=16)
    share = (labels == piece).double().mean().item()
    assert figures["mlm_accuracy"] == share and figures["mlm_tokens"] == len(labels)
    assert figures["mlm_loss"] == pytest.approx(-share * math.log(0.9) - (1 - share) * math.log(0.1 / (V - 1)), abs=1e-5)


def test_the_confusion_of_a_model_that_always_says_next(sampler):
    figures = evaluate_pretraining(Fake(sampler.tokenizer.vocab_size, lambda y: y), sampler, batches=4, batch_size=16)
    random = sum(sampler.batch(n, 16)["next_sentence_label"].sum().item() for n in range(4))
    assert figures["nsp_confusion"] == [[64 - random, 0], [random, 0]]
    assert figures["nsp_accuracy"] == 1 - random / 64 and figures["nsp_pairs"] == 64


def test_modes_come_back_each_to_its_own(bert, sampler):
    bert.train(); bert.mlm_head.eval()
    evaluate_pretraining(bert, sampler, batches=1, batch_size=4)
    assert bert.training and bert.bert.training and not bert.mlm_head.training
    with pytest.raises(ZeroDivisionError), evaluating(bert):
        assert not bert.training and not torch.is_grad_enabled()
        raise ZeroDivisionError
    assert bert.training and not bert.mlm_head.training and torch.is_grad_enabled()


def test_it_is_the_same_each_time_and_touches_no_random_state(bert, sampler):
    bert.train()
    state = torch.get_rng_state()
    first = evaluate_pretraining(bert, sampler, batches=3, batch_size=8)
    assert torch.equal(state, torch.get_rng_state())
    assert evaluate_pretraining(bert, sampler, batches=3, batch_size=8) == first
    with torch.autocast("cpu", torch.bfloat16):
        assert evaluate_pretraining(bert, sampler, batches=3, batch_size=8) == first


def test_tokens_are_weighted_and_batches_are_not(bert, sampler):
    bert.eval()
    losses, n = [], []
    for step in range(6):
        batch = sampler.batch(step, 2)
        with torch.no_grad(): losses.append(bert(**batch).losses["mlm"].item())
        n.append((batch["labels"] != -100).sum().item())
    assert len(set(n)) > 1
    figures = evaluate_pretraining(bert, sampler, batches=6, batch_size=2)
    assert figures["mlm_loss"] == pytest.approx(np.average(losses, weights=n), abs=1e-5)
    assert abs(figures["mlm_loss"] - np.mean(losses)) > 1e-4


def test_the_questions_do_not_depend_on_the_model(bert, sampler):
    one = ask_batches(bert, sampler, 3, 8)
    other = ask_batches(Fake(sampler.tokenizer.vocab_size, lambda y: y), sampler, 3, 8)
    for name in ("mlm", "nsp"):
        assert np.array_equal(one[name].label, other[name].label) and np.array_equal(one[name].row, other[name].row)
    chosen = chosen_tokens(sampler, 3, 8)
    assert np.array_equal(sampler.corpus.ids[chosen.position], chosen.label) and np.array_equal(chosen.label, one["mlm"].label)


def test_columns_are_what_the_batch_shows(bert, sampler):
    words, chosen, batch = ask_batches(bert, sampler, 1, 8)["mlm"], chosen_tokens(sampler, 1, 8), sampler.batch(0, 8)
    k = 0
    for i, row in enumerate(batch["labels"].tolist()):
        for j, label in enumerate(row):
            if label == -100: continue
            assert (words.label[k], words.row[k]) == (label, i)
            assert (chosen.shown[k], chosen.left[k]) == tuple(batch["input_ids"][i, [j, j - 1]].tolist())
            k += 1
    assert k == len(words.label) == len(chosen.label)


# --- intervals

@pytest.mark.parametrize("hits, n, low, high", [
    (8, 10, 0.4902, 0.9433), (0, 10, 0, 0.2775), (10, 10, 0.7225, 1), (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605)])
def test_wilson_as_in_the_books(hits, n, low, high):  # the last two: Newcombe 1998, table I
    assert wilson(hits, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("hits, n", [(-1, 3), (4, 3)])
def test_wilson_refuses_what_is_no_share(hits, n):
    with pytest.raises(AssertionError): wilson(hits, n)


def test_row_interval_of_single_tokens_is_the_usual_one():
    x = torch.randn(400, generator=seeded(5)).double().numpy()
    half = 1.959964 * x.std(ddof=1) / 20
    assert row_interval(x, np.arange(400)) == pytest.approx((x.mean() - half, x.mean() + half), abs=1e-12)


def test_row_interval_widens_where_the_tokens_of_a_row_are_alike():
    x = np.repeat(torch.randn(100, generator=seeded(6)).double().numpy(), 4)
    alone, together = row_interval(x, np.arange(400)), row_interval(x, np.arange(400) // 4)
    assert (together[1] - together[0]) == pytest.approx(2 * (alone[1] - alone[0]), rel=0.01)
    with pytest.raises(AssertionError): row_interval(x[:4], np.zeros(4, int))


# --- baselines

def test_unigrams_by_hand():
    figures = unigram_baseline(torch.tensor([0, 5, 2]), np.array([1, 1, 2, 0]))
    assert figures["unigram_accuracy"] == 0.5
    assert figures["unigram_loss"] == pytest.approx(-(2 * math.log(.6) + math.log(.3) + math.log(.1)) / 4)


class Rows:
    "A corpus by hand: documents of sentences of ids."

    def __init__(self, documents, V):
        sentences = [s for document in documents for s in document]
        self.ids, self.vocab_size = np.array(sum(sentences, [])), V
        self.sentence_starts = np.cumsum([0] + [len(s) for s in sentences])
        self.document_starts = np.cumsum([0] + [len(d) for d in documents])


def test_neighbours_are_counted_over_sentences_and_not_over_documents():
    corpus = Rows([[[1, 2], [3]], [[2, 3, 1]]], V=4)
    for chunk in (1, 2, 3, 100):
        bigrams = count_bigrams(corpus, chunk)
        left, right = np.divmod(bigrams.keys, 4)
        assert list(zip(left.tolist(), right.tolist(), bigrams.counts.tolist())) == [(1, 2, 1), (2, 3, 2), (3, 1, 1)]
        assert count_pieces(corpus, chunk).tolist() == [0, 2, 2, 2]
    assert bigrams.count([2, 3, 0], [3, 3, 0]).tolist() == [2, 0, 0]


def test_bigrams_by_hand_back_off():
    counts = np.array([0, 6, 1, 0])  # shares .1 .7 .2 .1 over 11? add-one: 1 7 2 1 of 11
    p = np.array([1, 7, 2, 1]) / 11
    bigrams = Bigrams(np.array([1 * 4 + 1, 1 * 4 + 2, 2 * 4 + 2]), np.array([3, 2, 5]), 4)
    say = lambda left, label: bigram_baseline(bigrams, counts, np.array([left]), np.array([label]))
    assert say(1, 1)["bigram_loss"] == pytest.approx(-math.log((3 + 2 * p[1]) / 7))
    assert say(1, 3)["bigram_loss"] == pytest.approx(-math.log(2 * p[3] / 7))
    assert say(0, 2)["bigram_loss"] == pytest.approx(-math.log(p[2]))  # nothing ever followed 0
    assert [say(left, right)["bigram_accuracy"] for left, right in ((1, 1), (2, 2), (0, 1), (2, 1))] == [1, 1, 1, 0]


@pytest.mark.parametrize("commonest", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_the_likeliest_follower_is_the_likeliest_of_all_pieces(train, commonest):
    bigrams, counts, V = count_bigrams(train), count_pieces(train), train.vocab_size
    every = np.arange(V)
    for left in (5, *map(int, counts.argsort()[-commonest:])):
        loss = [bigram_baseline(bigrams, counts, np.array([left]), np.array([w]))["bigram_loss"] for w in every]
        best = int(np.argmin(loss))
        assert bigram_baseline(bigrams, counts, np.array([left]), np.array([best]))["bigram_accuracy"] == 1
        assert np.exp(-np.array(loss)).sum() == pytest.approx(1)


def test_a_commoner_piece_that_never_followed_may_be_the_likeliest():
    counts = np.array([1000, 1, 1, 1])  # after 1 came 1, 2 and 3, once each: 3 kinds * .99 > 1 + 3 * .002
    bigrams = Bigrams(np.array([5, 6, 7]), np.array([1, 1, 1]), 4)
    assert bigram_baseline(bigrams, counts, np.array([1]), np.array([0]))["bigram_accuracy"] == 1


def test_no_neighbours_at_all():
    none = Bigrams(np.empty(0, np.int64), np.empty(0, np.int64), 3)
    counts, label = np.array([1, 2, 0]), np.array([0, 1, 1])
    figures, unigram = bigram_baseline(none, counts, np.array([2, 1, 0]), label), unigram_baseline(counts, label)
    assert list(figures.values()) == pytest.approx(list(unigram.values()))


# --- the bound, and the words

def test_the_bound_is_the_oracle_s(sampler):
    chances, n = [], []
    for step in range(3):
        b = sampler.batch(step, 8, positions=True)
        chosen = b["labels"] != -100
        original = torch.where(chosen, b["labels"], b["input_ids"])
        chances.append(best_masked_accuracy(VAL, b["positions"], chosen, b["input_ids"] != original))
        n.append(chosen.sum().item())
    assert accuracy_bound(sampler, VAL, 3, 8) == pytest.approx(np.average(chances, weights=n))


def test_no_bound_for_words_in_pieces_and_none_for_other_stories(sampler, bert):
    letters = WordPieceTokenizer.train([s for story in VAL for s in story.sentences], vocab_size=100)
    cut = PairSampler(Corpus.build([s.sentences for s in VAL], letters), letters, length=48)
    assert accuracy_bound(cut, VAL) is None
    figures = evaluate_pretraining(Fake(letters.vocab_size, lambda y: y), cut, batches=2, stories=VAL)
    assert "mlm_accuracy_bound" not in figures
    assert figures["word_perplexity"] > figures["mlm_perplexity"]
    for other in (TRAIN, stories(30, seed=1, split="validation")):
        with pytest.raises(ValueError, match="not built from these"): accuracy_bound(sampler, other)


def test_perplexity_a_word_by_hand():
    tokenizer = WordPieceTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a b ##c ##d".split())
    corpus = Corpus.build([["acd b", "bc"], ["a", "b"]], tokenizer)
    assert corpus.n_tokens == 8
    sampler = PairSampler(corpus, tokenizer, length=8)
    assert word_perplexity(1.5, sampler) == pytest.approx(math.exp(1.5 * 8 / 5))


def test_what_a_word_is():
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] < unk > . the ##s 1905 @ ##- é".split()
    kept = word_pieces(WordPieceTokenizer(pieces))
    assert [p for p, k in zip(pieces, kept) if k] == ["the", "##s", "1905", "é"]


# --- groups

def test_groups(sampler):
    five = made([0, 1, 1, 2, 3], [0, 1, 0, 2, 0])
    table = accuracy_by(five, ["a", "b", "b", "a", "b"])
    assert {name: (part["n"], part["accuracy"]) for name, part in table.items()} == {"a": (2, 1), "b": (3, 1 / 3)}
    assert table["b"]["interval"] == list(wilson(1, 3))
    assert list(accuracy_by(five, ["a", "b", "b", "a", "b"], ["b", "none", "a"])) == ["b", "a"]
    assert json.loads(json.dumps(table)) == table


# --- the whole

def test_all_figures_are_json_and_each_neighbour_comes_when_asked_for(bert, sampler, train):
    counts = torch.bincount(torch.from_numpy(train.ids.astype("int64")), minlength=train.vocab_size)
    bare = evaluate_pretraining(bert, sampler, batches=2, batch_size=8)
    full = evaluate_pretraining(bert, sampler, batches=2, batch_size=8, counts=counts, bigrams=count_bigrams(train), stories=VAL)
    assert set(full) - set(bare) == {"unigram_loss", "unigram_accuracy", "bigram_loss", "bigram_accuracy", "mlm_accuracy_bound"}
    assert all(full[name] == bare[name] for name in bare)
    assert json.loads(json.dumps(full)) == full
    assert full["bigram_loss"] < full["unigram_loss"] and full["mlm_accuracy_bound"] > full["bigram_accuracy"]


def test_what_does_not_fit_is_refused_before_anything_is_run(bert, sampler, train):
    counts, bigrams = count_pieces(train), count_bigrams(train)
    with pytest.raises(ValueError, match="counts are for 7 pieces"): evaluate_pretraining(bert, sampler, counts=counts[:7])
    with pytest.raises(ValueError, match="give counts as well"): evaluate_pretraining(bert, sampler, bigrams=bigrams)
    with pytest.raises(ValueError, match="bigrams are for 7"): evaluate_pretraining(bert, sampler, counts=counts, bigrams=replace(bigrams, vocab_size=7))
    with pytest.raises(ValueError, match="1 or more"): evaluate_pretraining(bert, sampler, batches=0)
    other = BertForPreTraining(replace(bert.config, vocab_size=900))
    with pytest.raises(ValueError, match="900 pieces"): evaluate_pretraining(other, sampler)


def test_damaged_weights_are_refused(bert, sampler):
    broken = BertForPreTraining(bert.config, seeded(1))
    with torch.no_grad(): broken.mlm_head.bias[3] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite numbers"): evaluate_pretraining(broken, sampler, batches=1)


def asking(sampler, objectives):
    "The same sampler, that asks for one of the two."
    return PairSampler(sampler.corpus, sampler.tokenizer, sampler.length, seed=sampler.seed, objectives=(objectives,))


def test_who_asks_about_words_gets_no_figure_of_pairs(bert, sampler, train):
    full = evaluate_pretraining(bert, sampler, batches=2, batch_size=8, counts=count_pieces(train))
    words = evaluate_pretraining(bert, asking(sampler, "mlm"), batches=2, batch_size=8, counts=count_pieces(train))
    assert [*words] == [name for name in full if not name.startswith("nsp_")]
    assert list(ask_batches(bert, asking(sampler, "mlm"), 1, 4)) == ["mlm"]


def test_who_asks_about_pairs_gets_no_figure_of_words(bert, sampler, train):
    about = dict(counts=count_pieces(train), bigrams=count_bigrams(train), stories=VAL)
    pairs = evaluate_pretraining(bert, asking(sampler, "nsp"), batches=2, batch_size=8, **about)
    assert {name.split("_")[0] for name in pairs} == {"nsp"} and pairs["nsp_pairs"] == 16
    batch = asking(sampler, "nsp").batch(0, 8)
    assert "labels" not in batch and not (batch["input_ids"] == sampler.tokenizer.mask_id).any()


class Loud(nn.Module):
    "Certain of a wrong answer: its loss is a number, and e to that is none."

    def __init__(self, V):
        super().__init__()
        self.V = V

    def forward(self, input_ids, token_type_ids, attention_mask, labels, next_sentence_label):
        wrong = (labels[labels != -100] + 1) % self.V
        return PreTrainingOutput(None, 3000.0 * nn.functional.one_hot(wrong, self.V), torch.zeros(len(input_ids), 2), {})


def test_figures_that_are_no_numbers_are_refused(sampler):
    V = sampler.tokenizer.vocab_size
    with pytest.raises(FloatingPointError, match="mlm_perplexity"):
        evaluate_pretraining(Loud(V), sampler, batches=1)
    counts = np.where(np.arange(V) == 7, np.nan, 1.0)
    with pytest.raises(FloatingPointError, match="unigram_loss"):
        evaluate_pretraining(Fake(V, lambda y: y), sampler, batches=1, counts=counts)


def test_nothing_measured_is_no_figure():
    none = np.empty(0, int)
    with pytest.raises(ValueError, match="no token"): unigram_baseline(np.ones(3), none)
    with pytest.raises(ValueError, match="no token"): bigram_baseline(Bigrams(none, none, 3), np.ones(3), none, none)


# --- examples of another kind

class Bag(nn.Module):
    "A model of another kind: the mean of the numbers so far guesses the next one."

    def __init__(self, V=20, D=8):
        super().__init__()
        self.table, self.out = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, ids): return self.out(self.table(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None])


class Ladders:
    "Examples of another kind: rows of six numbers that count up from one of 1 to 9; nothing is known of words or pairs."

    info = dict(rows="ladders")

    def batch(self, step, n): return dict(ids=torch.randint(1, 10, (n, 1), generator=seeded(step, 5)) + torch.arange(6))

    def figures(self, model, batches, batch_size):
        with evaluating(model): parts = [self.answers(model, step, batch_size) for step in range(batches)]
        all_of = Predictions.joined(parts)
        return dict(clm_loss=(all_of.loss, all_of.row), clm_accuracy=(all_of.right, all_of.row), clm_tokens=len(all_of.label))

    def answers(self, model, step, n):
        ids = self.batch(step, n)["ids"]
        rows = torch.arange(step * n, (step + 1) * n)[:, None].expand(n, 5)
        return Predictions.of(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), rows.flatten())

    def baselines(self, batches, batch_size): return dict(uniform_loss=math.log(20))


def test_examples_of_another_kind_are_evaluated_by_the_same_door():
    torch.manual_seed(0)
    model, examples = Bag(), Ladders()
    before = evaluate(model, examples, batches=3, batch_size=8)
    assert before.keys() == {"clm_loss", "clm_loss_interval", "clm_accuracy", "clm_accuracy_interval", "clm_tokens", "uniform_loss"}
    assert json.loads(json.dumps(before)) == before and before["clm_tokens"] == 3 * 8 * 5
    ids = torch.cat([examples.batch(step, 8)["ids"] for step in range(3)])
    losses = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    assert before["clm_loss"] == pytest.approx(losses.mean().item(), abs=1e-6)
    assert before["clm_loss_interval"] == pytest.approx(row_interval(losses.detach().numpy(), np.arange(120) // 5), abs=1e-6)
    assert before["clm_accuracy_interval"] == [*wilson(round(120 * before["clm_accuracy"]), 120)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(100, 150):  # others than those that are asked
        ids = examples.batch(step, 32)["ids"]
        nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step(); optimizer.zero_grad()
    after = evaluate(model, examples, batches=3, batch_size=8)
    assert after["clm_loss_interval"][1] < before["clm_loss_interval"][0] and after["clm_loss"] < after["uniform_loss"]


def test_figures_of_another_kind_that_are_no_numbers_are_refused():
    class Broken(Ladders):
        def figures(self, model, batches, batch_size): return dict(span_loss=(np.array([1.0, np.nan]), np.arange(2)))
    with pytest.raises(FloatingPointError, match="span_loss"): evaluate(Bag(), Broken())
    model = Bag()
    with torch.no_grad(): model.out.bias[3] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite numbers"): evaluate(model, Ladders(), batches=1)


def test_a_sampler_that_was_told_is_another_one(sampler, train):
    knows = sampler.with_baselines(counts=count_pieces(train))
    assert sampler.baselines(1, 8) == {} and knows.baselines(1, 8).keys() == {"unigram_loss", "unigram_accuracy"}
    assert knows.info == sampler.info and torch.equal(knows.batch(3, 4)["input_ids"], sampler.batch(3, 4)["input_ids"])


def test_the_evaluation_knows_no_objective_and_no_sampler():
    import minibert.evaluation as module
    assert not hasattr(module, "PairSampler")
    code = Path(module.__file__).read_text(encoding="utf8")
    assert not any(f"{name}_" in code for name in ("mlm", "nsp", "unigram", "bigram"))
