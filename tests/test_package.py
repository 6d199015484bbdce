"""The gates: clean notebooks, an export without a diff, floors, imports, the wheel."""
import ast
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from packaging.requirements import Requirement

from conftest import ROOT

try: import tomllib
except ImportError: import tomli as tomllib  # Python 3.10

NOTEBOOKS = sorted(p for p in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MODULES = sorted(path for path in (ROOT / "minibert").rglob("*.py") if "File to edit" in path.read_text(encoding="utf8"))
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES]
FLOORS = {  # of the appendix: between which chapters each module lies; core, show and recipe lie below all
    "core": -1,
    "sums": -0.95,
    "show": -0.9,
    "diagrams": -0.8,
    "exercises": -0.8,
    "checks": -0.7,
    "products": -0.6,
    "profiling": -0.6,
    "recipe": -0.5,
    "config_files": -0.3,
    "memory": 1.05,
    "families": 1.1,
    "files": 1.2,
    "inputs": 1.3,
    "parts": 1.4,
    "text": 1.5,
    "tokenizer_files": 1.6,
    "other_tokenizers": 2.5,
    "compared": 21.5,
    "pictured": 21.6,
    "vocabulary": 1.8,
    "rows": 1.8,
    "rotary": 3.5,
    "attention_parts": 3.8,
    "losses": 6.5,
    "asking": 6.6,
    "stories": 7.1,
    "tables": 7.1,
    "documents": 7.2,
    "corpus": 7.5,
    "baselines": 8.5,
    "answers": 8.6,
    "evaluable": 8.7,
    "pairs_parts": 8.7,
    "parallel": 9.2,
    "optimizers": 9.3,
    "checkpoints": 9.5,
    "progress": 0.6,
    "callbacks": 9.6,
    "train_state": 9.7,
    "parity_parts": 11.5,
    "compare": 13.5,
    "numpy_weights": 13.6,
    "numpy_parts": 15.5,
    "head_scores": 17.2,
    "vectors": 17.3,
    "observer": 17.4,
    "page": 17.6,
    "probe_vectors": 17.8,
    "probe_figures": 18.2,
    "roles": 18.3,
    "labels": 18.5,
    "bags": 18.7,
    "classifier_parts": 18.7,
    "labelled": 18.7,
    "probe_runs": 18.6,
    "classifiers": 19.3,
    "finetune_runs": 19.5,
    "prompts": 19.8,
    "windows": 19.9,
    "spans": 20.5,
    "gaps": 21.5,
    "writing": 21.6,
    "summarising": 21.5,
    "bench": 24.5,
    "side_by_side": 21.6,
    "kinds": 88,
    "manual": 88.3,
    "options": 88.5,
    "runs": 89,
    "course": 89.3,
    "report": 89.5,
    "overview": 89.7,
    "cli": 90,
    "entry": 90.1,
}
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
    "The floor of the notebook that a module's header names: a chapter's number, what the list says of the appendix, or the top for answers."
    folder, name = re.search(r"File to edit: .*?nbs/(appendix/|answers/)?(\w+)\.ipynb", path.read_text(encoding="utf8")).groups()
    if folder == "appendix/": return FLOORS[name]
    return 99 if folder == "answers/" else int(name.partition("_")[0])  # answers may lean on everything


