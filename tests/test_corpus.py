"""Chapter 11's data path: what a notebook has no room for (faults, hostile inputs, the oracle on many stories)."""
import errno
import io
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from letters import Letters, told_text

from minibert import corpus as module
from minibert.corpus import (
    Corpus, Oracle, best_masked_accuracy, load_documents, split_sentences, stories)
from minibert.core import seeded
from minibert.tokenizer import WordPieceTokenizer
from minibert.text import SPECIALS

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


class Words:
    "A tokenizer that numbers words as they come."

    fingerprint = "words"

    def __init__(self, size=None): self.vocab, self.size = {}, size

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
    for plot, parts in module.story_plots().items():
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
    girls = {row["hero"] for row in module.story_tables()["hero"].rows if row["he"] == "she"}
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
    table = module.story_tables()
    steps = [[(w if not c else "", t, c) for w, t, c in zip(*parts)] for parts in zip(story.words, story.tags, story.columns)]
    used = {table[c] for c in story.flat_columns if c}
    free = {t for t in used if t in (table["rain"], table["number"], table["day"])}
    hidden = {p for p, c in enumerate(story.flat_columns) if c in ("rain", "rains", "wear", "number", "day", "dry")}
    fixed = {t: next(r for k, r in enumerate(t.rows) if module.rows_left(story, range(len(story.flat))).get(t, t.all) >> k & 1) for t in used}
    rng, votes, n = random.Random(1), Counter(), 3000
    for _ in range(n):
        rows = fixed | {t: rng.choice(t.rows) for t in free}
        words = module.tell_story(story.plot, story.sentiment, steps, rows).flat
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


@pytest.mark.skipif(not (DATA / "wikitext").exists(), reason="needs WikiText-2")
def test_what_the_rule_of_titles_is_worth(monkeypatch):
    "The two numbers that chapter 11 names."
    rows = list(module.load_table(DATA / "wikitext", "wikitext-2-v1")["train"]["text"])
    assert len(list(module.group_rows(rows, True))) == 601
    monkeypatch.setattr(module, "is_title", lambda row, before: re.match(r"\s*= [^=].* =\s*$", row))
    assert len(list(module.group_rows(rows, True))) == 617


def test_the_answers_of_the_exercise_on_boots():
    "Chapter 11, exercise 2: no choice of hidden words gives 1/8, as that of the ball does."
    table = module.story_tables()
    rows = {t: t.rows[0] for t in dict.fromkeys(table.values())}
    rows[table["thing"]] = next(r for r in table["thing"].rows if r["thing"] == "boots")
    lost = module.story_plots()["lost"]
    story = module.tell_story("lost", "happy", [lost["start"][1][0], lost["happy"][1][0]], rows)
    boots, them = story.flat.index("boots"), story.flat.index("them")
    assert story.posterior({boots, them})[boots]["boots"] == 1 / 12 and story.posterior({boots})[boots]["boots"] == 1 / 4
    seen = {story.posterior({boots, *others})[boots]["boots"] for k in range(3) for others in itertools.combinations(range(len(story.flat)), k)}
    assert seen == {1 / 12, 1 / 4}


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


PIECES = [*SPECIALS, "one", "two", "three", ".", "\u00e9", "e", *map(str, range(50))]


@pytest.mark.parametrize("rules", [dict(lowercase=False), dict(strip_accents=False), dict(tokenize_chinese_chars=False)])
def test_the_same_pieces_with_other_rules_are_refused(tmp_path, rules):
    "With the real class: an uncased corpus must not open with a cased tokenizer, nor the other way round."
    ours, other = WordPieceTokenizer(PIECES), WordPieceTokenizer(PIECES, **rules)
    for build, wrong, folder in ((ours, other, tmp_path / "c"), (other, ours, tmp_path / "d")):
        Corpus.build(documents(), build, folder)
        assert Corpus.open(folder, WordPieceTokenizer(PIECES, **(rules if build is other else {}))).fingerprint == build.fingerprint
        with pytest.raises(ValueError, match="other rules for case and accents"): Corpus.open(folder, wrong)


