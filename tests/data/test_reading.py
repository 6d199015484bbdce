"""Texts and tables are read as they stand: no value is guessed at, no row and no file is left out in silence."""
import csv
import json
import os

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from command import inside, leaves_nothing
from minibert.data.documents import load_documents, split_sentences
from minibert.data.labels import number_labels, read_examples

TEXTS = [f"Anna ran to the house {n}. She sat down. It was good." for n in range(60)]
TEXT = "\n\n".join(TEXTS)
CSV = "text\n" + "\n".join(TEXTS)
PAIRS = [(f"{who} lost a ball {n}.", who) for n in range(20) for who in ("anna", "tom")]


def jsonl(texts): return "".join(json.dumps(dict(text=text)) + "\n" for text in texts)


def sheet(one="anna", two="tom"): return "text,label\n" + "".join(f"{text},{one if who == 'anna' else two}\n" for text, who in PAIRS)


def write(folder, **files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def refusal(read, folder, source, **options):
    "The sentence with which a source is refused."
    with inside(folder), pytest.raises((ValueError, OSError)) as error: list(read(source, **options))
    return str(error.value)


# --- a name is a name ---


@pytest.mark.parametrize("name", ["d[1].jsonl", "what?.jsonl", "d*.jsonl", "{a}.jsonl", "d[1].csv", "d[1].txt"])
def test_a_file_s_name_is_no_pattern(tmp_path, name):
    others = {name.replace("[1]", "1"), name.replace("?", "1"), name.replace("*", "9"), name.replace("{a}", "a")} - {name}
    for other in others: write(tmp_path, **{other: {"csv": "text\nZebra quagga.\n", "txt": "Zebra."}.get(other[-3:], jsonl(["Zebra quagga."] * 60))})
    write(tmp_path, **{name: {"csv": CSV, "txt": TEXT}.get(name[-3:], jsonl(TEXTS))})
    with inside(tmp_path): found = [*load_documents(name), *load_documents(name, split="validation")]
    assert len(found) == 60 and {document[0].split()[0] for document in found} == {"Anna"}


def test_a_table_in_capitals_is_a_table(tmp_path):
    write(tmp_path, **{"WHO.CSV": sheet()})
    assert len(read_examples(tmp_path / "WHO.CSV")) == 40


def test_one_table_in_a_folder_may_have_any_name(tmp_path):
    write(tmp_path, **{"Anna and Tom (2023).csv": sheet()})
    assert len(read_examples(tmp_path)) == 40


# --- nothing is left out of a folder ---


@pytest.mark.parametrize("files,named", [
    ({"a.csv": CSV, "b.jsonl": jsonl(TEXTS)}, "b.jsonl"), ({"train.csv": CSV, "train.jsonl": jsonl(TEXTS)}, "train.jsonl"),
    ({"a.txt": TEXT, "b.csv": CSV}, "b.csv"),
])
def test_files_of_two_kinds_are_refused(tmp_path, files, named):
    write(tmp_path, **{f"d/{name}": text for name, text in files.items()})
    assert named in refusal(load_documents, tmp_path, "d")


def test_splits_are_known_by_the_names_of_their_files(tmp_path):
    write(tmp_path, **{"t/train-0.csv": sheet(), "t/train-1.csv": sheet(), "t/validation.csv": sheet(), "t/README.md": "About."})
    assert len(read_examples(tmp_path / "t")) == 80 and len(read_examples(tmp_path / "t", split="validation")) == 40


def test_a_split_that_is_not_there_is_named(tmp_path):
    write(tmp_path, **{"t/train.csv": sheet(), "t/test.csv": sheet()})
    assert "dev" in refusal(read_examples, tmp_path, "t", split="dev")


def test_a_folder_of_texts_is_one_text_with_a_document_a_paragraph(tmp_path):
    write(tmp_path, **{"d/a.txt": TEXT, "d/b.txt": TEXT.replace("Anna", "Tom")})
    found = [*load_documents(tmp_path / "d"), *load_documents(tmp_path / "d", split="validation")]
    assert len(found) == 120 and all(len(document) == 3 for document in found)


# --- a value is what stands there ---


@pytest.mark.parametrize("one,two", [("01", "1"), ("007", "7"), ("True", "False"), ("NA", "null"), ("1.0", "2.0"), ("1", "2")])
@pytest.mark.parametrize("name", ["w.csv", "d/train.csv"])
def test_labels_are_words_as_they_stand(tmp_path, name, one, two):
    write(tmp_path, **{name: sheet(one, two)})
    found = read_examples(tmp_path / name.split("/")[0])
    assert {*found.names} == {one, two} and found.labels.sum() == 20
    assert number_labels([one, two] * 2)[1] == number_labels([two, one] * 2)[1]


def test_true_and_false_are_the_same_classes_in_every_table(tmp_path):
    rows = [dict(text=f"number {k}", label=bool(k % 2)) for k in range(8)]
    write(tmp_path, **{"a.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
                       "a.csv": "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows)})
    one, other = (read_examples(tmp_path / name) for name in ("a.jsonl", "a.csv"))
    assert one.names == other.names == ("False", "True") and one.labels.tolist() == other.labels.tolist() == [0, 1] * 4


def test_texts_keep_their_zeros_and_the_words_for_nothing(tmp_path):
    texts = ["007", "NA", "null", "None", "nan", "1e5", " two  spaces "] * 3
    write(tmp_path, **{"w.csv": "text,label\n" + "".join(f"{text},{'ab'[k % 2]}\n" for k, text in enumerate(texts))})
    assert [text.strip() for text in read_examples(tmp_path / "w.csv").texts] == [text.strip() for text in texts]


def test_a_text_may_hold_commas_quotes_and_line_ends(tmp_path):
    texts = ["one, two", 'she said "no"', "a line\nand another", "ball " * 40_000] * 5
    with open(tmp_path / "w.csv", "w", newline="", encoding="utf-8-sig") as file:  # as Excel marks its files
        csv.writer(file).writerows([("text", "label"), *((text, "ab"[k % 2]) for k, text in enumerate(texts))])
    assert [*read_examples(tmp_path / "w.csv").texts] == texts


def test_a_row_of_a_table_is_a_document_and_no_line_of_it_a_title(tmp_path):
    with open(tmp_path / "x.csv", "w", newline="") as file: csv.writer(file).writerows([("text",), ("= Title =",), *((text,) for text in TEXTS)])
    found = [*load_documents(tmp_path / "x.csv"), *load_documents(tmp_path / "x.csv", split="validation")]
    assert len(found) >= 60
    with open(tmp_path / "x.txt", "w") as file: file.write("= x =\n\n" + TEXT)
    assert len([*load_documents(tmp_path / "x.txt"), *load_documents(tmp_path / "x.txt", split="validation")]) >= 60


def test_a_file_of_the_same_name_and_day_is_read_anew(tmp_path):
    for labels in (("happy", "sad"), ("dull", "keen")):
        write(tmp_path, **{"x.jsonl": "".join(json.dumps(dict(text=text, label=labels[who == "tom"])) + "\n" for text, who in PAIRS)})
        os.utime(tmp_path / "x.jsonl", (1.7e9, 1.7e9))
        assert read_examples(tmp_path / "x.jsonl").names == labels


@pytest.mark.parametrize("text,sentences", [("明天。她走了！「好。」他来？", ["明天。", "她走了！", "「好。」", "他来？"]),
                                            ("It cost 3。5 or so. Yes.", ["It cost 3。", "5 or so.", "Yes."])])
def test_sentences_without_spaces_end_too(text, sentences): assert split_sentences(text) == sentences


# --- what cannot be read is named: the file, and the row or the column ---


@pytest.mark.parametrize("name,data,named", [
    ("x.csv", "text\nÄnna ran.\n".encode("latin-1"), "x.csv"), ("x.txt", "Änna ran.\n".encode("latin-1"), "x.txt"), ("x.txt", TEXT.encode("utf-16"), "x.txt"), ("x.csv", b"", "x.csv"), ("x.txt", b"", "x.txt"),
    ("x.csv", b"text,n\n", "x.csv"), ("x.csv", b"text,n\na,1\nb,1,2\n", "3"), ("x.csv", b"words,n\na,1\n", "text"),
    ("x.jsonl", b'{"words": "a"}\n' * 9, "text"), ("gone.csv", None, "gone.csv"), ("x.parquet", b"PAR1 and no more", "x.parquet"),
])
def test_what_cannot_be_read_is_named(tmp_path, name, data, named):
    if data is not None: write(tmp_path, **{name: data})
    assert named in refusal(load_documents, tmp_path, name)
    if not name.endswith("txt"): assert named in refusal(read_examples, tmp_path, name, label_column="n") or named == "text"


@pytest.mark.parametrize("cells", [[["a"]] * 9, [{"en": "a"}] * 9, [b"a"] * 9], ids=["lists", "dicts", "bytes"])
def test_a_column_of_no_text_is_named(tmp_path, cells):
    parquet.write_table(pa.table(dict(text=cells)), tmp_path / "x.parquet")
    said = refusal(load_documents, tmp_path, "x.parquet")
    assert "x.parquet" in said and "text" in said


@pytest.mark.parametrize("values", [["a", "b", "  "], ["a", "b", None], [-1, 0, 1]], ids=["blank", "none", "hidden"])
def test_what_is_no_label_is_no_class(values):
    with pytest.raises(ValueError): number_labels(values)


@pytest.mark.parametrize("labels,named", [(("²", "¹"), "²"), (("01", "1"), "01"), (("0", "2"), "2")])
def test_only_whole_numbers_stand_for_names(tmp_path, labels, named):
    write(tmp_path, **{"w.csv": sheet(*labels)})
    with pytest.raises(ValueError, match=named): read_examples(tmp_path / "w.csv", names=("a", "b"))


def test_a_label_that_training_has_not_seen_is_named(tmp_path):
    write(tmp_path, **{"d/train.csv": sheet("low", "top"), "d/validation.csv": sheet("low", "high")})
    names = read_examples(tmp_path / "d").names
    with pytest.raises(ValueError, match="high"): read_examples(tmp_path / "d", split="validation", names=names)


def test_parquet_files_that_number_their_labels_differently_give_no_wrong_label(tmp_path):
    import datasets
    texts, labels = zip(*PAIRS, strict=True)
    for part, names in (("train-1", ["anna", "tom"]), ("train-2", ["tom", "anna"])):
        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        datasets.Dataset.from_dict(dict(text=texts, label=labels), features=features).to_parquet(tmp_path / f"{part}.parquet")
    try: found = read_examples(tmp_path)
    except ValueError: return  # a refusal is as good
    assert [found.names[label] for label in found.labels] == [*labels] * 2


def test_a_folder_called_stories_is_given_as_a_path(tmp_path):
    write(tmp_path, **{"stories/a.txt": TEXT})
    with inside(tmp_path):
        assert not next(iter(load_documents("stories", limit=5)))[0].startswith("Anna ran to the house")
        assert next(iter(load_documents("./stories")))[0].startswith("Anna ran to the house")


def test_the_command_refuses_before_it_writes(run, tmp_path):
    blank = "text,label\n" + "".join(f"{text},  \n" for text, _ in PAIRS)
    write(tmp_path, **{"d/a.csv": CSV, "d/b.jsonl": jsonl(TEXTS), "x.csv": blank, "y.jsonl": jsonl(range(60)),
                       "z.jsonl": '{"text": "Änna ran."}\n'.encode("latin-1")})
    for source in "d", "y.jsonl", "z.jsonl": assert source in leaves_nothing("pretrain", "--dataset", source, "--out", "new", cwd=tmp_path)
    leaves_nothing("finetune", run, "--dataset", "x.csv", "--out", "new", cwd=tmp_path)


@pytest.mark.parametrize("model,few", [("bert", 3), ("gpt", 38), ("t5", 38)])
def test_a_text_that_is_too_small_is_refused_before_a_folder_is_made(tmp_path, model, few):
    write(tmp_path, **{"x.txt": "\n\n".join(f"Anna ran {n}. She sat." for n in range(few))})
    said = leaves_nothing("pretrain", "--model", model, "--dataset", "x.txt", "--vocab-size", 200, "--length", 64, "--out", "q", cwd=tmp_path)
    assert "x.txt" in said
