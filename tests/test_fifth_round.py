"""Causes that a fifth round of tries has found: data read in silence, options that were taken for others, advice that didn't help."""
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import COMMAND, QUICK, call, leaves_nothing, quick, refused, start

NEXT = "A run goes on, and is measured, only as it began"


def rows(labels=("anna", "tom"), count=40):
    return [(f"{labels[n % 2].title()} lost the ball {n} .", labels[n % 2]) for n in range(count)]


def write_csv(path, labels=("anna", "tom"), count=40):
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf8") as file: csv.writer(file).writerows([("text", "label"), *rows(labels, count)])


@pytest.fixture(scope="module")
def tuned(run, tmp_path_factory):
    "A folder with a base, `who.csv`, a tuned classifier `tuned` and a frozen one, `frozen`."
    home = tmp_path_factory.mktemp("fifth")
    shutil.copytree(run, home / "base")
    write_csv(home / "who.csv")
    call("finetune", "base", "--dataset", "who.csv", "--epochs", 1, "--length", 16, "--out", "tuned", cwd=home)
    call("finetune", "base", "--dataset", "who.csv", "--frozen", "--length", 16, "--out", "frozen", cwd=home)
    return home


@pytest.fixture
def home(tuned, tmp_path):
    "A copy of that folder."
    return shutil.copytree(tuned, tmp_path / "home")


SAID = [  # words, what the sentence says
    ("classify tuned a --model", "classify has no option --model"),
    ("classify tuned --json=false", "--json is a switch and takes no value"),
    ("generate base --quiet=false --tokens 2", "--quiet is a switch"),
    ("finetune base --dataset who.csv --frozen=false", "--frozen is a switch"),
    ("pretrain --watch=no", "--watch is a switch"), ("pretrain --no-watch=yes", "--no-watch is a switch"),
    ("generate base one --top-p 1.1", "top_p is 1.1: give a share above 0, to 1."),
    ("generate base one --top-p 0", "top_p is 0.0: give a share above 0, to 1."),
    ("generate base one --temperature 1e-10", "temperature is 1e-10: give 0, or a number of 1e-09 or more."),
    ("pretrain --resume nowhere --print-config", "There is no nowhere/run.yaml"),
    ("pretrain --resume base --print-config", "leave one out"),
    ("pretrain --resume base --model t5", "--model was bert and is t5"),
    ("pretrain --length 32 --max-position-embeddings 16", "a larger --max-position-embeddings"),
    ("pretrain --backend numpy --model gpt", "A gpt has no backend numpy: leave backend out"),
    ("fill-mask . [MASK]", ". holds no config.json, so it is no checkpoint"),
    ("inspect base a --out who.csv/q", "who.csv/q cannot be made: who.csv is no folder"),
    ("parity base --out who.csv/q", "who.csv is no folder"),
    ("evaluate tuned", "tuned is a classifier"), ("evaluate tuned --dataset x.txt", "tuned is a classifier"),
    ("finetune base --dataset stories", "The stories have no labels"),
    ("finetune base --dataset who.csv --validation-split validation", "has no split validation: leave --validation-split out"),
    ("pretrain --dataset text", "no file or folder text, and no data set has that name"),
    ("finetune base --dataset csv", "no file or folder csv"),
    ("pretrain --dataset . --out sub/run", "The run's folder sub/run is inside ."),
    ("finetune base --dataset base --out base/x", "is inside base"),
    ("compare base base --out base/curves.png", "base/curves.png exists"),
    (f"finetune base --dataset who.csv --out {'n' * 230}", "File name too long"),
    (f"inspect base a --out {'n' * 230}", "File name too long"),
    ("--tyro-write-completion bash base/run.yaml", "base/run.yaml exists and is no completion: give another FILE"),
    ("--tyro-write-completion zsh none/_minibert", "There is no folder none: make it"),
]


@pytest.mark.parametrize("words,said", SAID)
def test_it_is_refused_before_anything_is_written(tuned, words, said):
    assert said in leaves_nothing(*words.split(), cwd=tuned)


def test_a_home_is_a_home_in_a_file_and_behind_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "o.yaml").write_text("out: ~/made\n")
    for words in (("--config", "o.yaml"), ("--out=~/made",)):
        assert f"out: {tmp_path}/me/made" in call("pretrain", *words, "--print-config", cwd=tmp_path)[0]
    assert f"{tmp_path}/me/made/run.yaml" in refused("pretrain", "--resume=~/made", cwd=tmp_path)
    assert f"{tmp_path}/me/no" in refused("fill-mask", "~/no", "[MASK]", cwd=tmp_path) and not (tmp_path / "~").exists()


def test_an_empty_pair_is_not_to_be_none(tuned):
    assert "or None" not in refused("classify", "tuned", "a", "--pair", "", cwd=tuned)


def test_world_size_is_no_riddle(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "abc")
    assert "start it without torchrun" in refused("pretrain", "--backend", "numpy", cwd=tmp_path)


