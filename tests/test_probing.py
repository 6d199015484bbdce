"""Probing: alignment, vectors, the probe, its neighbours, who is who in the stories, and the command's function."""
import json
import sys

import numpy as np
import pytest
import torch

from minibert.core.errors import UserError
from minibert.config import BertConfig
from minibert.data.stories import stories
from minibert.core.seeds import seeded
from minibert.heads import BertForPreTraining
from minibert.measure.probes import probe_encoder, probe_tags, tag_gains
from minibert.measure.probes import extract, place_words
from minibert.probing import TaggedText, control_tags, fit_probes, predict_tags, standardise_, tag_stories, word_majority
from minibert.measure.probes import balanced, name_roles, probe_roles, role_shortcuts
from minibert.measure.probe_runs import (
    draw_confusion, draw_layers, probe_table, probe_tables, read_conllu, read_treebank,
    role_table, probe_checkpoint)
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import save_pretrained

LINE = "{}\t{}\tx\t{}\t_\t_\t0\troot\t_\t_\n"


@pytest.fixture(scope="module")
def told(): return stories(60)


@pytest.fixture(scope="module")
def tokenizer(told): return WordPieceTokenizer.train(s for story in told for s in story.sentences)


@pytest.fixture(scope="module")
def model(tokenizer):
    config = BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
                        max_position_embeddings=64)
    return BertForPreTraining(config, seeded(1))


def write(path, *sentences):
    path.write_text("".join("".join(LINE.format(k, w, t) for k, (w, t) in enumerate(s, 1)) + "\n" for s in sentences), encoding="utf8")
    return path


def test_conllu_words_and_ranges(tmp_path):
    pytest.importorskip("conllu")
    path = tmp_path / "a.conllu"
    path.write_text("# text = don't\n1-2\tdon't" + "\t_" * 8 + "\n" + LINE.format(1, "do", "AUX") + LINE.format(2, "n't", "PART")
                    + "2.1\tgone" + "\t_" * 8 + "\n\n" + LINE.format(1, "Ja", "INTJ") + "\n", encoding="utf8")
    read = read_conllu(path)
    assert read.words == [["do", "n't"], ["Ja"]] and read.tags == [["AUX", "PART"], ["INTJ"]]
    assert len(read) == 3 and read.flat[-1] == ("ja", "INTJ")
    assert read_conllu(path, "deprel").tags == [["root", "root"], ["root"]]


@pytest.mark.parametrize("text, match", [("a b c\n\n", "not CoNLL-U"), ("", "no sentence"), (LINE.format(1, "a", "_") + "\n", "has no upos")])
def test_conllu_mistakes_are_sentences(tmp_path, text, match):
    pytest.importorskip("conllu")
    (tmp_path / "a.conllu").write_text(text)
    with pytest.raises(ValueError, match=match): read_conllu(tmp_path / "a.conllu")


def test_missing_files_and_library(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="train"): read_treebank(tmp_path)
    monkeypatch.setitem(sys.modules, "conllu", None)
    with pytest.raises(UserError, match="pip install conllu"): read_conllu(tmp_path / "a.conllu")


@pytest.mark.slow
def test_real_treebank_is_aligned(shared_data):
    pytest.importorskip("conllu")
    train, dev = read_treebank(shared_data / "ud_english_ewt")
    assert len(dev.words) == 2001 and len(dev) == 25147 and len(train) == 204577
    vocab = WordPieceTokenizer.from_vocab(shared_data / "bert-base-uncased" / "vocab.txt")
    for longest in (512, 20):
        rows = place_words(dev.words, vocab, longest)
        pieces = [vocab.ids(word) for words in dev.words for word in words]
        starts = [row.ids[p] for row in rows for p in row.places]
        assert starts == [ids[0] if ids else vocab.unk_id for ids in pieces]
        assert max(len(row.ids) for row in rows) <= longest


