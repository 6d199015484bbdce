"""Fine-tuning: the same numbers as Hugging Face, resumed bit for bit, and a sentence for each bad table."""
import csv
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import transformers as hf

from minibert.config import BertConfig
from minibert.corpus import seeded, stories
from minibert.finetuning import (
    BertClassifier, Examples, ExampleSampler, FinetuneConfig, _set_dropout_, ask, bag_of_words, classifier_to_hf, classify,
    difference, finetune, fit_linear, hold_out, load_classifier, number_labels, read_examples, read_parts,
    resume_finetuning, run_finetuning, save_classifier, take_share, train_frozen)
from minibert.heads import BertForPreTraining
from minibert.model import BertModel
from minibert.parity import assert_same, randomise_
from minibert.tokenizer import WordPieceTokenizer
from minibert.training import TrainingConfig
from minibert.weights import save_pretrained

TEXTS = [story.text for story in stories(60)]
WORDS = [story.sentiment for story in stories(60)]
NAMES = ("happy", "sad")


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
    return BertClassifier(BertModel(sizes(tokenizer, **changes), seeded(1)), names, pooling, generator=seeded(2))


def table(path, rows, columns=("text", "label"), mark=","):
    with open(path, "w", newline="", encoding="utf8") as file:
        csv.writer(file, delimiter=mark).writerows([columns, *rows])
    return path


@pytest.fixture
def stories_csv(tmp_path): return table(tmp_path / "stories.csv", zip(TEXTS, WORDS))


# --- the same numbers as theirs ---

@pytest.mark.parametrize("kind", ["absolute", "rotary"])
@pytest.mark.parametrize("names", [NAMES, ("a", "b", "c", "d")])
def test_logits_loss_and_gradients_are_theirs(tokenizer, tmp_path, kind, names):
    ours = randomise_(fresh(tokenizer, names=names, position_embedding_type=kind).double())
    save_classifier(ours, tokenizer, tmp_path)
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
    head = theirs.classifier if kind == "absolute" else theirs.classifier.out_proj
    assert_same(ours.classifier.weight.grad, head.weight.grad, tol=1e-9)
    assert_same(ours.bert.embeddings.word_embeddings.weight.grad, theirs.get_input_embeddings().weight.grad, tol=1e-9)
    with torch.no_grad(): ours.bert.pooler.bias[0] += 1e-3  # the control
    with pytest.raises(AssertionError): assert_same(ours(**batch).logits, b.logits, tol=1e-9)


@pytest.mark.parametrize("kind", ["absolute", "rotary"])
def test_pipeline_agrees(tokenizer, tmp_path, kind):
    ours = randomise_(fresh(tokenizer, position_embedding_type=kind)).eval()
    save_classifier(ours, tokenizer, tmp_path)
    pipe = hf.pipeline("text-classification", model=str(tmp_path), top_k=None)
    long = " ".join(TEXTS[:4])  # cut to the model's length by both
    texts = [*TEXTS[:4], "Ünïcödé!", long]
    for told, row in zip(pipe(texts, truncation=True), classify(ours, tokenizer, texts)):
        assert [r["label"] for r in told] == list(row)
        assert_same([r["score"] for r in told], list(row.values()), tol=1e-5)
    told = pipe([dict(text=TEXTS[0][:50], text_pair=TEXTS[1][:40])])[0]
    row = classify(ours, tokenizer, (TEXTS[0][:50], TEXTS[1][:40]))[0]
    assert_same([r["score"] for r in told], list(row.values()), tol=1e-5)


