"""The teacher's pages: current, complete, and every step of the 90 minutes rehearsed."""
import json
import re
import shlex
import sys

import matplotlib.pyplot as plt
import pytest

from command import call
from conftest import ROOT
from minibert.checks import find

sys.path.insert(0, str(ROOT / "tools"))
import make_teaching  # noqa: E402

HOME = ROOT / "nbs/teaching"
LESSON = json.loads((HOME / "90_minutes.ipynb").read_text(encoding="utf8"))["cells"]
PARTS = ["Goals", "Timing (estimate)", "On the board", "What to say", "Exit question", "What goes wrong"]


def test_what_is_taken_from_the_checks_and_the_index_is_current():
    differing = [path.name for path, text in make_teaching.pages(ROOT).items() if path.read_text(encoding="utf8") != text]
    assert not differing, "mend them by make readme"


def test_a_changed_mistake_makes_a_page_stale(monkeypatch):
    monkeypatch.setattr(make_teaching, "shown", lambda thing: "another")
    path = HOME / "04_attention.md"
    assert make_teaching.pages(ROOT)[path] != path.read_text(encoding="utf8")


def test_each_chapter_has_a_page_and_no_page_lacks_a_chapter():
    chapters = {path.stem for path in (ROOT / "nbs").glob("[0-9]*.ipynb")}
    written = {path.stem for path in HOME.glob("[0-9]*_*.md")}
    assert chapters == written


@pytest.mark.parametrize("path", sorted(HOME.glob("[0-9]*_*.md")), ids=lambda path: path.stem)
def test_a_page_is_whole(path):
    "Its parts in their order, the minutes of a double lesson, an answer to its question."
    text = path.read_text(encoding="utf8")
    assert re.findall(r"^## (.+)$", text, re.M) == PARTS
    timing = text.split("## Timing (estimate)")[1].split("## ")[0]
    assert sum(map(int, re.findall(r"^\| (\d+) \|", timing, re.M))) == 90
    assert text.count("**Answer.**") == 1
    board = re.search(r"## On the board\n\n```\n(.+?)```", text, re.S)[1]
    assert max(map(len, board.splitlines())) <= 88


def test_the_minutes_of_the_plan_are_ninety():
    plan = (HOME / "plan_90_minutes.md").read_text(encoding="utf8")
    rows = re.findall(r"^\| (\d+) \| (\d) \|", plan, re.M)
    steps = re.findall(r"^## (\d)\.", "\n".join("".join(cell["source"]) for cell in LESSON), re.M)
    assert [step for _, step in rows] == steps and sum(int(minutes) for minutes, _ in rows) == 90


def lesson(answered):
    "Run the class's notebook; with `answered`, every stub is replaced by the right answer. What each check said."
    names, said, right, stub = {}, {}, None, ""
    for cell in LESSON:
        if cell["cell_type"] != "code": continue
        source = "".join(cell["source"])
        if found := re.match(r"#\| exercise (\S+)", source): stub, right = found[1], find(found[1]).right()
        elif source.startswith("check("):
            name = source.split(", ")[1].rstrip(")")
            if answered: names[name] = right
            said[stub] = eval(source, names)
            continue
        exec(source, names)
    plt.close("all")
    return said


@pytest.mark.filterwarnings("ignore")
def test_the_lesson_runs_with_right_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIBERT_PROGRESS", str(tmp_path / "progress.jsonl"))
    said = lesson(answered=True)
    assert [*said] == ["04.1", "00.2", "04.2", "08.3"] and all(said.values()), said
    printed = capsys.readouterr().out
    assert "Anna her 1.00" in printed and "first 4.4" in printed


@pytest.mark.filterwarnings("ignore")
def test_the_lesson_s_lines_of_shell_run(tmp_path):
    "As they stand there, but for the steps."
    text = "\n".join("".join(cell["source"]) for cell in LESSON if cell["cell_type"] == "markdown")
    first, *questions = re.findall(r"^minibert .*", text, re.M)
    assert first.endswith("--out runs/class") and len(questions) == 3
    call(*shlex.split(first)[1:], "--steps", 3, cwd=tmp_path)
    answers = [call(*shlex.split(line)[1:], cwd=tmp_path)[0] for line in questions]
    assert all("class" in line for line in questions) and all(answers)


def test_an_untouched_lesson_earns_nothing():
    checked = [cell for cell in LESSON if "".join(cell["source"]).startswith("check(")]
    assert len(checked) == 4 and all("not attempted" in json.dumps(cell["outputs"]) for cell in checked)


def test_the_settings_of_the_projector_and_the_hub_can_be_read():
    settings = sorted((ROOT / "tools/projector/lab/user-settings").rglob("*.jupyterlab-settings"))
    assert len(settings) == 2 and all(json.loads(path.read_text(encoding="utf8")) for path in settings)
    assert "h2" in (ROOT / "tools/projector/custom/custom.css").read_text(encoding="utf8")
    compile((ROOT / "tools/hub/jupyterhub_config.py").read_text(encoding="utf8"), "jupyterhub_config.py", "exec")