def test_another_vocabulary_is_refused(tmp_path):
    Corpus.build(documents(), WordPieceTokenizer(PIECES), tmp_path / "c")
    swapped, longer = WordPieceTokenizer([*PIECES[:-2], *PIECES[:-3:-1]]), WordPieceTokenizer([*PIECES, "more"])
    for other in (swapped, longer):
        with pytest.raises(ValueError, match="another vocabulary"): Corpus.open(tmp_path / "c", other)
    Corpus.open(tmp_path / "c", WordPieceTokenizer(PIECES, max_length=7, cache_size=0))  # what changes no id is no matter


def test_a_corpus_without_a_fingerprint_is_damaged(tmp_path):
    Corpus.build(documents(), Words(), tmp_path / "c")
    for name in ("vocabulary", "vocab_size"):
        info = json.loads((tmp_path / "c/corpus.json").read_text())
        del info[name]
        (tmp_path / "c/corpus.json").write_text(json.dumps(info))
        with pytest.raises(ValueError, match=f"damaged \\('{name}'\\)|damaged"): Corpus.open(tmp_path / "c", Words())


# ---- what the operating system refuses is no damage

@pytest.mark.parametrize("name", ["corpus.json", "ids.npy"])
@pytest.mark.parametrize("number, said", [(errno.EACCES, "ask for the right"), (errno.EMFILE, "ulimit -n"), (errno.EIO, "try again")])
def test_what_the_system_refuses_is_told_as_such(tmp_path, monkeypatch, name, number, said):
    Corpus.build(documents(), Words(), tmp_path / "c")
    real = io.open
    def refuse(file, *args, **options):
        if str(file).endswith(name): raise OSError(number, os.strerror(number), str(file))
        return real(file, *args, **options)
    for place in ("io.open", "builtins.open", "pathlib.Path.open"): monkeypatch.setattr(place, refuse)
    with pytest.raises(OSError, match=f"could not be read.*{os.strerror(number)}.*{name}.*{said}") as error: Corpus.open(tmp_path / "c", Words())
    told = str(error.value)
    assert "delete" not in told and "damaged" not in told and "\n" not in told and told.endswith(".")
    assert type(error.value) is type(OSError(number, "")) and error.value.errno == number
    assert not isinstance(error.value, ValueError)


def test_a_finished_shard_that_cannot_be_read_is_not_deleted(tmp_path, monkeypatch):
    stop_after(200, tmp_path / "c")
    shards = {file.name for file in (tmp_path / ".c.shards").glob("0*")}
    def refuse(*_): raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "ids.npy")
    with monkeypatch.context() as patched:
        patched.setattr(module, "_map", refuse)
        with pytest.raises(OSError, match="ulimit -n"): Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert {file.name for file in (tmp_path / ".c.shards").glob("0*")} == shards


