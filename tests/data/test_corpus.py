"""A corpus on disk: faults, hostile inputs, shards, kills and streams. What a notebook has no room for."""
import errno
import io
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
from letters import Letters, told_text, write_hub

from minibert.data import corpus as module
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
    there = Corpus.build(texts, words, tmp_path / "c", processes=processes, shard=3)
    for corpus in (here, there, Corpus.open(tmp_path / "c", words)):
        assert (corpus.n_documents, corpus.n_sentences, corpus.info["dropped"]) == counts
        assert [[len(s) for s in corpus.document(k)] for k in range(corpus.n_documents)] == [[len(s.split()) for s in d if s] for d in texts if any(d)]
        np.testing.assert_array_equal(corpus.ids, here.ids)


def test_unusable_corpora_are_refused_and_leave_nothing(tmp_path):
    for bad in ([], [[]], [[""], ["", " "]]):
        for folder in (None, tmp_path / "c"):
            with pytest.raises(ValueError, match="nothing to build a corpus from"): Corpus.build(bad, Words(), folder)
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
from minibert.data.corpus import Corpus
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


def test_nothing_is_unpickled(tmp_path):
    words = Words()
    Corpus.build(documents(), words, tmp_path / "c")
    np.save(tmp_path / "c/ids.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="damaged"): Corpus.open(tmp_path / "c", words)


# ---- more text than memory: shards, kills, streams


def as_documents(raw): return Documents(lambda: iter(raw), "text", cut=cut_sentences)


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


def test_any_iterable_can_be_built_in_shards_and_empty_documents_are_counted_once(tmp_path):
    mixed = [["a b", "c"] if k % 3 else ["", " "] for k in range(60)]
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
    with pytest.raises(ConnectionError): Corpus.build(Documents(broken, "broken", cut=cut_sentences), Letters(), folder, 1, 1000)


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
        with pytest.raises(ValueError, match=f"{victim.name} is damaged.*begin a new run"):
            Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert not (tmp_path / "c").exists()
    with pytest.warns(UserWarning, match=victim.name): Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 1, 1000)
    assert read_all(tmp_path / "c") == one_go


@pytest.mark.parametrize("word, kind, said", [("exit", RuntimeError, "shard .* died: see whether memory ran out"), ("raise", KeyError, "gave up")])
def test_what_happens_to_a_helper_is_said_and_the_rest_is_kept(tmp_path, one_go, word, kind, said):
    from multiprocessing import active_children
    bad = told_text()
    bad[250] = [f"Story 250 will {word}. It ends."]
    with pytest.raises(kind, match=said): Corpus.build(as_documents(bad), Letters(), tmp_path / "c", 2, 1000)
    assert not active_children() and not (tmp_path / "c").exists() and len(list((tmp_path / ".c.shards").glob("0*"))) >= 3
    Corpus.build(as_documents(told_text()), Letters(), tmp_path / "c", 2, 1000)
    assert read_all(tmp_path / "c") == one_go and not active_children()


def test_shards_refuse_what_a_corpus_refuses(tmp_path):
    for bad in ([], [[]], [[""], [" "]]):
        with pytest.raises(ValueError, match="nothing to build a corpus from"): Corpus.build(bad, Letters(), tmp_path / "c", processes=1)
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
    Corpus.build(Documents(meanwhile, "twice", cut=cut_sentences), Letters(), tmp_path / "c", processes=1)
    assert os.listdir(tmp_path) == ["c"]


BUILDER = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from letters import Letters, told_text
from minibert.data.corpus import Corpus
from minibert.data.documents import Documents, cut_sentences

class Slow(Letters):
    def ids(self, text):
        time.sleep(0.0005)
        return super().ids(text)

if __name__ == "__main__":
    print("go", flush=True)
    texts = Documents(lambda: iter(told_text()), "text", cut=cut_sentences)
    Corpus.build(texts, Slow(), sys.argv[3], processes=int(sys.argv[4]), shard=1000)
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
def hub(tmp_path): return write_hub(tmp_path / "hub")


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


def test_a_stream_that_breaks_off_says_so_and_can_be_gone_on_with(tmp_path, hub, one_go):
    last = hub / "data/train-00002-of-00003.parquet"
    whole = last.read_bytes()
    last.write_bytes(whole[:len(whole) // 2])
    with pytest.raises(ValueError) as error: Corpus.build(load_documents(hub, streaming=True), Letters(), tmp_path / "c", 1, 1000)
    assert "broke off after" in str(error.value) and "\n" not in str(error.value)
    last.write_bytes(whole)
    Corpus.build(load_documents(hub, streaming=True), Letters(), tmp_path / "c", 1, 1000)
    assert read_all(tmp_path / "c") == one_go


def test_the_module_does_not_import_torch():
    "Helper processes import it: torch or datasets would cost each of them seconds and 150 MB."
    code = "import sys, minibert.data.corpus, minibert.tokenizer; sys.exit(any(name in sys.modules for name in ('torch', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path, hub):
    script = [sys.executable, "benchmarks/corpus.py"]
    subprocess.run([*script, "all", str(hub), "default", str(tmp_path / "corpus.json"), "--short"], cwd=ROOT, check=True)
    found = json.loads((tmp_path / "corpus.json").read_text())
    assert [row["times"] for row in found["prepare"]] == [1, 3, 10] and found["prepare"][2]["tokens"] == 10 * found["prepare"][0]["tokens"]
    assert all(row["equal"] for row in found["shards"]) and {row["pairs"] for row in found["batch"]} == {64, 32}
