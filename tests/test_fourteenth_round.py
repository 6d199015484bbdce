"""What the fourteenth round of tries has found: wide tables, long words, other encodings, and files that say what they are not."""
import json
import shutil

import pytest

from command import FILMS, call, listed, quick, refused

from minibert.data import tables
from minibert.measure.probe_runs import read_conllu
from minibert.text.cleaning import Cleaner
from minibert.text.vocabulary import count_words

TEXT = "Anna saw the cat. It ran to the tree.\n\nBen had a ball. He lost it there.\n\n" * 40


def test_columns_of_pandas_are_no_rows(run, tmp_path):
    rows = FILMS.splitlines()[1:]
    told = {name: {str(k): row.split(",")[n] for k, row in enumerate(rows)} for n, name in enumerate(("text", "label"))}
    (tmp_path / "films.json").write_text(json.dumps(told))
    for words in ("finetune", run), ("pretrain",):
        assert "holds whole columns in one row, as pandas" in refused(*words, "--dataset", "films.json", "--out", "o", cwd=tmp_path)
    (tmp_path / "films.json").write_text(json.dumps([dict(zip(("text", "label"), row.split(","))) for row in rows]))
    call("finetune", run, "--dataset", "films.json", "--frozen", "--out", "o", cwd=tmp_path)


def test_a_classifier_without_its_weights_is_not_finished(classifier, tmp_path):
    copy = shutil.copytree(classifier, tmp_path / "c")
    assert listed(tmp_path)["state"] == "finished"
    (copy / "model.safetensors").unlink()
    assert listed(tmp_path)["state"].startswith("stopped at step") and "--resume" in listed(tmp_path)["state"]
    call("finetune", "--resume", copy)
    assert listed(tmp_path)["state"] == "finished"


def test_an_option_of_a_data_set_says_where_it_was_given(run, tmp_path):
    (tmp_path / "t.txt").write_text(TEXT)
    (tmp_path / "o.yaml").write_text("text_column: body\ndataset: t.txt\nsteps: 1\n")
    assert refused("pretrain", "--config", "o.yaml", cwd=tmp_path).startswith("minibert: In o.yaml, text_column body is of a data set")
    assert "minibert: --name x is of a data set" in refused("pretrain", "--dataset", "t.txt", "--name", "x", cwd=tmp_path)
    assert "minibert: --streaming is of a data set" in refused("pretrain", "--streaming", cwd=tmp_path)
    (tmp_path / "o.yaml").write_text("name: x\n")
    assert refused("evaluate", run, "--config", "o.yaml", cwd=tmp_path).startswith("minibert: In o.yaml, name x is of a data set")
    assert refused("evaluate", run, "--text-column", "x", cwd=tmp_path).startswith("minibert: --text-column x is of a data set")
    assert not [*tmp_path.glob("runs*")]


def test_a_table_of_two_thousand_columns_is_read_a_few_times(run, tmp_path, monkeypatch):
    more = [f"c{k}" for k in range(2000)]
    (tmp_path / "wide.csv").write_text("".join(",".join([line, *(more if k == 0 else ["0"] * 2000)]) + "\n"
                                               for k, line in enumerate(FILMS.splitlines())))
    begun, read = [], tables._read_csv
    monkeypatch.setattr(tables, "_read_csv", lambda *where: begun.append(where) or read(*where))
    call("finetune", run, "--dataset", "wide.csv", "--frozen", "--out", "o", cwd=tmp_path)
    assert 0 < len(begun) < 20


def test_a_word_that_no_piece_can_hold_is_not_learned_from():
    assert count_words(["anna " + "x" * 101, "x" * 100], Cleaner()) == {"anna": 1, "x" * 100: 1}
    with pytest.raises(ValueError, match="no word of 100 characters or less"): count_words(["x" * 101], Cleaner())


def test_checkpoints_that_changed_names_are_damage(copy, tmp_path):
    for name in "model.safetensors", "summary.json": (copy / name).unlink()
    checkpoint = max((copy / "checkpoints").iterdir())
    assert listed(tmp_path)["state"].startswith("stopped at step 4")
    checkpoint.rename(checkpoint.with_name("00000003"))
    assert "says that it was kept at step 4" in listed(tmp_path)["damaged"]


@pytest.mark.parametrize("data, said", [
    (TEXT.encode("utf-32"), "save it as UTF-8"), (TEXT.encode("utf-32-le"), "save it as UTF-8"), (TEXT.encode("utf-16-be"), "save it as UTF-8"),
    (b"\x1f\x8b\x08\0\xff" + bytes(range(256)) * 9, "unpack it, or export it"), (b"SQLite format 3\0\xff" + bytes(300), "unpack it, or export it"),
    (b"PK\3\4\xff" + bytes(range(256)), "unpack it, or export it"), (bytes(range(256)) * 9, "save it as UTF-8"),
    (FILMS[:99].encode() + bytes(300) + FILMS.encode(), "holds NUL characters")])
