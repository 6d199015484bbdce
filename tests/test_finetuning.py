"""Fine-tuning: the same numbers as Hugging Face, resumed bit for bit, and a sentence for each bad table."""
import csv
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import transformers as hf

from minibert.config import BertConfig
from minibert.data.stories import stories
from minibert.core.errors import UserError
from minibert.core.seeds import seeded
from minibert.evaluation import wilson
from minibert.measure.baselines import bag_of_words
from minibert.finetuning import BertClassifier, difference, finetune, fit_linear, train_frozen
from minibert.runs.plan import FinetuneConfig
from minibert.tuning.classify import TASK, accuracy_figures, classify
from minibert.tuning.finetune import resume_finetuning, run_finetuning, training_for
from minibert.tuning.finetune import read_parts as read_parts_of
from minibert.tuning.tasks import load_tuned, set_dropout_
from minibert.data.labels import (
    Examples, ExampleSampler, ask, hold_out, judge, number_labels, read_examples, take_share)
from minibert.heads import BertForPreTraining
from minibert.nn.classifier_parts import make_encoder
from minibert.model import BertModel
from minibert.parity import assert_same, randomise_
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.gradients import Gradients
from minibert.training import Callback
from minibert.weights import save_pretrained, to_hf

TEXTS = [story.text for story in stories(60)]
WORDS = [story.sentiment for story in stories(60)]
NAMES = ("happy", "sad")


def load_classifier(folder): return load_tuned(folder)[1]


def read_parts(options): return read_parts_of(TASK, options)


@pytest.fixture(scope="module")
def tokenizer(): return WordPieceTokenizer.train(TEXTS, vocab_size=400)


def sizes(tokenizer, **changes):
    return BertConfig(**dict(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                             intermediate_size=64, max_position_embeddings=96, hidden_dropout_prob=0.0,
                             attention_probs_dropout_prob=0.0) | changes)


@pytest.fixture(scope="module")
def examples(): return Examples(tuple(TEXTS), *number_labels(WORDS))


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory):
    "A folder with a BERT that knows nothing."
    folder = tmp_path_factory.mktemp("runs") / "fresh"
    save_pretrained(BertForPreTraining(sizes(tokenizer), seeded(0)), tokenizer, folder)
    return folder


def fresh(tokenizer, pooling="cls", names=NAMES, **changes):
    return BertClassifier(make_encoder(sizes(tokenizer, **changes), seeded(1)), names, pooling, generator=seeded(2))


def table(path, rows, columns=("text", "label"), mark=","):
    with open(path, "w", newline="", encoding="utf8") as file:
        csv.writer(file, delimiter=mark).writerows([columns, *rows])
    return path


@pytest.fixture
def stories_csv(tmp_path): return table(tmp_path / "stories.csv", zip(TEXTS, WORDS))


# --- the same numbers as theirs ---

@pytest.mark.parametrize("kind", ["bert", "roformer"])
@pytest.mark.parametrize("names", [NAMES, ("a", "b", "c", "d")])
def test_logits_loss_and_gradients_are_theirs(tokenizer, tmp_path, kind, names):
    ours = randomise_(fresh(tokenizer, names=names, model_type=kind).double())
    save_pretrained(ours, tokenizer, tmp_path)
    theirs, info = hf.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert theirs.config.id2label == dict(enumerate(names))
    batch = tokenizer.encode_batch(TEXTS[:3] + [(TEXTS[3][:40], TEXTS[4][:50])], max_length=90, return_tensors="pt")
    labels = torch.tensor([0, 1, 1, len(names) - 1])
    a, b = ours.eval()(**batch, labels=labels), theirs.eval()(**batch, labels=labels)
    assert_same(a.logits, b.logits, tol=1e-9)
    assert_same(a.loss, b.loss, tol=1e-9)
    a.loss.backward(); b.loss.backward()
    head = theirs.classifier if kind == "bert" else theirs.classifier.out_proj
    assert_same(ours.classifier.weight.grad, head.weight.grad, tol=1e-9)
    assert_same(ours.bert.embeddings.word_embeddings.weight.grad, theirs.get_input_embeddings().weight.grad, tol=1e-9)
    with torch.no_grad(): ours.bert.pooler.bias[0] += 1e-3  # the control
    with pytest.raises(AssertionError): assert_same(ours(**batch).logits, b.logits, tol=1e-9)


