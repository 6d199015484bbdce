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

from conftest import ROOT, copy_checkout

try: import tomllib
except ImportError: import tomli as tomllib  # Python 3.10

NOTEBOOKS = sorted(p for p in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MODULES = sorted(path for path in (ROOT / "minibert").rglob("*.py") if "File to edit" in path.read_text(encoding="utf8"))
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES]
ORDER = """  # of the modules: each may import those before it
    core.errors core.fields core.files core.precision core.progress core.seeds core.sums hub.config_files config
    text.cleaning text.encoding text.files text.vocabulary tokenizer nn.inputs embeddings nn.attention_parts
    nn.rotary attention nn.parts encoder model nn.losses train.recipe runs.asking heads masking data.stories
    data.tables data.documents data.corpus data.pairs measure.baselines measure.predictions pairs hub.families
    hub.files train.callbacks train.processes train.checkpoints train.optimizers train.state training
    measure.evaluable evaluation hub.parity_parts parity weights numpy_bert.weights numpy_bert.layers
    numpy_bert.model numpy_bert.parts numpy_bert.training inside probing data.labels data.labelled
    nn.classifier_parts finetuning nn.prompts gpt t5 speed checks.exercises checks data.windows data.spans
    text.foreign data.gaps measure.observer measure.bags runs.classifiers runs.finetune runs.tasks runs.runs
    core.course show.diagrams measure.head_scores measure.vectors show.plots show.page show.pictured checks.c00
    checks.c01 checks.c02 checks.c03 checks.c04 checks.c05 checks.c06 checks.c07 checks.c08 checks.c09 checks.c10
    checks.c11 checks.c12 checks.c13 checks.c14 checks.c15 checks.c16 checks.c17 checks.c18 checks.c19 checks.c20
    checks.c21 checks.c24 checks.c25 data.summarising hub.compare hub.compared measure.probe_vectors
    measure.probe_figures measure.roles measure.probe_runs measure.side_by_side perf.products perf.profiling
    perf.bench perf.memory runs.report runs.overview runs.writing cli.manual cli.options cli.main cli.entry
""".split("\n", 1)[1].split()
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


def place(name):
    "Where a module stands in the order."
    return ORDER.index(name.removeprefix("minibert."))


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
    for name in ("README.md", "nbs/reference/README.md"):
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
    guard = 'if find_spec("minibert") is None or find_spec("minibert.checks") is None:  # in Colab\n    %pip install -q "minibert[extra] @ git+https://github.com/minibert/minibert"\n'
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


def test_every_module_has_one_place_in_the_order():
    assert sorted(ORDER) == sorted(name.removeprefix("minibert.") for name in NAMES)


def test_chapters_stand_in_the_order_of_their_numbers():
    numbers = [re.search(r"File to edit: .*?nbs/(\d\d)_", path.read_text(encoding="utf8")) for path in sorted(MODULES, key=lambda p: place(NAMES[MODULES.index(p)]))]
    found = [int(number[1]) for number in numbers if number]
    assert found == sorted(found) and len(found) >= 20


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_never_run_up(path):
    own = NAMES[MODULES.index(path)]
    for name in imports(path):
        if name in NAMES and name != own: assert place(name) < place(own), f"{own} imports {name}, which comes later"


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
    ours = [place(name) for name in NAMES if name in loaded]
    assert 5 <= len(ours) <= 18 and max(ours) == place("minibert.heads")


def test_wheel_has_every_file_and_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    source = tmp_path / "source"
    copy_checkout(source)
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
    where = run(python, "-c", "import minibert.cli.main; print(minibert.cli.main.__file__)", cwd=tmp_path).strip()
    assert Path(where).resolve().is_relative_to(tmp_path.resolve())
    run(python, "-c", f"import {', '.join(NAMES)}", cwd=tmp_path)  # each alone is another test
    assert run(python, "-c", "from minibert.data.stories import stories; print(stories(1)[0].text)", cwd=tmp_path).strip()
    assert "pretrain" in run(python.with_name("minibert"), "--help", cwd=tmp_path)


def test_the_package_offers_its_names_when_they_are_asked_for():
    "Importing it loads no torch; none of its names is a module's, so that each means one thing."
    assert "torch" not in run(sys.executable, "-c", "import sys, minibert; print(*sys.modules)").split()
    import minibert
    for name in minibert.__all__:
        assert getattr(minibert, name).__name__ == name and name in dir(minibert)
        assert not {f"minibert.{name}"} & set(NAMES)
    with pytest.raises(AttributeError, match="no attribute 'Bert'"): _ = minibert.Bert


def test_the_command_is_python_m_minibert_too():
    assert run(sys.executable, "-m", "minibert", "--version").strip() == run(tool("minibert"), "--version").strip()
