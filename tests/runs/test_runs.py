"""The life of a run: begun, stopped, gone on with, asked, evaluated, listed, compared."""
import itertools
import json
import shutil
import signal
import threading
import time

import pytest
import yaml

from command import QUICK, STARTED, as_json, bits_of, call, leaves_nothing, listed, quick, refused

LONGER = quick("--steps", 120, "--log-steps", 1, "--dropout", 0.1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "A run that nobody stopped."
    folder = tmp_path_factory.mktemp("whole") / "run"
    call("pretrain", *LONGER, "--out", folder)
    return folder


def interrupt_after(path, lines):
    "Send Ctrl-C to this process when the file has so many lines."
    def wait():
        while not (path.is_file() and path.read_text().count("\n") >= lines): time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.posix
def test_a_run_that_was_stopped_goes_on_bit_for_bit(whole, tmp_path):
    folder = tmp_path / "run"
    interrupt_after(folder / "metrics.jsonl", 3)
    _, err = call("pretrain", *LONGER, "--out", folder, code=130)
    assert f"--resume {folder}" in err and not (folder / "summary.json").exists()
    checkpoint, = (folder / "checkpoints").iterdir()
    assert 3 <= json.loads((checkpoint / "state.json").read_text())["step"] == int(checkpoint.name) < 120
    assert "stopped" in listed(tmp_path)["state"]
    call("pretrain", "--resume", folder)
    for name in ("model.safetensors", "vocab.txt"):
        one, other = bits_of(whole, folder, name=name)
        assert one == other
    lines = [bits.splitlines() for bits in bits_of(whole, folder, name="metrics.jsonl")]
    assert lines[0] == lines[1] and len(lines[0]) == 120
    assert listed(tmp_path)["state"] == "finished"


def test_its_options_begin_the_same_run_again(run, tmp_path):
    options = yaml.safe_load(call("pretrain", "--config", run / "run.yaml", "--print-config")[0])
    assert (options["steps"], options["batch_size"], options["length"]) == (4, 4, 32)
    call("pretrain", "--config", run / "run.yaml", "--out", tmp_path / "twin")
    assert len({*bits_of(run, tmp_path / "twin")}) == 1


def test_runs_get_the_next_number_and_stand_by_number_and_name(run, tmp_path):
    for name in ("10", "9", "zoo", "ant"): shutil.copytree(run, tmp_path / "runs" / name)
    call("pretrain", *quick("--steps", 1), cwd=tmp_path)
    found = [each["run"] for each in as_json("runs", cwd=tmp_path)["runs"]]
    assert found == [f"runs/{name}" for name in ("9", "10", "11", "ant", "zoo")]


def test_a_taken_folder_is_refused_and_stays_as_it_is(run, copy):
    for words in (("pretrain", *QUICK), ("finetune", run, "--dataset", "t.csv")):
        assert str(copy) in leaves_nothing(*words, "--out", copy, cwd=copy.parent)


def test_a_model_that_is_started_from_keeps_its_sizes_and_vocabulary(run, tmp_path):
    call("pretrain", *STARTED, "--start", run, "--out", "new", cwd=tmp_path)
    one, other = bits_of(run, tmp_path / "new", name="vocab.txt")
    assert one == other
    config = [json.loads((folder / "config.json").read_text()) for folder in (run, tmp_path / "new")]
    assert config[0] == config[1]
    shutil.rmtree(tmp_path / "new/checkpoints")  # a run that is finished needs none to be asked
    assert "%" in call("fill-mask", "new", "a [MASK]", cwd=tmp_path)[0]


def test_a_start_from_half_precision_trains_in_float32(run, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file
    half = shutil.copytree(run, tmp_path / "half", ignore=shutil.ignore_patterns("*run.yaml"))
    weights = {name: value.bfloat16() for name, value in load_file(run / "model.safetensors").items()}
    save_file(weights, half / "model.safetensors", {"format": "pt"})
    call("pretrain", *STARTED, "--start", half, "--precision", "float32", "--out", tmp_path / "new")
    assert {value.dtype for value in load_file(tmp_path / "new/model.safetensors").values()} == {torch.float32}


def test_a_run_that_diverges_says_so_at_once_and_in_the_list(tmp_path):
    call("pretrain", *quick("--learning-rate", 1e30, "--out", "runs/x"), cwd=tmp_path, code=2)
    assert [*tmp_path.glob("runs/x/batch-of-step-*")] and not (tmp_path / "runs/x/summary.json").exists()
    assert "diverge" in listed(tmp_path / "runs")["state"]


def test_a_run_goes_on_only_with_its_own_text(copy):
    shutil.rmtree(copy / "corpus")
    shutil.copytree(copy / "val", copy / "corpus")
    (copy / "summary.json").unlink()
    refused("pretrain", "--resume", copy)


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(run, copy):
    for name in ("model.safetensors", "summary.json"): (copy / name).unlink()
    for path in (copy / "checkpoints").iterdir(): shutil.rmtree(path)
    whole = bits_of(copy, name="metrics.jsonl")
    (copy / "metrics.jsonl").write_text((copy / "metrics.jsonl").read_text()[:-9])
    call("pretrain", "--resume", copy)
    assert len({*bits_of(run, copy)}) == 1 and bits_of(copy, name="metrics.jsonl") == whole


@pytest.mark.slow
def test_a_run_goes_on_without_its_metrics(run, copy):
    (copy / "metrics.jsonl").unlink()
    call("pretrain", "--resume", copy)
    assert len({*bits_of(run, copy)}) == 1


@pytest.mark.parametrize("name, text", [
    *itertools.product(["summary.json", "run.yaml", "checkpoints/00000004/state.json"], ["", "[]", '{"a": 1}']),
    ("metrics.jsonl", '{"step": 1\n{"step": 2}\n')])
def test_a_damaged_run_does_not_hide_the_others(run, tmp_path, name, text):
    for number in "12": shutil.copytree(run, tmp_path / "runs" / number)
    (tmp_path / "runs/1" / name).write_text(text)
    found = as_json("runs", cwd=tmp_path)["runs"]
    assert [each["run"] for each in found] == ["runs/1", "runs/2"] and found[1]["state"] == "finished"
    call("runs", cwd=tmp_path)


def test_the_list_changes_nothing_and_an_empty_one_is_one(run, tmp_path):
    shutil.copytree(run, tmp_path / "runs/1")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found, = as_json("runs", cwd=tmp_path)["runs"]
    assert found["state"] == "finished" and found["model"] == "bert"
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert {path: data for path, data in before.items() if path.name != ".lock"} == after
    (tmp_path / "none").mkdir()
    assert as_json("runs", "none", cwd=tmp_path) == {"runs": []}
    assert "nowhere" in refused("runs", "nowhere", cwd=tmp_path)


def test_a_small_text_is_measured_with_a_warning(run, tmp_path):
    (tmp_path / "small.txt").write_text("Anna saw the cat. It ran to the tree.\n\nBen had a ball. He lost it there.\n\n" * 40)
    with pytest.warns(UserWarning, match="narrow"): found = as_json("evaluate", run, "--dataset", "small.txt", cwd=tmp_path)
    assert found["mlm_tokens"] > 0 and "mlm_loss" in found