@pytest.mark.parametrize("kind", ["bert", "roformer"])
def test_pipeline_agrees(tokenizer, tmp_path, kind):
    ours = randomise_(fresh(tokenizer, model_type=kind)).eval()
    save_pretrained(ours, tokenizer, tmp_path)
    pipe = hf.pipeline("text-classification", model=str(tmp_path), top_k=None)
    long = " ".join(TEXTS[:4])  # cut to the model's length by both
    texts = [*TEXTS[:4], "Ünïcödé!", long]
    for told, row in zip(pipe(texts, truncation=True), classify(ours, tokenizer, texts)):
        assert [r["label"] for r in told] == list(row)
        assert_same([r["score"] for r in told], list(row.values()), tol=1e-5)
    told = pipe([dict(text=TEXTS[0][:50], text_pair=TEXTS[1][:40])])[0]
    row = classify(ours, tokenizer, (TEXTS[0][:50], TEXTS[1][:40]))[0]
    assert_same([r["score"] for r in told], list(row.values()), tol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roformer"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_saved_and_opened_again(tokenizer, tmp_path, kind, pooling):
    ours = randomise_(fresh(tokenizer, pooling, model_type=kind)).eval()
    save_pretrained(ours, tokenizer, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_classifier(tmp_path)
    assert again.names == NAMES and again.pooling == pooling and not again.training
    assert_same(again.state_dict(), ours.state_dict(), tol=0)
    assert classify(again, tokenizer, TEXTS[:3]) == classify(ours, tokenizer, TEXTS[:3])


def test_mean_pooling_is_not_passed_off_as_theirs(tokenizer, tmp_path):
    save_pretrained(fresh(tokenizer, "mean"), tokenizer, tmp_path)
    _, info = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}


def test_their_classifier_opens_here(tokenizer, tmp_path):
    theirs = hf.BertForSequenceClassification(hf.BertConfig(**asdict(sizes(tokenizer)), num_labels=3)).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_classifier(tmp_path)
    batch = tokenizer.encode_batch(TEXTS[:3], max_length=90, return_tensors="pt")
    with torch.no_grad(): assert_same(ours(**batch).logits, theirs(**batch).logits, tol=1e-6)
    assert ours.names == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize("labels, kind", [(3, "regression"), (3, "multi_label_classification")])
def test_several_labels_at_once_and_several_numbers_are_refused(tokenizer, tmp_path, labels, kind):
    config = hf.BertConfig(**asdict(sizes(tokenizer)), num_labels=labels, problem_type=kind)
    hf.BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path.name} was not loaded. Its problem_type is {kind}"): load_classifier(tmp_path)


def test_what_is_no_classifier_is_refused(run):
    with pytest.raises(ValueError, match="has learned no task"): load_classifier(run)


# --- learning ---

def test_frozen_changes_the_classifier_alone(tokenizer, examples):
    model = fresh(tokenizer, "mean")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sampler = ExampleSampler(examples, tokenizer, 96)
    train_frozen(model, sampler, sampler)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}


def test_fit_linear_finds_scikit_learns_optimum():
    from sklearn.linear_model import LogisticRegression
    generator = seeded(3)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0)
    y = (x[:, 0] + torch.randn(200, generator=generator) > 0).long().numpy()
    weight, bias = fit_linear(x, y, 2, penalty=0.01)
    # softmax over two labels with weights +-w costs penalty * 2 w^2; theirs costs v^2 / 2 / (N C) with v = 2 w
    theirs = LogisticRegression(C=1 / (200 * 0.01), tol=1e-10, max_iter=1000).fit(x.numpy(), y)
    assert_same((weight[1] - weight[0]).numpy(), theirs.coef_[0], tol=1e-4)
    assert_same((bias[1] - bias[0]).item(), theirs.intercept_[0], tol=1e-4)


