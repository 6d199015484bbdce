"""Chapter 11's data path: what a notebook has no room for (faults, hostile inputs, the oracle on many stories)."""
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from minibert import corpus as module
from minibert.corpus import Corpus, Oracle, best_masked_accuracy, load_documents, seeded, split_sentences, stories

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


class Words:
    "A tokenizer that numbers words as they come."

    lowercase = True

    def __init__(self, words=(), size=None):
        self.vocab = {word: k for k, word in enumerate(words)}
        self.size = size

    @property
    def vocab_size(self): return self.size or max(len(self.vocab), 1)

    def ids(self, text): return [self.vocab.setdefault(w, len(self.vocab)) for w in text.lower().split()]


def documents(n=5): return [[f"one {k} .", f"two {k} .", "three ."] for k in range(n)]


@pytest.fixture(scope="module")
def told(): return stories(600)


# ---- seeds and stories

def test_seeded_is_a_function_of_its_key():
    seeds = {seeded(a, b).initial_seed() for a in range(40) for b in range(40)}
    assert len(seeds) == 1600 and all(0 <= s < 2**63 for s in seeds)
    assert seeded(3, 4).initial_seed() == seeded(3, 4).initial_seed()
    state = torch.get_rng_state()
    seeded(1)
    assert torch.equal(state, torch.get_rng_state())
    for bad in ((), (-1,), (2, -3)):
        with pytest.raises(ValueError, match="whole numbers"): seeded(*bad)


def test_stories_are_the_same_in_every_process(told):
    code = "from minibert.corpus import stories; import zlib; print(zlib.crc32(repr([s.text for s in stories(50)]).encode()))"
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
                           env=os.environ | {"PYTHONHASHSEED": seed}).stdout for seed in ("0", "1")}
    assert len(said) == 1
    assert stories(5) == told[:5] and stories(5, seed=1) != told[:5]


def test_splits_never_share_a_story():
    seen = {split: {s.text for seed in range(3) for s in stories(300, seed, split)} for split in ("train", "validation", "test")}
    assert not seen["train"] & seen["validation"] and not seen["train"] & seen["test"] and not seen["validation"] & seen["test"]
    with pytest.raises(ValueError, match="splits"): stories(1, split="dev")


def test_every_alternative_can_be_told_and_is_well_formed(told):
    for plot, parts in module._plots().items():
        for end in ("happy", "sad"):
            for step in parts["start"] + parts[end]:
                for words in step:
                    if words: assert words[-1][0] in (".", "!"), (plot, words)
    for story in told:
        assert 40 <= len(story.flat) <= 100 and 5 <= len(story.sentences) <= 9
        for sentence, words, tags, columns in zip(story.sentences, story.words, story.tags, story.columns):
            assert len(words) == len(tags) == len(columns)
            assert sentence[0].isupper() and sentence[-1] in ".!" and "  " not in sentence
            assert "".join(words) == sentence.lower().replace(" ", "")


def test_agreement_and_gender(told):
    girls = module._PEOPLE["she her her girl queen"].split()
    for story in told:
        words = story.flat
        for p, column in enumerate(story.flat_columns):
            if column == "was":
                thing = words[story.flat_columns.index("thing")]
                assert words[p] == ("were" if thing in ("boots", "gloves", "keys", "shoes") else "was")
        hero = next((w for w, c in zip(words, story.flat_columns) if c == "hero"), None)
        for word, column in zip(words, story.flat_columns):
            if column == "he": assert (word == "she") == (hero in girls)


def test_tags_are_those_of_english():
    path = DATA / "ud_english_ewt" / "en_ewt-ud-train.conllu"
    if not path.exists(): pytest.skip("needs UD English EWT")
    seen = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t")
        if len(cells) > 3: seen.setdefault(cells[1].lower(), Counter())[cells[3]] += 1
    ours = Counter((w, t) for s in stories(1000) for ws, ts in zip(s.words, s.tags) for w, t in zip(ws, ts))
    common = {(w, t): n for (w, t), n in ours.items() if sum(seen.get(w, {}).values()) >= 30}
    strange = {pair for pair in common if not seen[pair[0]][pair[1]]}
    assert len(common) > 150 and strange <= {("water", "VERB")}


# ---- the oracle

