"""The command where the machine fails it: no room on the disk, a console without letters, a signal."""
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
from minibert.train.checkpoints import latest_checkpoint

pytestmark = pytest.mark.slow


def limited(kind, size, *words, cwd):
    "The command in a process that may not have more than that of a resource."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    set_limit = lambda: resource.setrlimit(kind, (size, size))  # noqa: E731
    return subprocess.run([*COMMAND, *map(str, words)], cwd=cwd, env=env, text=True, capture_output=True, preexec_fn=set_limit)


def until(path, process):
    while not list(path.parent.glob(path.name)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_file_that_finds_no_room_is_named_and_the_run_goes_on(tmp_path):
    call("pretrain", *QUICK, "--out", "whole", cwd=tmp_path)
    told = limited(resource.RLIMIT_FSIZE, 1_500_000, "pretrain", *QUICK, "--out", "new", cwd=tmp_path)
    assert told.returncode == 2 and "model.safetensors" in told.stderr and "Traceback" not in told.stderr, told.stderr
    assert not list((tmp_path / "new/checkpoints").iterdir()) and not list(tmp_path.glob(".*"))
    call("pretrain", "--resume", "new", cwd=tmp_path)
    assert (tmp_path / "new/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize("after", range(0, 24, 3))
def test_a_disk_that_fills_up_at_any_file_leaves_a_run_or_nothing(tmp_path, after):
    synced, sync = [], os.fsync
    def full(number):
        synced.append(number)
        if len(synced) > after: raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)
    with patch("os.fsync", full): _, err = call("pretrain", *QUICK, "--out", "new", cwd=tmp_path, code=2)
    assert "No space left on device" in err
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
    assert told.stdout.count("\n") == 1 and not told.stderr
    with open("/dev/full", "w") as full:
        told = subprocess.run([*COMMAND, "evaluate", str(run), "--quiet"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert told.returncode == 2 and told.stderr.count("\n") == 1 and "No space left" in told.stderr


def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(tmp_path):
    process = start("pretrain", *quick("--steps", 10**6, "--checkpoint-steps", 10, "--batch-size", 64, "--out", "new"), cwd=tmp_path)
    until(tmp_path / "new/checkpoints/0*0", process)
    for _ in range(2): process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err, err
    assert int(latest_checkpoint(tmp_path / "new").name) >= 10