CONFIG = TrainingConfig(steps=12, batch_size=4, learning_rate=1e-3, checkpoint_steps=3, log_steps=2)


def test_stopped_and_resumed_is_bit_for_bit(tokenizer, examples, tmp_path):
    parts = [ExampleSampler(part, tokenizer, 96) for part in hold_out(examples)]
    make = lambda: fresh(tokenizer, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    straight = make()
    lines = finetune(straight, *parts, CONFIG, progress=False)

    def stop(run):
        if run.step == 8: raise RuntimeError("power cut")
    with pytest.raises(RuntimeError): finetune(make(), *parts, CONFIG, tmp_path, callbacks=[Callback(after_step=stop)], progress=False)
    with pytest.raises(FileExistsError): finetune(make(), *parts, CONFIG, tmp_path)
    again = make()
    assert finetune(again, *parts, CONFIG, tmp_path, resume=True, progress=False) == lines
    assert_same(again.state_dict(), straight.state_dict(), tol=0)
    with pytest.raises(ValueError, match="training.seed was 0 and is 1"):
        finetune(make(), *parts, replace(CONFIG, seed=1), tmp_path, resume=True)
    with pytest.raises(ValueError, match="examples.sha256"):
        finetune(make(), parts[1], parts[1], CONFIG, tmp_path, resume=True)


@pytest.mark.parametrize("where", ["in memory", "in a folder"])
def test_the_best_is_what_is_kept(tokenizer, examples, tmp_path, where):
    "Held out are the same texts with the labels exchanged: whatever is learned makes it worse."
    few = examples.take(range(16))
    learned, turned = (ExampleSampler(part, tokenizer, 96) for part in (few, replace(few, labels=1 - few.labels)))
    model = fresh(tokenizer)
    config = replace(CONFIG, steps=40, learning_rate=1e-2, checkpoint_steps=5)
    lines = finetune(model, learned, turned, config, tmp_path if where == "in a folder" else None, progress=False)
    losses = [line["val_loss"] for line in lines if "val_loss" in line]
    assert len(losses) == 8 and losses[-1] > min(losses) + 1  # by 1.9 to 4.4, over seeds, threads, precisions
    assert judge(ask(model, turned), turned.examples.labels)["val_loss"] == min(losses)


@pytest.mark.parametrize("parts, rows", [(2, 4), (3, 5), (4, 4), (7, 3)])
def test_accumulation_is_the_whole_batch(tokenizer, examples, parts, rows):
    "The gradient of the parts is that of the batch, where the parts are unequal too; no part is larger than it should be."
    batch, seen = ExampleSampler(examples, tokenizer, 96).gather(range(rows)), []
    def gradient(parts):
        model = fresh(tokenizer).double()
        model.register_forward_pre_hook(lambda m, a, k: seen.append(len(k["input_ids"])), with_kwargs=True)
        loss = Gradients(parts)(model, batch)["label"]
        return [loss, *(p.grad for p in model.parameters())]
    assert_same(gradient(parts), gradient(1), tol=1e-12)
    assert seen[-1] == rows and sum(seen[:-1]) == rows and len(seen) == min(parts, rows) + 1


def test_accumulated_training_ends_where_the_whole_does(tokenizer, examples):
    learned, val = (ExampleSampler(part, tokenizer, 96) for part in hold_out(examples))
    ends = []
    for parts in (1, 3):
        model = fresh(tokenizer).double()
        finetune(model, learned, val, replace(CONFIG, gradient_accumulation_steps=parts), progress=False)
        ends.append(model.state_dict())
    assert_same(*ends, tol=1e-7)


def test_batches_go_where_the_model_is(tokenizer, examples, monkeypatch):
    "The meta device, which every machine has, stands for a GPU."
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: nullcontext())  # it has no meta
    class Seen(Exception): pass
    def look(module, args, kwargs): raise Seen({value.device.type for value in kwargs.values()})
    model = fresh(tokenizer).to("meta")
    model.register_forward_pre_hook(look, with_kwargs=True)
    sampler = ExampleSampler(examples, tokenizer, 96)
    with pytest.raises(Seen, match="{'meta'}"): Gradients()(model, sampler.gather([0, 1, 2]))
    with pytest.raises(Seen, match="{'meta'}"): ask(model, sampler)


