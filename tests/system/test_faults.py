"""The command where the machine fails it: no room on the disk, no memory, a console without letters, a signal at the wrong moment."""
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from unittest.mock import patch

import pytest
from command import COMMAND, QUICK, call, quick, start

pytestmark = pytest.mark.slow


def limited(kind, size, *words, cwd):
    "The command in a process that may not have more than that of a resource."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    set_limit = lambda: resource.setrlimit(kind, (size, size))  # noqa: E731
    return subprocess.run([*COMMAND, *map(str, words)], cwd=cwd, env=env, text=True, capture_output=True, preexec_fn=set_limit)


def last_line(told):
    assert told.returncode == 2 and "Traceback" not in told.stderr and "mistake in minibert" not in told.stderr, told.stderr
    return told.stderr.splitlines()[-1]


def until(path, process):
    while not list(path.parent.glob(path.name)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_run_that_finds_no_memory_says_so(tmp_path):
    said = last_line(limited(resource.RLIMIT_AS, 5 << 29, "pretrain", *quick("--batch-size", 200_000, "--out", "new"), cwd=tmp_path))
    assert "enough memory" in said and "--batch-size" in said


def test_a_full_disk_names_the_file_and_the_way_on(tmp_path):
    call("pretrain", *QUICK, "--out", "whole", cwd=tmp_path)
    said = last_line(limited(resource.RLIMIT_FSIZE, 1_500_000, "pretrain", *QUICK, "--out", "new", cwd=tmp_path))
    assert "model.safetensors" in said and "go on with minibert pretrain --resume new" in said
    assert not list((tmp_path / "new/checkpoints").iterdir()) and not list(tmp_path.glob(".*"))
    call("pretrain", "--resume", "new", cwd=tmp_path)
    assert (tmp_path / "new/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize("after", range(12))
def test_a_disk_that_fills_up_at_any_file_leaves_a_run_or_nothing(tmp_path, after):
    synced, sync = [], os.fsync
    def full(number):
        synced.append(number)
        if len(synced) > after: raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)
    with patch("os.fsync", full): _, err = call("pretrain", *QUICK, "--out", "new", cwd=tmp_path, code=2)
    said = err.splitlines()[-1]
    assert "No space left on device" in said and "make room" in said and "could not be read or written" in said
    assert (tmp_path / "new").exists() == ("--resume new" in said)
    if (tmp_path / "new").exists(): call("pretrain", "--resume", "new", cwd=tmp_path)
    else: assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("letters", ["ascii", "cp1252", "utf-8"])
def test_a_console_without_letters_gets_codes(run, monkeypatch, letters):
    monkeypatch.setenv("PYTHONIOENCODING", letters)
    for words, code in ((("fill-mask", run, "Käse [MASK] 日本"), 0), (("fill-mask", run, "日本 → Käse"), 2), (("fill-mask", "日本", "a [MASK]"), 2),
                        (("pretrain", "--steps", 0), 2), (("pretrain", "--help"), 0)):
        told = subprocess.run([*COMMAND, *map(str, words)], capture_output=True)
        assert told.returncode == code and b"Traceback" not in told.stderr and b"Error:" not in told.stderr, told.stderr


def test_an_output_that_nobody_reads_is_no_error(run):
    told = subprocess.run(f"{sys.executable} -m minibert.cli.main evaluate {run} --quiet | head -1", shell=True, capture_output=True, text=True)
    assert told.stdout == "{\n" and not told.stderr
    with open("/dev/full", "w") as full:
        told = subprocess.run([*COMMAND, "evaluate", str(run), "--quiet"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert told.returncode == 2 and told.stderr.count("\n") == 1 and "No space left" in told.stderr


def test_a_second_ctrl_c_says_what_was_saved(tmp_path):
    process = start("pretrain", *quick("--steps", 10**6, "--checkpoint-steps", 10, "--batch-size", 64, "--out", "new"), cwd=tmp_path)
    until(tmp_path / "new/checkpoints/0*0", process)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, err = process.communicate()
    assert process.returncode == 130 and "--resume new" in err and "Traceback" not in err
    assert "after step" in err.splitlines()[-1]


def in_a_terminal(*words, cwd):
    "The command as a terminal starts it, when Python itself has begun: a group of its own, all of which hears Ctrl-C."
    begun = COMMAND[-1].replace("sys.exit", "print('begun', flush=True); sys.exit")
    process = start(*words, cwd=cwd, command=(*COMMAND[:-1], begun), start_new_session=True)
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("wait", [0.5, 2, 4, 7])
@pytest.mark.parametrize("words", [("bench", "--size", "tiny", "--minutes", 0.5, "--batch-size", 2, "--threads", 1),
                                   ("pretrain", *quick("--processes", 2, "--steps", 10**6))], ids=["bench", "processes"])
def test_ctrl_c_is_quiet_whenever_it_comes(tmp_path, words, wait):
    process = in_a_terminal(*words, cwd=tmp_path)
    time.sleep(wait)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in err, err
    assert len([line for line in err.split("\n") if line and not line.startswith("step ")]) <= 12, err  # the stages that were told, and the last word
    assert not list(tmp_path.glob("runs/.*"))