def test_first_and_last_piece(tokenizer):
    letters = WordPieceTokenizer.train(["abcd"] * 3, vocab_size=20)
    row, = place_words([["abab", "a", "\u200b"]], letters, 64, both=True)
    assert row.places[0] == 1 and row.places[1] + 1 == row.places[2] == row.places[3]
    assert row.ids[row.places[4]] == letters.unk_id and len(row.places) == 6
    letters = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"])
    long, = place_words([["a" + "b" * 50]], letters, 10)
    assert len(long.ids) == 10 and long.places == [1]


def test_extract_is_batch_free(model, tokenizer, told):
    rows = place_words(tag_stories(told[:5]).words, tokenizer, 64)
    model.train()
    together, one_by_one = extract(model.bert, rows), torch.cat([extract(model.bert, [row]) for row in rows], 1)
    assert model.training and torch.allclose(together, one_by_one, atol=1e-5)
    assert torch.allclose(together, extract(model.bert, rows, tokens=1), atol=1e-5)


def test_probe_finds_what_is_there_and_no_more():
    draw = seeded(3)
    labels = torch.randint(3, (2, 3000), generator=draw)
    vectors = torch.randn(2, 3000, 8, generator=draw)
    vectors[1, :, :3] += 4 * torch.eye(3)[labels[0]]
    right = predict_tags(fit_probes(vectors[:, :2000], labels[:, :2000], 3, batch_size=256, least=300), vectors[:, 2000:]) == labels[:, 2000:]
    share = right.double().mean(-1)
    assert share[1, 0] > 0.95 and share[2, 0] > 0.93  # the layer that has it, and the mix
    assert share[0].max() < 0.45 and share[:, 1].max() < 0.45


