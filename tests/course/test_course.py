"""A learner's folder: holes, no answers, checks that know right from wrong, and modules that take the place of ours."""
import ast
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from command import call, refused
from conftest import ROOT
from minibert import checks
from minibert.course import adopt, cells, edition, grader, report

CHAPTERS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
FIRST = [path.name for path in edition.chapter_files("00-11")]


def read(path): return nbformat.read(path, 4)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    "A build edition that nobody changes."
    folder = tmp_path_factory.mktemp("course") / "build"
    edition.new_edition(folder, name="anna")
    return folder


@pytest.fixture
def mine(build, tmp_path):
    "A learner's copy of it."
    return Path(shutil.copytree(build, tmp_path / "mine"))


def python(folder, code, *words):
    "What Python code prints in a learner's folder."
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def solve(path, changes=None):
    "Fill a learner's notebook: built cells as in ours, with changes; exercises by the references of its package."
    book, ours = read(path), {cell.id: cell.source for cell in read(ROOT / "nbs" / path.name).cells}
    for cell in book.cells:
        if id := cells.directive(cell.source, "exercise"): cell.source = edition.renamed(grader.solved(cell.source, id))
        elif cells.directive(cell.source, "build") is not None:
            cell.source = edition.renamed(ours[cell.id])
            for old, new in (changes or {}).items(): cell.source = cell.source.replace(old, new)
    nbformat.write(book, path)


# --- holes ---


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_each_hole_has_a_proof_and_only_bodies_are_left_out(path):
    book = read(path)
    found = {hole.cell: hole for hole in cells.holes(book.cells)}
    for cell in book.cells:
        if cells.directive(cell.source, "build") is None: continue
        assert cell.source.startswith("#| export\n#| build\n") and cell.id in found
        before, after = (cells.functions(source) for source in (cell.source, cells.without_bodies(cell.source)))
        assert before.keys() == after.keys()
        for name, old in before.items():
            new = after[name]
            assert ast.dump(old.args) == ast.dump(new.args) and ast.get_docstring(old) == ast.get_docstring(new)
            *_, last = new.body
            assert isinstance(last, ast.Raise) and name in ast.unparse(last) and len(new.body) <= 2


def test_the_marker_is_dropped_from_the_module(): assert "#| build" not in (ROOT / "minibert/attention.py").read_text(encoding="utf8")


# --- no answers ---


def test_no_answer_stands_in_the_exercises(build):
    "Neither a reference nor a variant, nor a right form that a mistake is made from; the chapters' own ones are there alone."
    modules = {path.stem: path.read_text(encoding="utf8") for path in (build / "mybert/checks").glob("c[0-9]*.py")}
    assert len(modules) == 12 and not (build / "answers").exists()
    for name, text in modules.items():
        for exercise in checks.exercises(name[1:]).values():
            for answer in (exercise.reference, *exercise.variants):
                if callable(answer) and answer.__name__ != "<lambda>": assert f"def {answer.__name__}(" not in text, (exercise.id, answer.__name__)


JUDGE = """
import importlib.util, sys
from mybert.checks import find
from mybert.checks.exercises import judge
for chapter in sys.argv[2:]:
    where = importlib.util.spec_from_file_location("mybert.checks.answers", f"{sys.argv[1]}/c{chapter}.py")
    answers = importlib.util.module_from_spec(where)
    where.loader.exec_module(answers)
    for asked in vars(answers).values():
        if not isinstance(asked, answers.Exercise): continue
        known = find(asked.id)
        assert not judge(known, known.reference), asked.id
        def wrap(answer):
            if not callable(answer): return answer
            def own(*given, **named): return answer(*given, **named)
            return own
        for right in (asked.right(), *asked.variants): assert judge(known, wrap(right)), (asked.id, judge(known, wrap(right)))
        for n, forms in enumerate(asked.mistakes()):
            for form in forms: assert judge(known, wrap(form)).mistake == n, (asked.id, n, judge(known, wrap(form)))
        print(asked.id)
"""


def test_recorded_checks_know_right_from_wrong(build, tmp_path):
    "Each right answer passes, each known mistake gets its sentence, and the exercise's own reference is none."
    for path in (ROOT / "minibert/checks").glob("c[01]*.py"):
        text = edition.renamed(path.read_text(encoding="utf8"))
        (tmp_path / path.name).write_text(text, encoding="utf8")
    chapters = [name[:2] for name in FIRST]
    told = python(build, JUDGE, str(tmp_path), *chapters).split()
    assert told == [id for chapter in chapters for id in checks.exercises(chapter)]


def test_the_packages_own_function_is_refused(build):
    code = "from mybert.checks import check; from mybert.one_page import merge; print(check('00.1', merge).sentence)"
    assert "package" in python(build, code)
    assert "no solutions" in python(build, "from mybert.checks import find; print(find('00.1').solution()[0])")


