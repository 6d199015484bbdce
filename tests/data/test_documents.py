"""Any text as documents: sentences, files and folders, and what holds out what."""
import random
import re

import pytest

from minibert.core.errors import UserError
from minibert.data import documents as module
from minibert.data.documents import load_documents, split_sentences
from minibert.data.stories import stories
from minibert.data.tables import load_table


@pytest.mark.parametrize("text, count", [
    ("Mr. J. R. R. Tolkien came. He left.", 2), ("It cost $3.50. OK?", 2), ("Wait... what? No!", 2), ("", 0), (" \n ", 0), ("...", 1), (". . .", 1),
    ("He said \"Go.\" She went.", 2), ("The U.S. Army won. It did.", 2), ("At No. 5 he lived. No. He did not.", 3), ("a 4 @.@ 5 b . C d .", 2),
    ("“Why?” “Because.”", 2), ("Is it? it is.", 2), ("日本語。", 1), ("x" * 100_000, 1), ("A. " * 1000, 1), ("Word. " * 2000, 2000)])
def test_split_sentences(text, count):
    found = split_sentences(text)
    assert len(found) == count, found
    assert "".join("".join(found).split()) == "".join(text.split())


def test_nothing_but_white_space_is_lost_on_random_text():
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("aB. !?\"'”)…\n1") for _ in range(rng.randrange(60)))
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_sources(tmp_path):
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("\ufeffOne here. Two\nhere.\n\n\nThree. Four.", encoding="utf-8")
    (folder / "inner/b.txt").write_bytes("Fünf. Sechs.\r\n\r\nSieben. Acht.\r\n\r\nNeun. Zehn.".encode())
    held, kept = list(load_documents(folder, split="validation")), load_documents(folder)
    assert held == [["Three.", "Four."], ["Fünf.", "Sechs."]]
    assert list(kept) == list(kept) == [["One here.", "Two here."], ["Sieben.", "Acht."], ["Neun.", "Zehn."]]
    assert len(list(load_documents(folder, limit=1))) == 1
    assert [s for d in load_documents(limit=2) for s in d] == [s for t in stories(2) for s in t.sentences]


def test_a_table_without_a_validation_split_holds_some_out(tmp_path):
    (tmp_path / "train.csv").write_text("text,other\n" + "".join(f"Row {k}. It is whole.,{k}\n" for k in range(50)))
    train, held = list(load_documents(tmp_path)), list(load_documents(tmp_path, split="validation"))
    assert len(train) == 47 and len(held) == 3 and train[1] == ["Row 2.", "It is whole."]
    with pytest.raises(UserError, match="'body'"): load_documents(tmp_path, text_column="body")
    (tmp_path / "dev.csv").write_text("text,other\nOne. Two.,1\n")
    assert list(load_documents(tmp_path, split="validation")) == [["One.", "Two."]] and len(list(load_documents(tmp_path))) == 50


def halves(source, **more):
    "Both parts of a text without splits, as characters."
    return [[" ".join(d) for d in load_documents(source, split=split, **more)] for split in ("train", "validation")]


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("lengths", [[40] * 400, [1, 1, *[600] * 8], [5000, *[8] * 700], [3000] * 4, [random.Random(k).randint(1, 80) for k in range(400)]],
                         ids=["alike", "chapters", "a giant first", "four", "mixed"])
def test_the_held_out_part_has_its_share_whatever_the_lengths(tmp_path, lengths, share):
    (tmp_path / "a.txt").write_text("\n\n".join(" ".join(f"Word {n} of document {k}." for n in range(length)) for k, length in enumerate(lengths)))
    train, held = halves(tmp_path / "a.txt", validation_share=share)
    count = [sum(map(len, part)) for part in (train, held)]
    assert abs(count[1] - share * sum(count)) < max(0.01 * sum(count), 2000) and len(held) >= 2
    whole = sorted(sentence for part in (train, held) for d in part for sentence in split_sentences(d))
    assert whole == sorted(f"Word {n} of document {k}." for k, length in enumerate(lengths) for n in range(length))


def test_lines_without_a_blank_one_become_documents_of_twenty(tmp_path):
    lines = [f"This is line {k} of the file." for k in range(2000)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\n")  # a blank line at the end separates nothing
    train, held = halves(tmp_path / "a.txt")
    assert len(train + held) == 100 and {len(split_sentences(d)) for d in train + held} == {20}
    assert sorted(s for d in train + held for s in split_sentences(d)) == sorted(lines)
    (tmp_path / "b.txt").write_text("\n".join(lines[:30]) + "\n\n" + "\n".join(lines[30:60]))
    train, held = halves(tmp_path / "b.txt")
    assert [d.count("This") for d in train + held] == [30, 30]


def test_titles_are_no_documents_to_ask(tmp_path):
    (tmp_path / "a.txt").write_text("A Title\n\nAn Author\n\n" + "\n\n".join(f"Part {k} begins. It ends." for k in range(8)))
    assert [len(split_sentences(d)) for d in halves(tmp_path / "a.txt")[1]] == [2, 2]


def test_texts_may_have_splits_too(tmp_path):
    (tmp_path / "wiki.train.txt").write_text("One. Two.\n\nThree.")
    (tmp_path / "wiki.valid.txt").write_text("Four.")
    assert list(load_documents(tmp_path)) == [["One.", "Two."], ["Three."]]
    assert list(load_documents(tmp_path, split="validation")) == [["Four."]]


@pytest.mark.parametrize("name, content, place", [
    ("empty.txt", b"", "0 characters"), ("blank.txt", b" \n\n", "0 characters"), ("few.txt", b"One.\n\nTwo.\n\nThree.", "14 characters"),
    ("latin.txt", "Caf\u00e9.".encode("latin-1"), "Line 1"), ("late.txt", b"Word.\n\n" * 100_000 + b"\xff", "Line 200001")])
def test_a_text_that_can_not_be_read_is_named(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{place}|{place}.*{name}") as error: list(load_documents(tmp_path / name))
    assert "\n" not in str(error.value)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"): load_documents(tmp_path / "nowhere/at/all")
    (tmp_path / "a.txt").write_text("One.")
    for source in ("stories", tmp_path / "a.txt"):
        with pytest.raises(UserError, match="body"): load_documents(source, text_column="body")
    with pytest.raises(UserError, match="small"): load_documents("stories", "small")


def test_wikitext(shared_data):
    found = list(load_documents(shared_data / "wikitext", "wikitext-2-v1", split="validation"))
    assert len(found) == 60
    assert not [s for d in found for s in d if s.startswith("= =")]


def test_what_the_rule_of_titles_is_worth(shared_data, monkeypatch):
    "The two numbers that the reference `documents` names."
    rows = [row["text"] for row in load_table(shared_data / "wikitext", "wikitext-2-v1")["train"](["text"])]
    assert len(list(module.group_rows(rows, True))) == 601
    monkeypatch.setattr(module, "is_title", lambda row, before: re.match(r"\s*= [^=].* =\s*$", row))
    assert len(list(module.group_rows(rows, True))) == 617


def test_a_sample_is_bounded_and_reads_no_further():
    seen = []
    def watched():
        for k in range(1000):
            seen.append(k)
            yield [f"Document {k} is here. It ends."]
    texts = module.Documents(watched, "watched", cut=module.cut_sentences)
    sample = list(module.sample_sentences(texts, characters=100, every=10))
    assert sample[::2] == [f"Document {k} is here." for k in (0, 10, 20, 30)] and len(seen) <= 31
    assert list(module.sample_sentences([["a", "b"], ["c"]])) == ["a", "b", "c"]
