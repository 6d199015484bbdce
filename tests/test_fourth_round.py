"""A fourth round of tries: names that look like patterns, folders with files of several kinds, cells that are guessed at, columns that hold neither text nor labels."""
import json
import os
import warnings

import pyarrow as pa
import pyarrow.parquet
import pytest
from command import QUICK, inside, leaves_nothing

from minibert.data.documents import load_documents
from minibert.data.labels import number_labels, read_examples
from minibert.data.tables import load_table

TEXTS = [f"Anna ran to the house {n}. She sat down. It was good." for n in range(60)]
TEXT = "\n\n".join(TEXTS)
ZEBRA = "Zebra quagga. Gnu or not."
PAIRS = [(f"{who} lost a ball {n}.", who) for n in range(20) for who in ("anna", "tom")]


def jsonl(texts): return "".join(json.dumps(dict(text=text)) + "\n" for text in texts)


def sheet(one="anna", two="tom"): return "text,label\n" + "".join(f"{text},{one if who == 'anna' else two}\n" for text, who in PAIRS)


def write(folder, **files):
    "Files by name; None is a folder, and a word after -> is where a link leads."
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None: os.mkfifo(path)
        elif text.startswith("->"): path.symlink_to(text[2:])
        else: path.write_bytes(text.encode())


def told(folder, source, **options):
    "The sentence with which a source is refused as a corpus."
    with inside(folder), pytest.raises(ValueError) as error: list(load_documents(source, **options))
    assert "\n" not in str(error.value) and "mistake" not in str(error.value)
    return str(error.value)


# --- a name is a name ---