def test_no_free_file_is_said(tmp_path):
    "The real thing: a process that may open no more files."
    pytest.importorskip("resource")
    Corpus.build(documents(), Words(), tmp_path / "c")
    code = f"""
import os, resource, numpy
from minibert.corpus import Corpus
Corpus.open({str(tmp_path / 'c')!r})
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
for _ in range(12):
    try: Corpus.open({str(tmp_path / 'c')!r}); print("opened")
    except Exception as error: print(type(error).__name__, error)
    os.close(held.pop())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "OSError The corpus" in said and "ulimit -n" in said and "opened" in said
    assert "damaged" not in said and "delete" not in said, said


def test_a_source_that_cannot_be_read_says_so(tmp_path, monkeypatch, hub):
    import datasets
    def refuse(*_, **__):
        try: raise PermissionError(errno.EACCES, "Permission denied", "train.parquet")
        except PermissionError as error: raise RuntimeError("An error occurred while generating the dataset") from error
    with monkeypatch.context() as patched:
        patched.setattr(datasets, "load_dataset", refuse)
        with pytest.raises(PermissionError, match="Permission denied"): load_documents(hub)
    rows = load_documents(hub, streaming=True)
    monkeypatch.setattr(datasets.IterableDataset, "iter", refuse)
    with pytest.raises(PermissionError, match="Permission denied"): list(rows)


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "t.txt").write_text("One. Two.\n\n" * 4)
    assert len(list(load_documents(tmp_path / "texts"))) == 6
    real = os.scandir
    def scandir(path):
        if str(path).endswith("b"): raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="Permission denied"): load_documents(tmp_path / "texts")


def test_nothing_is_unpickled(tmp_path):
    words = Words()
    Corpus.build(documents(), words, tmp_path / "c")
    np.save(tmp_path / "c/ids.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="damaged"): Corpus.open(tmp_path / "c", words)


# ---- more text than memory: shards, kills, streams

ROOT = Path(__file__).parents[1]


def as_documents(raw): return module.Documents(lambda: iter(raw), "text", cut=module.cut_sentences)


def read_all(folder): return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def one_go(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "corpus"
    Corpus.build(as_documents(told_text()), Letters(), folder)
    return read_all(folder)


@pytest.mark.parametrize("processes, shard", [(1, 300), (1, 1000), (1, 1 << 22), (2, 1000), (3, 1000), (3, 1 << 22)])
def test_the_number_of_processes_changes_no_byte(tmp_path, one_go, processes, shard):
    opened = Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", processes=processes, shard=shard)
    assert read_all(tmp_path / "c") == one_go and os.listdir(tmp_path) == ["c"]
    assert opened.n_documents == 300 and isinstance(opened.ids, np.memmap)
    assert Corpus.open(tmp_path / "c", Letters()).info == opened.info


def test_any_iterable_can_be_built_in_shards_and_short_documents_are_counted_once(tmp_path):
    mixed = [["a b", "c"] if k % 3 else ["alone"] for k in range(60)]
    whole = Corpus.build(iter(mixed), Letters(), tmp_path / "whole")
    Corpus.build(iter(mixed), Letters(), tmp_path / "shards", processes=1, shard=20)
    assert read_all(tmp_path / "whole") == read_all(tmp_path / "shards") and whole.info["dropped"] == 20


@pytest.fixture
def made(monkeypatch):
    "The names of the shards that this process makes."
    names, make = [], module.make_shard
    monkeypatch.setattr(module, "make_shard", lambda folder, *rest: (names.append(folder.name), make(folder, *rest)) and None)
    return names


def stop_after(n, folder):
    def broken():
        yield from told_text()[:n]
        raise ConnectionError("gone")
    with pytest.raises(ConnectionError): Corpus.build(module.Documents(broken, "broken", cut=module.cut_sentences), Letters(), folder, 1, 1000)


def test_finished_shards_are_kept_and_half_written_ones_are_not_used(tmp_path, one_go, made):
    stop_after(200, tmp_path / "c")
    before, place = len(made), tmp_path / ".c.shards"
    half = place / f".00{before + 1:03}-0123456789abcdef.99.tmp"  # what SIGKILL leaves
    half.mkdir()
    (half / "ids.npy").write_bytes(b" " * 500)
    Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert before >= 5 and len(made) == len(set(made)) > before, "none was made twice"
    assert read_all(tmp_path / "c") == one_go and os.listdir(tmp_path) == ["c"]


def test_shards_of_another_text_vocabulary_or_size_are_never_used(tmp_path, made):
    stop_after(200, tmp_path / "c")
    other = told_text()
    other[0] = ["Story 0 was told otherwise. It goes on."]
    tokenizer = Letters()
    tokenizer.fingerprint = "other letters"
    for raw, words, size in ((other, Letters(), 1000), (told_text(), tokenizer, 1000), (told_text(), Letters(), 1500)):
        stop_after(200, tmp_path / "c")
        made.clear()
        Corpus.build(as_documents(raw), words, tmp_path / "c", 1, size)
        assert made and made[0].startswith("00000-")
        Corpus.build(as_documents(raw), words, tmp_path / "right")
        assert read_all(tmp_path / "c") == read_all(tmp_path / "right")
        for name in ("c", "right"): module.shutil.rmtree(tmp_path / name)


@pytest.mark.parametrize("name", ["ids.npy", "sentence_starts.npy", "document_starts.npy", "corpus.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_a_damaged_shard_is_named_and_made_again(tmp_path, one_go, made, name, harm):
    stop_after(200, tmp_path / "c")
    victim = sorted((tmp_path / ".c.shards").glob("0*"))[2]
    data = (victim / name).read_bytes()
    if harm == "gone": (victim / name).unlink()
    else: (victim / name).write_bytes(data[:-5] if harm == "cut" else data[:-9] + bytes([data[-9] ^ 255]) + data[-8:])
    made.clear()
    with pytest.warns(UserWarning, match=victim.name) as said: Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert len(said) == 1 and "\n" not in str(said[0].message) and "made again" in str(said[0].message)
    assert made[0] == victim.name and read_all(tmp_path / "c") == one_go


def test_a_shard_that_is_damaged_before_it_is_joined_is_named_too(tmp_path, monkeypatch, one_go):
    stop_after(200, tmp_path / "c")
    victim = sorted((tmp_path / ".c.shards").glob("0*"))[1]
    data = (victim / "ids.npy").read_bytes()
    (victim / "ids.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with monkeypatch.context() as patched:
        patched.setattr(module, "_is_made", lambda folder: folder.is_dir())
        with pytest.raises(ValueError, match=f"{victim.name} is damaged.*delete the folder"):
            Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert not (tmp_path / "c").exists()
    with pytest.warns(UserWarning, match=victim.name): Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert read_all(tmp_path / "c") == one_go


@pytest.mark.parametrize("word, kind, said", [("exit", RuntimeError, "shard .* died: build again"), ("raise", KeyError, "gave up")])
def test_what_happens_to_a_helper_is_said_and_the_rest_is_kept(tmp_path, one_go, word, kind, said):
    from multiprocessing import active_children
    bad = told_text()
    bad[250] = [f"Story 250 will {word}. It ends."]
    with pytest.raises(kind, match=said): Corpus.build(as_documents(bad), Letters(), tmp_path / "c", 2, 1000)
    assert not active_children() and not (tmp_path / "c").exists() and len(list((tmp_path / ".c.shards").glob("0*"))) >= 3
    Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 2, 1000)
    assert read_all(tmp_path / "c") == one_go and not active_children()


def test_shards_refuse_what_a_corpus_refuses(tmp_path):
    for bad in ([], [["one. two."]], [["one."], ["two."], ["three."]]):
        with pytest.raises(ValueError, match="two documents of two sentences"): Corpus.build(bad, Letters(), tmp_path / "c", processes=1)
    with pytest.raises(ValueError, match="processes is -1"): Corpus.build(told_text(), Letters(), tmp_path / "c", processes=-1)
    assert not (tmp_path / "c").exists()
    (tmp_path / "d").mkdir()
    (tmp_path / ".d.shards").mkdir()
    with pytest.raises(FileExistsError, match="exists"): Corpus.build(told_text(), Letters(), tmp_path / "d", processes=2)
    assert os.listdir(tmp_path / "d") == [] and not (tmp_path / ".d.shards").exists(), "shards that a kill left behind have had their use"


def test_two_builders_do_not_meet(tmp_path):
    def meanwhile():
        with pytest.raises(RuntimeError, match="Another process is building"): Corpus.build(told_text(), Letters(), tmp_path / "c", processes=1)
        yield from told_text()
    Corpus.build(module.Documents(meanwhile, "twice", cut=module.cut_sentences), Letters(), tmp_path / "c", processes=1)
    assert os.listdir(tmp_path) == ["c"]


BUILDER = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from letters import Letters, told_text
from minibert import corpus

class Slow(Letters):
    def ids(self, text):
        time.sleep(0.0005)
        return super().ids(text)

if __name__ == "__main__":
    print("go", flush=True)
    texts = corpus.Documents(lambda: iter(told_text()), "text", cut=corpus.cut_sentences)
    corpus.Corpus.build(texts, Slow(), sys.argv[3], processes=int(sys.argv[4]), shard=1000)
"""


