"""Objectives, curricula and the mean of weights: each does what its formula says, and a run with all of them is resumed bit for bit."""
import json
import math
import shutil

import pytest
import torch

import minibert.runs.experiment as experiment
import minibert.train.trainer as trainer
from command import as_json, asked_again, bits_of, call, refused
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.curricula import easier_half, mean_surprise
from minibert.data.objectives import draw_spans, hiding, mask_spans, span_length
from minibert.data.stories import stories
from minibert.heads import BertForPreTraining
from minibert.masking import mask_tokens, number_words
from minibert.pairs import PairSampler
from minibert.parity import reference_batch
from minibert.runs.plan import with_values
from minibert.runs.tasks import task_of
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.average import Average
from minibert.train.recipe import TrainingConfig
from minibert.optimizers import Choose, Lion

V, MASK = 40, 4
CONTINUES = torch.arange(V) >= 30  # a quarter of the pieces go on with a word


@pytest.fixture(scope="module")
def text():
    "A corpus of some stories, and its tokenizer."
    documents = [story.sentences for story in stories(60)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=300)
    return Corpus.build(documents, tokenizer), tokenizer


def rows(count, length, seed=0):
    "Rows of text with a border in the middle: ids, and where there is text."
    ids = torch.randint(5, V, (count, length), generator=seeded(seed))
    ids[:, 0] = ids[:, length // 2] = ids[:, -1] = 3
    ids[:, 1] = ids[:, length // 2 + 1] = 6  # a word begins
    return ids, ids != 3


def masked(ids, text, seed=1, **options):
    return mask_spans(ids, text, continues=CONTINUES, mask_id=MASK, vocab_size=V, generator=seeded(seed), **options)


def numbers(*shape, seed=0): return torch.rand(*shape, generator=seeded(seed), dtype=torch.float64).tolist()


def near(hits, n, share): return abs(hits - n * share) < 5 * math.sqrt(n * share * (1 - share))


def test_lengths_are_geometric_and_ten_at_most():
    n, weights = 40_000, [0.2 * 0.8**k for k in range(10)]
    lengths = [span_length(u) for u in numbers(n)]
    for length, weight in enumerate(weights, 1): assert near(lengths.count(length), n, weight / sum(weights)), length
    assert {*lengths} == {*range(1, 11)} and span_length(0.0) == 1 and span_length(1 - 2**-53) == 10


def test_spans_in_a_long_text_have_these_lengths_and_begin_anywhere():
    spans = [draw_spans([1] * 300, 20, draws)[0] for draws in numbers(3000, 1, 4, seed=3)]
    inner = [end - first for first, end, _ in spans if first < 290]
    weights = [0.8**k for k in range(10)]
    for length, weight in enumerate(weights, 1): assert near(inner.count(length), len(inner), weight / sum(weights)), length
    for half in (0, 150): assert near(sum(half <= first < half + 150 for first, *_ in spans), 3000, 0.5)


@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_the_budget_is_that_of_single_tokens(probability):
    ids, text = rows(1500, 61)
    labels = masked(ids, text, probability=probability)[1]
    counts, wanted = (labels != -100).sum(1).double(), probability * 58
    assert (counts.mean() - wanted).abs() < 5 * counts.std() / 1500**0.5
    words = number_words(ids, text, CONTINUES)
    longest = max(int(torch.bincount(row).max()) for row in words)
    assert counts.min() > wanted - longest and counts.max() < wanted + longest and counts.std() > 0
    tokens = mask_tokens(ids, text, mask_id=MASK, vocab_size=V, generator=seeded(5), probability=probability)[1] != -100
    assert abs(counts.mean() - tokens.sum(1).double().mean()) < 5 * math.sqrt(2 * 58 * probability * (1 - probability) / 1500)


def test_whole_words_are_hidden_and_nothing_else():
    ids, text = rows(400, 41)
    before = ids.clone()
    seen, labels = masked(ids, text)
    chosen, words = labels != -100, number_words(ids, text, CONTINUES)
    assert torch.equal(ids, before) and not (chosen & ~text).any() and chosen.any(1).all()
    assert torch.equal(labels[chosen], ids[chosen]) and torch.equal(seen[~chosen], ids[~chosen])
    for row in range(400):
        inside = {int(n) for n in words[row][chosen[row]]}
        assert torch.equal(chosen[row], torch.tensor([int(n) in inside for n in words[row]]))
    again = masked(ids, text)
    assert torch.equal(again[0], seen) and not torch.equal(masked(ids, text, seed=2)[1], labels)


def test_a_part_that_begins_within_a_word_leaves_the_border_alone_and_one_word_is_always_hidden():
    ids = torch.tensor([[2, 6, 3, 31, 32, 3, 0]]).expand(300, 7)
    text = (ids != 2) & (ids != 3) & (ids != 0)
    seen, labels = masked(ids, text, probability=0.01)
    assert torch.equal(seen[~text], ids[~text]) and (labels[~text] == -100).all()
    assert {*(labels != -100).sum(1).tolist()} == {1, 2}  # "6", or "31 32"
    nothing = masked(ids, torch.zeros_like(text))
    assert (nothing[1] == -100).all() and torch.equal(nothing[0], ids)


def test_a_span_becomes_masks_or_random_tokens_or_stays_as_one():
    ids = torch.full((1500, 30), 7)
    ids[:, 0] = 3
    seen, labels = masked(ids, ids == 7, probability=0.01)  # a single word, or one span that was long enough
    ids[:, 1:] = 7
    one = [(row[label != -100] == MASK) for row, label in zip(seen, labels)]
    assert near(sum(bool(each.all()) for each in one), 1500, 0.8)
    seen, labels = masked(ids, ids == 7, seed=9, probability=0.3)
    changed = kinds = 0
    for row, label in zip(seen, labels):
        chosen = label != -100
        for k in range(1, 29):
            if chosen[k] and chosen[k + 1] and not chosen[k - 1]:  # the first two of a span, but for spans that touch
                changed += bool((row[k] == MASK) == (row[k + 1] == MASK))
                kinds += 1
    assert changed / kinds > 0.93  # token by token it would be 0.68
    others = seen[(labels != -100) & (seen != MASK)]
    assert near(int((others == 7).sum()), len(others), 0.5 + 0.5 / V)


def test_pairs_are_those_of_the_sampler_without_spans(text):
    how = dict(objectives=("mlm", "nsp"), probability=0.2, seed=3, short=0.1)
    spans, tokens = (hiding(units, PairSampler, *text, 32, **how) for units in ("spans", "tokens"))
    for step in (0, 7):
        a, b = spans.batch(step, 16, positions=True), tokens.batch(step, 16, positions=True)
        for name in ("positions", "next_sentence_label", "token_type_ids"): assert torch.equal(a[name], b[name])
        assert not torch.equal(a["labels"], b["labels"])
    assert spans.info == tokens.info and not torch.equal(spans.batch(0)["labels"], spans.batch(1)["labels"])


def sop(units="tokens"): return with_values(task_of("bert").plan(), dict(objectives=("mlm", "sop"), units=units, length=32))


@pytest.mark.parametrize("units", ["tokens", "spans"])
def test_the_order_of_two_parts_of_one_text(text, units):
    corpus = text[0]
    batch = task_of("bert").examples(sop(units), *text).batch(1, 300, positions=True)
    wrong, place, side = batch["next_sentence_label"], batch["positions"], batch["token_type_ids"]
    assert near(int(wrong.sum()), 300, 0.5)
    documents = torch.bucketize(place, torch.from_numpy(corpus.sentence_starts[corpus.document_starts]), right=True)
    for k in range(300):
        a, b = (place[k][(place[k] >= 0) & (side[k] == half)] for half in (0, 1))
        assert bool(a[0] > b[-1]) == bool(wrong[k]) and len({*documents[k][place[k] >= 0].tolist()}) == 1


def test_held_out_order_has_its_own_name(text):
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=text[1].vocab_size, max_position_embeddings=32))
    figures = task_of("bert").held_out(sop(), *text).figures(model, 2, 8)
    assert {"mlm_loss", "sop_loss", "sop_accuracy"} <= figures.keys() and not [name for name in figures if "nsp" in name]


