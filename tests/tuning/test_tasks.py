"""Fine-tuning numbers and tags: what is learned, what is measured, and that Hugging Face's pipelines answer alike."""
import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from scipy import stats

from minibert.config import BertConfig
from minibert.core.errors import UserError
from minibert.core.progress import shown
from minibert.core.seeds import seeded
from minibert.data.labels import hold_out, take_share
from minibert.data.stories import stories
from minibert.finetuning import BertClassifier
from minibert.heads import BertForPreTraining
from minibert.nn.classifier_parts import make_encoder
from minibert.parity import assert_same, randomise_
from minibert.probing import tag_stories
from minibert.runs.plan import FinetuneConfig, read_finetuning
from minibert.show.page import inspect
from minibert.tokenizer import WordPieceTokenizer
from minibert.tuning.finetune import length_for, read_parts, run_finetuning
from minibert.tuning.predict import predict
from minibert.tuning.regress import NumberSampler, correlation
from minibert.tuning.tag import TagSampler, tag_words, words_of
from minibert.tuning.tasks import FINETUNING, finetuning_task, label_figures, load_tuned
from minibert.weights import save_pretrained

TOLD = stories(60)
TAGGED = tag_stories(TOLD)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    "A folder with a BERT that knows nothing, and a table of each kind."
    home = tmp_path_factory.mktemp("home")
    tokenizer = WordPieceTokenizer.train([story.text for story in TOLD], vocab_size=300)
    config = BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
                        max_position_embeddings=24)
    save_pretrained(BertForPreTraining(config, seeded(0)), tokenizer, home / "bert")
    with open(home / "numbers.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "length"), *((s.sentences[0], 1000 + 10 * len(s.sentences[0])) for s in TOLD)])
    (home / "tags.bio").write_text("\n\n".join("\n".join(map("\t".join, zip(*pair))) for pair in zip(TAGGED.words, TAGGED.tags)) + "\n")
    return home


def options(home, task, **more):
    own = dict(regress=dict(dataset=home / "numbers.csv", label_column="length"), tag=dict(dataset=home / "tags.bio"))[task]
    values = dict(run=home / "bert", out=home / f"{task}-{len(list(home.iterdir()))}", batch_size=16, epochs=1, learning_rate=1e-3, length=24) | own | more
    return FinetuneConfig(task=task, **{name: str(v) if name in ("run", "dataset", "out") else v for name, v in values.items()})


@pytest.fixture(scope="module")
def tuned(home):
    "A run of each task: its folder, its options and its figures."
    made = {}
    for task in ("regress", "tag"):
        own = options(home, task, epochs=2, learning_rate=3e-3)
        made[task] = own.out, own, run_finetuning(own, progress=False)
    return made


def tokenizer_of(folder): return WordPieceTokenizer.from_pretrained(folder)


# --- the same answers as theirs ---


def test_a_regressor_answers_as_their_pipeline(tuned):
    folder, _, figures = tuned["regress"]
    texts = [TOLD[0].sentences[0], "Anna ran.", " ".join(["anna"] * 99)]
    theirs = hf.pipeline("text-classification", model=folder)(texts, truncation=True)
    assert_same([row["length"] for row in predict(folder, texts)], [row["score"] for row in theirs], tol=0.01)  # of about 1,500
    assert {row["label"] for row in theirs} == {"length"} and 1100 < theirs[0]["score"] < 2500


def test_a_tagger_answers_as_their_pipeline_piece_by_piece(tuned, home):
    folder = home / "random-tags"
    tokenizer = tokenizer_of(home / "bert")
    config = BertConfig.from_dict(json.loads((home / "bert/config.json").read_text()))
    model = randomise_(BertClassifier(make_encoder(config, seeded(1)), ("A", "B", "C", "D"), "none", generator=seeded(2))).eval()
    save_pretrained(model, tokenizer, folder)
    for text in ("Anna lost her xylophones, didn't she?", "Ünïcödé \u200b naïve 東京 a[MASK]b", TOLD[3].sentences[1]):
        pieces = hf.pipeline("token-classification", model=str(folder), ignore_labels=[])(text)
        ours, = predict(folder, [text])
        assert ours["tags"] == [p["entity"] for p in pieces if not p["word"].startswith("##")], text
        ids = tokenizer.encode_batch([text], return_tensors="pt")
        with torch.no_grad(): probs = model(**ids).logits[0].softmax(-1).max(-1).values[1:-1]
        assert_same([float(p["score"]) for p in pieces], probs.tolist(), tol=1e-5)
    long = " ".join(f"anna ran {n}" for n in range(30))
    whole, = predict(folder, [long])
    assert len(whole["tags"]) == 90 and None not in whole["tags"]  # theirs cuts it to 24 tokens
    theirs = hf.pipeline("token-classification", model=str(folder), ignore_labels=[])(long)
    assert len(theirs) == 22 and whole["tags"][:5] == [p["entity"] for p in theirs][:5]


# --- what is drawn and asked ---


@pytest.mark.parametrize("task", ["tag", "regress"])
def test_a_page_says_what_the_head_says(tuned, tmp_path, task):
    text = "Anna lost her ball."
    page = inspect(tuned[task][0], text, tmp_path / "page").read_text()
    found, = predict(tuned[task][0], [text])
    said = f"Its tags: {' '.join(found['tags'])}" if task == "tag" else f"Its length: {found['length']:.4g}"
    assert said in page and "Its labels" not in page


def test_a_length_leaves_all_but_one_of_a_hundred_texts_whole(home, capsys):
    assert length_for(np.array([5] * 990 + [17] * 9 + [400]), 512) == 24  # the tenth longest has 17
    assert length_for(np.array([5] * 98 + [16, 16]), 512) == 16 and length_for(np.array([300]), 48) == 48
    task, own = finetuning_task("regress"), options(home, "regress", length=None)
    with shown(True): run_finetuning(own, progress=False)
    lengths = [len(tokenizer_of(home / "bert").encode(text)["input_ids"]) for text in read_parts(task, own)[0].texts]
    kept = read_finetuning(own.out)[0].length
    assert kept == min(24, length_for(np.array(lengths), 512)) and f"up to {kept} tokens" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["tag", "regress"])
