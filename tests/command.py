"""The command as tests call it: in this process or in one of its own, and what a refusal has to look like."""
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-c", "import sys; from minibert.cli.entry import start; sys.exit(start())")
FILMS = "text,label\n" + "a good film,good\na bad film,bad\n" * 30
QUICK = ("--steps", "4", "--batch-size", "4", "--length", "32", "--vocab-size", "1000")


def quick(*words):
    "The words, and of QUICK what they leave open: an option is given once, and minutes decide the steps."
    told = {*words, "--steps"} if "--minutes" in words else {*words}
    return (*(word for pair in zip(QUICK[::2], QUICK[1::2]) if pair[0] not in told for word in pair), *words)


def start(*words, cwd=None, command=COMMAND, **how):
    "The command in a process of its own."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([*command, *map(str, words)], cwd=cwd, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


@contextlib.contextmanager
def inside(folder):
    before = os.getcwd()
    os.chdir(folder or before)
    try: yield
    finally: os.chdir(before)


def call(*words, cwd=None, code=0):
    "The command in this process, which saves seconds of imports at each call."
    from minibert.cli.main import main
    out, err = io.StringIO(), io.StringIO()
    with inside(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: told = main([str(word) for word in words])
        except SystemExit as stopped: told = stopped.code
    assert told == code, (words, told, out.getvalue(), err.getvalue())
    return out.getvalue(), err.getvalue()


def listed(folder):
    "What `runs` says of the single run in a folder."
    found, = json.loads(call("runs", folder, "--json")[0])["runs"]
    return found


def refused(*words, cwd=None):
    "The one sentence with which the command refuses, after what it said of its progress: exit code 2, nothing printed, no traceback."
    out, err = call(*words, cwd=cwd, code=2)
    err = re.sub(r"^(?!minibert: ).* \.\.\.\n", "", err, flags=re.M)
    assert not out and err.startswith("minibert: ") and err.count("\n") == 1, err
    return err


def turned_away(*words, cwd=None):
    "What tyro says, on one line, to an option that cannot be: exit code 2, nothing printed."
    out, err = call(*words, cwd=cwd, code=2)
    assert not out and "Traceback" not in err
    return " ".join(err.split())


def everything_in(*folders):
    "Each path below the folders with its size and time: equal before and after where nothing was written."
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*"))
    return [(path, path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths]


def leaves_nothing(*words, cwd):
    "The one sentence of a refusal, from whichever parser; no file below `cwd` was made or changed."
    before = everything_in(cwd)
    out, err = call(*words, cwd=cwd, code=2)
    assert not out and "Traceback" not in err, (out, err)
    assert everything_in(cwd) == before, words
    return " ".join(err.split())
