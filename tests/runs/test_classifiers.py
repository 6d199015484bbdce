"""Runs of `finetune`: what goes in, how they go on, and that they are asked as they were measured."""
import json
import shutil

import pytest

from command import as_json, bits_of, call, leaves_nothing, listed, refused

SHORT = "--epochs", 1, "--measures", 1, "--length", 16
ROWS = [(f"{who.title()} lost the ball {n}.", who) for n in range(20) for who in ("anna", "tom")]


def write_rows(path, names=("anna", "tom")):
    path.parent.mkdir(exist_ok=True)
    path.write_text("text,label\n" + "".join(f"{text},{names[label == 'tom']}\n" for text, label in ROWS))


@pytest.fixture
def home(run, tmp_path):
    "A folder with a run, `base`, and a table, `who.csv`."
    shutil.copytree(run, tmp_path / "base")
    write_rows(tmp_path / "who.csv")
    return tmp_path


def figures(folder): return json.loads((folder / "figures.json").read_text())


def test_a_classifier_without_its_weights_goes_on_to_the_same(classifier, tmp_path):
    copy = shutil.copytree(classifier, tmp_path / "c")
    assert listed(tmp_path)["state"] == "finished"
    for name in ("model.safetensors", "figures.json"): (copy / name).unlink()
    assert "stopped" in listed(tmp_path)["state"]
    call("finetune", "--resume", copy)
    assert listed(tmp_path)["state"] == "finished" and figures(copy) == figures(classifier)
    assert len({*bits_of(classifier, copy)}) == 1


def test_its_options_begin_the_same_one_again(home):
    call("finetune", "base", "--dataset", "who.csv", *SHORT, "--out", "one", cwd=home)
    call("finetune", "--config", "one/options.json", "--out", "two", cwd=home)
    assert figures(home / "one") == figures(home / "two") and len({*bits_of(home / "one", home / "two")}) == 1


def test_a_run_goes_on_from_another_folder_and_after_a_move(home):
    call("finetune", "base", "--dataset", "who.csv", *SHORT, "--out", "c", cwd=home)
    (home / "other").mkdir()
    call("finetune", "--resume", "../c", cwd=home / "other")
    (home / "base").rename(home / "moved")
    assert "base" in refused("finetune", "--resume", "c", cwd=home)
    call("finetune", "moved", "--resume", "c", cwd=home)
    (home / "who.csv").rename(home / "new.csv")
    assert "who.csv" in refused("finetune", "moved", "--resume", "c", cwd=home)
    call("finetune", "moved", "--resume", "c", "--dataset", "new.csv", cwd=home)


def test_a_run_goes_on_only_with_the_rows_that_it_began_with(home):
    call("finetune", "base", "--dataset", "who.csv", *SHORT, "--out", "c", cwd=home)
    before = figures(home / "c")
    write_rows(home / "who.csv", ("tom", "anna"))
    refused("finetune", "--resume", "c", cwd=home)
    assert figures(home / "c") == before


def test_pairs_are_asked_as_pairs_and_single_texts_as_such(home, classifier):
    (home / "pairs.csv").write_text("text,other,label\n" + "".join(f"{text},He ran.,{label}\n" for text, label in ROWS))
    call("finetune", "base", "--dataset", "pairs.csv", "--text-pair-column", "other", "--frozen", "--length", 24, "--out", "pairs", cwd=home)
    assert "--pair" in leaves_nothing("classify", "pairs", "a", cwd=home)
    assert sum(as_json("classify", "pairs", "a", "--pair", "b", cwd=home)["labels"].values()) == pytest.approx(1)
    assert "--pair" in refused("classify", classifier, "a", "--pair", "b")


def test_texts_that_are_too_long_are_cut_and_counted(home):
    (home / "long.csv").write_text("text,label\n" + "".join(f"{who} ran {'on ' * (40 * (n > 3))}{n},{who}\n" for n in range(10) for who in ("anna", "tom")))
    assert "33" in leaves_nothing("finetune", "base", "--dataset", "long.csv", "--length", 33, cwd=home)
    with pytest.warns(UserWarning, match="12 of 20"): call("finetune", "base", "--dataset", "long.csv", "--frozen", "--out", "c", cwd=home)
    assert json.loads((home / "c/options.json").read_text())["length"] == 32
    with pytest.warns(UserWarning, match="32"): call("classify", "c", "anna ran " * 40, cwd=home)


def test_names_of_labels_are_the_data_s_or_the_user_s(home):
    write_rows(home / "numbers.csv", ("0", "1"))
    call("finetune", "base", "--dataset", "numbers.csv", "--label-names", "bad", "good", "--frozen", "--length", 16, "--out", "c", cwd=home)
    assert figures(home / "c")["labels"] == ["bad", "good"] and as_json("classify", "c", "a", cwd=home)["labels"].keys() == {"bad", "good"}
    write_rows(home / "zeros.csv", ("01", "1"))  # two classes, as they stand there
    call("finetune", "base", "--dataset", "zeros.csv", "--frozen", "--length", 16, "--out", "z", cwd=home)
    assert figures(home / "z")["labels"] == ["01", "1"]


def test_a_fine_tuning_that_diverges_is_no_result(home):
    _, err = call("finetune", "base", "--dataset", "who.csv", *SHORT, "--lr", 1e30, "--out", "far", cwd=home, code=2)
    assert "1e+30" in err and not (home / "far/figures.json").exists()


@pytest.mark.parametrize("harm", ["one type", "nan"])
def test_what_cannot_be_trained_is_refused_before_a_folder_is_made(home, harm):
    from safetensors.torch import load_file, save_file
    for path in home.glob("base/*run.yaml"): path.unlink()
    weights = load_file(home / "base/model.safetensors")
    if harm == "nan": weights = {name: value * float("nan") for name, value in weights.items()}
    else:
        name = "bert.embeddings.token_type_embeddings.weight"
        weights[name] = weights[name][:1].clone()
        config = json.loads((home / "base/config.json").read_text()) | dict(type_vocab_size=1)
        (home / "base/config.json").write_text(json.dumps(config))
    save_file(weights, home / "base/model.safetensors", {"format": "pt"})
    (home / "pairs.csv").write_text("text,other,label\n" + "".join(f"{text},He ran.,{label}\n" for text, label in ROWS))
    for words in (("finetune", "base", "--dataset", "pairs.csv", "--text-pair-column", "other"), ("pretrain", "--start", "base", "--length", 32)):
        refused(*words, "--out", "new", cwd=home)
        assert not (home / "new").exists()
