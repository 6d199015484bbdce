"""Kills at drawn moments, stops, two processes at one folder, a damaged checkpoint: nothing that was saved is lost."""
import json
import os
import random
import shutil
import signal
import sys
import time

import pytest

from command import bits_of, call, leaves_nothing, listed, quick, refused, start, wait_for

LONG = quick("--steps", 10**6, "--checkpoint-steps", 10)


def drawn_seconds(seed, count, longest):
    draw = random.Random(seed)
    return [draw.uniform(0, longest) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_thirty_times_a_run_ends_as_if_it_had_never_been(tmp_path):
    "Each time it goes on from what it has saved, which is never less than before."
    words = quick("--steps", 2000, "--checkpoint-steps", 20, "--log-steps", 20, "--dropout", 0.1)
    call("pretrain", *words, "--out", tmp_path / "whole")
    saved = 0
    for seconds in drawn_seconds(0, 30, 1.5):
        begun = (tmp_path / "run").exists()
        more = ("--resume", tmp_path / "run") if begun else (*words, "--out", tmp_path / "run")
        process = start("pretrain", *more)
        if begun: process.stderr.readline()  # it has been imported, and opens the run
        else: wait_for("run/checkpoints/0*", process, tmp_path)
        time.sleep(seconds)
        process.kill()
        process.communicate()
        newest = max(int(path.name) for path in (tmp_path / "run/checkpoints").iterdir() if path.name.isdigit())
        assert newest >= saved
        saved = newest
    call("pretrain", "--resume", tmp_path / "run")
    assert len({*bits_of(tmp_path / "whole", tmp_path / "run")}) == 1
    assert len({*bits_of(tmp_path / "whole", tmp_path / "run", name="metrics.jsonl")}) == 1


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_any_moment_of_its_training_it_ends_with_130_and_can_go_on(tmp_path, number):
    for k, seconds in enumerate(drawn_seconds(number, 4, 3)):
        process = start("pretrain", *LONG, "--out", f"r{k}", cwd=tmp_path)
        while "step 1 of" not in process.stderr.readline(): pass
        time.sleep(seconds)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and f"--resume r{k}" in err and "Traceback" not in err, err
        for path in tmp_path.glob(f"r{k}/checkpoints/*/state.json"): assert json.loads(path.read_text())["step"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.posix
def test_ctrl_c_ends_all_its_processes_quietly(tmp_path):
    process = start("pretrain", *LONG, "--processes", 2, cwd=tmp_path, start_new_session=True)
    process.stderr.readline()
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in err, err


@pytest.mark.posix
def test_a_run_that_is_trained_now_is_left_alone_and_goes_on_afterwards(tmp_path):
    "Another process may look at it, and neither train it nor take its name."
    process = start("pretrain", *LONG, "--out", "r", cwd=tmp_path)
    wait_for("r/checkpoints/0*", process, tmp_path)
    for words in (("pretrain", "--resume", "r"), ("pretrain", *LONG, "--out", "r"), ("fill-mask", "r", "a [MASK]")):
        assert "r" in refused(*words, cwd=tmp_path).replace("minibert", "")
    assert "now" in listed(tmp_path)["state"]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume r" in err
    assert listed(tmp_path)["state"].startswith("stopped")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    "A run with several checkpoints, as it was before its last files were written, and its weights at the end."
    home = tmp_path_factory.mktemp("stopped")
    call("pretrain", *quick("--steps", 6, "--checkpoint-steps", 2, "--log-steps", 1, "--out", "whole"), cwd=home)
    shutil.copytree(home / "whole", home / "r")
    for name in ("model.safetensors", "summary.json"): (home / "r" / name).unlink()
    return home


CUT = {"cut": lambda path: path.write_bytes(path.read_bytes()[:20]), "gone": lambda path: path.unlink(), "empty": lambda path: path.write_bytes(b"")}


FILES = "state.json", "model.safetensors", "optimizer.safetensors"
DAMAGED = [pytest.param(name, harm, marks=() if m == n else pytest.mark.slow) for m, name in enumerate(FILES) for n, harm in enumerate(CUT)]


@pytest.mark.parametrize("name, harm", DAMAGED)
def test_a_damaged_newest_checkpoint_is_passed_over(stopped, tmp_path, name, harm):
    shutil.copytree(stopped / "r", tmp_path / "r")
    newest = max((tmp_path / "r/checkpoints").iterdir())
    CUT[harm](newest / name)
    with pytest.warns(UserWarning, match=newest.name): call("pretrain", "--resume", "r", cwd=tmp_path)
    assert len({*bits_of(stopped / "whole", tmp_path / "r")}) == 1


def test_of_damaged_checkpoints_alone_nothing_is_taken(stopped, tmp_path):
    shutil.copytree(stopped / "r", tmp_path / "r")
    for path in (tmp_path / "r/checkpoints").iterdir(): (path / "optimizer.safetensors").unlink()
    leaves_nothing("pretrain", "--resume", "r", cwd=tmp_path)


def test_a_folder_with_another_name_is_no_checkpoint(stopped, tmp_path):
    shutil.copytree(stopped / "r", tmp_path / "r")
    checkpoints = tmp_path / "r/checkpoints"
    shutil.copytree(min(checkpoints.iterdir()), checkpoints / "20260101")
    call("pretrain", "--resume", "r", cwd=tmp_path)
    assert len({*bits_of(stopped / "whole", tmp_path / "r")}) == 1 and (checkpoints / "20260101").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a folder that is open is not moved there")
def test_a_folder_that_is_moved_while_it_trains_goes_on_where_it_is(tmp_path):
    process = start("pretrain", *LONG, "--out", "r", cwd=tmp_path)
    wait_for("r/checkpoints/0*", process, tmp_path)
    (tmp_path / "r").rename(tmp_path / "moved")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and not (tmp_path / "r").exists(), err
    assert listed(tmp_path)["state"].startswith("stopped")