def test_easy_documents_are_those_with_common_words(text):
    corpus, _ = text
    counts = torch.bincount(torch.from_numpy(corpus.ids.astype("int64")), minlength=corpus.vocab_size)
    pays = -(counts / counts.sum()).log()
    by_hand = [float(pays[torch.cat([torch.from_numpy(s.astype("int64")) for s in corpus.document(n)])].mean()) for n in range(60)]
    assert torch.allclose(torch.tensor(mean_surprise(corpus)).float(), torch.tensor(by_hand), atol=1e-5)
    half, limit = easier_half(corpus), sorted(by_hand)[30]
    kept = [[s.tolist() for s in corpus.document(n)] for n in range(60) if by_hand[n] < limit]
    assert [[s.tolist() for s in half.document(n)] for n in range(half.n_documents)] == kept and len(kept) == 30


@pytest.mark.parametrize("kind", ["bert", "albert", "gpt"])
def test_a_third_of_the_steps_is_short_or_easy(text, kind):
    task = task_of(kind)
    def lessons(**options): return task.lessons(with_values(task.plan(), dict(steps=30, length=32, seed=4) | options), *text)
    full, short, easy = lessons(), lessons(curriculum="short"), lessons(curriculum="easy")
    halves = task.examples(with_values(task.plan(), dict(length=16, seed=4)), *text)
    simple = task.examples(with_values(task.plan(), dict(length=32, seed=4)), easier_half(text[0]), text[1])
    for step in (0, 9, 10, 29):
        for found, first in ((short, halves), (easy, simple)):
            wanted, batch = (first if step < 10 else full).batch(step, 6), found.batch(step, 6)
            assert batch.keys() == wanted.keys() and all(torch.equal(batch[name], wanted[name]) for name in batch)
            assert len(batch["input_ids"]) == 6
    assert short.batch(9, 6)["input_ids"].shape[1] <= 17 < 30 < short.batch(10, 6)["input_ids"].shape[1] and short.info == full.info
    assert lessons(curriculum="short", steps=300).batch(10, 6)["input_ids"].shape[1] <= 17


