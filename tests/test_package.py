"""The package's gates: the order of its modules, their sizes, what they require, and the wheel."""
import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import zipfile
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from conftest import ROOT, wheel_environment

try: import tomllib
except ImportError: import tomli as tomllib  # Python 3.10

MODULES = sorted(path for path in (ROOT / "minibert").rglob("*.py") if "File to edit" in path.read_text(encoding="utf8"))
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES]
ORDER = """  # of the modules: each may import those before it
    core.course core.errors core.fields core.files core.precision core.progress core.seeds data.stories one_page config text.cleaning
    text.files text.vocabulary text.wordpiece tokenizer embeddings attention encoder model heads masking
    data.tables data.documents measure.answers data.corpus data.pairs data.labels data.questions measure.baselines measure.predictions pairs
    train.recipe train.optimizers training evaluation parity hub.sizes hub.families hub.cards hub.files weights
    numpy_bert.weights numpy_bert.agreement numpy_bert.layers numpy_bert.model numpy_bert.parts numpy_bert.training inside probing
    nn.classifier_parts train.processes perf.memory train.callbacks train.checkpoints train.gradients train.trainer
    finetuning nn.reader nn.sampling gpt t5 nn.kinds nn.rotary nn.shortcuts nn.block descendants data.objectives data.curricula train.average data.rows new_layers nn.packing optimizers speed measure.probes checks.exercises checks.experiments checks
    measure.observer measure.health
    runs.plan runs.asking runs.tasks runs.bert tuning.tasks tuning.answer tuning.classify tuning.regress tuning.predict tuning.finetune text.foreign runs.run
    runs.course show.diagrams measure.heads measure.language measure.spectra data.windows data.spans show.plots show.page
    checks.c00 checks.c01 checks.c02 checks.c03 checks.c04 checks.c05 checks.c06 checks.c07 checks.c08 checks.c09
    checks.c10 checks.c11 checks.c12 checks.c13 checks.c14 checks.c15 checks.c16 checks.c17 checks.c18 checks.c19
    checks.c20 checks.c21 checks.c22a checks.c22b checks.c23a checks.c23b checks.c24 checks.c25 checks.c26 nn.fast nn.variants hub.compare hub.export measure.probe_runs tuning.tag tuning.summarize
    perf.products perf.profiling perf.bench runs.gpt runs.report runs.overview runs.experiment runs.t5 runs.descendants course.cells course.recorded course.adopt course.edition course.grader course.report measure.everything cli.options
    cli.main
""".split("\n", 1)[1].split()
FORBIDDEN = {"transformers", "nbdev", "fastcore", "execnb", "nbformat", "pandas", "IPython", "jupyter"}
TREES = {name: ast.parse(path.read_text(encoding="utf8")) for name, path in zip(NAMES, MODULES, strict=True)}
OURS = [name for name in NAMES if "checks" not in name]  # the exercises' answers are as wide and as long as they are


def run(*words, cwd=ROOT, **kwargs):
    done = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name): return os.path.join(os.path.dirname(sys.executable), name)


def imports(name, inside=True):
    "Every module that a module imports, inside functions and as \"module:name\", too; the three registries' strings are data."
    package = MODULES[NAMES.index(name)].relative_to(ROOT).parts
    for node in ast.walk(TREES[name]) if inside else TREES[name].body:
        if isinstance(node, ast.Import): yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join((*package[: len(package) - node.level], node.module or "")) if node.level else node.module
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in NAMES)
        if isinstance(node, ast.Constant) and name not in ("minibert.hub.families", "minibert.runs.tasks", "minibert.tuning.tasks"):
            if found := re.fullmatch(r"([\w.]+):[\w.]+", str(node.value)): yield found[1]


def place(name):
    "Where a module stands in the order."
    return ORDER.index(name.removeprefix("minibert."))


def settings(name):
    "The requirements that settings.ini lists under a name, by their names."
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf8")
    return {wanted.name: wanted for wanted in map(Requirement, parser["DEFAULT"][name].split())}


# --- the order of the modules ---


def test_every_module_has_one_place_in_the_order():
    assert sorted(ORDER) == sorted(name.removeprefix("minibert.") for name in NAMES)


def test_chapters_stand_in_the_order_of_their_numbers():
    numbers = {name: re.search(r"File to edit: .*?nbs/(\d\d)[a-z]?_", path.read_text(encoding="utf8")) for name, path in zip(NAMES, MODULES, strict=True)}
    found = [int(numbers[name][1]) for name in sorted(NAMES, key=place) if numbers[name]]
    assert found == sorted(found) and len(found) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_imports_never_run_up(name):
    found = {*imports(name)}
    later = [other for other in found & {*NAMES} - {name} if place(other) > place(name)]
    assert not later, f"{name} imports {later}, which come later"
    # the room of the course works with notebooks: inside its functions alone
    if name.startswith("minibert.course."): found = {*imports(name, inside=False)}
    assert not FORBIDDEN & {other.split(".")[0] for other in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_module_imports_alone(name): run(sys.executable, "-c", f"import {name}", cwd=ROOT.parent)


def test_heads_load_torch_and_the_chapters_up_to_their_own():
    "So importing them costs what importing torch costs, on any machine, busy or not."
    code = "import sys, torch; before = {*sys.modules}; import minibert.heads; print(*{*sys.modules} - before)"
    loaded = run(sys.executable, "-c", code).split()
    assert {name.split(".")[0] for name in loaded} - sys.stdlib_module_names == {"minibert"}
    ours = [place(name) for name in NAMES if name in loaded]
    assert 5 <= len(ours) <= 18 and max(ours) == place("minibert.heads")


def test_the_package_offers_its_names_when_they_are_asked_for():
    "Importing it loads no torch; none of its names is a module's, so that each means one thing."
    assert "torch" not in run(sys.executable, "-c", "import sys, minibert; print(*sys.modules)").split()
    import minibert
    for name in minibert.__all__:
        assert getattr(minibert, name).__name__ == name and name in dir(minibert)
        assert not {f"minibert.{name}"} & {*NAMES}
    with pytest.raises(AttributeError, match="Bert"): _ = minibert.Bert


# --- their sizes ---


def code_lines(path):
    "The numbers of the lines that hold code: no comment, no docstring."
    text = path.read_text(encoding="utf8")
    no_code = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in no_code]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False) is not None:
            lines -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign)) and "__all__" in ast.dump(node): lines -= {*range(node.lineno, node.end_lineno + 1)}
    return lines


