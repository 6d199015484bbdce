"""A second round of clumsy and hostile tries: words, option files, tables and answers that ended in a riddle, a box, or in silence."""
import json
import shutil

import pytest
import yaml
from command import call, leaves_nothing

ROWS = [(who, n) for n in range(20) for who in ("anna", "tom")]


def table(mark=",", label="label"):
    return f"text{mark}{label}\n" + "".join(f"{who} ran {n}{mark}{who}\n" for who, n in ROWS)


@pytest.mark.parametrize("words,said", [
    ("pretrain --steps 1e3", "--steps is '1e3': give a whole number"), ("pretrain --steps=", "--steps is '': give a whole number"),
    ("pretrain --lr 1,5", "--lr is '1,5': give a number, as 0.5"), ("generate g a --tokens 0x10", "--tokens is '0x10': give a whole"),
    ("pretrain --size huge", "--size is 'huge': choose tiny or mini or small or medium or base."),
    ("pretrain --seed", "--seed stands without its value"), ("pretrain --config", "--config stands without its value"),
    ("pretrain --resume --steps 3", "--resume stands without its value"), ("finetune b --dataset -x.csv", "--NAME=VALUE"),
    ("fill-mask", "fill-mask needs RUN and TEXT: give them"), ("inspect a b", "inspect needs --out: give it"),
    ("bench --vocab-size 6", "from 64 to 16,777,216."), ("pretrain --max-position-embeddings 99999999999", "from 1 to 1,048,576"),
    ("pretrain -- --steps 4", "put it before the --"), ("--json pretrain", "write the command first"), ("--version --json", "stands alone"),
    ("PRETRAIN", "did you mean pretrain?"), ("pretrain --STEPS 4", "did you mean --steps?"), ("pretrain --conf x", "did you mean --config?"),
    ("evaluate a b", "leave it out, and put a name"), ("finetune a b.csv", "a table is given by --dataset"), ("fill-mask a b c", "put the text in quotes"),
    ("generate g a --temperature 1e-320", "1e-320"), ("finetune b --dataset x --text-pair-column text", "both texts of a pair"),
])
def test_a_wrong_word_gets_one_sentence(tmp_path, words, said):
    if "1e-320" in words:
        from minibert.nn.prompts import check_sampling
        with pytest.raises(ValueError, match="1e-09 at least"): check_sampling(1e-320)
        return
    told = leaves_nothing(*words.split(), cwd=tmp_path)
    assert told.startswith("minibert: ") and said in told and "invalid literal" not in told and "──" not in told, told


def test_a_word_without_end_is_cut(tmp_path):
    for words in (["x" * 9999], ["pretrain", "--" + "x" * 9999], ["evaluate", "a", "x" * 9999], ["--" + "x" * 9999]):
        assert len(leaves_nothing(*words, cwd=tmp_path)) < 400