@pytest.mark.parametrize("name", ["d[1].jsonl", "what?.jsonl", "d*.jsonl", "{a}.jsonl", "d[1].csv", "a::b.csv", "d[1].txt", "d [1]/train.jsonl", "[ab]/d.csv"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_file_s_name_is_no_pattern(tmp_path, name, streaming):
    for other in name, name.replace("[1]", "1"), name.replace("?", "1").replace("*", "9"), name.replace("[ab]", "a"):
        write(tmp_path, **{other: {"csv": "text\n" + ZEBRA + "\n", "txt": TEXT.replace("Anna", "Zebra")}.get(other[-3:], jsonl([ZEBRA] * 60))})
    write(tmp_path, **{name: {"csv": "text\n" + "\n".join(TEXTS), "txt": TEXT}.get(name[-3:], jsonl(TEXTS))})
    streaming = streaming and not name.endswith("txt")
    for source in {name, os.path.dirname(name) or name}:
        with inside(tmp_path): found = [*load_documents(source, streaming=streaming), *load_documents(source, split="validation", streaming=streaming)]
        assert len(found) == 60 and {document[0].split()[0] for document in found} == {"Anna"}


def test_what_the_library_cannot_open_is_to_be_renamed(tmp_path):
    write(tmp_path, **{"a::b.jsonl": jsonl(TEXTS), "d[1]/README.md": "---\nconfigs:\n- config_name: default\n---\n", "d[1]/a.jsonl": jsonl(TEXTS)})
    for source in "a::b.jsonl", "d[1]": assert "rename it" in told(tmp_path, source)


@pytest.mark.parametrize("source", ["x.jsonl", "x.csv", "d"])
def test_a_configuration_that_nobody_can_have_is_refused(tmp_path, source):
    write(tmp_path, **{"x.jsonl": jsonl(TEXTS), "x.csv": sheet(), "d/x.csv": sheet()})
    assert "leave --name out" in told(tmp_path, source, name="en")


# --- nothing is left out of a folder ---


CSV, JSONL = "text\n" + "\n".join(TEXTS), jsonl([ZEBRA] * 60)


@pytest.mark.parametrize("files,said", [
    ({"a.csv": CSV, "b.jsonl": JSONL}, "files of different kinds (a.csv and b.jsonl)"), ({"train.csv": CSV, "train.jsonl": JSONL}, "train.csv and train.jsonl"),
    ({"train.csv": CSV, "validation.jsonl": JSONL}, "train.csv and validation.jsonl"), ({"a.txt": TEXT, "b.csv": CSV}, "a.txt and b.csv"),
    ({"a.txt": TEXT, "e": "->../e"}, "e (a linked folder)"), ({"a.csv": CSV, "e": "->../e"}, "e (a linked folder)"),
    ({"a.txt": TEXT, "c.txt": "->gone"}, "c.txt (a link that leads nowhere)"), ({"a.txt": TEXT, "b.txt": None}, "b.txt (no regular file)"),
    ({"a.txt": TEXT, "b.md": TEXT}, "b.md (neither text, .txt, nor a table)"), ({"b.md": TEXT}, "b.md (neither"), ({"a.csv": CSV, "b/c.xlsx": ""}, "b/c.xlsx (neither"),
    ({f"{n}.html": "" for n in range(5)}, "2.html (neither text, .txt, nor a table) and 2 more"), ({"train.csv": CSV, "more.csv": CSV}, "d/more.csv says no split, and others do"),
    ({"test-train.csv": CSV, "train.csv": CSV}, "d/test-train.csv says several splits"), ({"README.md": "Read me."}, "neither text (.txt) nor a table"),
])
def test_no_file_of_a_folder_is_left_out_in_silence(tmp_path, files, said):
    write(tmp_path, **{"e/x.txt": TEXT}, **{f"d/{name}": text for name, text in files.items()})
    assert said in told(tmp_path, "d")


def test_what_belongs_to_a_folder_is_read_and_its_papers_are_not(tmp_path):
    write(tmp_path, **{"d/a.txt": TEXT, "d/b/c.txt": TEXT, "d/e.txt": "->../f.txt", "f.txt": TEXT, "d/README.md": "-", "d/.git/g.txt": ZEBRA, "d/.h": ""})
    with inside(tmp_path): assert len(list(load_documents("d"))) == 170  # of 180
    write(tmp_path, **{"t/data/train-0.csv": sheet(), "t/data/train-1.CSV": sheet(), "t/dev.tsv": "text\tlabel\na\tb\n", "t/LICENSE": "-", "t/README.txt": "-", "t/dataset_infos.json": "{}"})
    tables = load_table(tmp_path / "t")
    assert {split: len(list(rows)) for split, rows in tables.items()} == {"train": 80, "validation": 1}


@pytest.mark.parametrize("source", ["p.txt", "p.jsonl", "/dev/null"])
def test_what_is_neither_file_nor_folder_is_not_read(tmp_path, source):
    os.mkfifo(tmp_path / "p.txt"), os.mkfifo(tmp_path / "p.jsonl")
    assert "neither a file nor a folder" in told(tmp_path, source)


# --- the cell of a table is what stands there ---


@pytest.mark.parametrize("one,two", [("01", "1"), ("True", "False"), ("NA", "null"), ("1.0", "2.0"), ("1", "2"), ("b ", "a")])
def test_a_table_reads_alike_in_a_folder_and_alone(tmp_path, one, two):
    write(tmp_path, **{"w.csv": sheet(one, two), "d/train.csv": sheet(one, two)})
    for source in "w.csv", "d":
        found = read_examples(tmp_path / source)
        assert set(found.names) == {one.strip(), two.strip()} and found.labels.sum() == 20
    assert number_labels([one, two] * 2)[1] == number_labels([two, one] * 2)[1]


def test_texts_are_words_where_they_look_like_numbers(tmp_path):
    for name in "w.csv", "d/train.csv":
        write(tmp_path, **{name: "text,label\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(40))})
    assert read_examples(tmp_path / "d").texts == read_examples(tmp_path / "w.csv").texts == tuple(map(str, range(40)))


def test_a_corpus_keeps_the_words_na_and_null_and_long_texts(tmp_path):
    write(tmp_path, **{"x.csv": "text\n" + "\n".join(["NA", "null", "None", "nan"] * 5 + ["word " * 100_000] + TEXTS)})
    found = [*load_documents(tmp_path / "x.csv"), *load_documents(tmp_path / "x.csv", split="validation")]
    assert len(found) == 81 and ["null"] in found
    write(tmp_path, **{"y.csv": "text,n\n" + ",1\n" * 9 + "Anna ran.,1\n"})
    assert "a document a row" in told(tmp_path, "y.csv") and "blank line" not in told(tmp_path, "y.csv")


@pytest.mark.parametrize("name,data,said", [
    ("x.csv", "text\nÄnna ran.\n".encode("latin-1"), "isn't UTF-8 text"), ("d/x.csv", "text\nÄnna ran.\n".encode("latin-1"), "isn't UTF-8 text"),
    ("x.csv", b'text,n\na,1\n"tom" ran,2\n', "begins on line 3 cannot be read: a cell goes on after its closing double quote"),
    ("x.csv", b'text,n\na,1\n"tom ran,2\nand,3\n', "begins on line 3 cannot be read: a double quote is opened and never closed"),
    ("t.tsv", b'text\tn\n"oh no\tanna\nnot "\tanna\nyes\ttom\n', "ends on line 3 holds a tab and a line end"), ("x.csv", b"", "names no column"),
    ("x.csv", b"text,n\n", "no row below its first line"), ("d/x.csv", b"text,n\na,1,2\n", "Line 2 of d/x.csv has 3 fields"),
])
def test_a_table_s_fault_is_named_with_its_line(tmp_path, name, data, said):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(data)
    source = name.split("/")[0]
    assert said in told(tmp_path, source)
    with inside(tmp_path), pytest.raises(ValueError) as error: read_examples(source, label_column="n")
    assert said in str(error.value) and "first line of column names" not in str(error.value).replace("UTF-8 table with a first line of column names", "")


def test_two_tables_of_one_split_have_the_same_columns(tmp_path):
    write(tmp_path, **{"d/a.csv": "text\na\n", "d/b.csv": "words\na\n"})
    assert "d/a.csv and d/b.csv name different columns" in told(tmp_path, "d")


# --- columns that hold something else ---


@pytest.mark.parametrize("cells,said", [
    ([5] * 9, "has 5 in the column text, which is no text (int)"), ([[text] for text in TEXTS], "(list)"), ([TEXTS], "(list)"), ([{"en": "a"}] * 9, "{'en': 'a'}"),
    ([1.5] * 9, "has 1.5"), ([True] * 9, "has True"), ([b"a"] * 9, "(bytes)"),
])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_column_of_no_text_is_named(tmp_path, cells, said, streaming):
    pa.parquet.write_table(pa.table(dict(text=cells)), tmp_path / "x.parquet")
    sentence = told(tmp_path, "x.parquet", streaming=streaming)
    assert "Row 1 of x.parquet" in sentence and said in sentence and "--text-column" in sentence and len(sentence) < 320


@pytest.mark.parametrize("values,said", [
    ([["anna"], ["tom"]], "A label is ['anna'] (list)"), ([{"a": 1}, {"a": 2}], "A label is {'a': 1} (dict)"), ([b"x", b"y"], "(bytes)"),
    ([["anna"] * 500], "..."), (["a", "b", "  "], "1 of 3 rows of the data set have no label, row 3 first"),
])
def test_what_is_no_label_is_no_class(values, said):
    with pytest.raises(ValueError) as error: number_labels(values)
    assert said in str(error.value) and len(str(error.value)) < 200


def test_a_whole_column_in_a_cell_is_not_printed(tmp_path):
    write(tmp_path, **{"x.json": json.dumps(dict(text=TEXTS, label=["a"] * 60)), "y.jsonl": json.dumps(dict(text=TEXTS, label="a")) + "\n" + json.dumps(dict(text=TEXTS, label="b"))})
    for name in "x.json", "y.jsonl":
        with pytest.raises(ValueError) as error: read_examples(tmp_path / name)
        assert len(str(error.value).replace(str(tmp_path), "")) < 320


@pytest.mark.parametrize("labels,said", [(("²", "¹"), "'²'"), (("01", "1"), "'01'"), (("0", "2"), "'0'")])
def test_only_numbers_stand_for_names(tmp_path, labels, said):
    write(tmp_path, **{"w.csv": sheet(*labels)})
    with pytest.raises(ValueError, match=f"has the label {said}, and the classifier knows a, b"): read_examples(tmp_path / "w.csv", names=("a", "b"))


# --- the word stories, and a home that is not there ---


def test_a_folder_called_stories_is_given_as_a_path(tmp_path):
    write(tmp_path, **{"stories/a.txt": TEXT})
    with inside(tmp_path):
        with pytest.warns(UserWarning, match="give ./stories for that"): assert len(list(load_documents("stories", limit=5))) == 5
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert next(iter(load_documents("./stories")))[0].startswith("Anna")


def test_without_a_home_a_table_is_read_and_the_library_s_folder_is_named(tmp_path, monkeypatch):
    import datasets
    write(tmp_path, **{"x.jsonl": jsonl(TEXTS), "x.csv": CSV})
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", "/proc/nonexistent/cache")
    sentence = told(tmp_path, "x.jsonl")
    assert "/proc/nonexistent/cache" in sentence and "HF_HOME" in sentence and "hub" not in sentence
    assert len(list(load_documents(tmp_path / "x.csv"))) == 56


def test_the_command_refuses_before_it_writes(run, tmp_path):
    write(tmp_path, **{"d/a.csv": CSV, "d/b.jsonl": JSONL, "x.csv": "text,label\n" + "".join(f"{text},  \n" for text, _ in PAIRS), "y.jsonl": "".join(json.dumps(dict(text=k)) + "\n" for k in range(60))})
    for source in "d", "y.jsonl": leaves_nothing("pretrain", *QUICK, "--dataset", source, "--out", "new", cwd=tmp_path)
    assert "have no label" in leaves_nothing("finetune", run, "--dataset", "x.csv", "--out", "new", cwd=tmp_path)
