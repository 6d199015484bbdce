"""The exercises: untouched they pass nothing and fail nothing, right answers pass, and no progress is lost."""
import __future__
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT
from minibert import checks
from minibert.core.seeds import seeded
from minibert.checks.exercises import is_stub, judge, outcomes, same, source_of

FUTURE = __future__.annotations.compiler_flag
CHAPTERS = checks.chapters()
EXERCISES = [exercise for chapter in CHAPTERS for exercise in checks.exercises(chapter).values()]
by_id = pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.id for exercise in EXERCISES])


@pytest.fixture(autouse=True)
def progress_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIBERT_PROGRESS", str(tmp_path / "progress.jsonl"))


def notebook(chapter):
    path, = (ROOT / "nbs").glob(f"{chapter}_*.ipynb")
    return json.loads(path.read_text(encoding="utf8"))["cells"]


def beside(chapter):
    "The cells of the reference's notebooks that ask an exercise of this chapter."
    texts = (path.read_text(encoding="utf8") for path in (ROOT / "nbs/reference/measure").glob("*.ipynb"))
    return [cell for text in texts if f'"#| exercise {chapter}.' in text for cell in json.loads(text)["cells"]]


def stubs(chapter):
    "Exercise -> (source of the stub's cell, of the cell after it, its stored output)."
    found, cells = {}, notebook(chapter) + beside(chapter)
    for cell, after in zip(cells, cells[1:]):
        source = "".join(cell["source"])
        if match := re.match(r"#\| exercise (\d\d[a-z]?\.\d)\n", source):
            told = "".join("".join(out.get("data", {}).get("text/plain", "")) for out in after.get("outputs", []))
            found[match[1]] = source, "".join(after["source"]), told
    return found


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_each_exercise_has_a_task_a_stub_and_a_check(chapter):
    there = stubs(chapter)
    assert set(there) == set(checks.exercises(chapter)) and len(there) >= 3
    for id, (_, after, told) in there.items():
        assert re.search(rf'^check\("{id}", ', after, re.MULTILINE), after
        assert told.splitlines()[0].endswith("not attempted"), told


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_untouched_stub_is_not_attempted(chapter):
    import torch
    from torch import nn
    for id, (source, after, _) in stubs(chapter).items():
        space = dict(nn=nn, torch=torch, Tensor=torch.Tensor)
        exec("from __future__ import annotations\n" + source, space)
        name = ast.parse(after).body[-1].value.args[1]
        answer = eval(ast.unparse(name), space)
        assert is_stub(answer) and judge(checks.find(id), answer).outcome == "not attempted"
        assert not checks.progress_file().exists()


@by_id
def test_right_answers_pass_and_known_mistakes_are_named(exercise):
    assert all(checks.check(exercise.id, answer) for answer in (exercise.right(), *exercise.variants))
    for n, forms in enumerate(exercise.mistakes()): assert {judge(exercise, form).mistake for form in forms} == {n}
    assert len(exercise.wrong) >= (1 if exercise.kind == "experiment" else 3) and all(wrong.sentence.endswith((".", "?")) for wrong in exercise.wrong)
    assert repr(checks.solution(exercise.id)) and exercise.id in checks.solution(exercise.id).title


@pytest.mark.parametrize("exercise", [e for e in EXERCISES if e.probes or e.properties], ids=lambda e: e.id)
def test_learners_own_code_is_run(exercise):
    "A check that ran the package in place of the answer would not meet what is planted in it."
    def planted(*arguments, **named): raise RuntimeError("planted")
    verdict = checks.check(exercise.id, planted)
    assert not verdict and verdict.outcome == "error" and "planted" in verdict.sentence


@by_id
def test_section_of_the_second_hint_is_there(exercise):
    "Its link leads to a heading of a notebook that exists."
    name, anchor = re.search(r"\]\(([\w/]+\.ipynb)#([^)]+)\)", exercise.hints[1]).groups()
    cells = json.loads((ROOT / "nbs" / name).read_text(encoding="utf8"))["cells"]
    headings = [line.lstrip("#").strip() for cell in cells if cell["cell_type"] == "markdown"
                for line in "".join(cell["source"]).splitlines() if line.startswith("#")]
    assert anchor in [heading.replace(" ", "-") for heading in headings], (anchor, headings)


def test_no_exercise_is_asked_twice_and_all_kinds_occur():
    ids = [exercise.id for exercise in EXERCISES]
    assert len(set(ids)) == len(ids)
    for exercise in EXERCISES: assert exercise.kind in ("complete", "predict", "break", "experiment")
    sentences = [wrong.sentence for exercise in EXERCISES for wrong in exercise.wrong]
    assert len(sentences) >= 3 * sum(exercise.kind != "experiment" for exercise in EXERCISES)


