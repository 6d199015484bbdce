"""A vocabulary is learned from words that a piece can hold, and a file of pieces is read whatever ends its lines."""
import pytest

from minibert.tokenizer import WordPieceTokenizer


def test_a_word_that_no_piece_can_hold_is_not_learned_from():
    tokenizer = WordPieceTokenizer.train(["anna saw anna", "y" * 101, "x" * 100], vocab_size=100)
    assert "anna" in tokenizer.pieces and "##x" in tokenizer.pieces and "##y" not in tokenizer.pieces
    with pytest.raises(ValueError): WordPieceTokenizer.train(["x" * 101], vocab_size=100)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_vocabulary_is_read_whatever_ends_its_lines(tmp_path, end):
    tokenizer = WordPieceTokenizer.train(["anna saw the cat"] * 3, vocab_size=60)
    (tmp_path / "vocab.txt").write_bytes(end.join([*tokenizer.pieces, ""]).encode())
    assert [*WordPieceTokenizer.from_pretrained(tmp_path).pieces] == [*tokenizer.pieces]


def test_a_piece_stands_once(tmp_path):
    tokenizer = WordPieceTokenizer.train(["anna saw the cat"] * 3, vocab_size=60)
    (tmp_path / "vocab.txt").write_text("\n".join([*tokenizer.pieces, tokenizer.pieces[20]]))
    with pytest.raises(ValueError): WordPieceTokenizer.from_pretrained(tmp_path)