def test_a_run_asks_for_the_device(run, stories_csv, tmp_path, monkeypatch):
    class Seen(Exception): pass
    def stop(model, *args, **kwargs): raise Seen(next(model.parameters()).device.type)
    monkeypatch.setattr("minibert.tuning.finetune.own_device", lambda: torch.device("meta"))
    monkeypatch.setattr("minibert.tuning.finetune.finetune", stop)
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "out"), precision="float32", length=96)
    with pytest.raises(Seen, match="meta"): run_finetuning(options, progress=False)


def test_the_library_leaves_the_processes_memory_alone(tokenizer, examples, monkeypatch):
    import ctypes
    asked, plain = [], ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *a, **k: asked.append(name) or plain(name, *a, **k))
    sampler = ExampleSampler(examples, tokenizer, 96)
    finetune(fresh(tokenizer), sampler, sampler, replace(CONFIG, steps=1), progress=False)
    assert None not in asked  # mallopt belongs to the command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_saves_first(tokenizer, examples, tmp_path, number):
    parts = [ExampleSampler(part, tokenizer, 96) for part in hold_out(examples)]
    straight, stopped = fresh(tokenizer), fresh(tokenizer)
    lines = finetune(straight, *parts, CONFIG, progress=False)
    def ring(run):
        if run.step == 4: signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt, match="saved in"):
        finetune(stopped, *parts, CONFIG, tmp_path, callbacks=[Callback(after_step=ring)], progress=False)
    found = finetune(stopped, *parts, CONFIG, tmp_path, resume=True, progress=False)
    assert found == lines
    assert_same(stopped.state_dict(), straight.state_dict(), tol=0)


def test_a_copy_of_a_checkpoint_is_no_checkpoint(tokenizer, examples, tmp_path):
    "What a person keeps beside the checkpoints is neither deleted nor taken for a run."
    parts = [ExampleSampler(part, tokenizer, 96) for part in hold_out(examples)]
    kept = tmp_path / "checkpoints" / "00000003-my-best"
    kept.mkdir(parents=True)
    (kept / "note").write_text("mine")
    finetune(fresh(tokenizer), *parts, replace(CONFIG, steps=4), tmp_path, progress=False)
    assert (kept / "note").read_text() == "mine"


def test_answers_do_not_depend_on_batches_or_padding(tokenizer, examples):
    model, sampler = randomise_(fresh(tokenizer)), ExampleSampler(examples, tokenizer, 96)
    assert_same(ask(model, sampler, 1), ask(model, sampler, 7), tol=1e-5)
    assert_same(ask(model, sampler)[5], ask(model, ExampleSampler(examples.take([5]), tokenizer, 96))[0], tol=1e-5)


def test_an_epoch_sees_every_example_once(tokenizer, examples):
    sampler = ExampleSampler(examples, tokenizer, 96, seed=5)
    for epoch in (0, 3):
        batches = [sampler.batch(8 * epoch + k, 8) for k in range(8)]
        rows = sorted(tuple(row[row > 0].tolist()) for batch in batches for row in batch["input_ids"])
        assert rows == sorted(tuple(row["input_ids"]) for row in sampler.rows)
    again = ExampleSampler(examples, tokenizer, 96, seed=5)
    assert torch.equal(again.batch(29, 8)["input_ids"], batches[5]["input_ids"])


