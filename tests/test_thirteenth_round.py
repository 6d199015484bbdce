"""What the thirteenth round of tries has found: figures without a sum, NULs in tables, and a pool that waited for ever."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import FILMS, call, listed, quick, refused, start

from minibert.core.errors import in_words
from minibert.runs.overview import _label, verdict
from minibert.measure.probe_runs import read_conllu
from minibert.text.files import read_vocab

WORD = "{}\tcat\tcat\t{}\tNN\t_\t0\troot\t_\t_\n"


def test_runs_believes_no_edited_figures(copy, tmp_path):
    assert listed(tmp_path)["state"] == "finished"
    path = copy / "summary.json"
    path.write_text(path.read_text().replace('"mlm_loss": ', '"mlm_loss": 1'))
    assert "summary.json is not the file that was written" in listed(tmp_path)["damaged"]


def test_runs_believes_no_edited_figures_of_a_classifier(classifier, tmp_path):
    path = shutil.copytree(classifier, tmp_path / "c") / "figures.json"
    assert listed(tmp_path)["state"] == "finished"
    path.write_text(path.read_text().replace('"accuracy": 0', '"accuracy": 1'))
    assert "figures.json is not the file that was written" in listed(tmp_path)["damaged"]


def test_compare_draws_no_lines_of_another_run(copy, run):
    call("compare", run, copy, cwd=copy.parent)
    path = copy / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 5, "loss": 1.0, "mlm_loss": 1.0}\n')
    assert "metrics.jsonl is not the file that was written" in refused("compare", run, copy, cwd=copy.parent)


def test_no_curve_is_nameless_and_no_rounding_wins():
    assert [_label(name, "one") for name in ("a", "_a", "训练")] == ["a", "./_a", "one run"]
    row = dict(difference=2e-8, interval=(1e-8, 3e-8))
    assert verdict("a", "b", dict(mlm_loss=row)).startswith("No difference can be told")
    row = dict(difference=2e-2, interval=(1e-2, 3e-2))
    assert verdict("a", "b", dict(mlm_loss=row)).startswith("a is better")


def test_nul_characters_are_no_text(run, tmp_path):
    (tmp_path / "films.csv").write_text(FILMS.replace("film,bad", "fi\0m,bad", 1))
    assert "films.csv holds NUL characters" in refused("finetune", run, "--dataset", "films.csv", "--out", "c", cwd=tmp_path)
    assert "films.csv holds NUL characters" in refused("pretrain", "--dataset", "films.csv", cwd=tmp_path)
    (tmp_path / "long.txt").write_text("Anna saw the cat.\n\n" * 60_000 + "B\0b ran.\n\n")
    assert "long.txt holds NUL characters" in refused("pretrain", *quick("--dataset", "long.txt"), cwd=tmp_path)
    (tmp_path / "tags.conllu").write_text(WORD.format(1, "NO\0N"))
    with pytest.raises(ValueError, match="tags.conllu holds NUL characters"): read_conllu(tmp_path / "tags.conllu")
    (tmp_path / "tags.conllu").write_text(WORD.format(1, "NOUN"))
    assert read_conllu(tmp_path / "tags.conllu").tags == [["NOUN"]]


def test_a_piece_that_stands_twice_is_named_with_its_lines(copy):
    for name in "tokenizer.json", "tokenizer_config.json", "SHA256SUMS": (copy / name).unlink()
    path = copy / "vocab.txt"
    pieces = path.read_text().split("\n")
    path.write_text("\ufeff" + "\n".join(pieces), encoding="utf8")
    assert read_vocab(path) == pieces[:-1]  # an editor's mark is no piece
    path.write_text("\n".join([*pieces[:9], pieces[20], *pieces[10:]]))
    said = refused("fill-mask", copy, "a [MASK]", cwd=copy.parent)
    assert f"vocab.txt has the piece {pieces[20]!r} in the lines 10 and 21: copy it again" in said


def test_a_damaged_parquet_file_cannot_be_saved_as_utf8(run, tmp_path):
    import pyarrow
    import pyarrow.parquet
    rows = pyarrow.table(dict(text=["a good film", "a bad film"] * 20, label=["good", "bad"] * 20))
    path = tmp_path / "films.parquet"
    pyarrow.parquet.write_table(rows, path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"good film", b"go\xffd film"))
    assert "films.parquet is damaged" in refused("finetune", run, "--dataset", path.name, "--out", "c", cwd=tmp_path)


@pytest.mark.parametrize("command, names", [
    ("pretrain", {"--batch-size", "--length", "--size"}), ("finetune", {"--batch-size", "--length"}), ("bench", {"--batch-size"}),
    ("probe", {}), ("fill-mask", {}), ("", {})])
def test_too_little_memory_names_only_options_of_that_command(command, names):
    said = in_words(MemoryError(), command)
    assert said.startswith("There isn't enough memory for that: ") and said.endswith("free some.")
    options = {word.strip(",.") for word in said.split() if word.startswith("--")}
    assert options >= set(names) and bool(options) == bool(names)
    if options: assert not options - set(call(command, "--help")[0].split())


def test_a_place_that_nobody_may_write_into_is_named(copy, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, kind, **how: kind != os.W_OK)
    assert f"write into {copy.parent}. " in refused("inspect", copy, "a [MASK]", "--out", "page", cwd=copy.parent)
    assert f"write into {copy.parent}. " in refused("compare", copy, copy, cwd=copy.parent)


POOL = """
import os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from minibert.core.errors import deaf_children
from minibert.core.precision import follow_parent