def test_no_figure_of_damaged_weights(model, tokenizer, told, tmp_path):
    broken = BertForPreTraining(model.config, seeded(1))
    with torch.no_grad(): broken.bert.encoder.layers[0].feed_forward.up.weight[3, 2] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite numbers.*earlier checkpoint"):
        extract(broken.bert, place_words(tag_stories(told[:2]).words, tokenizer, 64))
    save_pretrained(broken, tokenizer, tmp_path / "run")
    with pytest.raises(FloatingPointError, match="not finite"): probe_checkpoint(tmp_path / "run", seeds=1, count=100, least=1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_figure_of_a_probe_that_diverged(bad):
    vectors, labels = torch.randn(1, 100, 6, generator=seeded(4)), torch.randint(4, (1, 100), generator=seeded(5))
    vectors[0, 7, 2] = bad
    with pytest.raises(FloatingPointError, match="standardise the vectors, or lower the rate"): fit_probes(vectors, labels, 4, least=2)


def test_probe_is_a_function_of_its_seed():
    vectors, labels = torch.randn(1, 500, 6, generator=seeded(4)), torch.randint(4, (1, 500), generator=seeded(5))
    a, b, c = (fit_probes(vectors, labels, 4, seed=seed, least=3) for seed in (0, 0, 1))
    assert torch.equal(a.weight, b.weight) and not torch.equal(a.weight, c.weight)


def test_standardise_uses_the_training_words_only():
    train, dev = torch.randn(2, 50, 4) * 3 + 1, torch.randn(2, 20, 4)
    before, mean, spread = dev.clone(), train.mean(1, keepdim=True), train.std(1, keepdim=True)
    standardise_(train, dev)
    assert torch.allclose(dev, (before - mean) / spread, atol=1e-5)
    assert train.mean(1).abs().max() < 1e-5


def test_dictionary_and_control():
    train = TaggedText([["a", "b", "a", "a"]], [["X", "Y", "Z", "X"]])
    dev = TaggedText([["A", "b", "new"]], [["X", "Y", "Z"]])
    assert word_majority(train, dev).tolist() == ["X", "Y", "X"]
    one, two = control_tags((train, dev), 3)
    assert one.words == train.words and len(set(one.flat + two.flat)) == 3
    big = TaggedText([[f"w{k}" for k in range(4000)]], [["X"] * 3000 + ["Y"] * 1000])
    share = np.mean([tag == "X" for _, tag in control_tags((big,))[0].flat])
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5  # drawn in proportion


def test_all_figures(model, tokenizer, told):
    train, dev = tag_stories(told[:40]), tag_stories(told[40:])
    result = probe_tags(model.bert, tokenizer, train, dev, seeds=2, fresh=1, least=20, epochs=1)
    assert json.loads(json.dumps(result)) == result
    assert len(result["trained"]) == 4 and len(result["trained"][0]["seeds"]) == 2 and len(result["untrained"][0]["seeds"]) == 1
    for row in result["trained"]: assert row["interval"][0] < row["accuracy"] < row["interval"][1]
    assert sum(part["words"] for part in result["by_tag"].values()) == len(dev)
    assert "selectivity" in probe_table(result) and set(tag_gains(result)) == set(result["by_tag"])
    draw_layers(result), draw_confusion(result)


def test_names_and_roles(told, tokenizer):
    asked = name_roles(told, tokenizer, 64)
    assert len(asked) > 20
    for q in asked:
        assert tokenizer.pieces[q.row.ids[q.row.places[0]]] == q.clues["the name"]
        assert q.row.ids[0] == tokenizer.cls_id and q.row.ids[-1] == tokenizer.sep_id
    lazy = np.array([(q.clues["first or later"] == "first") == q.hero for q in asked])
    once = [q for q in asked if len(q.row.ids) < 60]
    assert balanced(np.ones(len(asked)), asked) == 1 and balanced(np.zeros(len(asked)), asked) == 0
    assert 0.3 < balanced(lazy, asked) < 0.7 < lazy.mean() and len(once) == len(asked)
    assert set(role_shortcuts(asked, asked)) == set(asked[0].clues)
    assert not name_roles(told, tokenizer, 4)  # nothing that the model cannot read whole


def test_roles_and_the_command(model, tokenizer, told, tmp_path):
    roles = probe_roles(model.bert, tokenizer, told[:40], told[40:], seeds=1, least=20)
    assert len(roles["trained"]) == 4 and "first or later" in role_table(roles)
    with pytest.raises(ValueError, match="more of them"): probe_roles(model.bert, tokenizer, told[:1], told[:1])
    save_pretrained(model, tokenizer, tmp_path / "run")
    result = probe_checkpoint(tmp_path / "run", out=tmp_path / "out", seeds=1, count=100, epochs=1, least=20)
    assert json.loads((tmp_path / "out/probe.json").read_text()) == result and "roles" in result
    assert (tmp_path / "out/layers.png").stat().st_size > 1000 and "hero or friend" in probe_tables(result)
    with pytest.raises(ValueError, match="seeds is 0"): probe_checkpoint(tmp_path / "run", seeds=0)


def test_command_on_a_treebank(model, tokenizer, tmp_path):
    pytest.importorskip("conllu")
    rows = [[("the", "DET"), ("ball", "NOUN"), (".", "PUNCT")], [("she", "PRON"), ("ran", "VERB"), (".", "PUNCT")]]
    (tmp_path / "bank").mkdir()
    write(tmp_path / "bank/x-train.conllu", *rows * 5), write(tmp_path / "bank/x-dev.conllu", *rows)
    save_pretrained(model, tokenizer, tmp_path / "run")
    result = probe_checkpoint(tmp_path / "run", tmp_path / "bank", seeds=1, least=100)
    assert result["words"] == [30, 6] and "roles" not in result and result["majority"] == 1
    wide = probe_encoder(model.bert, tokenizer, read_treebank(tmp_path / "bank"), seeds=1, both=True, least=100)
    assert wide[0].shape == (1, len(result["trained"]), 2, 6)  # two pieces a word, and still one answer