# --- the whole, from a table ---

def test_run_from_a_csv(run, stories_csv, tmp_path):
    out = tmp_path / "out"
    options = FinetuneConfig(str(run), str(stories_csv), str(out), epochs=2, batch_size=8, learning_rate=1e-3, length=96)
    figures = run_finetuning(options, progress=False)
    assert figures["examples"] == [43, 11, 6] and figures["labels"] == ["happy", "sad"]
    test, model = read_parts(options)[2], load_classifier(out)
    said = [next(iter(row)) for row in classify(model, WordPieceTokenizer.from_pretrained(out), list(test.texts))]
    right = np.array(said) == np.array(test.names)[test.labels]
    assert figures["bert"] == accuracy_figures(right) and set(figures) >= {"bag_of_words", "majority", "difference"}
    assert json.loads((out / "figures.json").read_text()) == figures
    told = hf.pipeline("text-classification", model=str(out))(TEXTS[:5], truncation=True)
    ours = classify(load_classifier(out), WordPieceTokenizer.from_pretrained(out), TEXTS[:5])
    for a, b in zip(told, ours): assert a["label"] == next(iter(b)) and abs(a["score"] - b[a["label"]]) < 1e-5
    with pytest.raises(UserError, match="out exists"): run_finetuning(options)
    assert resume_finetuning(out, progress=False) == figures  # a finished run only tells again


def test_a_moved_run_goes_on_where_it_is_now(run, stories_csv, tmp_path):
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "out"), epochs=1, batch_size=16, length=96)
    figures = run_finetuning(options, progress=False)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert resume_finetuning(tmp_path / "moved", progress=False) == figures and not (tmp_path / "out").exists()
    (tmp_path / "moved" / "options.json").write_text("{")
    with pytest.raises(UserError, match="options.json"): resume_finetuning(tmp_path / "moved")


