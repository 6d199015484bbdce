"""A vocabulary of a language that has capitals and umlauts."""
import json

import pytest
import transformers as hf

from command import as_json, call
from minibert.tokenizer import WordPieceTokenizer

TEXT = "Der Käfer lief über die Straße. Das Mädchen sah den Käfer.\nÜber dem Haus stand der Mond. Die Bäume waren grün.\n\n" * 60
QUICK = "--steps", 3, "--batch-size", 4, "--length", 24, "--vocab-size", 300


@pytest.mark.parametrize("words, pieces, other", [(("--cased",), ("Käfer", "Über", "über"), "kafer"),
                                                  (("--strip-accents", "False"), ("käfer", "über", "mädchen"), "Käfer"),
                                                  ((), ("kafer", "uber", "madchen"), "käfer")])
def test_capitals_and_accents_are_kept_where_it_is_asked(tmp_path, words, pieces, other):
    (tmp_path / "de.txt").write_text(TEXT)
    call("pretrain", "--dataset", "de.txt", *QUICK, *words, "--out", "run", cwd=tmp_path)
    ours = WordPieceTokenizer.from_pretrained(tmp_path / "run")
    assert {*pieces} <= ours.vocab.keys() and other not in ours.vocab
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "run")
    for text in ("Der KÄFER über Über, naïve.", "Mädchen [MASK] straße"): assert theirs(text)["input_ids"] == ours.encode(text)["input_ids"]
    assert len(as_json("fill-mask", "run", "Der [MASK] lief .", cwd=tmp_path)["masks"][0]) == 5
    assert json.loads((tmp_path / "run/tokenizer_config.json").read_text())["do_lower_case"] == ("--cased" not in words)


@pytest.mark.parametrize("words", [("--start", "RUN", "--cased"), ("--model", "distilbert", "--strip-accents", "True")])
def test_a_vocabulary_that_is_there_stays_as_it_is(first_run, tmp_path, words):
    words = [str(first_run) if word == "RUN" else word for word in words]
    _, err = call("pretrain", *words, "--steps", 3, "--out", tmp_path / "new", code=2)
    assert "leave them out" in err and not (tmp_path / "new").exists()