def gone(psutil, helper):
    "Does the process end within half a minute? (One that nobody has buried counts.)"
    for _ in range(300):
        try:
            if helper.status() == psutil.STATUS_ZOMBIE: return True
        except psutil.NoSuchProcess: return True
        time.sleep(0.1)
    return False


def kill_and_go_on(tmp_path, one_go, kills, seed):
    "SIGKILL at random moments, also the helpers' parent alone; then one run to the end."
    psutil = pytest.importorskip("psutil")
    (tmp_path / "builder.py").write_text(BUILDER)
    rng, target = random.Random(seed), tmp_path / "c"
    for k in range(kills + 1):
        command = [sys.executable, tmp_path / "builder.py", ROOT, ROOT / "tests", target, str(1 + k % 3)]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        run.stdout.readline()
        if k < kills:
            try: run.wait(rng.random() * (1 if k % 3 == 0 else 3))
            except subprocess.TimeoutExpired: pass
            helpers = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
            run.kill()
            assert all(gone(psutil, helper) for helper in helpers), "a helper was left behind"
        said = run.communicate()[1].decode()
        if run.returncode == 0: break
        assert k < kills and run.returncode == -9, said
        if target.exists(): break  # killed between the last rename and the end
    assert read_all(target) == one_go, "the corpus is whole or not there"
    assert Corpus.open(target, Letters()).n_documents == 300


