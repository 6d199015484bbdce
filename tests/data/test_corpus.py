"""A corpus on disk: faults, processes, kills and streams. What a notebook has no room for."""
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from minibert.core.errors import UserError
from minibert.data.corpus import Corpus
from minibert.data.documents import Documents, cut_sentences, load_documents
from minibert.text.cleaning import SPECIALS
from minibert.tokenizer import WordPieceTokenizer

PIECES = [*SPECIALS, "one", "two", "three", ".", "\u00e9", "e", *map(str, range(50))]


class Words:
    "A tokenizer that numbers words as they come."

    fingerprint = "words"

    def __init__(self, size=None): self.vocab, self.size = {}, size

    @property
    def vocab_size(self): return self.size or max(len(self.vocab), 1)

    def ids(self, text): return [self.vocab.setdefault(w, len(self.vocab)) for w in text.lower().split()]


def documents(n=5): return [[f"one {k} .", f"two {k} .", "three ."] for k in range(n)]


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


@pytest.mark.parametrize("texts, counts", [
    ([["one ."]], (1, 1, 0)), (documents(1), (1, 3, 0)), ([["one ."], ["two ."], ["three ."]], (3, 3, 0)),
    ([["a .", "b ."], ["c ."], ["", "d"], [], [""]], (3, 4, 2))])
@pytest.mark.parametrize("processes", [0, 1])
def test_one_document_or_one_sentence_is_a_corpus(tmp_path, texts, counts, processes):
    here = Corpus.build(texts, words := Words())
    there = Corpus.build(texts, words, tmp_path / "c", processes=processes, chunk=3)
    for corpus in (here, there, Corpus.open(tmp_path / "c", words)):
        assert (corpus.n_documents, corpus.n_sentences, corpus.info["dropped"]) == counts
        assert [[len(s) for s in corpus.document(k)] for k in range(corpus.n_documents)] == [[len(s.split()) for s in d if s] for d in texts if any(d)]
        np.testing.assert_array_equal(corpus.ids, here.ids)


def test_unusable_corpora_are_refused_and_leave_nothing(tmp_path):
    for bad in ([], [[]], [[""], ["", " "]]):
        for folder in (None, tmp_path / "c"):
            with pytest.raises(UserError): Corpus.build(bad, Words(), folder)
    def broken():
        yield from documents()
        raise RuntimeError("in the middle")
    with pytest.raises(RuntimeError): Corpus.build(broken(), Words(), tmp_path / "c")
    assert not os.listdir(tmp_path)


