"""The command as tests call it, in this process or one of its own, and what a refusal has to look like."""
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

COMMAND = sys.executable, "-m", "minibert"
FILMS = "text,label\n" + "a good film,good\na bad film,bad\n" * 30
QUICK = "--steps", "4", "--batch-size", "4", "--length", "32", "--vocab-size", "1000"
STARTED = QUICK[:6]  # for a model that is started from another: the vocabulary is that one's


def quick(*words):
    "The words, and of QUICK what they leave open: an option is given once, and minutes decide the steps."
    given = {*words, "--steps"} if "--minutes" in words else {*words}
    return (*(word for pair in zip(QUICK[::2], QUICK[1::2]) if pair[0] not in given for word in pair), *words)


def start(*words, cwd=None, command=COMMAND, **how):
    "The command in a process of its own."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([*command, *map(str, words)], cwd=cwd, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def wait_for(pattern, process, cwd):
    "Wait until a file of that pattern is in the folder, while the process runs."
    while not [*Path(cwd).glob(pattern)]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@contextlib.contextmanager
def inside(folder):
    before = os.getcwd()
    os.chdir(folder or before)
    try: yield
    finally: os.chdir(before)


def call(*words, cwd=None, code=0):
    "The command in this process, which saves seconds of imports at each call: what it printed and what it said."
    from minibert.cli.main import main
    out, err = io.StringIO(), io.StringIO()
    with inside(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: found = main([str(word) for word in words])
        except SystemExit as stopped: found = stopped.code
    assert (found or 0) == (code or 0), (words, found, out.getvalue(), err.getvalue())
    return out.getvalue(), err.getvalue()


def as_json(*words, cwd=None):
    "The one object that a command with --json prints."
    return json.loads(call(*words, "--json", cwd=cwd)[0])


def listed(folder):
    "What `runs` says of the single run in a folder."
    found, = as_json("runs", folder)["runs"]
    return found


def refused(*words, cwd=None):
    "What the command says, on one line, where it refuses: exit code 2, nothing printed, no traceback."
    out, err = call(*words, cwd=cwd, code=2)
    assert not out and "Traceback" not in err, (out, err)
    return " ".join(err.split())


turned_away = refused  # by the parser of the words


def everything_in(*folders):
    "Each path below the folders with its size and time: equal before and after where nothing was written."
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*"))
    return [(path, path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths]


def leaves_nothing(*words, cwd):
    "What a refusal says; no file below `cwd` was made or changed."
    before = everything_in(cwd)
    said = refused(*words, cwd=cwd)
    assert everything_in(cwd) == before, words
    return said


def bits_of(*folders, name="model.safetensors"):
    "The bytes of a file in each of the folders, without the memory that a process took, which is never the same."
    return [re.sub(rb', "peak_mib": [\d.]+', b"", (Path(folder) / name).read_bytes()) for folder in folders]


def asked_again(summary):
    "A run's summary without what its training alone knows."
    return {name: value for name, value in summary.items() if name not in ("train_seconds", "cost", "health")}