def test_one_text_to_ask_is_too_few(home, task):
    name = {"tag": "one.bio", "regress": "one-number.csv"}[task]
    (home / name).write_text({"tag": "Anna\tNOUN\nran\tVERB\n", "regress": "text,length\nAnna ran.,7\n"}[task])
    with pytest.raises(UserError, match=f"{name} gives one text"): read_parts(finetuning_task(task), options(home, task, test=str(home / name)))


# --- figures ---


def test_figures_of_numbers_are_scipy_s(tuned):
    folder, own, figures = tuned["regress"]
    task, test = finetuning_task("regress"), read_parts(finetuning_task("regress"), own)[2]
    said = np.array([row["length"] for row in predict(folder, [*test.texts])])
    assert figures["bert"]["mean_squared_error"] == pytest.approx(np.square(said - test.labels).mean(), rel=1e-4)
    assert figures["bert"]["pearson"] == pytest.approx(stats.pearsonr(said, test.labels)[0], abs=1e-5)
    assert figures["bert"]["spearman"] == pytest.approx(stats.spearmanr(said, test.labels)[0], abs=1e-5)
    assert figures["ridge_regression"]["mean_squared_error"] < figures["mean"]["mean_squared_error"] and figures["mean"]["pearson"] == 0
    assert figures["baseline"] == "ridge_regression" and len(task.rows(figures)) == 4
    assert correlation(np.ones(3), np.arange(3.0)) == 0 and json.loads(open(f"{folder}/figures.json").read()) == figures


def test_figures_of_tags_count_every_word(tuned):
    folder, own, figures = tuned["tag"]
    test = read_parts(finetuning_task("tag"), own)[2]
    said = [row["tags"] for row in predict(folder, [*test.texts])]
    right = np.array([a == b for row, tags in zip(said, test.named.tags) for a, b in zip(row, tags)])
    assert figures["bert"]["accuracy"] == pytest.approx(right.mean()) and len(right) == sum(map(len, test.texts)) == len(test.flat)
    from sklearn.metrics import f1_score
    truth, answers = [t for row in test.named.tags for t in row], [t for row in said for t in row]
    kinds = sorted({*truth})
    assert figures["bert"]["macro_f1"] == pytest.approx(f1_score(truth, answers, labels=kinds, average="macro"))
    assert {name: row["f1"] for name, row in figures["by_label"].items()} == pytest.approx(dict(zip(kinds, f1_score(truth, answers, labels=kinds, average=None))))
    assert figures["commonest_tag"]["accuracy"] > 0.8 and figures["difference"]["interval"][0] < figures["difference"]["difference"]