def test_what_is_no_text_is_told_apart(run, tmp_path, data, said):
    for name, words in ("t.txt", ("pretrain",)), ("t.csv", ("finetune", run)), ("t.csv", ("pretrain",)):
        (tmp_path / name).write_bytes(data)
        assert said in refused(*words, "--dataset", name, "--out", "o", cwd=tmp_path)


def test_tags_in_another_encoding_or_in_a_pipe(tmp_path):
    import os
    (tmp_path / "t.conllu").write_text("1\tcat\n", encoding="utf-16")
    with pytest.raises(ValueError, match="t.conllu isn't UTF-8 text: save it as UTF-8"): read_conllu(tmp_path / "t.conllu")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "p.conllu")
        with pytest.raises(ValueError, match="p.conllu is a pipe or a device"): read_conllu(tmp_path / "p.conllu")


def test_a_tokenizer_without_a_vocabulary_is_named(copy):
    for name in "vocab.txt", "tokenizer_config.json", "SHA256SUMS": (copy / name).unlink()
    whole = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text("{}")
    assert f"{copy / 'tokenizer.json'} lacks [PAD]" in refused("fill-mask", copy, "a [MASK]")
    (copy / "tokenizer.json").unlink()
    pieces = list(json.loads(whole)["model"]["vocab"])
    (copy / "vocab.txt").write_bytes("\r".join(pieces).encode())  # as an old Mac ends its lines
    assert call("fill-mask", copy, "a [MASK]")[0]
    (copy / "vocab.txt").write_text("\n".join(pieces[1:]))
    assert f"{copy / 'vocab.txt'} lacks [PAD]" in refused("fill-mask", copy, "a [MASK]")


def test_a_comment_names_no_column_and_rows_without_a_text_are_counted(run, tmp_path):
    (tmp_path / "films.csv").write_text("# made by me, 2024\n" + FILMS)
    assert "is a comment, and it has to name the columns" in refused("finetune", run, "--dataset", "films.csv", cwd=tmp_path)
    rows = [dict(text=text) if k % 3 else dict(body=text) for k, text in enumerate(TEXT.split("\n\n")[:60])]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(UserWarning, match="20 of 60 rows of t.jsonl have no text in the column text"):
        call("pretrain", *quick("--vocab-size", "200", "--length", "16", "--dataset", "t.jsonl", "--out", "o"), cwd=tmp_path)


@pytest.mark.parametrize("text", ["Anna saw the cat and it ran\n\n" * 200, "Anna saw the cat. It ran to the tree.\n" * 200])
def test_a_text_without_pairs_is_refused_before_work_goes_into_it(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    _, said = call("pretrain", "--dataset", "t.txt", cwd=tmp_path, code=2)
    assert "Learning the vocabulary" not in said and "give more text" in said and not [*tmp_path.glob("runs/*")]


def test_a_run_goes_on_only_with_what_it_had_learned(run, tmp_path):
    (tmp_path / "films.csv").write_text(FILMS)
    for words in (("pretrain", "--start", run, "--steps", 4, "--batch-size", 4, "--length", 32),
                  ("finetune", run, "--dataset", "films.csv", "--epochs", 1, "--measures", 1)):
        folder = tmp_path / words[0]
        call(*words, "--out", folder, cwd=tmp_path)
        for name in "model.safetensors", "summary.json", "figures.json": (folder / name).unlink(missing_ok=True)
        path = folder / "learned.json"
        whole = path.read_text()
        path.write_text(json.dumps(dict(objectives="mlm,nsp,more")))
        assert "learned.json is not the file that was written" in refused(words[0], "--resume", folder)
        path.unlink()
        assert "learned.json is gone" in refused(words[0], "--resume", folder)
        path.write_text(whole)
        call(words[0], "--resume", folder)


def test_a_config_of_a_giant_is_a_damaged_one(copy):
    for name in "SHA256SUMS", "run.yaml", ".run.yaml": (copy / name).unlink()
    path = copy / "config.json"
    config = json.loads(path.read_text())
    for size in 10**12, 2**20:
        path.write_text(json.dumps(config | dict(hidden_size=size)))
        for words in ("fill-mask", copy, "a [MASK]"), ("pretrain", "--start", copy), ("parity", copy):
            assert "describes a model of more than 100,000,000,000 numbers" in refused(*words, cwd=copy.parent)


def test_a_completion_that_a_full_disk_left_empty_is_written_again(tmp_path):
    (tmp_path / "done").touch()
    call("--tyro-write-completion", "bash", tmp_path / "done", code=None)
    assert "GENERATED by tyro" in (tmp_path / "done").read_text()
    (tmp_path / "mine").write_text("my notes\n")
    assert "is no completion" in refused("--tyro-write-completion", "bash", tmp_path / "mine")


def test_compare_says_too_that_a_small_text_is_asked_often(tmp_path):
    (tmp_path / "t.txt").write_text(TEXT)
    for name in "a", "b":
        call("pretrain", *quick("--dataset", "t.txt", "--vocab-size", "200", "--out", name, "--seed", ord(name)), cwd=tmp_path)
    with pytest.warns(UserWarning, match="so each several times: the intervals are too narrow"): call("compare", "a", "b", cwd=tmp_path)
