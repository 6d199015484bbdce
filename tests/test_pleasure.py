"""A command that is a pleasure to use: at once, in groups, with results that speak, for people and for programs."""
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import fields

import pytest

from command import QUICK, call, everything_in, refused

FIRST = "import sys, time; from minibert.cli import main\ntry: code = main(sys.argv[1:])\nexcept SystemExit as stopped: code = stopped.code\n" \
        "print('torch' in sys.modules, code, file=sys.stderr)"


def alone(*words, cwd=None):
    "The command in a process of its own: what it printed, what it said, and whether torch was imported."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", FIRST, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=env)
    *said, last = done.stderr.splitlines()
    torch, code = last.split()
    return done.stdout, said, torch == "True", int(code)


@pytest.mark.parametrize("words, code", [
    (["--help"], 0), (["pretrain", "--help"], 0), (["--version"], 0), (["pretrain", "--steps", "0"], 2), (["pretrain", "--batchsize", "8"], 2),
    (["pretrain", "--backend", "numpy", "--optimizer", "muon"], 2), (["pretrain", "--model", "gpt", "--whole-words"], 2),
    (["pretrain", "--objectives", "clm"], 2), (["pretrain", "--print-config"], 0), (["fill-mask", "runs/1", "the", "[MASK]"], 2), (["nothing"], 2),
    (["runs"], 2)], ids=" ".join)
def test_torch_is_not_imported_for(words, code, tmp_path):
    assert alone(*words, cwd=tmp_path)[2:] == (False, code)


@pytest.mark.slow
def test_the_first_line_comes_before_torch_could_be_imported(tmp_path):
    "Beside what importing torch takes on this machine at this moment, in turn, the best of three."
    def seconds(code, *words):
        start = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", code, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        line = process.stderr.readline()
        took = time.monotonic() - start
        process.kill()
        process.communicate()
        return took, line
    tried = [(seconds("import sys; from minibert.cli import main; main(sys.argv[1:])", "pretrain"),
              seconds("import torch, sys; print('done', file=sys.stderr)")) for _ in range(3)]
    assert all(line == "Reading the stories ...\n" for (_, line), _ in tried)
    ours, torchs = (min(each[k][0] for each in tried) for k in (0, 1))
    assert ours < 0.5 * torchs, (ours, torchs)


def test_version():
    from minibert import __version__
    assert call("--version") == (f"minibert {__version__}\n", "")


COMMAND_NAMES = ("pretrain", "evaluate", "fill-mask", "next-sentence", "generate", "parity", "finetune", "classify", "inspect", "probe", "bench",
                 "runs", "compare")


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_help_is_in_groups_with_two_examples(command):
    from minibert.options import COMMANDS, WORDS
    out, err = call(command, "--help")
    assert not err and out.startswith(f"usage: minibert {command}") and "\noutput:\n" in out
    assert out.split("\nexamples:\n")[1].count(f"  minibert {command}") == 2
    for each in fields(COMMANDS[command]):
        if each.name not in WORDS: assert len(re.findall(rf"^  --{each.name.replace('_', '-')}\b", out, re.M)) == 1
    assert "{" not in out.splitlines()[0] and max(map(len, out.splitlines())) <= 100
    if command in ("fill-mask", "classify", "inspect", "generate"): assert "RUN TEXT" in out.splitlines()[0]
    if command in ("pretrain", "finetune"): assert all(f"\n{name}:\n" in out for name in ("data", "model", "training", "output")) and "AdamW's" in out


def test_the_overview_names_all_commands_and_how_they_end():
    out, _ = call("--help")
    assert all(re.search(rf"^  {name} ", out, re.M) for name in COMMAND_NAMES)
    assert "exit codes: 0" in out and "MINIBERT_DEBUG" in out and "--tyro-write-completion" in out


def test_a_shell_can_complete():
    out, _ = call("--tyro-print-completion", "bash")
    assert "fill-mask" in out and "batch-size" in out


@pytest.mark.parametrize("words, said", [
    ("fill-mask R the [MASK] was", "put the text in quotes"), ("classify R what a day", "put the text in quotes"),
    ("next-sentence R a b c", "put the text in quotes"), ("pretrain --batchsize 8", "did you mean --batch-size? minibert pretrain --help"),
    ("bench extra", "takes options alone"), ("runs --nonsense", "minibert runs --help"), ("pretrian", "did you mean pretrain?"),
    ("", "minibert --help lists"), ("zzz", "There is no command 'zzz'"), ("finetune --epoch=3", "did you mean --epochs?")])
def test_a_word_too_many_or_misspelt_gets_a_sentence(words, said, tmp_path):
    assert said in refused(*words.split(), cwd=tmp_path)


def test_the_commands_own_help_is_named_in_tyros_errors():
    for words in (["pretrain", "--steps", "x"], ["fill-mask", "R"], ["finetune", "--epochs", "0"]):
        _, err = call(*words, code=2)
        assert f"minibert {words[0]} --help" in " ".join(err.split())


def test_the_same_short_name_everywhere():
    from minibert.options import parse
    assert parse(["pretrain", "--lr", "0.5"]).learning_rate == parse(["finetune", "--lr", "0.5"]).learning_rate == 0.5


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "Two runs of four steps and a text, in a folder whose name has a space; what the first one printed and said."
    home = tmp_path_factory.mktemp("a home")
    told = call("pretrain", *QUICK, "--log-steps", 2, "--out", "runs/my run", cwd=home, code=2)  # there is no folder runs yet
    return home, told


def test_the_fixture(): pass