@pytest.mark.slow
def test_the_runs_of_a_start_are_listed_and_places_are_resolved(home):
    words = [word for word in QUICK if word not in ("--vocab-size", "1000")]
    call("pretrain", "--start", "base", *words, "--out", "more", cwd=home)
    assert "of base" in call("runs", ".", cwd=home)[0]
    assert f"({home})" in refused("runs", ".", cwd=home / "base")
    call("compare", ".", "../more", "--out", "../c.png", cwd=home / "base")
    call("compare", ".", "../more", cwd=home / "base")
    assert (home / "base-and-more.png").exists() and not (home / "base/-and-more.png").exists()
    (home / "more-and-base.png").mkdir()
    assert "more-and-base.png is a folder" in refused("compare", "more", "base", cwd=home)
    (home / "more/model.safetensors").unlink()
    assert "go on with" in call("runs", ".", cwd=home)[0]


@pytest.mark.slow
def test_a_large_number_among_the_runs_is_counted_on(tmp_path):
    (tmp_path / "runs/20261122").mkdir(parents=True)
    call("pretrain", *QUICK, cwd=tmp_path)
    assert (tmp_path / "runs/20261123/model.safetensors").exists()


def test_runs_that_are_no_folder_are_named(tmp_path):
    (tmp_path / "runs").symlink_to("gone")
    assert "runs is a file, or a link that leads nowhere" in refused("pretrain", *QUICK, cwd=tmp_path)
    assert "is being made" not in refused("pretrain", *QUICK, "--out", "/proc/x", cwd=tmp_path)


def test_a_lucky_first_batch_is_no_divergence():
    from minibert.runs.report import check_diverged
    lines = [dict(step=n, loss=loss) for n, loss in enumerate((0.84, 2.79, 3.76), start=1)]
    check_diverged(lines, 7.9)
    with pytest.raises(FloatingPointError, match="diverged at step 2"): check_diverged(lines)
    with pytest.raises(FloatingPointError, match="from a loss of 0.84 to 900"): check_diverged([*lines, dict(step=4, loss=900.0)], 7.9)


@pytest.mark.slow
def test_what_a_start_has_not_learned_its_runs_have_not(run, tmp_path):
    words = [word for word in QUICK if word not in ("--vocab-size", "1000")]
    call("pretrain", *QUICK, "--objectives", "mlm", "--out", "a", cwd=tmp_path)
    call("pretrain", "--start", "a", *words, "--objectives", "mlm", "--out", "b", cwd=tmp_path)
    assert "no trained head for nsp" in refused("next-sentence", "b", "x", "y", cwd=tmp_path)
    call("fill-mask", "b", "a [MASK]", cwd=tmp_path)
    call("pretrain", "--start", "b", *words, "--objectives", "nsp", "--out", "c", cwd=tmp_path)
    for ask in (("next-sentence", "c", "x", "y"), ("fill-mask", "c", "a [MASK]")): call(*ask, cwd=tmp_path)
    write_csv(tmp_path / "who.csv")
    call("finetune", "b", "--dataset", "who.csv", "--frozen", "--length", 16, "--out", "m", cwd=tmp_path)
    assert "m has no trained pooler" in refused("finetune", "m", "--dataset", "who.csv", "--frozen", "--pooling", "cls", cwd=tmp_path)


def test_resume_takes_auto_for_what_was_chosen_and_names_what_minutes_became(home):
    call("pretrain", "--resume", "base", "--precision", "auto", cwd=home)
    assert "--minutes was 4 steps when it began and is 0.5" in refused("pretrain", "--resume", "base", "--minutes", 0.5, cwd=home)


def changed(home, labels): write_csv(home / "who.csv", labels)


@pytest.mark.slow
def test_a_frozen_classifier_goes_on_with_nothing_else(home):
    shutil.rmtree(home / "frozen")
    call("finetune", "base", "--dataset", "who.csv", "--frozen", "--length", 16, "--out", "frozen", cwd=home)
    before = (home / "frozen/figures.json").read_bytes()
    changed(home, ("tom", "anna"))
    assert "frozen goes on only as it began" in refused("finetune", "--resume", "frozen", cwd=home)
    changed(home, ("anna", "tom"))
    call("pretrain", *quick("--seed", 5), "--out", "other", cwd=home)
    shutil.rmtree(home / "base"), shutil.move(home / "other", home / "base")
    assert "the weights of the model have changed" in refused("finetune", "--resume", "frozen", cwd=home)
    assert (home / "frozen/figures.json").read_bytes() == before


def test_the_part_that_is_asked_in_the_end_is_held_too(home):
    for part in ("train", "validation"): write_csv(home / f"d/{part}.csv")
    call("finetune", "base", "--dataset", "d", "--epochs", 1, "--length", 16, "--out", "t", cwd=home)
    write_csv(home / "d/validation.csv", ("tom", "anna"))
    assert "those that are asked in the end have changed (" in refused("finetune", "--resume", "t", cwd=home)


def test_a_file_of_a_finished_classifier_begins_another(home):
    call("finetune", "--config", "tuned/options.json", "--out", "again", cwd=home)
    assert (home / "again/figures.json").read_bytes() == (home / "tuned/figures.json").read_bytes()