if __name__ == "__main__":
    try:
        with ProcessPoolExecutor(2, get_context("spawn"), follow_parent) as pool:
            with deaf_children(): both = [pool.submit(time.sleep, 0.5) for _ in range(2)]
            for each in both: each.result()
            both = [pool.submit(os.getpid), pool.submit(time.sleep, 0.2)]
            for each in both: each.result()
            workers = sorted(active_children(), key=lambda worker: worker.pid)
            workers[int(sys.argv[1])].kill()
            time.sleep(0.5)
            pool.submit(time.sleep, 0).result()
    except BrokenProcessPool: print("broken")
"""


@pytest.mark.posix
@pytest.mark.parametrize("which", [0, 1])  # one of the two holds the lock of the queue
def test_no_pool_waits_for_a_worker_that_was_killed(which, tmp_path):
    (tmp_path / "pool.py").write_text(POOL)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    told = subprocess.run([sys.executable, "pool.py", str(which)], cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)
    assert told.returncode == 0 and told.stdout.strip() == "broken", told


@pytest.mark.parametrize("words", [("pretrain", *quick()), pytest.param(("pretrain", *quick("--backend", "numpy")), marks=pytest.mark.slow),
                                   ("finetune", "{run}", "--dataset", "films.csv", "--epochs", "1", "--measures", "1", "--length", "16")])
def test_a_run_that_is_measured_is_no_stopped_one(run, tmp_path, monkeypatch, words):
    from minibert.runs import finetune as finetune_runs
    from minibert.runs import report
    (tmp_path / "films.csv").write_text(FILMS)
    told = []
    def looks(measure, given):
        told.append(listed(tmp_path / "r")["state"])
        if "numpy" not in words:  # which cannot go on
            told.append(start(words[0], "--resume", "r/1", "--quiet", cwd=tmp_path).communicate()[1])  # in this process it would be let in
        return measure(*given)
    measure, summarise = report.measure, finetune_runs._summarise
    monkeypatch.setattr(report, "measure", lambda *given: looks(measure, given))
    monkeypatch.setattr(finetune_runs, "_summarise", lambda *given: looks(summarise, given))
    call(*(word.format(run=run) for word in words), "--out", "r/1", cwd=tmp_path)
    monkeypatch.undo()
    assert told[0] == "being trained now" and listed(tmp_path / "r")["state"] == "finished"
    assert "numpy" in words or "Another process is training in r/1" in told[1]


@pytest.mark.parametrize("command, module, name", [("pretrain", "report", "measure"), ("finetune", "finetune", "_summarise")])
def test_a_run_that_is_moved_while_it_is_measured(run, tmp_path, monkeypatch, command, module, name):
    (tmp_path / "films.csv").write_text(FILMS)
    words = quick() if command == "pretrain" else (run, "--dataset", "films.csv", "--epochs", 1, "--measures", 1, "--length", 16)
    module = __import__(f"minibert.runs.{module}", fromlist=[name])
    monkeypatch.setattr(module, name, lambda *_: (tmp_path / "r").rename(tmp_path / "moved") and {})
    assert "was moved or deleted" in refused(command, *words, "--quiet", "--out", "r", cwd=tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "r").exists()
    call(command, "--resume", "moved", cwd=tmp_path)
    assert listed(tmp_path)["state"] == "finished"


def test_advice_that_can_be_followed(run, tmp_path):
    assert "'–k' begins with a dash as word processors set it" in refused("fill-mask", run, "a [MASK]", "–k", 3)
    (tmp_path / "films.csv").write_text("My survey 2024,\n" + FILMS)
    said = refused("finetune", run, "--dataset", "films.csv", "--out", "c", cwd=tmp_path)
    assert "Where these are no names, let the table begin with a line of them" in said
    for words in ("pretrain",), ("evaluate", run):
        assert "is that of a model (model.safetensors), and texts are wanted" in refused(*words, "--dataset", run, cwd=tmp_path)
    (tmp_path / "films.csv").write_text(FILMS + "the best film,Good\nnot a film,Bad\n" * 9)
    with pytest.warns(UserWarning, match="the labels 'Bad' and 'bad', which are two classes"):
        call("finetune", run, "--dataset", "films.csv", "--frozen", "--out", "c", cwd=tmp_path)


def test_a_small_text_that_is_asked_often_is_said(run, tmp_path):
    (tmp_path / "small.txt").write_text("Anna saw the cat. It ran to the tree.\n\nBen had a ball. He lost it there.\n\n" * 40)
    with pytest.warns(UserWarning, match="so each several times: the intervals are too narrow"):
        call("evaluate", run, "--dataset", "small.txt", cwd=tmp_path)


def test_a_killed_process_leaves_nothing_for_ever_and_a_checkpoint_names_its_run(copy):
    half = copy.with_name(f".{copy.name}.99999.tmp")
    half.mkdir()
    (copy / "summary.json").unlink()
    call("pretrain", "--resume", copy, "--quiet")
    assert not half.exists() and (copy / "summary.json").is_file()
    checkpoint = max(copy.glob("checkpoints/*"))
    assert f"ask {copy}, or copy vocab.txt" in refused("fill-mask", checkpoint, "a [MASK]")
    for name in "vocab.txt", "tokenizer_config.json": shutil.copy(copy / name, checkpoint)
    assert call("fill-mask", checkpoint, "a [MASK]") == call("fill-mask", copy, "a [MASK]")