def test_no_line_of_code_is_wider_than_the_page():
    wide = []
    for name in OURS:
        path = MODULES[NAMES.index(name)]
        lines = path.read_text(encoding="utf8").split("\n")
        wide += [f"{name}, {number}" for number in sorted(code_lines(path)) if len(lines[number - 1]) > 88]
    assert not wide


def test_no_function_is_longer_than_40_lines():
    assert not [f"{name}: {node.name}" for name in OURS for node in ast.walk(TREES[name])
                if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 40]


def test_no_public_name_is_defined_twice():
    "But for numpy_bert, which may have torch's names again."
    found = Counter(node.name for name in OURS if "numpy" not in name for node in TREES[name].body
                    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"))
    assert not [name for name, count in found.items() if count > 1]


# --- what it requires, and what it is packed into ---


def test_uv_and_pip_take_one_tested_set():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["uv"]
    assert uv["constraint-dependencies"] == [line for line in lines if not line.startswith("#")]
    for name in ("requirements", "test_requirements", "dev_requirements", "extra_requirements", "onnx_requirements", "browser_requirements", "site_requirements"):  # and settings.ini allows it
        for wanted in settings(name).values():
            pinned = [pin for pin in map(Requirement, uv["constraint-dependencies"]) if pin.name == wanted.name.replace("_", "-")]
            assert pinned and all(str(pin.specifier)[2:] in wanted.specifier for pin in pinned), wanted


def test_every_requirement_has_a_lower_bound():
    for name in ("requirements", "test_requirements", "dev_requirements", "extra_requirements", "onnx_requirements", "browser_requirements", "site_requirements"):
        for wanted in settings(name).values():
            assert any(part.operator == ">=" for part in wanted.specifier), wanted


def test_what_is_required_is_what_the_package_imports():
    "The rest is asked for where an option needs it, with a sentence for whoever lacks it: that is the extra."
    found = {name.split(".")[0] for module in NAMES for name in imports(module)} - sys.stdlib_module_names - {"minibert"}
    found -= {"nbformat", "execnb"}  # of the room of the course: the extra `dev`
    by_import = {"annotated-types": "annotated_types", "pyyaml": "yaml", "scikit-learn": "sklearn"}
    extras = settings("extra_requirements") | settings("onnx_requirements")
    required, extra = ({by_import.get(name, name) for name in names} for names in (settings("requirements"), extras))
    assert required <= found, f"never imported: {required - found}"
    assert found - required <= extra, f"imported and not required: {found - required - extra}"
    assert not required & extra and extras.keys() <= settings("test_requirements").keys()


def test_wheel_has_every_file_and_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel, python = wheel_environment(tmp_path)
    packed = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for path in (ROOT / "minibert").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in shipped} <= packed
    where = run(python, "-c", "import minibert.cli.main; print(minibert.cli.main.__file__)", cwd=tmp_path).strip()
    assert Path(where).resolve().is_relative_to(tmp_path.resolve())
    run(python, "-c", f"import {', '.join(NAMES)}", cwd=tmp_path)  # each alone is another test
    assert run(python, "-c", "from minibert.data.stories import stories; print(stories(1)[0].text)", cwd=tmp_path).strip()
    assert "pretrain" in run(python.with_name("minibert"), "--help", cwd=tmp_path)


@pytest.mark.posix
@pytest.mark.parametrize("python,again", [(sys.executable, False), ("/nowhere", True)])
def test_make_remakes_an_environment_whose_python_is_gone_or_too_old(tmp_path, python, again):
    "Both end the same line of the Makefile in words."
    for name in ("Makefile", "settings.ini", "setup.py", "constraints.txt"): shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(python)
    for name in (".made", ".installed"): (tmp_path / ".venv" / name).touch()
    assert ("-m venv --clear .venv" in run("make", "-n", "demo", cwd=tmp_path)) == again


def test_the_workflow_runs_the_readmes_lines():
    "But for `make test`, which is a job of its own."
    workflow = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf8")
    blocks = re.findall(r"```(?:sh|bat)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf8"), re.S)
    lines = [line.split("  #")[0].strip() for line in "".join(blocks).splitlines()]
    assert len(lines) == 7 and not [line for line in lines if line not in workflow and line != "make test"]


def test_the_command_is_python_m_minibert_too():
    assert run(sys.executable, "-m", "minibert", "--version").strip() == run(tool("minibert"), "--version").strip()