# ---- tables

def fails(home, said, *words): assert said in refused("finetune", "base", "--dataset", *words, cwd=home)


def test_labels_that_are_numbers_are_no_places(home):
    write_csv(home / "d/train.csv", ("1", "2")), write_csv(home / "d/validation.csv", ("0", "1"))
    fails(home, "has the label '0', and the classifier knows 1, 2", "d")


def test_a_split_that_is_not_there_is_named(home):
    write_csv(home / "e/test.csv")
    fails(home, "e has the splits test, and train was asked for", "e")
    assert "has the splits test, and train was asked for" in refused("pretrain", "--dataset", "e", cwd=home)
    write_csv(home / "f/train.csv"), write_csv(home / "f/dev.csv")
    fails(home, "has the splits train, validation, and dev was asked for", "f", "--validation-split", "dev")


def test_names_of_labels_may_have_a_space_beside_them(home):
    call("finetune", "base", "--dataset", "who.csv", "--label-names", " anna", "tom ", "--frozen", "--length", 16, "--out", "n", cwd=home)
    assert json.loads((home / "n/figures.json").read_text())["labels"] == ["anna", "tom"]


def test_capitals_and_spaces_in_names_are_refused(home):
    write_csv(home / "d/TRAIN.CSV"), write_csv(home / "d/Validation.Csv")
    fails(home, "rename it in small letters", "d")
    (home / "s.csv").write_text('text," label"\na,b\n')
    fails(home, "names the column ' label', with a space at its edge", "s.csv")


def test_two_stray_quotes_are_noticed(home):
    good = "\n".join(f"{label},{text}" for text, label in rows())
    (home / "q.csv").write_text(f'label,text\n{good}\nanna,"Anna said\ntom,Tom left.\nanna,she fell."\n')
    with pytest.warns(UserWarning, match="row 41 of .* holds a line that reads as another row"):
        call("finetune", "base", "--dataset", "q.csv", "--frozen", "--length", 16, "--out", "q", cwd=home)


def described(folder, name="train.csv", labels=("anna", "tom")):
    write_csv(folder / name, labels)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {name}\n---\n")


def test_two_folders_of_one_name_are_two(home):
    for part, labels in (("one", ("happy", "sad")), ("two", ("01", "1"))):
        (home / part).mkdir()
        described(home / part / "d", labels=labels)
        call("finetune", "base", "--dataset", f"{part}/d", "--frozen", "--length", 16, "--out", f"{part}/r", cwd=home)
        assert json.loads((home / part / "r/figures.json").read_text())["labels"] == [*labels]


def test_a_described_folder_says_what_is_missing(home):
    described(home / "d")
    (home / "d/README.md").write_text("---\nconfigs:\n- config_name: a\n  data_files: train.csv\n- config_name: b\n  data_files: train.csv\n---\n")
    told = refused("finetune", "base", "--dataset", "d", cwd=home)
    assert "['a', 'b']" in told and "--name, which chooses a configuration" in told
    (home / "d/README.md").write_text("---\nconfigs:\n- config_name: a\n  data_files: gone.csv\n---\n")
    fails(home, "check the lines in its README.md", "d")


def test_a_file_of_the_same_name_and_day_is_read(home):
    for labels in (("happy", "sad"), ("dull", "keen")):
        (home / "x.jsonl").write_text("".join(json.dumps(dict(text=text, label=label)) + "\n" for text, label in rows(labels)))
        os.utime(home / "x.jsonl", (1.7e9, 1.7e9))
        out = "-".join(labels)
        call("finetune", "base", "--dataset", "x.jsonl", "--frozen", "--length", 16, "--out", out, cwd=home)
        assert json.loads((home / out / "figures.json").read_text())["labels"] == [*labels]


def test_parquet_files_that_do_not_agree_are_refused(home):
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    (home / "d").mkdir()
    for part, names in (("train-1", ["anna", "tom"]), ("train-2", ["tom", "anna"])):
        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        texts, labels = zip(*rows(), strict=True)
        datasets.Dataset.from_dict(dict(text=texts, label=labels), features=features).to_parquet(home / f"d/{part}.parquet")
    fails(home, "the order of their labels", "d")
    pq.write_table(pa.table(dict(text=pa.array([], pa.string()), label=pa.array([], pa.string()))), home / "e.parquet")
    fails(home, "e.parquet has no row", "e.parquet")
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, ["text", "label", "label"]), home / "t.parquet")
    fails(home, "names the column 'label' twice", "t.parquet")


def test_a_line_like_a_title_makes_no_article_of_a_table(home):
    from minibert.data.documents import load_documents
    with open(home / "x.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text",), ("= Title =",), *((f"Anna lost ball {n} . She fell .",) for n in range(200))])
    assert len([*load_documents(home / "x.csv")]) > 150
    (home / "x.txt").write_text("= x =\n\n" + "\n\n".join(f"Anna lost ball {n} . She fell ." for n in range(240)))
    assert len([*load_documents(home / "x.txt")]) > 200