def test_killed_and_gone_on(tmp_path, one_go): kill_and_go_on(tmp_path, one_go, 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_killed_at_many_random_moments_and_gone_on(tmp_path, one_go, seed): kill_and_go_on(tmp_path, one_go, 8, seed)


@pytest.fixture
def hub(tmp_path):
    "A local folder in the hub's layout: three tables to train on and one to validate."
    import pyarrow as pa
    import pyarrow.parquet as pq
    (folder := tmp_path / "hub/data").mkdir(parents=True)
    for k in range(3): pq.write_table(pa.table({"text": [row for [row] in told_text()[100 * k:100 * (k + 1)]], "n": list(range(100))}), folder / f"train-0000{k}-of-00003.parquet")
    pq.write_table(pa.table({"text": [row for [row] in told_text(20)], "n": list(range(20))}), folder / "validation-00000-of-00001.parquet")
    return tmp_path / "hub"


def test_a_stream_is_the_same_text_and_keeps_nothing(tmp_path, hub, one_go, monkeypatch):
    import datasets
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    streamed = load_documents(hub, streaming=True)
    assert list(streamed) == list(streamed) == list(as_documents(told_text()))
    assert list(load_documents(hub, split="validation", streaming=True)) == list(as_documents(told_text(20)))
    assert len(list(load_documents(hub, streaming=True, limit=7))) == 7
    assert not list((tmp_path / "cache").rglob("*.arrow")) if (tmp_path / "cache").exists() else True
    assert list(load_documents(hub)) == list(streamed)
    Corpus.build(streamed, Letters(), tmp_path / "c", processes=2, shard=1000)
    assert read_all(tmp_path / "c") == one_go
    with pytest.raises(ValueError, match="columns text, n, and no body"): load_documents(hub, text_column="body", streaming=True)


def test_a_stream_without_a_validation_split_holds_some_out(hub):
    (hub / "data/validation-00000-of-00001.parquet").unlink()
    ours, theirs = (list(load_documents(hub, split=split, streaming=True)) for split in ("train", "validation"))
    assert len(ours) == 284 and len(theirs) == 16 and theirs == list(load_documents(hub, split="validation"))


def test_a_stream_that_breaks_off_says_so_and_can_be_gone_on_with(tmp_path, hub, one_go):
    last = hub / "data/train-00002-of-00003.parquet"
    whole = last.read_bytes()
    last.write_bytes(whole[:len(whole) // 2])
    with pytest.raises(ValueError) as error: Corpus.build(load_documents(hub, streaming=True), Letters(), tmp_path / "c", 1, 1000)
    assert "broke off after" in str(error.value) and "\n" not in str(error.value)
    last.write_bytes(whole)
    Corpus.build(load_documents(hub, streaming=True), Letters(), tmp_path / "c", 1, 1000)
    assert read_all(tmp_path / "c") == one_go


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


def test_the_module_does_not_import_torch():
    "Helper processes import it: torch would cost each of them seconds and 150 MB."
    code = "import sys, minibert.corpus, minibert.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path, hub):
    script = [sys.executable, "benchmarks/corpus.py"]
    subprocess.run([*script, "all", str(hub), "default", str(tmp_path / "corpus.json"), "--short"], cwd=ROOT, check=True)
    found = json.loads((tmp_path / "corpus.json").read_text())
    assert [row["times"] for row in found["prepare"]] == [1, 3, 10] and found["prepare"][2]["tokens"] == 10 * found["prepare"][0]["tokens"]
    assert all(row["equal"] for row in found["shards"]) and {row["pairs"] for row in found["batch"]} == {64, 32}