WRITER = """
import sys
from minibert.checks import keep, progress_file
for n in range(int(sys.argv[2])):
    assert keep(dict(id="99.1", event="check", outcome="wrong", answer=f"{sys.argv[1]}-{n}")) == ""
    print(n, flush=True)
"""


def writer(name, count, tmp_path):
    return subprocess.Popen([sys.executable, "-c", WRITER, name, str(count)], text=True, stdout=subprocess.PIPE,
                            env=os.environ | dict(PYTHONPATH=str(ROOT)), cwd=tmp_path)


def test_two_notebooks_write_at_once(tmp_path):
    both = [writer(name, 100, tmp_path) for name in "ab"]
    assert [process.wait() for process in both] == [0, 0]
    for process in both: process.stdout.close()
    assert {event["answer"] for event in checks.read_progress()} == {f"{name}-{n}" for name in "ab" for n in range(100)}


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("kills", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_kernel_killed_again_and_again_loses_nothing(tmp_path, kills):
    dice, confirmed = random.Random(0), set()
    for kill in range(kills):
        process = writer(str(kill), 10**6, tmp_path)
        process.stdout.readline()
        time.sleep(dice.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        confirmed |= {f"{kill}-{line.strip()}" for line in process.stdout.read().splitlines(True) if line.endswith("\n")}
        confirmed.add(f"{kill}-0")
        process.wait()
        process.stdout.close()
    assert confirmed <= {event["answer"] for event in checks.read_progress()} and len(confirmed) > 2 * kills
    whole = [json.loads(line) for line in Path(os.environ["MINIBERT_PROGRESS"]).read_text().splitlines() if line.endswith("}")]
    assert len(whole) >= len(confirmed)


def test_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIBERT_PROGRESS", str(tmp_path / "file" / "progress.jsonl"))
    assert checks.keep(dict(id="99.1", event="hint")).startswith("Your progress is not kept")
    assert checks.read_progress() == []


def test_progress_moves_with_its_file(tmp_path, monkeypatch):
    checks.keep(dict(id="99.1", event="hint"))
    text = checks.progress_file().read_text()
    monkeypatch.setenv("MINIBERT_PROGRESS", str(tmp_path / "copy.jsonl"))
    assert checks.read_progress() == []
    (tmp_path / "copy.jsonl").write_text(text + "not JSON\n[1]\n{\"id\": 3}\n")
    assert [event["event"] for event in checks.read_progress("99.1")] == ["hint"]


def test_checks_import_no_torch():
    code = "import sys, minibert.checks; assert not {'torch', 'transformers', 'IPython'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | dict(PYTHONPATH=str(ROOT)))


SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult, ast.FloorDiv: ast.Mult,
         ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
         ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}


def slips(function):
    "Versions of a function with one slip each: another operator, a number one higher, an argument or a statement left out."
    source = source_of(function)

    def changed(change, number):
        tree = ast.parse(source)
        place = [node for node in ast.walk(tree)][number]
        if not change(place): return None
        made = {}
        try: exec(compile(ast.fix_missing_locations(tree), "<slip>", "exec", flags=FUTURE), function.__globals__, made)
        except SyntaxError: return None
        return made.get(function.__name__)

    def operator(node):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            node.op = SWAPS[type(node.op)]()
            return True
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            node.ops[0] = SWAPS[type(node.ops[0])]()
            return True

    def constant(node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            node.value += 1
            return True

    def keyword(node):
        if isinstance(node, ast.Call) and node.keywords: return bool(node.keywords.pop())

    def statement(node):
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.FunctionDef | ast.For | ast.If) and len(body) > 1:
            return bool(body.pop(-2))

    for number in range(len(list(ast.walk(ast.parse(source))))):
        for change in (operator, constant, keyword, statement):
            if slip := changed(change, number): yield slip


@pytest.mark.parametrize("exercise", [e for e in EXERCISES if e.probes and not e.free], ids=lambda e: e.id)
def test_name_of_a_mistake_holds_on_other_inputs(exercise, monkeypatch):
    "Slips that nobody listed: what is called right is right on fresh probes, and what gets a name is that mistake there too."
    module = sys.modules[f"minibert.checks.c{exercise.id.split('.')[0]}"]
    verdicts = [(slip, judge(exercise, slip)) for slip in slips(exercise.reference)]
    assert len(verdicts) >= 2 and not all(verdict for _, verdict in verdicts)
    known = exercise.mistakes()
    if hasattr(module, "seeded"): monkeypatch.setattr(module, "seeded", lambda *words: seeded(*words, 99))
    for slip, verdict in verdicts:
        if verdict.outcome == "error" or not verdict and verdict.mistake is None: continue
        others = [exercise.reference] if verdict else known[verdict.mistake]
        outcome = outcomes(exercise, slip)
        within = 1e-5 if "the rounding of float32" in str(verdict) else 1e-9
        assert same(outcome, *(outcomes(exercise, other) for other in others), within=within), \
            f"{verdict} is said of a mistake that it is not"