def test_posteriors_are_distributions_that_hold_the_truth(told):
    rng = random.Random(0)
    for story in told[:200]:
        n = len(story.flat)
        hidden = {p for p in range(n) if rng.random() < rng.random()}
        first, last = sorted(rng.sample(range(n + 1), 2))
        for p, words in story.posterior(hidden, range(first, last)).items():
            assert abs(sum(words.values()) - 1) < 1e-9 and words[story.flat[p]] > 0


def test_posterior_agrees_with_sampling():
    "Stories that share a story's templates and agree with what is visible, drawn and counted."
    story = next(s for s in stories(200) if s.plot == "walk")
    table = module._tables()
    steps = [[(w if not c else "", t, c) for w, t, c in zip(*parts)] for parts in zip(story.words, story.tags, story.columns)]
    used = {table[c] for c in story.flat_columns if c}
    free = {t for t in used if t in (table["rain"], table["number"], table["day"])}
    hidden = {p for p, c in enumerate(story.flat_columns) if c in ("rain", "rains", "wear", "number", "day", "dry")}
    fixed = {t: next(r for k, r in enumerate(t.rows) if module._rows_left(story, range(len(story.flat))).get(t, t.all) >> k & 1) for t in used}
    rng, votes, n = random.Random(1), Counter(), 3000
    for _ in range(n):
        rows = fixed | {t: rng.choice(t.rows) for t in free}
        words = module._tell(story.plot, story.sentiment, steps, rows).flat
        seen = [p for p in range(len(words)) if p not in hidden]
        if all(words[p] == story.flat[p] for p in seen): votes.update((p, words[p]) for p in hidden); votes["kept"] += 1
    for p, words in story.posterior(hidden).items():
        for word, prob in words.items():
            error = 5 * (prob * (1 - prob) / votes["kept"]) ** 0.5 + 1e-12
            assert abs(votes[p, word] / votes["kept"] - prob) <= error


def test_more_knowledge_never_lowers_the_expected_best_guess(told):
    oracle = Oracle(told)
    where = np.arange(oracle.starts[-1]).reshape(1, -1)
    lots = torch.rand(where.shape, generator=seeded(0)).numpy()
    chosen = lots < 0.1
    bounds = [best_masked_accuracy(told, where, chosen, lots < share) for share in (0.1, 0.3, 0.6, 1.0)]
    assert bounds == sorted(bounds, reverse=True) and 0.9 < bounds[0] <= 1
    assert best_masked_accuracy(told, where, chosen, chosen & False) == 1.0  # all kept: all known


def test_oracle_takes_tensors_and_refuses_foreign_positions(told):
    positions = torch.arange(40).view(2, 20)
    chosen = torch.ones(2, 20, dtype=torch.bool)
    best = Oracle(told).best(positions, chosen, chosen)
    assert best.shape == (2, 20) and (best > 0).all() and (best <= 1).all()
    positions[0, :3] = -1
    best = Oracle(told).best(positions, chosen & (positions >= 0), chosen)
    assert np.isnan(best[0, :3]).all()
    with pytest.raises(ValueError, match="past"): Oracle(told).best(positions + 10**6, chosen, chosen)


# ---- sentences and documents

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
    assert held == [["One here.", "Two here."], ["Three.", "Four."]]
    assert list(kept) == list(kept) == [["Fünf.", "Sechs."], ["Sieben.", "Acht."], ["Neun.", "Zehn."]]
    assert len(list(load_documents(folder, limit=1))) == 1
    assert [s for d in load_documents(limit=2) for s in d] == [s for t in stories(2) for s in t.sentences]


def test_a_table_in_the_hubs_layout(tmp_path):
    rows = [{"text": f"Row {k}. It is whole.", "other": k} for k in range(50)]
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    train, held = list(load_documents(tmp_path / "hub")), list(load_documents(tmp_path / "hub", split="validation"))
    assert len(train) == 46 and len(held) == 4 and train[0] == ["Row 2.", "It is whole."]
    with pytest.raises(ValueError, match="columns"): load_documents(tmp_path / "hub", text_column="body")