class OneBatch:
    info = {}
    config = BertConfig(101, 24, 2, 4, 37, max_position_embeddings=19)

    def batch(self, step, n): return reference_batch(self.config)


@pytest.mark.parametrize("last", [1, 3, 6, 99])
def test_the_end_is_the_mean_of_the_last_weights(last):
    def trained(*callbacks):
        model = BertForPreTraining(OneBatch.config, seeded(0)).double()
        return model, trainer.train_model(model, OneBatch(), TrainingConfig(steps=6, learning_rate=0.01), callbacks=callbacks, progress=False)
    seen = []
    trained(trainer.Callback(after_step=lambda run: seen.append(torch.nn.utils.parameters_to_vector(run.model.parameters()).detach())))
    asked = []
    model, _ = trained(Average(last), trainer.Callback(after_step=lambda run: asked.append(run.model.nsp_head.bias.detach().clone())))
    mean = torch.stack(seen[-last:]).mean(0)
    found = torch.nn.utils.parameters_to_vector(model.parameters())
    assert torch.allclose(found, mean, rtol=0, atol=1e-13)
    assert torch.equal(asked[-1], model.nsp_head.bias)  # whoever looks after the last step sees the mean


def test_what_changes_the_weights_is_in_every_process(monkeypatch):
    monkeypatch.setattr(trainer, "join_processes", lambda: (1, 2))
    model, heard = BertForPreTraining(OneBatch.config, seeded(0)), []
    run = trainer.train_model(model, OneBatch(), TrainingConfig(steps=1), progress=False, callbacks=[
        Choose("lion"), Average(1), trainer.Callback(after_step=heard.append)])
    assert isinstance(run.optimizers[0], Lion) and len(run.optimizers) == 2 and not heard


WORDS = "--steps", 7, "--batch-size", 4, "--length", 32, "--vocab-size", 600, "--precision", "float32", "--log-steps", 1, "--checkpoint-steps", 1, \
    "--keep-checkpoints", 9, "--average-steps", 4, "--units", "spans"