def test_a_folder_is_never_written_over(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine").write_text("mine")
    with pytest.raises(UserError, match="exists"): Corpus.build(documents(), Words(), tmp_path / "c")
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
    with pytest.raises(FileNotFoundError if harm == "gone" else UserError) as error: Corpus.open(tmp_path / "c", words)
    assert str(tmp_path / "c") in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("rules", [dict(lowercase=False), dict(strip_accents=False), dict(tokenize_chinese_chars=False)])
def test_the_same_pieces_with_other_rules_are_refused(tmp_path, rules):
    "With the real class: an uncased corpus must not open with a cased tokenizer, nor the other way round."
    ours, other = WordPieceTokenizer(PIECES), WordPieceTokenizer(PIECES, **rules)
    for build, wrong, folder in ((ours, other, tmp_path / "c"), (other, ours, tmp_path / "d")):
        Corpus.build(documents(), build, folder)
        assert Corpus.open(folder, WordPieceTokenizer(PIECES, **(rules if build is other else {}))).fingerprint == build.fingerprint
        with pytest.raises(UserError): Corpus.open(folder, wrong)


def test_another_vocabulary_is_refused(tmp_path):
    Corpus.build(documents(), WordPieceTokenizer(PIECES), tmp_path / "c")
    swapped, longer = WordPieceTokenizer([*PIECES[:-2], *PIECES[:-3:-1]]), WordPieceTokenizer([*PIECES, "more"])
    for other in (swapped, longer):
        with pytest.raises(UserError): Corpus.open(tmp_path / "c", other)
    Corpus.open(tmp_path / "c", WordPieceTokenizer(PIECES, max_length=7, cache_size=0))  # what changes no id is no matter


def test_a_corpus_of_another_version_is_named(tmp_path):
    Corpus.build(documents(), Words(), tmp_path / "c")
    info = json.loads((tmp_path / "c/corpus.json").read_text())
    for change in (dict(format=0), dict(format="x")):
        (tmp_path / "c/corpus.json").write_text(json.dumps(info | change))
        with pytest.raises(UserError, match="format"): Corpus.open(tmp_path / "c", Words())
    for name in ("format", "crc32"):
        (tmp_path / "c/corpus.json").write_text(json.dumps({k: v for k, v in info.items() if k != name}))
        with pytest.raises(UserError, match=name): Corpus.open(tmp_path / "c", Words())


def test_nothing_is_unpickled(tmp_path):
    words = Words()
    Corpus.build(documents(), words, tmp_path / "c")
    np.save(tmp_path / "c/ids.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError): Corpus.open(tmp_path / "c", words)


# ---- more text than memory: processes, kills, streams

class Letters:
    "A tokenizer that numbers letters, and gives up or ends its process at a word."

    vocab_size, fingerprint = 128, "letters"

    def ids(self, text):
        if "raise" in text: raise KeyError("gave up")
        if "exit" in text: os._exit(3)
        return [ord(letter) for letter in text if letter.isascii()]


def raw_texts(n=300): return [[f"Story {k} begins. It goes on {'and on ' * (k % 7)}until it ends."] for k in range(n)]


def as_documents(raw): return Documents(lambda: iter(raw), "text", cut=cut_sentences)


def read_all(folder): return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def one_go(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "corpus"
    Corpus.build(as_documents(raw_texts()), Letters(), folder)
    return read_all(folder)


@pytest.mark.parametrize("processes, chunk", [(0, 300), (1, 1000), (2, 1000), (3, 1000), (3, 1 << 22)])
def test_the_number_of_processes_changes_no_byte(tmp_path, one_go, processes, chunk):
    opened = Corpus.build(as_documents(raw_texts()), Letters(), tmp_path / "c", processes=processes, chunk=chunk)
    assert read_all(tmp_path / "c") == one_go and os.listdir(tmp_path) == ["c"]
    assert opened.n_documents == 300 and isinstance(opened.ids, np.memmap)
    assert Corpus.open(tmp_path / "c", Letters()).info == opened.info == Corpus.build(as_documents(raw_texts()), Letters()).info


def test_any_iterable_can_be_built_in_chunks_and_empty_documents_are_counted_once(tmp_path):
    mixed = [["a b", "c"] if k % 3 else ["", ""] for k in range(60)]
    whole = Corpus.build(iter(mixed), Letters(), tmp_path / "whole")
    Corpus.build(iter(mixed), Letters(), tmp_path / "chunks", chunk=20)
    assert read_all(tmp_path / "whole") == read_all(tmp_path / "chunks") and whole.info["dropped"] == 20


@pytest.mark.parametrize("word, kind", [("exit", RuntimeError), ("raise", KeyError)])
def test_what_happens_to_a_worker_is_raised_and_leaves_nothing(tmp_path, word, kind):
    from multiprocessing import active_children
    bad = raw_texts()
    bad[250] = [f"Story 250 will {word}. It ends."]
    with pytest.raises(kind): Corpus.build(as_documents(bad), Letters(), tmp_path / "c", 2, 1000)
    assert not active_children() and not os.listdir(tmp_path)


BUILDER = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from test_corpus import Letters, as_documents, raw_texts
from minibert.data.corpus import Corpus

class Slow(Letters):
    def ids(self, text):
        time.sleep(0.0005)
        return super().ids(text)

if __name__ == "__main__":
    print("go", flush=True)
    Corpus.build(as_documents(raw_texts()), Slow(), sys.argv[3], processes=int(sys.argv[4]), chunk=1000)
"""


def gone(psutil, helper):
    "Does the process end within half a minute? (One that nobody has buried counts.)"
    for _ in range(300):
        try:
            if helper.status() == psutil.STATUS_ZOMBIE: return True
        except psutil.NoSuchProcess: return True
        time.sleep(0.1)
    return False


def kill_and_try_again(tmp_path, one_go, kills, seed):
    "SIGKILL at random moments, also the workers' parent alone; then one run to the end."
    psutil = pytest.importorskip("psutil")
    (tmp_path / "builder.py").write_text(BUILDER)
    rng, target = random.Random(seed), tmp_path / "c"
    for k in range(kills + 1):
        command = [sys.executable, tmp_path / "builder.py", ROOT, ROOT / "tests/data", target, str(1 + k % 3)]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | dict(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"))
        run.stdout.readline()
        if k < kills:
            try: run.wait(rng.random() * 2)
            except subprocess.TimeoutExpired: pass
            workers = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
            run.kill()
            assert all(gone(psutil, worker) for worker in workers), "a worker was left behind"
        errors = run.communicate()[1].decode()
        if run.returncode == 0 or target.exists(): break
        assert k < kills and run.returncode == -9, errors
    assert read_all(target) == one_go, "the corpus is whole or not there"


def test_killed_and_tried_again(tmp_path, one_go): kill_and_try_again(tmp_path, one_go, 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_killed_at_many_random_moments(tmp_path, one_go, seed): kill_and_try_again(tmp_path, one_go, 8, seed)


@pytest.fixture
def tables(tmp_path):
    "A folder in the hub's layout."
    import pyarrow as pa
    import pyarrow.parquet as pq
    (place := tmp_path / "hub/data").mkdir(parents=True)
    texts = [text for [text] in raw_texts()]
    for k in range(3): pq.write_table(pa.table({"text": texts[100 * k:100 * k + 100]}), place / f"train-{k:05}-of-00003.parquet")
    pq.write_table(pa.table({"text": texts[:20]}), place / "validation-00000-of-00001.parquet")
    return tmp_path / "hub"


def test_tables_are_the_same_text(tmp_path, tables, one_go):
    read = load_documents(tables)
    assert list(read) == list(read) == list(as_documents(raw_texts()))
    assert list(load_documents(tables, split="validation")) == list(as_documents(raw_texts(20)))
    Corpus.build(read, Letters(), tmp_path / "c", processes=2, chunk=1000)
    assert read_all(tmp_path / "c") == one_go


def test_a_table_that_is_cut_off_is_named_and_leaves_nothing(tmp_path, tables):
    last = tables / "data/train-00002-of-00003.parquet"
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(UserError, match="train-00002-of-00003"): Corpus.build(load_documents(tables), Letters(), tmp_path / "c")
    assert os.listdir(tmp_path) == ["hub"]


def test_the_module_does_not_import_torch():
    "Worker processes import it: torch or datasets would cost each of them seconds and 150 MB."
    code = "import sys, minibert.data.corpus, minibert.tokenizer; sys.exit(any(name in sys.modules for name in ('torch', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path, tables):
    script = [sys.executable, "benchmarks/corpus.py"]
    subprocess.run([*script, "all", str(tables), "default", str(tmp_path / "corpus.json"), "--short"], cwd=ROOT, check=True)
    found = json.loads((tmp_path / "corpus.json").read_text())
    assert [row["times"] for row in found["prepare"]] == [1, 3, 10] and found["prepare"][2]["tokens"] == 10 * found["prepare"][0]["tokens"]
    assert all(row["equal"] for row in found["shards"]) and {row["pairs"] for row in found["batch"]} == {64, 32}
