"""Tables: what stands in a file is what is read, a mistake is named with its file and its row, and no network is asked."""
import csv
import json

import pytest

from minibert.core.errors import UserError
from minibert.data.tables import load_table, read_lines, read_rows, split_files

ROWS = [{"text": "One, two.", "agent": "007"}, {"text": "NA", "agent": "1.0"}, {"text": 'Said "no".\nOnce.', "agent": "1e3"}]


def write(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl": path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writerows([rows[0].keys(), *(row.values() for row in rows)])
    return path


def read(path, *columns): return list(read_rows(path, list(columns or ("text", "agent"))))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_value_is_what_stands_there(tmp_path, kind):
    path = write(tmp_path / f"a.{kind}")
    assert read(path) == ROWS and read(path, "agent") == [{"agent": row["agent"]} for row in ROWS]


def test_numbers_and_nothing(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": 007.0}'.replace("007.0", "7.10") + '\n{"text": null}\n{"text": NaN}\n{"text": true}\n')
    assert [row["text"] for row in read(tmp_path / "a.jsonl", "text")] == ["7.10", None, None, "True"]
    path = write(tmp_path / "a.parquet", [{"x": 7, "y": 1.5}, {"x": None, "y": float("nan")}])
    assert read(path, "x", "y") == [{"x": "7", "y": "1.5"}, {"x": None, "y": None}]


def test_excels_mark_and_line_ends_and_blank_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufefftext,agent\r\n\"Fünf,\r\nsechs.\",1\r\n\r\n,2\r\n".encode())
    assert read(tmp_path / "a.csv") == [{"text": "Fünf,\r\nsechs.", "agent": "1"}, {"text": "", "agent": "2"}]


def test_a_long_cell(tmp_path):
    assert len(read(write(tmp_path / "a.csv", [{"text": "w " * 500_000}]), "text")[0]["text"]) == 1_000_000


@pytest.mark.parametrize("name, content, place", [
    ("a.csv", b"text,label\nShe won.,a\nHe ran, and fell.,b\n", "Row 2"), ("b.csv", b"text,label\nShe won.\n", "Row 1"),
    ("c.csv", b'text,label\n"She won.,a\n', "c.csv"), ("d.csv", b"text,text\na,b\n", "'text'"), ("e.csv", b"text;label\na;b\n", "'text;label'"),
    ("f.csv", b"", "f.csv"), ("g.csv", b"text,label\na,b\n\xff\xfe,a\n", "Line 3"), ("h.tsv", b"text\tlabel\nHe ran\tand fell.\tb\n", "Row 1"),
    ("i.jsonl", b'{"text": "a"}\n["b"]\n', "Line 2"), ("j.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "Line 2"), ("k.jsonl", b'{"text": ["a"]}\n', "'text'"),
    ("l.parquet", b"PAR1 and no more", "l.parquet"), ("m.xlsx", b"PK", "m.xlsx")])
def test_what_is_wrong_is_named(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=place) as error: read(tmp_path / name, "text")
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_damage_within_a_parquet_file(tmp_path):
    path = write(tmp_path / "a.parquet", [{"text": f"Row {k}."} for k in range(3000)])
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(200) + data[300:])
    with pytest.raises((UserError, OSError)): read(path, "text")


def test_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"word\r\n" * 100_000 + b"caf\xe9\n")
    with pytest.raises(UserError, match=f"Line 100001 of {tmp_path / 'a.txt'}"): list(read_lines(tmp_path / "a.txt"))
    with pytest.raises(FileNotFoundError): list(read_lines(tmp_path / "b.txt"))


# ---- folders

def names(splits): return {split: [file.name for file in files] for split, files in splits.items()}


@pytest.mark.parametrize("name, split", [
    ("train-00000-of-00001", "train"), ("validation", "validation"), ("val", "validation"), ("my_dev", "validation"), ("Test.2", "test"), ("training", "train"), ("wiki.valid", "validation"),
    ("train/0", "train"), ("contest", "train"), ("trained", "train")])
def test_a_name_says_its_split(tmp_path, name, split):
    write(tmp_path / f"set/{name}.csv")
    assert names(split_files(tmp_path / "set")) == {split: [f"{name.rpartition('/')[2]}.csv"]}


def test_files_are_read_in_sorted_order(tmp_path):
    for k in (2, 0, 1): write(tmp_path / f"set/train-{k}.csv", [{"text": str(k)}])
    write(tmp_path / "set/.hidden.csv"), write(tmp_path / "set/.git/config.json"), (tmp_path / "set/README.md").write_text("About.")
    assert [row["text"] for row in load_table(tmp_path / "set")["train"](["text"])] == ["0", "1", "2"]


def test_a_configuration_is_a_folder_inside(tmp_path):
    for name in ("small", "large"): write(tmp_path / f"set/{name}/train.csv", [{"text": name}])
    assert [row["text"] for row in load_table(tmp_path / "set", "small")["train"](["text"])] == ["small"]
    with pytest.raises(UserError, match="large, small"): load_table(tmp_path / "set")
    with pytest.raises(FileNotFoundError, match="medium"): load_table(tmp_path / "set", "medium")


@pytest.mark.parametrize("files, place", [(["a.csv", "b.jsonl"], "b.jsonl"), (["train.csv", "more.csv"], "more.csv"), (["README.md"], "neither"), (["vocab.txt", "config.json"], "vocab.txt")])
def test_folders_that_can_not_be_read_as_one(tmp_path, files, place):
    for name in files: (tmp_path / name).write_text("text\na\n")
    with pytest.raises(UserError, match=place): split_files(tmp_path)


# ---- the hub

@pytest.fixture
def offline(monkeypatch):
    import socket

    import datasets
    def refuse(*words, **_): raise AssertionError(f"the network was asked for {words}")
    for module, name in ((socket, "getaddrinfo"), (socket.socket, "connect")): monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("source", ["no/such/place", "./here", "/nowhere", "missing.csv", "csv", "text"])
def test_what_can_not_be_a_name_on_the_hub_is_a_path_that_is_not_there(offline, source):
    with pytest.raises(FileNotFoundError) as error: load_table(source)
    assert error.value.filename == source


def test_a_name_that_can_not_be_loaded_is_one_sentence(offline):
    with pytest.raises(UserError, match="nobody/nothing") as error: load_table("nobody/nothing", "small")
    assert "\n" not in str(error.value)


def test_a_data_set_of_the_hub(monkeypatch):
    import datasets
    rows = datasets.Dataset.from_dict(dict(sentence=["bad film", "fine film", "no film"], label=[0, 1, -1], number=[7, None, 8]))
    rows = rows.cast_column("label", datasets.ClassLabel(names=["negative", "positive"]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, streaming: {"train": rows.to_iterable_dataset() if streaming else rows})
    for streaming in (False, True):
        split = load_table("someone/films", streaming=streaming)["train"]
        assert list(split(["label", "number"])) == [dict(label=a, number=b) for a, b in zip(("negative", "positive", None), ("7", None, "8"))]
        with pytest.raises(UserError, match="'sentence', 'label', 'number'"): list(split(["text"]))


def test_a_local_copy_of_it_gives_the_same(tmp_path, offline):
    import datasets
    rows = datasets.Dataset.from_dict(dict(sentence=["bad film", "fine film"], label=[0, 1]))
    rows.cast_column("label", datasets.ClassLabel(names=["negative", "positive"])).to_parquet(str(tmp_path / "train.parquet"))
    assert [row["label"] for row in load_table(tmp_path)["train"](["label"])] == ["negative", "positive"]
