"""The gates: clean notebooks, an export without a diff, floors, imports, the wheel."""
import ast
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile

import pytest

from conftest import ROOT

MODULES = sorted(path for path in (ROOT / "minibert").rglob("*.py") if not path.name.startswith("_"))
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
FORBIDDEN = {"transformers", "nbdev", "fastcore", "pandas", "IPython", "jupyter"}


def run(*words, cwd=ROOT, **kwargs):
    done = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name): return os.path.join(os.path.dirname(sys.executable), name)


def imports(path):
    "Every module that a file imports, inside functions too."
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import): yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts[: len(path.relative_to(ROOT).parts) - node.level]
            yield ".".join((*package, node.module or "")) if node.level else node.module


def chapter(path):
    "The number of the notebook that a module is exported from, as its header says."
    return int(re.search(r"File to edit: .*?nbs/(\d+)_", path.read_text(encoding="utf8"))[1])


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    "The project in another folder, cleaned, exported and with its README made again there."
    folder = tmp_path_factory.mktemp("export")
    for name in ("nbs", "minibert"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for name in ("settings.ini", "setup.py"): shutil.copy(ROOT / name, folder)
    run(tool("nbdev_clean"), cwd=folder)
    run(tool("nbdev_export"), cwd=folder)
    run(sys.executable, "-m", "nbconvert", "--to", "markdown", "nbs/index.ipynb", "--output-dir", ".", "--output", "README", cwd=folder)
    return folder


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebook_is_clean(path, copy):
    same = path.read_text(encoding="utf8") == (copy / "nbs" / path.name).read_text(encoding="utf8")
    assert same, f"{path.name} is not clean: run nbdev_clean"


@pytest.mark.parametrize("path", sorted((ROOT / "minibert").rglob("*.py")), ids=lambda p: p.stem)
def test_module_is_exported(path, copy):
    same = path.read_text(encoding="utf8") == (copy / path.relative_to(ROOT)).read_text(encoding="utf8")
    assert same, f"{path.name} is not what the notebooks export: run nbdev_export"


def test_no_module_is_missing(copy):
    made = {p.relative_to(copy) for p in (copy / "minibert").rglob("*.py")}
    assert made == {p.relative_to(ROOT) for p in (ROOT / "minibert").rglob("*.py")}


def test_readme_is_current(copy):
    same = (ROOT / "README.md").read_text(encoding="utf8") == (copy / "README.md").read_text(encoding="utf8")
    assert same, "README.md is not what nbs/index.ipynb makes: run make readme"


@pytest.mark.parametrize("name", NAMES)
def test_module_imports_in_a_fresh_process(name): run(sys.executable, "-c", f"import {name}", cwd=ROOT.parent)


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_never_run_up(path):
    numbers = {name: chapter(p) for name, p in zip(NAMES, MODULES)}
    own = chapter(path)
    for name in imports(path):
        if name in numbers and numbers[name] != own:
            assert numbers[name] < own, f"chapter {own} imports {name} from chapter {numbers[name]}"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_reference_libraries_are_never_imported(path):
    assert not FORBIDDEN & {name.split(".")[0] for name in imports(path)}


def test_heads_load_no_reference_library():
    loaded = run(sys.executable, "-c", "import sys, minibert.heads; print(*sys.modules)").split()
    assert not FORBIDDEN & set(loaded) and "matplotlib" not in loaded and "datasets" not in loaded


def test_heads_cost_little_more_than_torch():
    "Interleaved, in fresh processes; the best of seven each, because machines are noisy."
    def seconds(module):
        start = time.perf_counter()
        run(sys.executable, "-c", f"import {module}")
        return time.perf_counter() - start
    both = [(seconds("minibert.heads"), seconds("torch")) for _ in range(7)]
    ours, theirs = map(min, zip(*both))
    assert ours <= 1.3 * theirs, both


def test_wheel_has_every_module_and_the_command(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "build", "*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source)
    wheel, = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "minibert").rglob("*.py")} <= packed
    # another environment, which sees the installed libraries but not this checkout
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    site = run(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
    ours = run(sys.executable, "-c", "import site; print(site.getsitepackages()[0])").strip()
    with open(os.path.join(site, "libraries.pth"), "w") as file: file.write(ours + "\n")
    where = run(python, "-c", "import minibert.cli; print(minibert.cli.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    for name in NAMES: run(python, "-c", f"import {name}", cwd=tmp_path)
    assert "pretrain" in run(python.with_name("minibert"), "--help", cwd=tmp_path)
