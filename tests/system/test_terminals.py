"""The command where its streams are odd: a terminal, a narrow one, a stream that is closed or goes away, a folder that is gone."""
import contextlib
import io
import json
import os
import subprocess
import sys

import pytest

from command import call
from minibert.cli.main import Plain, main
from minibert.core.progress import is_shown, print_table, shown

ROWS = [("run", "loss"), ("a", "1.5"), ("b\x1b[2J", "2.5")]
MINIBERT = (sys.executable, "-c", "import sys; from minibert.cli.entry import start; sys.exit(start())")
QUICK = ("pretrain", "--steps", "4", "--batch-size", "4", "--length", "32", "--vocab-size", "1000", "--log-steps", "1", "--out")


class Terminal(io.StringIO):
    "A stream that says it is a terminal."
    def isatty(self): return True


def test_a_table_in_a_terminal_is_framed_and_its_cells_steer_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.redirect_stdout(Plain(Terminal())) as screen: print_table(ROWS)
    said = screen.getvalue()
    assert "\x1b[1m" in said and "\\x1b[1m" not in said  # the frame's own codes work
    assert "\x1b[2J" not in said and "\\x1b[2J" in said  # a cell's do not


@pytest.mark.parametrize("value, raised", [("0", False), ("", False), ("1", True)])
def test_debug_is_off_at_0(monkeypatch, capsys, value, raised):
    monkeypatch.setenv("MINIBERT_DEBUG", value)
    assert main(["runs", "nowhere"]) == 2
    said = capsys.readouterr().err
    assert "nowhere" in said and ("Traceback" in said) == raised


def test_a_rank_without_a_world_silences_nothing(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with shown(): assert is_shown()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with shown(): assert not is_shown()


def in_shell(words: str, cwd, *args) -> subprocess.CompletedProcess:
    "A line of bash, in which \"$@\" is the command `minibert` with args."
    return subprocess.run(["bash", "-c", words, "bash", *MINIBERT, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_a_folder_that_is_gone_is_a_sentence(tmp_path):
    (tmp_path / "gone").mkdir()
    done = in_shell('rmdir ../gone; "$@"', tmp_path / "gone", "runs")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "minibert: The folder that you are in is gone: go to another by cd.\n"


@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", "2> >(head -1 >/dev/null)"])
def test_training_goes_on_where_nobody_reads(streams, tmp_path):
    done = in_shell(f'"$@" {streams}', tmp_path, *QUICK, "x")
    assert done.returncode == 0 and "Traceback" not in done.stderr and "mistake" not in done.stdout
    assert (tmp_path / "x/model.safetensors").exists() and sorted(os.listdir(tmp_path)) == ["x"]


@pytest.mark.slow
def test_json_stays_json_without_an_error_stream(run, tmp_path):
    done = in_shell('"$@" 2>&-', tmp_path, "evaluate", run, "--json")
    assert done.returncode == 0 and "mlm_loss" in json.loads(done.stdout)
    assert call("evaluate", run, "--json")[0] == done.stdout