def test_a_text_that_the_vocabulary_does_not_know_is_said(home):
    (home / "zh.txt").write_text("\n\n".join(f"明{chr(0x4e00 + n)}天. Tom {chr(0x5e00 + n)}走." for n in range(200)))
    with pytest.warns(UserWarning, match=r"of zh.txt is unknown to the vocabulary"): call("evaluate", "base", "--dataset", "zh.txt", cwd=home)
    with pytest.warns(UserWarning, match="of the text is unknown"): call("classify", "tuned", "明天", cwd=home)
    with pytest.warns(UserWarning, match="100% of the text is unknown"): call("classify", "tuned", "\u200b", cwd=home)


def test_labels_of_one_name_are_refused(home):
    config = json.loads((home / "tuned/config.json").read_text())
    for names in (["x", "x"], ["x", " "]):
        (home / "tuned/SHA256SUMS").unlink(missing_ok=True)
        (home / "tuned/config.json").write_text(json.dumps(config | dict(id2label=dict(enumerate(names)))))
        assert "give each a name of its own" in refused("classify", "tuned", "a", cwd=home)


# ---- one folder, two commands; signals

def test_of_two_that_make_one_folder_one_is_told_and_nothing_is_mixed(tmp_path):
    from minibert.core.files import made_whole
    with pytest.raises(FileExistsError, match="q exists: give a new folder"):
        with made_whole(tmp_path / "q") as aside:
            (aside / "a").write_text("late")
            (tmp_path / "q").mkdir(), (tmp_path / "q/b").write_text("first")
    assert [path.name for path in tmp_path.rglob("*")] == ["q", "b"]  # whoever was first has it
    with pytest.raises(ValueError):
        with made_whole(tmp_path / "deep/er"): raise ValueError
    assert not (tmp_path / "deep").exists()


def test_a_second_fine_tuning_into_one_folder_does_no_work(home):
    from filelock import FileLock
    with FileLock(home / ".new.lock", timeout=0):
        assert "new is being made by another minibert" in refused("finetune", "base", "--dataset", "none.csv", "--out", "new", cwd=home)
    assert "none.csv" in refused("finetune", "base", "--dataset", "none.csv", "--out", "deep/new", cwd=home)
    assert not (home / "deep").exists()


def test_a_write_that_fails_names_what_was_to_be_written(tmp_path, monkeypatch):
    from minibert.core import errors, files
    def full(*told): raise OSError(28, "No space left on device", str(told[0]))
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError) as problem: files.write_whole(tmp_path / "x", "y")
    assert problem.value.filename == str(tmp_path / "x")
    assert errors.in_words(OSError(2, "No usable temporary directory found")).count("No usable temporary directory")


def begun(home, *words):
    process = start("pretrain", *quick("--steps", 100000), "--checkpoint-steps", 10, "--out", "r", *words, cwd=home)
    until = time.time() + 120
    while not list(home.glob("r/checkpoints/0*")) and time.time() < until: time.sleep(0.1)
    return process


@pytest.mark.slow
def test_a_closed_terminal_saves_and_signals_in_a_row_end_with_130(tmp_path):
    process = begun(tmp_path)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "saved in r" in err, err
    for gap in (0, 0.03, 0.1, 0.3):
        process = start("pretrain", "--resume", "r", cwd=tmp_path)
        time.sleep(6)
        for _ in range(3): process.send_signal(signal.SIGTERM), time.sleep(gap)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in err, (gap, err)


@pytest.mark.slow
def test_nohup_goes_on(tmp_path):
    process = subprocess.Popen(["nohup", *COMMAND, "pretrain", *map(str, quick("--steps", 60)), "--checkpoint-steps", "10", "--out", "r"], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("r/checkpoints/0*")): time.sleep(0.1)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=120) == 0 and (tmp_path / "r/model.safetensors").exists()


