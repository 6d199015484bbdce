"""What is promised of bad input, row by row: the page promises.ipynb in the reference of room runs says each in words."""
import json
import pickle
import shutil
from pathlib import Path

import pytest
from command import FILMS, QUICK, call, everything_in

Q = QUICK  # four quick steps


def change(path, **values):
    "Other values in a JSON file."
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.fixture(scope="module")
def home(first_run, classifier, tmp_path_factory):
    "A folder with a run, a classifier and files, good and bad."
    home = tmp_path_factory.mktemp("promises")
    for name, source in (("run", first_run), ("other", first_run), ("stopped", first_run), ("c", classifier)): shutil.copytree(source, home / name)
    files = {"films.csv": FILMS, "empty.txt": "", "small.txt": "One line.", "steps.yaml": "stps: 7\n", "type.yaml": "steps: many\n",
             "prose.yaml": "no options", "columns.csv": "words,kind\na,b\n", "wide.csv": "text,label\na,b\nc,d,e\n", "words.bio": "a b\nc\n", "asked.csv": "question,context,answers,start\nWho?,Tom ran.,Tom,4\n",
             "one.csv": "text,label\n" + "a film,good\n" * 9, "single.csv": "text,label\na film,good\n",
             "pickled/config.json": (first_run / "config.json").read_text()}
    for name, text in files.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (home / "latin.txt").write_bytes("Die Tür war zu.\n".encode("latin1") * 50)
    (home / "pickled/pytorch_model.bin").write_bytes(pickle.dumps(print))
    (home / "pickled/vocab.txt").write_bytes((first_run / "vocab.txt").read_bytes())
    for name in ("stopped/model.safetensors", "stopped/summary.json"): (home / name).unlink()
    for name, harm in (("cut", lambda path: cut(path / "model.safetensors")), ("foreign", lambda path: change(path / "config.json", model_type="llama")),
                       ("misshapen", lambda path: change(path / "config.json", hidden_size=64, num_attention_heads=2)),
                       ("missing", lambda path: (path / "model.safetensors").unlink()),
                       ("corpus", lambda path: change(path / "corpus/corpus.json", crc32=1))):
        shutil.copytree(first_run, home / name)
        harm(home / name)
    return home