def test_a_run_killed_before_its_first_checkpoint_begins_anew(run, stories_csv, tmp_path, monkeypatch):
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "straight"), epochs=2, batch_size=4, length=96,
                             measures=1, learning_rate=1e-3)
    figures = run_finetuning(options, progress=False)
    def cut(*args, **options): raise RuntimeError("power cut")
    with monkeypatch.context() as patch:
        patch.setattr("minibert.train.checkpoints.save_checkpoint", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            run_finetuning(replace(options, out=str(tmp_path / "cut")), progress=False)
    assert (tmp_path / "cut" / "metrics.jsonl").exists()
    assert resume_finetuning(tmp_path / "cut", progress=False) == figures
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


WRONG = {
    "pooling": (dict(pooling="max"), "pooling"),
    "no epoch": (dict(epochs=0), "epochs is 0"),
    "half an epoch": (dict(epochs=2.5), "epochs is 2.5"),
    "rate": (dict(learning_rate=float("inf")), "learning_rate is inf"),
    "rate 0": (dict(learning_rate=0.0), "learning_rate is 0.0"),
    "measures": (dict(measures=-1), "measures is -1"),
    "share 0": (dict(share=0), "share is 0"),
    "share": (dict(share=1.5), "share is 1.5"),
    "batch": (dict(batch_size=0), "batch_size is 0"),
    "dropout": (dict(dropout=1.0), "dropout is 1.0"),
    "seed": (dict(seed=-1), "seed is -1"),
    "precision": (dict(precision="bf16"), "precision is 'bf16'"),
    "frozen": (dict(frozen="yes"), "frozen is 'yes'"),
    "length": (dict(length=2), "length is 2"),
    "parts": (dict(gradient_accumulation_steps=33), "A batch of 32 texts cannot be cut into 33 parts"),
    "training split": (dict(validation_split="train"), "the texts that are learned from"),
    "one column": (dict(label_column="text"), "text, text"),
    "one label": (dict(label_names=("a",)), "give two or more different words"),
    "twice a label": (dict(label_names=("a", "b", "a")), "give two or more different words"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_be_meant_are_refused_at_the_door(case):
    changes, sentence = WRONG[case]
    with pytest.raises(ValueError, match=sentence): FinetuneConfig("run", "table.csv", "out", **changes)


def test_two_runs_cannot_have_one_folder(run, stories_csv, tmp_path, monkeypatch):
    "Another run takes the folder while this one reads its data: nothing of the other is touched."
    import minibert.tuning.finetune as module
    out, plain = tmp_path / "tuned" / "1", module.read_parts
    def meanwhile(task, options):
        out.mkdir(parents=True)
        (out / "options.json").write_text("theirs")
        return plain(task, options)
    monkeypatch.setattr(module, "read_parts", meanwhile)
    monkeypatch.setattr(module, "finetune", None)
    with pytest.raises(UserError, match="tuned"):
        run_finetuning(FinetuneConfig(str(run), str(stories_csv), str(out), length=96), progress=False)
    assert [p.name for p in out.iterdir()] == ["options.json"] and (out / "options.json").read_text() == "theirs"


@pytest.mark.parametrize("told, expected", [("0", "float32"), ("1", "bfloat16")])
def test_auto_is_what_core_says(run, stories_csv, tmp_path, monkeypatch, told, expected):
    monkeypatch.setenv("MINIBERT_BFLOAT16", told)
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "out"), batch_size=32, epochs=1, length=96)
    assert training_for(options, 100).precision == expected
    run_finetuning(options, progress=False)
    assert json.loads((tmp_path / "out" / "options.json").read_text())["precision"] == expected


def test_without_scikit_learn_the_bag_of_words_is_left_out(run, stories_csv, tmp_path, monkeypatch, capsys):
    from minibert.core.progress import shown
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "out"), length=96, frozen=True)
    with shown(True): figures = run_finetuning(options, progress=False)
    assert "scikit-learn: pip install scikit-learn. It is left out." in capsys.readouterr().err
    assert "bag_of_words" not in figures and {"bert", "majority", "difference"} <= figures.keys()
    assert [row[0] for row in TASK.rows(figures)[1:]] == ["this model", "commonest label"]


def test_a_file_of_one_s_own_is_asked_last(run, stories_csv, tmp_path):
    own = [(story.text, story.sentiment) for story in stories(80)[60:]]
    data = table(tmp_path / "own.csv", own)
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "out"), test=str(data), length=96, frozen=True)
    assert read_parts(options)[2].texts == tuple(text for text, _ in own)
    figures = run_finetuning(options, progress=False)
    assert figures["examples"] == [48, 12, 20] and sum(row["n"] for row in figures["by_label"].values()) == 20
    assert sum(row["n"] * row["accuracy"] for row in figures["by_label"].values()) / 20 == pytest.approx(figures["bert"]["accuracy"])
    with pytest.raises(UserError, match="are to be asked last: give one"): replace(options, validation_split="test")
    table(tmp_path / "own.csv", [("a text", "angry")])
    with pytest.raises(UserError, match="own.csv has the label 'angry'"): read_parts(options)


def test_a_refused_run_leaves_nothing(run, stories_csv, tmp_path):
    options = FinetuneConfig(str(run), str(stories_csv), str(tmp_path / "a" / "out"), text_column="who", length=96)
    with pytest.raises(ValueError, match="who"): run_finetuning(options, progress=False)
    assert not (tmp_path / "a").exists()