@pytest.mark.slow
def test_a_folder_that_is_moved_while_it_trains_is_named(tmp_path):
    process = begun(tmp_path)
    os.rename(tmp_path / "r", tmp_path / "s")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "r was moved or deleted while its model was trained" in err and not (tmp_path / "r").exists(), err
    call("pretrain", "--resume", "s", "--print-config", cwd=tmp_path, code=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TQDM_NCOLS", "TQDM_MININTERVAL", "TQDM_ASCII"])
def test_a_word_for_the_bars_that_cannot_be_read_ends_nothing(tmp_path, name):
    told = subprocess.run([*COMMAND, "--version"], env=os.environ | {name: "abc"}, capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="needs a user whom rights bind")
def test_a_folder_of_runs_that_may_not_be_listed_ends_in_a_sentence(tmp_path):
    (tmp_path / "runs/1").mkdir(parents=True)
    if os.geteuid() == 0: pytest.skip("nothing is forbidden to root")
    (tmp_path / "runs").chmod(0o300)
    try: assert "runs" in refused("pretrain", *QUICK, cwd=tmp_path)
    finally: (tmp_path / "runs").chmod(0o700)


# ---- a second look at the tables

def test_found_words_have_no_places(home):
    write_csv(home / "d/train.csv", ("low", "top")), write_csv(home / "d/validation.csv", ("0", "1"))
    fails(home, "has the label '0', and the classifier knows low, top", "d")
    call("finetune", "base", "--dataset", "d", "--label-names", "low", "top", "--frozen", "--length", 16, "--out", "n", cwd=home)


def test_other_encodings_are_named(home):
    lines = "".join(json.dumps(dict(text=f"café {text}", label=label), ensure_ascii=False) + "\n" for text, label in rows())
    (home / "x.jsonl").write_bytes(lines.encode("latin-1"))
    fails(home, "The table x.jsonl isn't UTF-8 text", "x.jsonl")
    assert "The table x.jsonl isn't UTF-8 text" in refused("pretrain", "--dataset", "x.jsonl", cwd=home)
    (home / "x.txt").write_bytes("\n\n".join(text for text, _ in rows()).encode("utf-16-le"))
    assert "The file x.txt isn't UTF-8 text" in refused("pretrain", "--dataset", "x.txt", cwd=home)
    (home / "w.csv").write_bytes((home / "who.csv").read_text().encode("utf-16-le"))
    fails(home, "The file w.csv isn't UTF-8 text", "w.csv")


def test_dates_and_repeated_first_lines_are_named(home):
    days = [dict(text=text, label=f"2024-01-0{1 + (label == 'tom')}") for text, label in rows()]
    (home / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in days))
    fails(home, "read as a date", "x.jsonl")
    (home / "all.csv").write_text((home / "who.csv").read_text() * 2)
    fails(home, "repeats the first one, the names of the columns", "all.csv")


