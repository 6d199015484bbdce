"""What the seventh round of tries had left, and what the eighth has found: advice that can be followed, and nothing wrong in silence."""
import json
import shutil
import warnings

import pytest

from command import call, leaves_nothing, quick, refused


def write_rows(path, count=40):
    path.write_text("text,label\n" + "".join(f"{'a good film' if k % 2 else 'a bad film'} {k},{k % 2}\n" for k in range(count)))


def test_true_and_false_are_the_same_classes_in_every_table(tmp_path):
    from minibert.labels import read_examples
    rows = [dict(text=f"number {k}", label=bool(k % 2)) for k in range(8)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    one, other = (read_examples(tmp_path / name) for name in ("a.jsonl", "a.csv"))
    assert one.names == other.names == ("False", "True")
    assert one.labels.tolist() == other.labels.tolist() == [0, 1] * 4


@pytest.mark.parametrize("words,said", [
    ("pretrain --dropout 0.999", "dropout is 0.999: give a share from 0 to 0.9"),
    ("finetune base --dataset t.csv --dropout 0.95", "dropout is 0.95"),
    ("pretrain --config none.yaml", "minibert: There is no file none.yaml: check its path."),
    ("finetune --config none.yaml", "minibert: There is no file none.yaml: check its path."),
])
def test_a_sentence_says_what_is_wrong(tmp_path, words, said):
    write_rows(tmp_path / "t.csv")
    assert said in leaves_nothing(*words.split(), cwd=tmp_path)


def test_classifiers_are_called_so(run, tmp_path):
    write_rows(tmp_path / "t.csv")
    shutil.copytree(run, tmp_path / "base")
    call("finetune", "base", "--dataset", "t.csv", "--out", "c", "--frozen", cwd=tmp_path)
    assert "c is a classifier: give one that minibert pretrain made" in refused("compare", "c", "c", cwd=tmp_path)
    call("finetune", "base", "--dataset", "t.csv", "--epochs", 1, "--out", "d", cwd=tmp_path)
    (tmp_path / "base").rename(tmp_path / "moved")
    said = refused("finetune", "--resume", "d", cwd=tmp_path)
    assert "base is gone" in said and "where it is now, by RUN" in said
    (tmp_path / "t.csv").rename(tmp_path / "u.csv")
    assert "t.csv is gone" in refused("finetune", "moved", "--resume", "d", cwd=tmp_path)
    call("finetune", "moved", "--resume", "d", "--dataset", "u.csv", cwd=tmp_path)


def test_a_run_that_diverged_is_not_to_go_on(tmp_path):
    out, err = call("pretrain", *quick("--steps", 3, "--learning-rate", 1e30, "--out", "runs/x"), cwd=tmp_path, code=2)
    assert "batch-of-step" in err
    assert "diverged (batch-of-step-" in call("runs", cwd=tmp_path)[0]


def test_a_fine_tuning_that_diverged_says_so():
    from minibert.finetune_runs import _warn_of_loss
    with pytest.warns(UserWarning, match="best loss on the part set aside is 100, .* costs 0.69"):
        _warn_of_loss([dict(loss=0.6), dict(val_loss=4590.6), dict(val_loss=100.2)], 2, 50.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_loss([dict(val_loss=4590.6), dict(val_loss=0.69)], 2, 2e-5)
        _warn_of_loss([], 2, 2e-5)


def test_runs_of_one_example_are_named(gpts):
    assert "cannot be compared on their held-out text" in refused("compare", "a", "b", cwd=gpts)


@pytest.fixture(scope="module")
def gpts(tmp_path_factory):
    home = tmp_path_factory.mktemp("gpts")
    (home / "text.txt").write_text("\n\n".join(f"The cat {word} home." for word in ("went", "ran", "came", "is", "was", "sat")))
    for name in "ab":
        call("pretrain", "--model", "gpt", "--dataset", "text.txt", *quick("--length", 8, "--out", name), cwd=home)
    return home


def test_texts_named_after_splits_are_warned_of(tmp_path):
    from minibert.documents import load_documents
    for name in ("train", "validation"): (tmp_path / f"{name}.txt").write_text("One.\n\nTwo.\n\nThree.\n\nFour.\n")
    with pytest.warns(UserWarning, match="holds train, validation as texts, which are read as one"): load_documents(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_documents(tmp_path / "train.txt")