@pytest.mark.parametrize("words, steps", [
    (("--objectives", "mlm", "sop", "--curriculum", "easy"), [4]),  # within the mean
    pytest.param(("--model", "albert", "--curriculum", "short"), [1, 4], marks=pytest.mark.slow)], ids=["bert", "albert"])  # within the curriculum, too
def test_a_run_with_all_of_them_is_resumed_bit_for_bit_and_asked(tmp_path, words, steps):
    whole, again = tmp_path / "whole", tmp_path / "again"
    call("pretrain", *WORDS, *words, "--out", whole)
    for last in steps:
        shutil.copytree(whole, again)
        for path in (again / "checkpoints").iterdir():
            if int(path.name) > last: shutil.rmtree(path)
        for name in ("model.safetensors", "summary.json"): (again / name).unlink()
        call("pretrain", "--resume", again)
        one, other = bits_of(whole, again)
        assert one == other and len({*bits_of(whole, again, name="metrics.jsonl")}) == 1
        shutil.rmtree(again)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] == pytest.approx(line["mlm_loss"] + line["sop_loss"]) for line in lines)
    asked = as_json("evaluate", whole)
    assert asked == asked_again(json.loads((whole / "summary.json").read_text()))
    assert 0 <= asked["sop_accuracy"] <= 1 and not [name for name in asked if name.startswith("nsp")]
    assert call("fill-mask", whole, "anna lost her [MASK] .")[0].count("%") == 5
    assert "nsp" in refused("next-sentence", whole, "a", "b")


@pytest.mark.slow
def test_one_head_has_learned_what_it_learned_last(tmp_path):
    quick = "--steps", 1, "--batch-size", 4, "--length", 32
    call("pretrain", *quick, "--vocab-size", 600, "--out", tmp_path / "nsp")
    call("pretrain", *quick, "--start", tmp_path / "nsp", "--objectives", "sop", "--out", tmp_path / "sop")
    assert "nsp" in refused("next-sentence", tmp_path / "sop", "a", "b") and "sop_accuracy" in as_json("evaluate", tmp_path / "sop")
    call("fill-mask", tmp_path / "sop", "anna lost her [MASK] .")  # the start had learned that
    call("pretrain", *quick, "--start", tmp_path / "sop", "--objectives", "nsp", "--out", tmp_path / "back")
    call("next-sentence", tmp_path / "back", "a", "b")


PLAN = """
base: {steps: 1, batch-size: 4, length: 32, vocab-size: 600, optimizer: adamw}
changes:
  neither: {objectives: [mlm]}
  order: {objectives: [mlm, sop]}
  spans: {units: spans, mask_probability: 0.3, short_probability: 0.5}
  easy: {curriculum: easy, average_steps: 1}
"""


def test_an_experiment_asks_all_of_them_the_same(tmp_path, monkeypatch):
    (tmp_path / "plan.yaml").write_text(PLAN)
    heard = {}

    def finish(model, seconds, run):
        sampler = run.task.held_out(run.plan, run.val, run.tokenizer)
        heard[run.folder.name.split("-")[0]] = sampler.batch(0, 8, positions=True)
        (run.folder / "summary.json").write_text('{"mlm_loss": 1.0}')
    monkeypatch.setattr(experiment, "finish", finish)
    monkeypatch.setattr(experiment, "RATES", (1.0,))
    experiment.run_plan(tmp_path / "plan.yaml", seeds=0, out=str(tmp_path / "out"))
    base = heard.pop("base")
    assert heard.keys() == {"neither", "order", "spans", "easy"}
    for batch in heard.values(): assert batch.keys() == base.keys() and all(torch.equal(batch[name], base[name]) for name in base)


@pytest.mark.parametrize("words, said", [
    (("--curriculum", "short", "--length", 9), "at half of it"), (("--backend", "numpy", "--average-steps", 3), "average_steps 3"),
    (("--backend", "numpy", "--objectives", "mlm", "sop"), "objectives"), (("--curriculum", "hard"), "--curriculum")])
def test_what_does_not_go_together_is_one_sentence(tmp_path, words, said):
    assert said in refused("pretrain", *words, cwd=tmp_path)