def test_the_advice_at_the_end_works(home):
    with open(home / "p.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "other", "label"), *((text, "He ran.", label) for text, label in rows())])
    out, _ = call("finetune", "base", "--dataset", "p.csv", "--text-pair-column", "other", "--frozen", "--length", 24, "--out", "pairs", cwd=home)
    assert out.splitlines()[-1].strip() == 'minibert classify pairs "a text" --pair "another"'
    call("classify", "pairs", "a text", "--pair", "another", cwd=home)
    (home / "pairs/options.json").unlink()
    assert "options.json" in refused("classify", "pairs", "a text", cwd=home)
    assert "Ask it more" not in call("pretrain", *quick("--length", 12), "--out", "short", cwd=home)[0]


def test_each_split_is_read_as_it_stands(home):
    import datasets
    for part, more in (("train", {}), ("validation", {"note": "n"})):
        (home / "d").mkdir(exist_ok=True)
        (home / f"d/{part}.jsonl").write_text("".join(json.dumps(dict(text=text, label=label) | more) + "\n" for text, label in rows()))
    call("finetune", "base", "--dataset", "d", "--frozen", "--length", 16, "--out", "n", cwd=home)
    (home / "d/train.jsonl").write_text("".join(json.dumps(dict(text=text, label=label == "tom")) + "\n" for text, label in rows()))
    fails(home, "has the label 'anna', and the classifier knows False, True", "d")
    found = {}
    (home / "p").mkdir()
    for part, names in (("train", ["anna", "tom"]), ("validation", ["tom", "anna"])):
        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        texts, labels = zip(*rows(), strict=True)
        datasets.Dataset.from_dict(dict(text=texts, label=labels), features=features).to_parquet(home / f"p/{part}.parquet")
        found[part] = labels
    from minibert.data.labels import read_examples
    train = read_examples(home / "p")
    test = read_examples(home / "p", split="validation", names=train.names, places=False)
    assert [train.names[label] for label in test.labels] == [*found["validation"]]


def test_a_described_table_may_have_its_own_mark(home):
    (home / "d").mkdir()
    (home / "d/README.md").write_text("---\nconfigs:\n- config_name: default\n  sep: ';'\n  data_files: t.csv\n---\n")
    (home / "d/t.csv").write_text("text;label\n" + "".join(f"{text};{label}\n" for text, label in rows(("01", "1"))))
    call("finetune", "base", "--dataset", "d", "--frozen", "--length", 16, "--out", "n", cwd=home)
    assert json.loads((home / "n/figures.json").read_text())["labels"] == ["01", "1"]


def test_minus_one_may_be_a_name_and_test_is_mentioned(home):
    write_csv(home / "d/train.csv", ("-1", "1")), write_csv(home / "d/test.csv", ("-1", "1"))
    fails(home, "(-1 hides one)", "d")
    told = call("finetune", "base", "--dataset", "d", "--label-names", "-1", "1", "--frozen", "--length", 16, "--out", "n", cwd=home)[1]
    assert "--validation-split test asks it" in told


def test_sentences_without_spaces_end_too():
    from minibert.data.documents import split_sentences
    assert split_sentences("明天。她走了！「好。」他来？") == ["明天。", "她走了！", "「好。」", "他来？"]
    assert split_sentences("It cost 3。5 or so. Yes.") == ["It cost 3。", "5 or so.", "Yes."]


def test_a_treebank_that_is_too_small_is_refused(home):
    (home / "ud").mkdir()
    for part in ("train", "dev"):
        (home / f"ud/x-{part}.conllu").write_text("1\tAnna\tAnna\tPROPN\t_\t_\t0\troot\t_\t_\n\n")
    assert "ud has 1 and 1 words" in refused("probe", "base", "--dataset", "ud", cwd=home)


def test_unknown_words_are_said_wherever_a_text_is_asked(home):
    for words in (("fill-mask", "base", "明 天 [MASK]"), ("next-sentence", "base", "明天", "明天")):
        with pytest.warns(UserWarning, match="of the text is unknown"): call(*words, cwd=home)
    call("inspect", "base", "明天", "--out", "p", cwd=home)
    assert "of the text is unknown" in (home / "p/index.html").read_text()


def test_a_mistake_is_a_mistake_for_who_debugs_too(home, monkeypatch):
    monkeypatch.setenv("MINIBERT_DEBUG", "1")
    assert "Traceback" in call("fill-mask", "nowhere", "[MASK]", code=2, cwd=home)[1]


@pytest.mark.slow
def test_json_is_json_in_any_encoding(home):
    write_csv(home / "w.csv", ("schön", "häßlich"))
    call("finetune", "base", "--dataset", "w.csv", "--frozen", "--length", 16, "--out", "w", cwd=home)
    for encoding in ("ascii", "cp1252", "utf8"):
        told = subprocess.run([*COMMAND, "classify", "w", "anna", "--json"], env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, cwd=home)
        assert {*json.loads(told.stdout.decode(encoding))["labels"]} == {"schön", "häßlich"}


def test_a_completion_is_written_again(tmp_path):
    for _ in range(2): call("--tyro-write-completion", "bash", tmp_path / "c", cwd=tmp_path, code=None)
    assert "minibert" in (tmp_path / "c").read_text()


@pytest.mark.slow
def test_a_picture_takes_no_other_ones_place(home):
    shutil.copytree(home / "base", home / "x/base"), shutil.copytree(home / "base", home / "é/base")
    (home / "base-and-base.png").write_bytes(b"mine")
    places = [json.loads(call("compare", "base", other, "--json", cwd=home)[0])["picture"] for other in ("x/base", "é/base", "x/base", "é/base")]
    assert places == ["base-and-base-2.png", "base-and-base-3.png"] * 2 and (home / "base-and-base.png").read_bytes() == b"mine"


@pytest.mark.slow
def test_processes_refuse_before_the_work_and_one_speaks(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "minibert.cli.main", "pretrain"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    told = subprocess.run([*launch, *map(str, quick("--batch-size", 1)), "--out", "a"], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode and "cannot be cut into 2 parts" in told.stderr and not (tmp_path / "a").exists()
    told = subprocess.run([*launch, "--print-config"], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert told.stdout.count("steps: ") == 1 + told.stdout.count("_steps: ")


def test_a_run_that_is_trained_now_is_waited_for(home):
    from filelock import FileLock
    for name in ("model.safetensors", "summary.json"): (home / "base" / name).unlink()
    with FileLock(home / "base/.lock"): assert "being trained now, so wait for its end" in refused("fill-mask", "base", "[MASK]", cwd=home)
    assert "go on with" in refused("fill-mask", "base", "[MASK]", cwd=home)


@pytest.mark.slow
def test_the_steps_of_a_stopped_numpy_run_are_counted(home):
    call("pretrain", *QUICK, "--backend", "numpy", "--log-steps", 1, "--out", "n", cwd=home)
    (home / "n/summary.json").unlink()
    assert next(run["step"] for run in json.loads(call("runs", ".", "--json", cwd=home)[0])["runs"] if run["run"] == "n") == 4


# ---- and a third look

def test_a_very_long_line_in_a_text_is_read(home):
    with open(home / "w.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows(), ("one\n" + "ball " * 40_000, "anna")])
    call("finetune", "base", "--dataset", "w.csv", "--frozen", "--length", 16, "--out", "n", cwd=home)


@pytest.mark.slow
def test_another_runs_options_are_noticed(home):
    call("pretrain", *QUICK, "--model", "gpt", "--out", "gpt", cwd=home)
    (home / "base/SHA256SUMS").unlink()
    shutil.copy(home / "gpt/run.yaml", home / "base/run.yaml")
    for words in (("fill-mask", "base", "a [MASK]"), ("inspect", "base", "a", "--out", "p"), ("finetune", "base", "--dataset", "who.csv", "--frozen", "--pooling", "cls")):
        assert "--model was bert and is gpt" in refused(*words, cwd=home)


def test_an_array_of_zeros_is_not_to_be_unpickled(home):
    (home / "base/val/document_starts.npy").write_bytes(bytes(200))
    assert "no array of numbers" in refused("evaluate", "base", cwd=home)


@pytest.fixture
def bpe(tmp_path):
    "A folder with a small tokenizer of bytes, and what changes a file in it."
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.train_from_iterator(["Tom ran."] * 9, trainers.BpeTrainer(special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    inner.save(str(tmp_path / "tokenizer.json"))
    def change(name, **values):
        path = tmp_path / name
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(kept | values))
        return tmp_path
    return change


@pytest.mark.parametrize("name,values,said", [
    ("tokenizer.json", dict(model="x"), "model is 'x'"), ("tokenizer.json", dict(model=[1]), "model is [1]"),
    ("tokenizer_config.json", dict(model_max_length="x"), "model_max_length is 'x'"), ("tokenizer_config.json", dict(model_max_length=-3), "model_max_length is -3"),
    ("tokenizer_config.json", dict(eos_token=["x"]), "eos_token is ['x'], which is no text"), ("tokenizer_config.json", dict(eos_token=0), "eos_token is 0"),
    ("special_tokens_map.json", dict(pad_token=dict(content=["x"])), "pad_token is ['x']"),
    ("tokenizer_config.json", dict(extra_ids="x"), "extra_ids is 'x': give a whole number"), ("tokenizer_config.json", dict(extra_ids=3_000_000), "extra_ids is 3000000"),
    ("tokenizer.json", dict(normalizer=dict(type="Precompiled", precompiled_charsmap="AAAAAAAA")), "could not be read"),
])
def test_odd_values_in_a_foreign_tokenizer_are_named(bpe, name, values, said):
    from minibert.text.foreign import open_tokenizer
    open_tokenizer(bpe("tokenizer_config.json", model_max_length=1e30))
    with pytest.raises(ValueError) as problem: open_tokenizer(bpe(name, **values))
    assert said in str(problem.value)


def test_a_far_number_of_a_piece_and_an_erased_file_take_no_time(bpe, tmp_path):
    from minibert.text.foreign import open_tokenizer, read_spiece
    home = bpe("tokenizer_config.json")
    told = json.loads((home / "tokenizer.json").read_text())
    told["model"]["vocab"]["far"] = 200_000_000
    (home / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="200,000,000"): open_tokenizer(home)
    (tmp_path / "spiece.model").write_bytes(b"\xff" * 1_000_000)
    began = time.process_time()
    with pytest.raises(ValueError, match="no SentencePiece file"): read_spiece(tmp_path / "spiece.model")
    assert time.process_time() - began < 5


def test_a_start_in_a_file_is_one(home):
    (home / "s.yaml").write_text("start: base\n")
    for bundle in (("--recipe", "fast"), ("--backend", "numpy")):
        told = call("pretrain", "--config", "s.yaml", *bundle, "--print-config", "--json", cwd=home)[0]
        assert json.loads(told)["start"] == "base" and json.loads(told)["positions"] is None
    told = json.loads(call("pretrain", "--config", "s.yaml", "--start", "None", "--print-config", "--json", cwd=home)[0])
    assert told["start"] is None and told["size"] == "tiny"


def test_tables_with_excels_mark_put_together_are_refused(home):
    (home / "a.csv").write_text((home / "who.csv").read_text(), encoding="utf-8-sig")
    (home / "all.csv").write_bytes((home / "a.csv").read_bytes() * 2)
    fails(home, "repeats the first one", "all.csv")


def test_a_folder_that_may_not_be_written_is_named_first(home, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    for words in (("pretrain", *QUICK), ("finetune", "base", "--dataset", "who.csv"), ("finetune", "base", "--dataset", "who.csv", "--out", "n")):
        assert f"No run can be made in {home}" in refused(*words, cwd=home)


# ---- damage that one command saw and another did not

def test_one_damaged_run_does_not_hide_the_others(home):
    call("pretrain", *QUICK, "--backend", "numpy", "--out", "n", cwd=home)
    (home / "n/summary.json").unlink()
    (home / "base/run.yaml").write_text((home / "base/run.yaml").read_text())
    for line in ('{"step": "x"}', '{"step": 1e999}', '[1]}', '{"loss": 1}'):
        (home / "n/metrics.jsonl").write_text(line + "\n")
        told = json.loads(call("runs", ".", "--json", cwd=home)[0])["runs"]
        assert "n/metrics.jsonl is damaged" in next(run for run in told if run["run"] == "n")["damaged"]
    shutil.rmtree(home / "tuned/checkpoints")
    (home / "tuned/figures.json").unlink()
    assert next(run for run in json.loads(call("runs", ".", "--json", cwd=home)[0])["runs"] if run["run"] == "tuned")["state"] == "stopped; its checkpoints are gone, so it can't go on"


@pytest.mark.slow
def test_the_metrics_of_another_run_are_refused(home):
    call("pretrain", *QUICK, "--model", "gpt", "--out", "gpt", cwd=home)
    shutil.copytree(home / "base", home / "twin")
    before = (home / "gpt/summary.json").read_bytes()
    (home / "gpt/metrics.jsonl").write_bytes((home / "base/metrics.jsonl").read_bytes())
    assert "gpt/metrics.jsonl is of another run" in refused("pretrain", "--resume", "gpt", cwd=home)
    assert (home / "gpt/summary.json").read_bytes() == before
    (home / "base/SHA256SUMS").unlink()
    (home / "base/metrics.jsonl").write_text('{"step": 1, "mlm_loss": 2.0}\n{"step": 2}\n')
    call("compare", "base", "twin", cwd=home)
    (home / "base/metrics.jsonl").write_text('{"step": 1}\n')
    assert "base/metrics.jsonl has no loss" in refused("compare", "base", "twin", cwd=home)


def test_small_damage_is_said_with_its_file(home):
    (home / "c.yaml").write_bytes("steps: 4\n".encode("utf-16"))
    assert "save it as UTF-8" in refused("pretrain", "--config", "c.yaml", cwd=home)
    (home / "d.yaml").write_text("steps: !!timestamp 2020-99-99\n")
    assert "The options in d.yaml cannot be read" in refused("pretrain", "--config", "d.yaml", cwd=home)
    (home / "base/val/corpus.json").write_text("[1, 2]")
    assert "list indices" not in refused("evaluate", "base", cwd=home)
    call("pretrain", *QUICK, "--model", "gpt", "--out", "gpt", cwd=home)
    (home / "gpt/merges.txt").mkdir()
    assert "gpt/merges.txt is a folder" in refused("generate", "gpt", "Tom", cwd=home)


def test_the_verdict_is_by_the_main_figure():
    from minibert.runs.overview import verdict
    row = lambda difference: dict(difference=difference, interval=[difference - 0.01, difference + 0.01])
    assert "b is better: the masked loss of b is 1.000 lower" in verdict("a", "b", dict(span_loss=row(0.1), masked_loss=row(-1.0)))


def test_what_diverges_gets_advice_that_it_can_follow(home):
    told = call("finetune", "base", "--dataset", "who.csv", "--epochs", 3, "--batch-size", 4, "--length", 8, "--lr", 1e20, "--out", "n", cwd=home, code=2)[1]
    assert "lower" in told and "warm-up" not in told
    out, err = call("pretrain", *quick("--lr", 1e30), "--backend", "numpy", "--out", "p", cwd=home, code=2)
    assert "RuntimeWarning" not in err and err.count("minibert: ") == 1
    assert "stories" not in refused("finetune", "base", "--dataset", "no_such", cwd=home)


# ---- and what an honest user does

@pytest.mark.slow
def test_the_stories_read_no_folder_of_that_name(tmp_path):
    for out in ("stories/1", "stories/2"): call("pretrain", *QUICK, "--out", out, cwd=tmp_path)


def test_one_table_may_have_any_name(home):
    for name in ("My Test of anna.csv", "Training data 2023.csv"):
        write_csv(home / f"{name[:2]}/{name}")
        call("finetune", "base", "--dataset", name[:2], "--frozen", "--length", 16, "--out", f"n{name[:2]}", cwd=home)


def test_only_a_csv_file_hides_rows_between_quotes(home, recwarn):
    lines = "".join(json.dumps(dict(text=f"{text}\nThen, {label}", label=label)) + "\n" for text, label in rows(("yes", "no")))
    (home / "x.jsonl").write_text(lines)
    call("finetune", "base", "--dataset", "x.jsonl", "--frozen", "--length", 16, "--out", "n", cwd=home)
    assert not [warning for warning in recwarn if "another row" in str(warning.message)]


def test_declared_names_have_places_in_every_split(home):
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    (home / "d").mkdir()
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["anna", "tom"]))
    texts, labels = zip(*rows(), strict=True)
    datasets.Dataset.from_dict(dict(text=texts, label=labels), features=features).to_parquet(home / "d/train.parquet")
    pq.write_table(pa.table(dict(text=list(texts), label=[["anna", "tom"].index(label) for label in labels])), home / "d/validation.parquet")
    call("finetune", "base", "--dataset", "d", "--frozen", "--length", 16, "--out", "n", cwd=home)
    assert json.loads((home / "n/figures.json").read_text())["labels"] == ["anna", "tom"]


def test_a_lost_record_of_the_beginning_is_named(home):
    (home / "frozen/began.json").unlink()
    assert "frozen/began.json is gone" in refused("finetune", "--resume", "frozen", cwd=home)


def test_the_way_out_is_named(home):
    (home / "a.csv").write_text("Text,Label\na,b\n")
    fails(home, "by --text-column and --label-column", "a.csv")
    assert "by --text-column" in refused("pretrain", "--dataset", "a.csv", cwd=home)
    assert "label_names is 'bad,good': give two or more" in refused("finetune", "base", "--dataset", "who.csv", "--label-names", "bad,good", cwd=home)
    (home / "g.txt.gz").write_bytes(b"\x1f\x8b\x08\x00" * 9)
    assert "unpack it" in refused("pretrain", "--dataset", "g.txt.gz", cwd=home)
    shutil.copytree(home / "base", home / "twin")
    (home / "twin/metrics.jsonl").unlink()
    assert "There is no twin/metrics.jsonl" in refused("compare", "base", "twin", cwd=home)
    shutil.rmtree(home / "twin/corpus")
    (home / "x.txt").write_text("\n\n".join(f"Anna lost ball {n} . She fell ." for n in range(240)))
    assert "mlm_loss" in json.loads(call("evaluate", "twin", "--dataset", "x.txt", "--json", cwd=home)[0])