@pytest.mark.parametrize("kind", ["absolute", "rotary"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_saved_and_opened_again(tokenizer, tmp_path, kind, pooling):
    ours = randomise_(fresh(tokenizer, pooling, position_embedding_type=kind)).eval()
    save_classifier(ours, tokenizer, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_classifier(tmp_path)
    assert again.names == NAMES and again.pooling == pooling and not again.training
    assert_same(again.state_dict(), ours.state_dict(), tol=0)
    assert classify(again, tokenizer, TEXTS[:3]) == classify(ours, tokenizer, TEXTS[:3])


def test_mean_pooling_is_not_passed_off_as_theirs(tokenizer, tmp_path):
    save_classifier(fresh(tokenizer, "mean"), tokenizer, tmp_path)
    _, info = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}


def test_their_classifier_opens_here(tokenizer, tmp_path):
    theirs = hf.BertForSequenceClassification(hf.BertConfig(**asdict(sizes(tokenizer)), num_labels=3)).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_classifier(tmp_path)
    batch = tokenizer.encode_batch(TEXTS[:3], max_length=90, return_tensors="pt")
    with torch.no_grad(): assert_same(ours(**batch).logits, theirs(**batch).logits, tol=1e-6)
    assert ours.names == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_what_is_no_classifier_is_refused(run):
    with pytest.raises(ValueError, match="it is no classifier yet"): load_classifier(run)


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

    def stop(history):
        if history[-1]["step"] == 8: raise RuntimeError("power cut")
    with pytest.raises(RuntimeError): finetune(make(), *parts, CONFIG, tmp_path, on_log=stop, progress=False)
    with pytest.raises(FileExistsError, match="holds a run already"): finetune(make(), *parts, CONFIG, tmp_path)
    again = make()
    assert finetune(again, *parts, CONFIG, tmp_path, resume=True, progress=False) == lines
    assert_same(again.state_dict(), straight.state_dict(), tol=0)
    with pytest.raises(ValueError, match="training.seed was 0 and is 1"):
        finetune(make(), *parts, replace(CONFIG, seed=1), tmp_path, resume=True)
    with pytest.raises(ValueError, match="train.sha256"):
        finetune(make(), parts[1], parts[1], CONFIG, tmp_path, resume=True)


def test_the_best_is_what_is_kept(tokenizer, examples):
    parts = [ExampleSampler(part, tokenizer, 96) for part in hold_out(examples)]
    model = fresh(tokenizer)
    wild = replace(CONFIG, steps=40, learning_rate=0.03, checkpoint_steps=5)
    lines = finetune(model, *parts, wild, progress=False)
    losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    assert len(losses) == 8 and min(losses) < losses[-1]  # it did get worse
    from minibert.finetuning import judge
    assert judge(ask(model, parts[1]), parts[1].examples.labels)["held_out_loss"] == min(losses)


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
    assert 0 <= figures["bert"]["accuracy"] <= 1 and set(figures) >= {"bag_of_words", "majority", "difference"}
    assert json.loads((out / "figures.json").read_text()) == figures
    told = hf.pipeline("text-classification", model=str(out))(TEXTS[:5], truncation=True)
    ours = classify(load_classifier(out), WordPieceTokenizer.from_pretrained(out), TEXTS[:5])
    for a, b in zip(told, ours): assert a["label"] == next(iter(b)) and abs(a["score"] - b[a["label"]]) < 1e-5
    with pytest.raises(FileExistsError, match="give a new folder"): run_finetuning(options)
    assert resume_finetuning(out, progress=False) == figures  # a finished run only tells again


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
from minibert.finetuning import FinetuneConfig, resume_finetuning, run_finetuning
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


# --- a sentence for each bad table ---

BAD = {
    "hidden": ([("x y", -1), ("z", -1)], "Every label of .* is -1, which is how GLUE hides"),
    "missing": ([("x y", "a"), ("z", ""), ("u", "b")], "1 of 3 rows of .* have no label, row 2 first"),
    "constant": ([("x y", "a"), ("z", "a")], "Every label of .* is 'a': a classifier needs two"),
    "empty text": ([("x y", "a"), (" ", "b")], "Row 2 of .* has ' ' for a text in the column text"),
    "a number": ([(f"text {k}", f"id{k}") for k in range(20)], "20 different labels in 20 rows: is that the column"),
    "nothing": ([], "has no row below its first line"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_get_a_sentence(tmp_path, case):
    rows, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence): read_examples(table(tmp_path / "bad.csv", rows))


def test_wrong_columns_splits_and_labels_get_a_sentence(stories_csv, tmp_path):
    with pytest.raises(ValueError, match="has the columns text, label, and no sentence"):
        read_examples(stories_csv, text_column="sentence")
    with pytest.raises(ValueError, match="has the splits train, and test was asked for"): read_examples(stories_csv, split="test")
    with pytest.raises(ValueError, match="has the label 'happy', and the classifier knows good, bad"):
        read_examples(stories_csv, names=("good", "bad"))
    with pytest.raises(ValueError, match="A label is 2.5"): number_labels([1.0, 2.5])
    with pytest.raises(ValueError, match="pooling is 'max'"): fresh(WordPieceTokenizer.train(TEXTS[:5], 300), "max")(torch.tensor([[1]]))
    (tmp_path / "bad.csv").write_bytes(b"text,label\n\xff\xfe,a\n")
    with pytest.raises(ValueError, match="save it as a UTF-8 table"): read_examples(tmp_path / "bad.csv")


@pytest.mark.parametrize("values, numbers, names", [
    ([1, 5, 3, 1, 5, 3], [0, 2, 1, 0, 2, 1], ("1", "3", "5")),
    (["10", "9", "10", "9"], [1, 0, 1, 0], ("9", "10")),
    ([True, False, True, True], [1, 0, 1, 1], ("0", "1")),
    ([1.0, 0.0, 1.0, 0.0], [1, 0, 1, 0], ("0", "1")),
    (["sad", "happy", "sad", "sad"], [1, 0, 1, 1], ("happy", "sad")),
])
def test_labels_are_numbered_in_order(values, numbers, names):
    found = number_labels(values)
    assert found[0].tolist() == numbers and found[1] == names


def test_shares_are_nested_and_keep_every_label(examples):
    small, large = (take_share(examples, share)[0] for share in (0.1, 0.4))
    assert set(small.texts) < set(large.texts) and len(small) == 6 and set(small.labels) == {0, 1}
    taken, left = take_share(examples, 0.4)
    assert sorted(taken.texts + left.texts) == sorted(examples.texts)
    with pytest.raises(ValueError, match="share is 0"): take_share(examples, 0)


def test_names_of_classes_are_read_from_a_data_set(tmp_path):
    import datasets
    rows = datasets.Dataset.from_dict(dict(sentence=["bad film", "fine film"] * 4, label=[0, 1] * 4))
    rows = rows.cast_column("label", datasets.ClassLabel(names=["negative", "positive"]))
    (tmp_path / "data").mkdir()
    rows.to_parquet(str(tmp_path / "data" / "train-00000-of-00001.parquet"))
    found = read_examples(tmp_path, text_column="sentence")
    assert found.names == ("negative", "positive") and found.labels.tolist() == [0, 1] * 4


def test_numbers_get_the_names_that_are_given(tmp_path):
    data = table(tmp_path / "numbers.csv", [("bad film", 0), ("fine film", 1)] * 4)
    found = read_examples(data, names=("negative", "positive"))
    assert found.names == ("negative", "positive") and found.labels.tolist() == [0, 1] * 4
    stars = read_examples(table(tmp_path / "stars.csv", [("a", 1), ("b", 2), ("c", 5)] * 4))
    few = read_examples(table(tmp_path / "few.csv", [("a", 1), ("b", 2)]), names=stars.names)
    assert stars.names == ("1", "2", "5") and few.labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match="Every label of .* is -1"):
        read_examples(table(tmp_path / "hidden.csv", [("a", -1), ("b", -1)]), names=("negative", "positive"))


def test_sst2(shared_data):
    read = dict(text_column="sentence", names=("negative", "positive"))
    train = read_examples(shared_data / "sst2", **read)
    asked = read_examples(shared_data / "sst2", split="validation", **read)
    assert (len(train), len(asked)) == (67_349, 872) and asked.labels.sum() == 444
    few, chosen_by = hold_out(take_share(train, 0.01)[0])
    right = bag_of_words(few, chosen_by, asked) == asked.labels
    assert 0.6 < right.mean() < 0.7
    assert difference(right, np.zeros(872))["interval"][0] > 0.5


def test_dropout_is_set_everywhere(tokenizer):
    bert = BertModel(sizes(tokenizer), seeded(1)).train()
    _set_dropout_(bert, 0.5)
    ids = torch.randint(5, 90, (2, 9), generator=seeded(4))
    with torch.random.fork_rng():
        a, b = (bert(ids, output_hidden_states=True).hidden_states for _ in range(2))
    assert all(not torch.equal(x, y) for x, y in zip(a, b)) and bert.config.attention_probs_dropout_prob == 0.5
    assert torch.equal(bert.eval()(ids).pooler_output, bert(ids).pooler_output)


def test_names_of_saved_weights_are_theirs(tokenizer):
    theirs = hf.BertForSequenceClassification(hf.BertConfig(**asdict(sizes(tokenizer))))
    assert classifier_to_hf(fresh(tokenizer)).keys() == theirs.state_dict().keys()