def settings(name):
    "The requirements that settings.ini lists under a name, by their names."
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf8")
    return {wanted.name: wanted for wanted in map(Requirement, parser["DEFAULT"][name].split())}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    "The project in another folder, cleaned, exported and with its README made again there."
    folder = tmp_path_factory.mktemp("export")
    for name in ("nbs", "minibert"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for name in ("settings.ini", "setup.py", "pyproject.toml"): shutil.copy(ROOT / name, folder)
    run(tool("nbdev_clean"), cwd=folder)
    run(tool("nbdev_export"), cwd=folder)
    run(sys.executable, ROOT / "tools" / "make_readme.py", folder)
    return folder


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_clean(path, copy):
    same = path.read_text(encoding="utf8") == (copy / path.relative_to(ROOT)).read_text(encoding="utf8")
    assert same, f"{path.name} is not clean: run nbdev_clean"


@pytest.mark.parametrize("path", sorted((ROOT / "minibert").rglob("*.py")), ids=lambda p: p.stem)
def test_module_is_exported(path, copy):
    same = path.read_text(encoding="utf8") == (copy / path.relative_to(ROOT)).read_text(encoding="utf8")
    assert same, f"{path.name} is not what the notebooks export: run nbdev_export"


def test_no_module_is_missing(copy):
    made = {p.relative_to(copy) for p in (copy / "minibert").rglob("*.py")}
    assert made == {p.relative_to(ROOT) for p in (ROOT / "minibert").rglob("*.py")}


def test_readme_is_current(copy):
    for name in ("README.md", "nbs/appendix/README.md"):
        same = (ROOT / name).read_text(encoding="utf8") == (copy / name).read_text(encoding="utf8")
        assert same, f"{name} is not what the notebooks make: run make readme"


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "nbs").rglob("*.md")), *NOTEBOOKS], ids=lambda p: p.stem)
def test_links_lead_somewhere(path):
    "To a file, and where a heading is named, to one of its headings."
    text = path.read_text(encoding="utf8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        assert (path.parent / name).exists(), target
        if anchor: assert anchor in headings(path.parent / name), target


def headings(path):
    "The anchors of a page, as Jupyter makes them."
    text = path.read_text(encoding="utf8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return [re.sub(r"^#+ ", "", line).replace(" ", "-") for line in text.splitlines() if line.startswith("#")]


def test_each_term_of_the_glossary_is_linked_from_the_chapter_that_builds_it():
    text = (ROOT / "nbs/guides/glossary.md").read_text(encoding="utf8")
    terms = re.findall(r"^### (.+)\n\n.*\(\[chapter (\d+)\]\(\.\./(.+?)\)\)$", text, re.M)
    assert len(terms) == text.count("### ") > 50
    for term, number, name in terms:
        assert name.startswith(f"{int(number):02}_"), term
        assert f"](guides/glossary.md#{term.replace(' ', '-')})" in (ROOT / "nbs" / name).read_text(encoding="utf8"), (term, name)


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").glob("[0-9]*.ipynb")), ids=lambda p: p.stem)
def test_a_chapter_opens_in_colab(path):
    "Its link names it, and the first cell of code installs the package where it is missing, before anything is imported from it."
    cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    assert f"https://colab.research.google.com/github/minibert/minibert/blob/main/nbs/{path.name})" in "".join(cells[0]["source"])
    first = "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])
    guard = 'if find_spec("minibert") is None:  # in Colab\n    %pip install -q "minibert[extra] @ git+https://github.com/minibert/minibert"\n'
    assert guard in first and "from minibert" not in first[: first.index(guard)]


def test_export_leaves_pyproject_alone(copy):
    "nbdev writes a name and a Python into it, wherever a line begins with `name =`."
    assert (ROOT / "pyproject.toml").read_text(encoding="utf8") == (copy / "pyproject.toml").read_text(encoding="utf8")


def test_uv_and_pip_take_one_tested_set():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["uv"]
    assert uv["constraint-dependencies"] == [line for line in lines if not line.startswith("#")]
    for name in ("requirements", "test_requirements", "dev_requirements", "extra_requirements"):  # and settings.ini allows it
        for wanted in settings(name).values():
            pinned = [pin for pin in map(Requirement, uv["constraint-dependencies"]) if pin.name == wanted.name.replace("_", "-")]
            assert pinned and all(str(pin.specifier)[2:] in wanted.specifier for pin in pinned), wanted


def test_every_requirement_has_a_lower_bound():
    for name in ("requirements", "test_requirements", "dev_requirements", "extra_requirements"):
        for wanted in settings(name).values():
            assert any(part.operator == ">=" for part in wanted.specifier), wanted


def test_what_is_required_is_what_the_package_imports():
    "The rest is asked for where an option needs it, with a sentence for whoever lacks it: that is the extra."
    found = {name.split(".")[0] for path in MODULES for name in imports(path)} - sys.stdlib_module_names - {"minibert"}
    by_import = {"pyyaml": "yaml", "scikit-learn": "sklearn"}
    required, extra = ({by_import.get(name, name) for name in settings(kind)} for kind in ("requirements", "extra_requirements"))
    assert required <= found, f"never imported: {required - found}"
    assert found - required <= extra, f"imported and not required: {found - required - extra}"
    assert not required & extra and settings("extra_requirements").keys() <= settings("test_requirements").keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_names_a_place_of_this_machine(path):
    "A warning prints the file that it comes from, and with it whose machine it was."
    text = path.read_text(encoding="utf8")
    assert not [word for word in ("site-packages", "Warning: IProgress", str(Path.home()) + os.sep) if word in text]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_picture_is_whole_and_says_what_it_shows(path):
    "JupyterLab shows the text/html of an output; what reaches a picture's outermost pixels was cut off."
    outputs = [out for cell in json.loads(path.read_text(encoding="utf8"))["cells"] for out in cell.get("outputs", [])]
    for html in ("".join(out.get("data", {}).get("text/html", "")) for out in outputs):
        assert html.count("<img ") == len(re.findall(r'<img alt="[^"]{20,}"', html)), html[:200]
        for picture in re.findall(r'src="data:image/png;base64,([^"]+)"', html):
            pixels = plt.imread(io.BytesIO(base64.b64decode(picture)))
            sides = dict(top=pixels[0], bottom=pixels[-1], left=pixels[:, 0], right=pixels[:, -1])
            assert not [side for side, row in sides.items() if row.min() < 1], html[:200]


FORKS = """  # each module that is asked for in a process of its own, which has torch already and nothing of ours
import importlib, os, sys, traceback
import datasets, matplotlib.pyplot, rich.progress, torch, yaml
for name in map(str.strip, iter(sys.stdin.readline, "")):
    assert not [loaded for loaded in sys.modules if loaded.split(".")[0] == "minibert"]
    if not (child := os.fork()):
        code = 1
        try: code = importlib.import_module(name) is None
        except BaseException: traceback.print_exc()
        finally: sys.stderr.flush(), os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forks():
    with subprocess.Popen([sys.executable, "-c", FORKS], cwd=ROOT.parent, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as forks:
        yield forks
        forks.stdin.close()


@pytest.mark.parametrize("name", NAMES)
def test_module_imports_in_a_fresh_process(name, forks):
    "Torch and other libraries were loaded before, which takes seconds: a fork shares them, where there are forks."
    if not hasattr(os, "fork"): return run(sys.executable, "-c", f"import {name}", cwd=ROOT.parent)
    print(name, file=forks.stdin, flush=True)
    assert forks.stdout.readline() == "0\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_module_imports_in_a_process_that_has_loaded_nothing(name): run(sys.executable, "-c", f"import {name}", cwd=ROOT.parent)


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


def test_heads_load_torch_and_the_chapters_up_to_their_own():
    "So importing them costs what importing torch costs, on any machine, busy or not."
    code = "import sys, torch; before = {*sys.modules}; import minibert.heads; print(*{*sys.modules} - before)"
    loaded = run(sys.executable, "-c", code).split()
    assert {name.split(".")[0] for name in loaded} - sys.stdlib_module_names == {"minibert"}
    floors = [chapter(path) for name, path in zip(NAMES, MODULES) if name in loaded]
    assert 5 <= len(floors) <= 16 and max(floors) == chapter(ROOT / "minibert" / "heads.py")


def test_wheel_has_every_file_and_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "build", "*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source)
    wheel, = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for path in (ROOT / "minibert").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in shipped} <= packed
    # another environment, which sees the installed libraries but not this checkout
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    site, ours = (run(p, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip() for p in (python, sys.executable))
    (Path(site) / "libraries.pth").write_text(ours + "\n", encoding="utf8")
    where = run(python, "-c", "import minibert.cli; print(minibert.cli.__file__)", cwd=tmp_path).strip()
    assert Path(where).resolve().is_relative_to(tmp_path.resolve())
    run(python, "-c", f"import {', '.join(NAMES)}", cwd=tmp_path)  # each alone is another test
    assert run(python, "-c", "from minibert.stories import stories; print(stories(1)[0].text)", cwd=tmp_path).strip()
    assert "pretrain" in run(python.with_name("minibert"), "--help", cwd=tmp_path)