# --- adopting ---


def test_an_unsolved_chapter_is_not_adopted_and_says_what_is_open(mine):
    before = (mine / "mybert/config.py").read_bytes()
    found = adopt.adopt(mine, "01")
    assert not found["adopted"] and found["open"].keys() == {"01.1", "01.2", "01.3", "count_parameters"}
    assert "NotImplementedError" in found["open"]["count_parameters"]
    assert (mine / "mybert/config.py").read_bytes() == before and adopt.course_of(mine)["adopted"] == []


def test_a_solved_chapter_is_adopted_and_ours_comes_back(tmp_path):
    folder = tmp_path / "read"
    edition.new_edition(folder, "read", chapters="01")
    solve(folder / "01_config.ipynb", {'"How many': '"My own: how many', "model": "model"})
    book = read(folder / "01_config.ipynb")
    cell = next(cell for cell in book.cells if cells.directive(cell.source, "build") is not None)
    cell.source += "\n# mine"
    nbformat.write(book, folder / "01_config.ipynb")
    call("course", "adopt", "01", "--folder", folder)
    assert "# mine" in (folder / "mybert/config.py").read_text(encoding="utf8")
    assert adopt.course_of(folder)["adopted"] == ["config.py"]
    call("course", "adopt", "01", "--ours", "--folder", folder)
    assert "# mine" not in (folder / "mybert/config.py").read_text(encoding="utf8")
    assert adopt.course_of(folder)["adopted"] == []


LOSS = """
import torch
from mybert.config import BertConfig
from mybert.heads import BertForPreTraining
g = torch.Generator().manual_seed(0)
model = BertForPreTraining(BertConfig(101, 24, 3, 4, 37), g).eval()
ids = torch.arange(5, 19).reshape(2, 7)
mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
print(model(ids, attention_mask=mask, labels=ids, next_sentence_label=torch.tensor([0, 1])).loss.item())
"""


def test_the_learners_own_attention_is_what_the_learners_model_runs(mine):
    "A deliberately wrong chapter 4, adopted by force, changes the first loss of `mybert.heads`."
    right = python(mine, LOSS)
    solve(mine / "04_attention.ipynb", {"F.scaled_dot_product_attention(q, k, v, mask": "F.scaled_dot_product_attention(q, k, v, None"})
    call("course", "adopt", "04", "--force", "--folder", mine)
    wrong = python(mine, LOSS)
    call("course", "adopt", "04", "--ours", "--folder", mine)
    assert wrong != right == python(mine, LOSS)


def test_with_mine_the_package_begins_with_holes(tmp_path):
    edition.new_edition(tmp_path / "mine", use="mine", chapters="04")
    text = (tmp_path / "mine/mybert/attention.py").read_text(encoding="utf8")
    assert text.count("isn't written yet") == 7 and "from .config import" in text


# --- a new release ---


def test_an_update_changes_what_was_shipped_and_nothing_that_was_edited(mine):
    path, course = mine / "03_embeddings.ipynb", adopt.course_of(mine)
    book = read(path)
    old, edited, deleted = book.cells[3], next(c for c in book.cells if cells.directive(c.source, "build") is not None), book.cells[5]
    old.source = "An older release said this."
    course["shipped"][path.name][old.id] = cells.digest(old)
    edited.source = edited.source.replace("raise NotImplementedError", "pass  # mine\n        raise NotImplementedError")
    own = nbformat.v4.new_code_cell("my_own = 1")
    book.cells = [cell for cell in [*book.cells[:8], own, *book.cells[8:]] if cell.id != deleted.id]
    nbformat.write(book, path)
    (mine / "course.json").write_text(json.dumps(course | dict(adopted=["attention.py"])))
    for name in ("attention", "encoder"): (mine / f"mybert/{name}.py").write_text("# another")
    merged = edition.update_edition(mine)
    now = {cell.id: cell.source for cell in read(path).cells}
    assert "older" not in now[old.id] and "# mine" in now[edited.id] and deleted.id not in now and now[own.id] == "my_own = 1"
    assert [*now].index(own.id) == 7 and merged[path.name] == (1, 2) and {changed for changed, _ in merged.values()} == {0, 1}
    assert (mine / "mybert/attention.py").read_text() == "# another" != (mine / "mybert/encoder.py").read_text()


# --- the class ---


