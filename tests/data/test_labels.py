"""Labelled texts from tables: numbered in order, drawn in shares, and a mistake named with its row."""
import csv

import numpy as np
import pytest

from minibert.core.errors import UserError
from minibert.data.labels import Examples, hold_out, number_labels, read_examples, take_share
from minibert.data.stories import stories

STORIES = [(story.text, story.sentiment) for story in stories(60)]


def table(path, rows, columns=("text", "label")):
    with open(path, "w", newline="", encoding="utf8") as file: csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture
def stories_csv(tmp_path): return table(tmp_path / "stories.csv", STORIES)


@pytest.fixture(scope="module")
def examples(): return Examples(tuple(text for text, _ in STORIES), *number_labels([word for _, word in STORIES]))


@pytest.mark.parametrize("values, numbers, names", [
    ([1, 5, 3, 1, 5, 3], [0, 2, 1, 0, 2, 1], ("1", "3", "5")),
    (["10", "9", "10", "9"], [1, 0, 1, 0], ("9", "10")),
    (["007", "7", "007"], [0, 1, 0], ("007", "7")),
    (["-2", "1", "-2"], [0, 1, 0], ("-2", "1")),
    (["sad", "happy", "sad ", "sad"], [1, 0, 1, 1], ("happy", "sad")),
])
def test_labels_are_numbered_in_order(values, numbers, names):
    found = number_labels(values)
    assert found[0].tolist() == numbers and found[1] == names


@pytest.mark.parametrize("rows, place", [
    ([("x y", -1), ("z", -1)], "-1"), ([("x y", "a"), ("z", ""), ("u", "b")], "row 2"), ([("x y", "a"), ("z", "a")], "1 label"),
    ([("x y", "a"), (" ", "b")], "Row 2"), ([], "0 label"), ([("x y", "a"), ("z",), ("u", "b")], "Row 2")])
def test_bad_tables_are_named(tmp_path, rows, place):
    with pytest.raises(UserError, match=place) as error: read_examples(table(tmp_path / "bad.csv", rows))
    assert "bad.csv" in str(error.value) and "\n" not in str(error.value)


def test_wrong_columns_splits_and_labels_are_named(stories_csv):
    for place, options in [("'sentence'", dict(text_column="sentence")), ("no test", dict(split="test")), ("'happy'.*good, bad", dict(names=("good", "bad"))), ("'mood'", dict(label_column="mood"))]:
        with pytest.raises(UserError, match=place): read_examples(stories_csv, **options)


def test_pairs_of_texts(tmp_path):
    path = table(tmp_path / "pairs.csv", [("a", "b", 1), ("c", "d", 0)], ("one", "two", "label"))
    assert read_examples(path, text_column="one", text_pair_column="two").texts == (("a", "b"), ("c", "d"))


def test_numbers_get_the_names_that_are_given(tmp_path):
    data = table(tmp_path / "numbers.csv", [("bad film", 0), ("fine film", 1)] * 4)
    found = read_examples(data, names=("negative", "positive"))
    assert found.names == ("negative", "positive") and found.labels.tolist() == [0, 1] * 4 and found.given
    with pytest.raises(UserError, match="'0'"): read_examples(data, names=("negative", "positive"), places=False)
    stars = read_examples(table(tmp_path / "stars.csv", [("a", 1), ("b", 2), ("c", 5)] * 4))
    few = read_examples(table(tmp_path / "few.csv", [("a", 1), ("b", 2)]), names=stars.names)
    assert stars.names == ("1", "2", "5") and few.labels.tolist() == [0, 1] and not stars.given
    with pytest.raises(UserError, match="'0'"): read_examples(data, names=stars.names)
    with pytest.raises(UserError, match="-1"):
        read_examples(table(tmp_path / "hidden.csv", [("a", -1), ("b", -1)]), names=("negative", "positive"))
    minus = read_examples(table(tmp_path / "minus.csv", [("a", -1), ("b", 1)] * 3), names=("-1", "1"))
    assert minus.labels.tolist() == [0, 1] * 3


def test_shares_are_nested_and_keep_every_label(examples):
    small, large = (take_share(examples, share)[0] for share in (0.1, 0.4))
    assert set(small.texts) < set(large.texts) and len(small) == 6 and set(small.labels) == {0, 1}
    taken, left = take_share(examples, 0.4)
    assert sorted(taken.texts + left.texts) == sorted(examples.texts)


def test_a_label_of_one_example_is_named(examples):
    odd = Examples(examples.texts, np.r_[2, examples.labels[1:]], (*examples.names, "odd"))
    with pytest.raises(UserError, match="'odd'"): hold_out(odd)
    assert all(len(part) for part in hold_out(examples))