ROWS = {  # the mistake: the words, what the sentence names
    # options
    "a misspelled option": ("pretrain --stps 7", "--steps"),
    "a misspelled command": ("pretain", "pretrain"),
    "no number": ("pretrain --steps many", "--steps"),
    "out of range": ("pretrain --steps 0", "steps is 0"),
    "no finite number": ("pretrain --lr inf", "learning_rate"),
    "a share that holds nothing out": ("pretrain --validation-share 0", "validation_share"),
    "no choice": ("pretrain --size huge", "3x192x3"),
    "another model's option": ("pretrain --model gpt --units words", "--units"),
    "a model that there isn't": ("pretrain --model brt", "brt"),
    "a missing argument": ("evaluate", "RUN"),
    "a new size beside a start": ("pretrain --start run --size mini", "size"),
    "a new vocabulary beside a start": ("pretrain --start run --cased", "cased"),
    "shares that are too large": ("pretrain --schedule trapezoid --warmup 0.6 --cooldown 0.6", "cooldown"),
    "more parts than a batch has": ("pretrain --batch-size 4 --gradient-accumulation-steps 8", "gradient_accumulation_steps"),
    "NumPy has no Muon": ("pretrain --backend numpy --optimizer muon", "optimizer"),
    "two objectives for one head": ("pretrain --objectives mlm nsp sop", "nsp and sop"),
    "a curriculum of a run by minutes": ("pretrain --curriculum easy --minutes 3", "curriculum is easy"),
    "too short for a pair": ("pretrain --length 4", "length is 4"),
    "nothing to learn from": ("finetune", "--dataset"),
    "stories without labels": ("finetune run --dataset stories", "stories"),
    "one column for two things": ("finetune run --dataset films.csv --label-column text", "text"),
    "a task that there isn't": ("finetune run --dataset films.csv --task sort", "--task is sort"),
    "too short for a question and its text": ("finetune run --dataset asked.csv --task answer --length 8", "length is 8"),
    "another task's option": ("finetune run --dataset films.csv --task tag --pooling mean", "--pooling"),
    "a file and a split": ("finetune run --dataset films.csv --test films.csv --validation-split test", "films.csv"),
    "too little room": ("finetune run --dataset films.csv --length 999", "999"),
    # files
    "no file of options": ("pretrain --config no.yaml", "no.yaml"),
    "a misspelled option in a file": ("pretrain --config steps.yaml", "stps"),
    "a wrong type in a file": ("pretrain --config type.yaml", "steps is 'many'"),
    "a file without options": ("pretrain --config prose.yaml", "prose.yaml"),
    "no file of texts": ("pretrain --dataset no.txt", "no.txt"),
    "not UTF-8": ("pretrain --dataset latin.txt", "latin.txt"),
    "an empty text": ("pretrain --dataset empty.txt", "empty.txt"),
    "a text that is too small": ("pretrain --dataset small.txt", "small.txt"),
    "a column that is not there": ("finetune run --dataset columns.csv", "text"),
    "a row with too many cells": ("finetune run --dataset wide.csv", "wide.csv"),
    "a test set of one text": ("finetune run --dataset films.csv --test single.csv", "single.csv"),
    "one label alone": ("finetune run --dataset one.csv", "one.csv"),
    "a label that is no number": ("finetune run --dataset films.csv --task regress", "Row 1"),
    "an answer that its text hasn't": ("finetune run --dataset asked.csv --task answer", "Row 1"),
    "a word without a tag": ("finetune run --dataset words.bio --task tag", "words.bio"),
    "answers of no known kind": ("predict c films.csv --out answers.xlsx", "answers.xlsx"),
    "a device that isn't there": ("predict c films.csv --device mps:7", "mps:7"),
    "vectors of no known kind": ("embed run films.csv --out vectors.csv", "vectors.csv"),
    # checkpoints
    "no run": ("evaluate nowhere", "nowhere"),
    "a classifier is no run": ("evaluate c", "classifier"),
    "a run is no classifier": ("classify run text", "run"),
    "a run has no task": ("predict run films.csv", "run"),
    "a BERT doesn't write": ("generate run text", "run"),
    "a model of another family": ("fill-mask foreign [MASK]", "foreign"),
    "weights that are missing": ("fill-mask missing [MASK]", "missing"),
    "weights that are cut off": ("fill-mask cut [MASK]", "cut"),
    "weights of another shape": ("fill-mask misshapen [MASK]", "misshapen"),
    "weights that are pickled": ("fill-mask pickled [MASK]", "pickled"),
    "a corpus of another run": ("evaluate corpus", "corpus"),
    # folders and resumes
    "a folder that is taken": (("pretrain", *Q, "--out", "run"), "run exists"),
    "an export to a place that is taken": ("export run --out films.csv", "films.csv"),
    "an export without a place": ("export nowhere", "--out"),
    "results that are there": ("inspect run text --out films.csv", "films.csv"),
    "a resume with other options": ("pretrain --resume stopped --seed 3", "--seed was 0 and is 3"),
    "a resume with more steps": ("pretrain --resume run --steps 8", "--start run"),
    "a resume of a classifier with other options": ("finetune --resume c --seed 3", "--seed was 0 and is 3"),
    "a resume of no run": ("pretrain --resume nowhere", "nowhere"),
    # questions
    "a file instead of a text": ("classify c films.csv", "films.csv"),
    "a file instead of a blank": ("fill-mask run films.csv", "films.csv"),
    "a file instead of a sentence": ("next-sentence run films.csv text", "films.csv"),
    "a file instead of a beginning": ("generate run films.csv", "films.csv"),
    "a file to be drawn": ("inspect run films.csv --out page", "films.csv"),
    "a file as the second text": ("classify c text --pair films.csv", "films.csv"),
    "what is piped instead of a text": ("classify c -", "predict RUN -"),
    "a text without [MASK]": ("fill-mask run text", "[MASK]"),
    "a text that is too long": (("fill-mask", "run", "[MASK] " * 99), "32"),
    "a question for a model that answers none": ("answer c question text", "answers no question"),
    "a pair for a classifier of texts": ("classify c text --pair text", "--pair"),
    "runs in no folder": ("runs nowhere", "nowhere"),
    "a picture that is none": ("compare run other --out curves.txt", "curves.txt"),
}


@pytest.mark.parametrize("mistake", ROWS)
def test_a_mistake_gets_one_answer_and_leaves_nothing(home, mistake):
    words, named = ROWS[mistake]
    before = [path for path, *_ in everything_in(home)]
    out, err = call(*(words.split() if isinstance(words, str) else words), cwd=home, code=2)
    assert not out and "Traceback" not in err and named in " ".join(err.split()), err
    assert {path for path, *_ in everything_in(home)} - {*before} <= {path for path in home.rglob(".lock")}


def test_what_nobody_foresaw_says_where_it_is(home, monkeypatch):
    import minibert.runs.overview as overview
    monkeypatch.setattr(overview, "list_runs", lambda folder: 1 / 0)
    _, err = call("runs", home, code=3)
    assert err.startswith("minibert: unexpected ZeroDivisionError") and err.count("\n") == 1 and "MINIBERT_DEBUG=1" in err


def test_an_extra_that_is_not_installed_is_named(home, monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "transformers" in call("parity", "run", cwd=home, code=2)[1]


def test_an_option_of_another_version_is_passed_over_with_a_warning(home):
    path = home / "other/run.yaml"
    path.write_text(path.read_text().replace("warmup: 0.1\n", "colour: red\n"))
    with pytest.warns(UserWarning, match="colour, warmup"): out, _ = call("evaluate", "other", cwd=home)
    assert "masked words" in out


def test_nothing_is_made_of_a_run_that_is_refused(home):
    call("pretrain", "--dataset", "small.txt", "--out", "new", cwd=home, code=2)
    assert not Path(home / "new").exists()