def test_a_report_says_what_a_class_gets_wrong(tmp_path):
    for name, outcomes in dict(anna=("wrong", "right"), ben=("wrong", "wrong", "wrong")).items():
        (tmp_path / name).mkdir()
        events = [dict(id="04.3", event="check", outcome=outcome, mistake=1 if outcome == "wrong" else None, time=60.0 * n)
                  for n, outcome in enumerate(outcomes)]
        (tmp_path / name / "progress.jsonl").write_text("\n".join(map(json.dumps, events)))
    out = tmp_path / "class.png"
    told, _ = call("course", "report", tmp_path / "anna", tmp_path / "ben", "--out", out)
    assert "1 of 2" in told and "04.3, 2 of 2: You take the plain mean" in told and out.stat().st_size > 5000
    rows = report.class_rows(report.ways(report.read_class([tmp_path / "anna", tmp_path / "ben"])))
    assert rows[1] == ["04.3", "1 of 2", "2.5", "2", "ben"]
    refused("course", "report", tmp_path / "nobody")


def test_a_try_keeps_the_learners_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIBERT_PROGRESS", str(tmp_path / "progress.jsonl"))
    monkeypatch.setenv("MINIBERT_NAME", "cleo")
    checks.check("04.2", (1, 2))
    assert [*report.read_class([tmp_path])] == ["cleo"]


# --- nbgrader ---


@pytest.mark.parametrize("name", FIRST)
def test_an_assignment_has_a_point_for_each_hole(name):
    book = grader.make_assignment(ROOT / "nbs" / name)
    found = [*cells.holes(read(ROOT / "nbs" / name).cells)]
    asked = [cell.metadata.nbgrader for cell in book.cells if "nbgrader" in cell.metadata]
    assert sum(cell.points for cell in asked) == len(found) and sum(cell.solution for cell in asked) == len({hole.cell for hole in found})
    for cell in book.cells:
        if cell.cell_type == "code": assert cell.source.count(grader.BEGIN) == cell.source.count(grader.END)
        if cell.metadata.get("nbgrader", {}).get("grade"): assert "assert" in cell.source and "\ncheck(" not in "\n" + cell.source


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nbgrader"), reason="nbgrader is an extra: pip install nbgrader, and put it on the PATH")
@pytest.mark.parametrize("name", ["04_attention", "08_masking"])
def test_nbgrader_gives_the_reference_all_points_and_a_stub_none(tmp_path, name):
    "It runs in an environment of its own, perhaps, which has to see this package."
    folder = tmp_path / "class"
    call("course", "export", folder, "--chapters", name[:2])
    nbgrader = lambda *words: subprocess.run(["nbgrader", *words], cwd=folder, check=True, capture_output=True, text=True)
    nbgrader("generate_assignment", name)
    for student, source in dict(stub="release", reference="source").items():
        shutil.copytree(folder / source / name, folder / "submitted" / student / name)
    nbgrader("autograde", name)
    nbgrader("export")
    rows = {row["student_id"]: row for row in csv.DictReader((folder / "grades.csv").open())}
    assert float(rows["stub"]["score"]) == 0 < float(rows["reference"]["score"]) == float(rows["reference"]["max_score"])


# --- the mistakes that happen ---


@pytest.mark.parametrize("words,said", [
    (("new", "{mine}"), "exists"), (("new", "{tmp}/x", "--chapters", "77"), "00-11"), (("adopt", "77", "--folder", "{mine}"), "no chapter 77"),
    (("adopt", "04", "--folder", "{tmp}"), "no course"), (("update", "{tmp}"), "no course")])
def test_a_mistake_gets_a_sentence(build, tmp_path, words, said):
    words = [word.format(mine=build, tmp=tmp_path) for word in words]
    assert said in refused("course", *words)
    assert not [*tmp_path.iterdir()]


# --- whole chapters, in the long tests ---


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_an_untouched_chapter_passes_nothing(build, name):
    found, _ = adopt.grade(build / name)
    assert len(found) >= 3 and all(found.values())


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    "Each chapter with all its holes filled."
    folder = tmp_path_factory.mktemp("course") / "read"
    edition.new_edition(folder, "read")
    for name in FIRST: solve(folder / name)
    return folder


@pytest.fixture(scope="module")
def unwritten(tmp_path_factory):
    "The modules of the chapters with their holes."
    folder = tmp_path_factory.mktemp("course") / "mine"
    edition.new_edition(folder, use="mine")
    return folder / "mybert"


@pytest.mark.slow
@pytest.mark.parametrize("use", ["ours", "mine", "mixed"])
@pytest.mark.parametrize("name", FIRST)
def test_a_solved_chapter_passes_on_the_chapters_below(answered, unwritten, tmp_path, name, use):
    "With each of them ours, mine, or by turns; and no chapter above it is written yet."
    folder = Path(shutil.copytree(answered, tmp_path / "mine"))
    for n, other in enumerate(FIRST):
        module = adopt.module_file(folder / other)
        if other > name: shutil.copy(unwritten / module, folder / "mybert" / module)
        elif other < name and use != "ours" and (use == "mine" or n % 2): adopt.export_chapter(folder / other)
    found, errors = adopt.grade(folder / name)
    assert not any(found.values()) and not errors, (found, errors)