def test_a_label_that_never_occurs_has_no_figures():
    found = label_figures(np.array([0, 2]), np.array([0, 0]), ("a", "b", "c"))
    assert found == {"a": dict(n=2, accuracy=0.5, interval=found["a"]["interval"], f1=2 / 3)}


# --- numbers ---


def test_the_unit_of_the_numbers_does_not_matter(home):
    "A thousand times as large, and shifted: the same training, the same correlation."
    with open(home / "large.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "length"), *((s.sentences[0], 1e6 + 1e4 * len(s.sentences[0])) for s in TOLD)])
    small, large = (run_finetuning(options(home, "regress", dataset=home / name), progress=False) for name in ("numbers.csv", "large.csv"))
    assert large["bert"]["mean_squared_error"] == pytest.approx(1e6 * small["bert"]["mean_squared_error"], rel=0.05)
    assert large["bert"]["pearson"] == pytest.approx(small["bert"]["pearson"], abs=0.03)  # float32 rounds otherwise, and training amplifies it


def test_the_test_set_is_scaled_by_the_training_set(home):
    train, _, test = read_parts(finetuning_task("regress"), options(home, "regress"))
    mean, std = train.scale
    sampler = NumberSampler(test, tokenizer_of(home / "bert"), 24)
    assert test.scale == train.scale and sampler.labels == pytest.approx((test.labels - mean) / std, rel=1e-5)


def test_what_is_no_number_is_named(home):
    for cell in ("many", "nan", "inf", ""):
        (home / "bad.csv").write_text(f"text,length\na,1\nb,{cell}\nc,3\n")
        with pytest.raises(UserError, match="Row 2 of .*give a number"): read_parts(finetuning_task("regress"), options(home, "regress", dataset=home / "bad.csv"))
    (home / "bad.csv").write_text("text,length\na,1\nb,1\n")
    with pytest.raises(UserError, match="one number"): read_parts(finetuning_task("regress"), options(home, "regress", dataset=home / "bad.csv"))


def test_a_frozen_regression_is_a_ridge_regression(home):
    figures = run_finetuning(options(home, "regress", frozen=True), progress=False)
    assert figures["bert"]["mean_squared_error"] < figures["mean"]["mean_squared_error"]
    own = options(home, "regress")
    train, val, _ = read_parts(finetuning_task("regress"), own)
    sampler = NumberSampler(train, tokenizer_of(home / "bert"), 24)
    assert abs(sampler.labels.mean()) < 0.3 and 0.7 < sampler.labels.std() < 1.3 and sampler.labels.dtype == np.float32


# --- tags ---


def test_labels_stand_at_first_pieces_and_nowhere_else(home):
    tokenizer = tokenizer_of(home / "bert")
    texts = [("Anna", "\u200b", "xylophones", "!"), tuple(["anna"] * 30), ("qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq",)]
    some = tag_words(texts, [tuple("ABCA"), tuple("AB" * 15), ("C",)])
    sampler = TagSampler(some, tokenizer, 8)
    asked = {}
    for row in sampler.rows:
        ids, labels = row["input_ids"], row["labels"]
        assert len(ids) == len(labels) <= 8 and labels[0] == labels[-1] == -100
        for k, label in zip(ids, labels): assert label == -100 or not tokenizer.continues[k]
    for (text, word), label in zip(sampler.asked, sampler.labels): asked[text, word] = some.names[label]
    assert asked == {(0, 0): "A", (0, 2): "C", (0, 3): "A", **{(1, k): "AB"[k % 2] for k in range(30)}, (2, 0): "C"}
    batch = sampler.gather(range(len(sampler)))
    assert batch["labels"].shape == batch["input_ids"].shape and (batch["labels"] != -100).sum() == len(sampler.labels)


def test_a_word_without_a_piece_counts_as_wrong(home):
    task, tokenizer = finetuning_task("tag"), tokenizer_of(home / "bert")
    some = tag_words([("anna", "\u200b")], [("A", "B")])
    sampler = TagSampler(some, tokenizer, 8)
    answers = task.decide(torch.tensor([[2.0, 1.0]]), sampler)
    assert answers.tolist() == [0, -1] and task.words(torch.tensor([[2.0, 1.0]]), sampler)[0]["tags"] == ["A", None]
    empty = TagSampler(task.ask(["\u200b"], tokenizer, SimpleNamespace(names=("A", "B"))), tokenizer, 8)
    assert len(empty) == 1 and len(empty.labels) == 0


def test_tags_are_read_from_every_kind_of_file(home):
    task = finetuning_task("tag")
    names = "text", "label"
    rows = [(" ".join(words), " ".join(tags)) for words, tags in zip(TAGGED.words, TAGGED.tags)]
    with open(home / "tags.csv", "w", newline="") as file: csv.writer(file).writerows([names, *rows])
    lines = ["\n".join(f"{k}\t{w}\t_\t{t}\t_\t_\t0\troot\t_\t_" for k, (w, t) in enumerate(zip(*pair), 1)) for pair in zip(TAGGED.words, TAGGED.tags)]
    (home / "tags.conllu").write_text("# a comment\n" + "\n\n".join(lines) + "\n\n")
    found = [task.read(options(home, "tag", dataset=home / f"tags.{kind}"), "train") for kind in ("bio", "csv", "conllu")]
    assert [[*words] for words in found[0].texts] == TAGGED.words
    for other in found[1:]: assert other.texts == found[0].texts and (other.flat == found[0].flat).all() and other.names == found[0].names
    for text, problem in (("a b\nc\n", "Line 2 of .* has one column"), ("a _\n", "1 words and 0 tags")):
        (home / "bad.bio").write_text(text)
        with pytest.raises(UserError, match=problem): task.read(options(home, "tag", dataset=home / "bad.bio"), "train")


def test_parts_of_tagged_texts_are_apart(home):
    train, val, test = read_parts(finetuning_task("tag"), options(home, "tag"))
    assert sum(map(len, (train, val, test))) == len(TAGGED.words) and len(test) == round(len(TAGGED.words) / 10)
    again = take_share(train, 0.5)[0]
    assert len(again) == round(len(train) / 2) and hold_out(train)[0].names == train.names


def test_words_of_a_text_are_read_as_the_text(home):
    tokenizer = tokenizer_of(home / "bert")
    for text in ("Anna's ball; it DIDN'T roll...", "naïve Über 東京", "a [MASK] b"):
        words = words_of(text, tokenizer)
        assert "".join(words) == text.replace(" ", "") and [k for word in words for k in tokenizer.ids(word)] == tokenizer.ids(text)


# --- the door ---


def test_options_that_mean_nothing_are_refused(home):
    for task, more, named in (("tag", dict(pooling="mean"), "--pooling"), ("tag", dict(text_pair_column="b"), "--text-pair-column"),
                              ("regress", dict(label_names=("a", "b")), "--label-names")):
        with pytest.raises(UserError, match=f"--task {task} has no {named}: leave it out"): run_finetuning(options(home, task, **more), progress=False)
    with pytest.raises(UserError, match="--task is sort: choose answer or classify or regress or summarize or tag"): finetuning_task("sort")
    assert [*FINETUNING] == ["answer", "classify", "regress", "summarize", "tag"]


def test_a_stopped_run_of_tags_goes_on_bit_for_bit(home, monkeypatch):
    import minibert.train.checkpoints as checkpoints
    straight = options(home, "tag", out=home / "straight", measures=4)
    figures, kept, plain = run_finetuning(straight, progress=False), [], checkpoints.save_checkpoint
    def cut(*args, **more):
        kept.append(plain(*args, **more))
        if len(kept) == 2: raise RuntimeError("power cut")
    monkeypatch.setattr(checkpoints, "save_checkpoint", cut)
    with pytest.raises(RuntimeError): run_finetuning(options(home, "tag", out=home / "cut", measures=4), progress=False)
    monkeypatch.setattr(checkpoints, "save_checkpoint", plain)
    from minibert.tuning.finetune import resume_finetuning
    assert resume_finetuning(home / "cut", progress=False) == figures
    assert (home / "cut/model.safetensors").read_bytes() == (home / "straight/model.safetensors").read_bytes()


def test_their_taggers_and_regressors_are_known_by_their_heads(home):
    config = hf.BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    for kind, count, result in ((hf.BertForTokenClassification, 5, "tagger"), (hf.BertForSequenceClassification, 1, "regressor"),
                                (hf.BertForSequenceClassification, 2, "classifier")):
        config.num_labels = count
        kind(config).save_pretrained(home / result)
        assert load_tuned(home / result)[0].result == result
