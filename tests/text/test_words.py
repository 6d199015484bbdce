"""Texts that come as words, and what doesn't fit in one row: as in the `tokenizers` library."""
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.tokenizer import WordPieceTokenizer

OURS = WordPieceTokenizer.train(["anna lost her red ball in the yard , and found it under the bed !"] * 3, 60)
WORDS = "anna", "lost", "Ball", "yards", "foundling", "it!", "don't", "New York", "", "\u200b", "[SEP]", "[MASK]", "Über", "xyz", "東京", " a ", "a\nb"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    OURS.save_pretrained(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def rows_of(theirs, item, split, cut=True):
    "The library's rows of a text or a pair."
    pair = isinstance(item, tuple)
    found = theirs.encode(*(item if pair else (item,)), is_pretokenized=split)
    found = [found, *found.overflowing] if cut else [found]
    names = dict(input_ids="ids", token_type_ids="type_ids", attention_mask="attention_mask", offset_mapping="offsets")
    if split: names["word_ids"] = "word_ids"
    return {ours: [list(getattr(row, name)) for row in found] for ours, name in names.items()}


words = st.lists(st.sampled_from(WORDS), max_size=9)


@settings(max_examples=200)
@given(first=words, second=st.none() | words, length=st.integers(5, 14), stride=st.integers(0, 3), split=st.booleans(),
       strategy=st.sampled_from(["longest_first", "only_first", "only_second"]))
def test_words_and_overflow_are_the_library_s(theirs, first, second, length, stride, split, strategy):
    item = first if second is None else (first, second)
    if not split: item = tuple(map(" ".join, item)) if second is not None else " ".join(item)
    options = dict(max_length=length, truncation=strategy, padding=False, return_offsets=True, is_split_into_words=split)
    try: ours = OURS.encode_batch([item], **options, stride=stride, return_overflowing_tokens=True)
    except AssertionError: return  # no room for the stride, or for a text: the library panics or gives nothing
    theirs.enable_truncation(length, stride=stride, strategy=strategy)
    assert ours.pop("overflow_to_sample_mapping") == [0] * len(ours["input_ids"])
    assert ours == rows_of(theirs, item, split)
    assert {name: rows[:1] for name, rows in ours.items()} == OURS.encode_batch([item], **options)


def test_the_rows_of_several_texts_know_where_they_are_from():
    texts = ["anna lost", "anna lost her red ball in the yard", "it"]
    rows = OURS.encode_batch(texts, max_length=6, return_overflowing_tokens=True)
    assert rows["overflow_to_sample_mapping"] == [0, *[1] * (len(rows["input_ids"]) - 2), 2] and len({*map(len, rows["input_ids"])}) == 1
    whole = [k for ids in rows["input_ids"][1:-1] for k in ids if k not in OURS.special_ids]
    assert whole == OURS.ids(texts[1])
    with pytest.raises(AssertionError, match="never ends"): OURS.encode_batch(texts, max_length=6, stride=4, return_overflowing_tokens=True)