def test_frozen_run_and_pairs(run, tmp_path):
    rows = [(s.sentences[0], s.sentences[-1], s.sentiment) for s in stories(60)]
    data = table(tmp_path / "pairs.tsv", rows, ("a", "b", "end"), "\t")
    options = FinetuneConfig(str(run), str(data), str(tmp_path / "out"), text_column="a", text_pair_column="b",
                             label_column="end", frozen=True, length=64)
    figures = run_finetuning(options, progress=False)
    assert figures["bag_of_words"]["accuracy"] > 0.5
    parts = read_parts(options)
    texts = [set(part.texts) for part in parts]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 60 and isinstance(parts[0].texts[0], tuple)
    model = load_classifier(tmp_path / "out")
    assert model.pooling == "mean" and len(classify(model, WordPieceTokenizer.from_pretrained(run), [("a", "b")])) == 1


RESUMED = """
import sys
from minibert.runs.plan import FinetuneConfig
from minibert.tuning.finetune import resume_finetuning, run_finetuning
run, data, out = sys.argv[1:]
print("ready", flush=True)
from pathlib import Path
if Path(out, "options.json").exists() and any(Path(out).glob("checkpoints/0*")): resume_finetuning(out, progress=False)
else:
    import shutil; shutil.rmtree(out, ignore_errors=True)
    run_finetuning(FinetuneConfig(run, data, out, epochs=10, batch_size=8, learning_rate=1e-3, length=96, measures=30), progress=False)
print("done", flush=True)
"""