def test_bad_sources_get_one_sentence(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("Café.".encode("latin-1"))
    (tmp_path / "late.txt").write_bytes(b"word. Word.\n\n" * 100_000 + b"\xff")
    (tmp_path / "nothing").mkdir()
    for name, said in (("empty.txt", "empty"), ("latin.txt", "UTF-8"), ("nothing", "could not be loaded"), ("no/such/place", "could not be loaded")):
        with pytest.raises(ValueError, match=said) as error: load_documents(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="UTF-8"): list(load_documents(tmp_path / "late.txt"))


def test_no_network_is_one_sentence_and_leaves_the_settings_alone(monkeypatch, capfd):
    import datasets
    from huggingface_hub import HfApi, constants
    def unreachable(*_, **__): raise ConnectionError("no network")
    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    with pytest.raises(ValueError, match="nobody/nothing, x could not be loaded"): load_documents("nobody/nothing", "x")
    assert before == (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    assert "Retry" not in capfd.readouterr().err


@pytest.mark.skipif(not (DATA / "wikitext").exists(), reason="needs WikiText-2")
def test_wikitext():
    found = list(load_documents(DATA / "wikitext", "wikitext-2-v1", split="validation"))
    assert len(found) == 60
    assert not [s for d in found for s in d if s.startswith("= =")]


# ---- the arrays

def test_memory_and_disk_agree(tmp_path):
    here, there = Corpus.build(documents(), Words()), Corpus.build(documents(), words := Words(), tmp_path / "deep/er/corpus")
    again = Corpus.open(tmp_path / "deep/er/corpus", words)
    for name in ("ids", "sentence_starts", "document_starts"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
        np.testing.assert_array_equal(getattr(here, name), getattr(again, name))
    assert (again.n_documents, again.n_sentences, again.n_tokens) == (5, 15, 40)
    assert [len(row) for row in again.document(2)] == [3, 3, 2]
    assert sorted(os.listdir(tmp_path / "deep/er")) == ["corpus"]


def test_ids_take_four_bytes_only_when_they_must():
    assert Corpus.build(documents(), Words(size=1 << 16)).ids.dtype == np.uint16
    assert Corpus.build(documents(), Words(size=(1 << 16) + 1)).ids.dtype == np.uint32


def test_blocks_are_joined_without_a_seam(tmp_path):
    many = [["w " * 5000, "v " * 5000] for _ in range(70)]
    words = Words()
    corpus = Corpus.build(iter(many), words, tmp_path / "c")
    assert corpus.n_tokens == 700_000 and Corpus.open(tmp_path / "c").ids.sum() == 350_000
    np.testing.assert_array_equal(np.load(tmp_path / "c/ids.npy"), corpus.ids)


def test_unusable_corpora_are_refused_and_leave_nothing(tmp_path):
    for bad in ([], documents(1), [["one ."], ["two ."], ["three ."]], [["a .", "b ."], ["c ."], ["", "d"]]):
        for folder in (None, tmp_path / "c"):
            with pytest.raises(ValueError, match="two documents of two sentences"): Corpus.build(bad, Words(), folder)
    def broken():
        yield from documents()
        raise RuntimeError("in the middle")
    with pytest.raises(RuntimeError): Corpus.build(broken(), Words(), tmp_path / "c")
    assert not os.listdir(tmp_path)


def test_a_folder_is_never_written_over(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine").write_text("mine")
    with pytest.raises(FileExistsError, match="exists"): Corpus.build(documents(), Words(), tmp_path / "c")
    assert os.listdir(tmp_path / "c") == ["mine"] and os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("name", ["ids.npy", "sentence_starts.npy", "document_starts.npy", "corpus.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "empty"])
def test_damage_is_found(tmp_path, name, harm):
    words = Words()
    Corpus.build(documents(50), words, tmp_path / "c")
    file = tmp_path / "c" / name
    data = file.read_bytes()
    if harm == "gone": file.unlink()
    else: file.write_bytes({"cut": data[:-5], "flip": data[:-9] + bytes([data[-9] ^ 255]) + data[-8:], "empty": b""}[harm])
    with pytest.raises((ValueError, FileNotFoundError), match="damaged|corpus.json"): Corpus.open(tmp_path / "c", words)


def test_another_vocabulary_is_refused(tmp_path):
    words = Words(["one", "two", "three", ".", *map(str, range(50))])
    Corpus.build(documents(), words, tmp_path / "c")
    other = Words(["two", "one", "three", ".", *map(str, range(50))])
    with pytest.raises(ValueError, match="another vocabulary"): Corpus.open(tmp_path / "c", other)
    cased = Words(words.vocab)
    cased.lowercase = False
    with pytest.raises(ValueError, match="another vocabulary"): Corpus.open(tmp_path / "c", cased)


def test_nothing_is_unpickled(tmp_path):
    words = Words()
    Corpus.build(documents(), words, tmp_path / "c")
    np.save(tmp_path / "c/ids.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="damaged"): Corpus.open(tmp_path / "c", words)