@pytest.mark.parametrize("name,text,said", [
    ("o.json", '{"steps": 4, "steps": 5}', "gives 'steps' twice"), ("o.yaml", "lr: 0.3", "write learning_rate"),
    ("o.json", '{"lr": 0.3}', "write learning_rate"), ("o.yaml", "STEPS: 4", "write steps"), ("o.yaml", "? [a]\n: 3", "is no word"),
])
def test_a_file_s_mistake_is_named(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    told = leaves_nothing("pretrain", "--config", name, "--print-config", cwd=tmp_path)
    assert said in told and "unhashable" not in told, told


def test_a_file_of_an_editor_that_marks_its_beginning(tmp_path):
    (tmp_path / "o.json").write_text('\ufeff{"steps": 4}', encoding="utf8")
    assert yaml.safe_load(call("pretrain", "--config", "o.json", "--print-config", cwd=tmp_path)[0])["steps"] == 4


def test_a_switch_that_a_file_switched_on_may_stand_there_too(tmp_path):
    (tmp_path / "o.yaml").write_text("json: true\nquiet: yes\n")
    (tmp_path / "runs").mkdir()
    assert json.loads(call("runs", "--config", "o.yaml", "--json", "--quiet", cwd=tmp_path)[0]) == {"runs": []}


@pytest.mark.parametrize("name,data,said", [
    ("w.csv", table().encode("utf-16"), "isn't UTF-8 text"), ("w.csv", table().replace("anna", "änna").encode("latin-1"), "isn't UTF-8 text"),
    ("w.csv", table(";").encode(), "with ';' in its name: separate columns by ','"), ("w.csv", table("\t").encode(), "with '\\t' in its name"),
    ("w.tsv", table().encode(), "separate columns by '\\t'"), ("w.csv", (table() + '"a,anna\n').encode(), "never closed"),
    ("w.csv", (table() + "x" * 10_000_001 + ",anna\n").encode(), "more than 10,000,000 characters"),
    ("w.csv", table().replace("tom\n", "-1\n").encode(), "-1 hides one"),
])
def test_a_table_s_mistake_is_named(run, tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    told = leaves_nothing("finetune", run, "--dataset", name, cwd=tmp_path)
    assert said in told and "codec" not in told, told


def test_splits_that_do_not_fit_say_why(run, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text(table())
    (tmp_path / "d/validation.csv").write_text("")
    assert "The first line of d/validation.csv names no column" in leaves_nothing("finetune", run, "--dataset", "d", cwd=tmp_path)
    (tmp_path / "d/validation.csv").write_text(table(label="mood"))
    assert "has the columns text, mood, and no label" in leaves_nothing("finetune", run, "--dataset", "d", cwd=tmp_path)


def test_a_warning_is_a_sentence_without_a_place_in_the_code():
    import warnings
    from minibert.cli.main import plain_warnings
    with plain_warnings():
        assert warnings.formatwarning("too good.\x1b", UserWarning, "a.py", 3) == "minibert: too good.\\x1b\n"
        assert "a.py:3" in warnings.formatwarning("old", DeprecationWarning, "a.py", 3)
    assert "a.py:3" in warnings.formatwarning("too good.", UserWarning, "a.py", 3)


def test_fine_tuning_that_diverges_names_the_rate_and_pairs_are_pairs(run, tmp_path):
    (tmp_path / "w.csv").write_text(table().replace("text,", "text,other,").replace(" ran", " ran,then"))
    words = ("finetune", run, "--dataset", "w.csv", "--length", 12)
    _, err = call(*words, "--epochs", 1, "--lr", 1e30, "--out", "far", cwd=tmp_path, code=2)
    assert "diverged" in err and "lower learning rate than 1e+30" in err
    call(*words, "--epochs", 1, "--text-pair-column", "other", "--out", "pairs", cwd=tmp_path)
    assert "give the second by --pair" in leaves_nothing("classify", "pairs", "a", cwd=tmp_path)
    call("classify", "pairs", "a", "--pair", "b", cwd=tmp_path)
    call(*words, "--frozen", "--out", "single", cwd=tmp_path)
    assert "leave out --pair" in leaves_nothing("classify", "single", "a", "--pair", "b", cwd=tmp_path)


def test_parity_draws_no_bars(run, capfd):
    call("parity", run, "--quiet")
    assert "Loading" not in capfd.readouterr().err


def test_the_list_of_one_run_names_the_folder_above(run, tmp_path):
    shutil.copytree(run, tmp_path / "mine/1")
    assert "a run itself: name the folder that holds it (mine)" in leaves_nothing("runs", "mine/1", cwd=tmp_path)


@pytest.mark.slow
def test_bench_prints_one_object_in_a_pipe(tmp_path):
    from command import start
    pytest.importorskip("transformers")
    out, err = start("bench", "--json", "--size", "tiny", "--vocab-size", 200, "--batch-size", 2, "--length", 16, "--rounds", 1,
                     "--minutes", 0.1, "--threads", 1, cwd=tmp_path).communicate()
    assert json.loads(out)["cases"], err


@pytest.mark.slow
def test_compare_overwrites_no_file_of_another_kind(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "b.png").mkdir()
    for out, said in (("mine.csv", "ends in .png"), ("new.jpg", "ends in .png"), ("a", "ends in .png"), ("b.png", "b.png is a folder")):
        assert said in leaves_nothing("compare", "a", "a", "--out", out, cwd=tmp_path)
    (tmp_path / "a/SHA256SUMS").unlink()
    (tmp_path / "a/metrics.jsonl").write_text("")
    assert "a/metrics.jsonl has no whole line" in leaves_nothing("compare", "a", "a", "--out", "c.png", cwd=tmp_path)


@pytest.mark.parametrize("damage", ['{"mlm_loss": NaN}', '{"mlm_loss": "x"}', '{"mlm_loss": 1.0, "train_seconds": []}', "[" * 9999, None])
def test_no_summary_stops_the_list_or_spoils_its_json(run, tmp_path, damage):
    shutil.copytree(run, tmp_path / "runs/1")
    summary = tmp_path / "runs/1/summary.json"
    if damage is None:
        summary.unlink()
        summary.mkdir()
    else: summary.write_text(damage)
    def refuse(word): raise AssertionError(word)
    out, _ = call("runs", "--json", cwd=tmp_path)
    told, = json.loads(out, parse_constant=refuse)["runs"]
    assert not [word for word in ("Errno", "object", "subscriptable") if word in told["damaged"].replace("JSON object", "")], told
    call("runs", cwd=tmp_path)


@pytest.mark.parametrize("text", ["[", "{}"])
def test_a_damaged_corpus_says_which_file(run, tmp_path, text):
    shutil.copytree(run, tmp_path / "r")
    (tmp_path / "r/val/corpus.json").write_text(text)
    told = leaves_nothing("evaluate", "r", cwd=tmp_path)
    assert "corpus.json" in told and "Expecting" not in told, told


def test_a_run_that_begins_with_a_dash_says_how(tmp_path):
    assert "RUN is missing: give it, behind a --" in leaves_nothing("fill-mask", "-mine", "a [MASK]", cwd=tmp_path)


def test_a_folder_whose_name_is_a_huge_number_is_not_counted_from(tmp_path):
    from minibert.runs.runs import new_folder
    for name in ("4", "9" * 30, ".7.making"): (tmp_path / "runs" / name).mkdir(parents=True)
    assert new_folder(None, str(tmp_path / "runs")).name == "8"