def killed(run, data, out, kills, seed):
    "Run, kill with SIGKILL at random moments, go on, until it is done."
    generator = seeded(seed)
    for kill in range(kills + 1):
        process = subprocess.Popen([sys.executable, "-c", RESUMED, run, data, out], stdout=subprocess.PIPE, text=True,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert process.stdout.readline() == "ready\n"
        if kill == kills:
            assert process.communicate()[0].endswith("done\n")
            return
        time.sleep(1.5 * torch.rand((), generator=generator).item())
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_killed_five_times_nothing_is_lost(run, stories_csv, tmp_path):
    for name, kills in (("straight", 0), ("killed", 5)): killed(str(run), str(stories_csv), str(tmp_path / name), kills, 3)
    for name in ("metrics.jsonl", "model.safetensors", "figures.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


@pytest.mark.parametrize("count", [1, 2])
def test_a_rare_label_gets_a_sentence(run, tmp_path, count):
    rows = [*zip(TEXTS, WORDS)]
    rows = [(text, "odd" if k < count else word) for k, (text, word) in enumerate(rows)]
    options = FinetuneConfig(str(run), str(table(tmp_path / "rare.csv", rows)), str(tmp_path / "out"), length=96)
    with pytest.raises(UserError, match="'odd'"):
        run_finetuning(options, progress=False)
    assert not (tmp_path / "out").exists()
    few = read_examples(options.dataset)
    taken, left = take_share(few, 0.5)  # and it can be drawn from
    assert sorted(taken.texts + left.texts) == sorted(few.texts) and (taken.labels == few.names.index("odd")).sum() == 1
    if count == 1:
        with pytest.raises(UserError, match="'odd'"): hold_out(few)
    else: assert all((part.labels == few.names.index("odd")).sum() == 1 for part in hold_out(few))


def test_a_label_in_all_three_parts(tmp_path):
    rows = [(text, "odd" if k < 3 else word) for k, (text, word) in enumerate(zip(TEXTS, WORDS))]
    parts = read_parts(FinetuneConfig("none", str(table(tmp_path / "three.csv", rows)), "none"))
    assert [(part.labels == part.names.index("odd")).sum() for part in parts] == [1, 1, 1]


def test_texts_that_were_learned_from_are_no_secret(tmp_path):
    "Doubles are told; a split that is not there is not replaced by another in silence."
    data = table(tmp_path / "twice.csv", [*zip(TEXTS, WORDS)] * 2)
    with pytest.warns(UserWarning, match="texts that are asked in the end are learned from"):
        read_parts(FinetuneConfig("none", str(data), "none"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_parts(FinetuneConfig("none", str(table(tmp_path / "once.csv", zip(TEXTS, WORDS))), "none"))
    with pytest.raises(ValueError, match="tset"):
        read_parts(FinetuneConfig("none", str(data), "none", validation_split="tset"))


def test_damaged_weights_are_refused(tokenizer, examples, tmp_path):
    from safetensors.torch import load_file, save_file
    model = fresh(tokenizer)
    save_pretrained(model, tokenizer, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for name, ours in (("classifier.bias", "classifier.bias"), ("bert.embeddings.LayerNorm.weight", "bert.embeddings.norm.weight")):
        damaged = state[name].clone()
        damaged[0] = float("nan")
        save_file(state | {name: damaged}, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=f"weight {ours} holds NaN"): load_classifier(tmp_path)
    with torch.no_grad(): model.classifier.bias[1] = float("inf")
    for call in (lambda: classify(model, tokenizer, TEXTS[0]), lambda: ask(model, ExampleSampler(examples, tokenizer, 96))):
        with pytest.raises(FloatingPointError, match="not finite numbers: its weights are damaged"): call()


# --- intervals ---

def test_twelve_right_answers_are_no_certainty():
    f = accuracy_figures(np.ones(12))
    assert f["accuracy"] == 1 and f["interval"] == list(wilson(12, 12)) and f["interval"][0] < 0.8
    assert accuracy_figures(np.zeros((3, 12)))["interval"] == list(wilson(0, 12))
    assert accuracy_figures([1, 1, 0, 1])["interval"] == list(wilson(3, 4))
    low, high = difference(np.ones(12), np.ones(12))["interval"]
    assert low < -0.1 and high > 0.1  # that two agree on twelve texts does not make them one
    assert difference(np.ones(12), np.zeros(12))["interval"][1] == 1


@pytest.mark.parametrize("seeds", [1, 3])
def test_intervals_hold_the_truth_95_times_of_100(seeds):
    "Each example has a chance of its own; seeds answer it independently. Drawn 4,000 times, so 0.95 +- 5 sigma is 0.0172."
    draw = np.random.default_rng(18)
    N, kept, gaps = 40, [], []
    for _ in range(4000):
        ours, theirs = draw.beta(9, 1, N), draw.beta(9, 1, N)  # 0.9 each in the mean
        a, b = (draw.random((seeds, N)) < chance for chance in (ours, theirs))
        low, high = accuracy_figures(a)["interval"]
        kept.append(low <= 0.9 <= high)
        low, high = difference(a, b)["interval"]
        gaps.append(low <= 0 <= high)
    assert 0.95 - 0.0172 < np.mean(kept) < 0.985 and 0.95 - 0.0172 < np.mean(gaps) < 0.999  # on the safe side for seeds


def test_sst2(shared_data):
    read = dict(text_column="sentence", names=("negative", "positive"))
    train = read_examples(shared_data / "sst2", **read)
    test = read_examples(shared_data / "sst2", split="validation", **read)
    assert (len(train), len(test)) == (67_349, 872) and test.labels.sum() == 444
    few, val = hold_out(take_share(train, 0.01)[0])
    right = bag_of_words(few, val, test) == test.labels
    assert 0.6 < right.mean() < 0.7
    assert difference(right, np.zeros(872))["interval"][0] > 0.5


def test_dropout_is_set_everywhere(tokenizer):
    bert = BertModel(sizes(tokenizer), seeded(1)).train()
    set_dropout_(bert, 0.5)
    ids = torch.randint(5, 90, (2, 9), generator=seeded(4))
    with torch.random.fork_rng():
        a, b = (bert(ids).hidden_states for _ in range(2))
    assert all(not torch.equal(x, y) for x, y in zip(a, b)) and bert.config.attention_probs_dropout_prob == 0.5
    assert torch.equal(bert.eval()(ids).pooler_output, bert(ids).pooler_output)


def test_names_of_saved_weights_are_theirs(tokenizer):
    theirs = hf.BertForSequenceClassification(hf.BertConfig(**asdict(sizes(tokenizer))))
    assert to_hf(fresh(tokenizer)).keys() == theirs.state_dict().keys()
