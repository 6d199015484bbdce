"""The notebooks' gates: clean, exported without a difference, linked, and drawn whole."""
import ast
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from conftest import ROOT

NOTEBOOKS = sorted(path for path in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
CHAPTERS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    "The project in another folder, cleaned, exported and with its README made again there."
    folder = tmp_path_factory.mktemp("export")
    for name in ("nbs", "minibert"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for name in ("settings.ini", "setup.py", "pyproject.toml", "CITATION.cff"): shutil.copy(ROOT / name, folder)
    tools = Path(sys.executable).parent
    stamp, readme = ([sys.executable, ROOT / "tools" / name, folder] for name in ("stamp.py", "make_readme.py"))
    for words in (stamp, [tools / "nbdev_clean"], [tools / "nbdev_export"], readme):
        subprocess.run([str(word) for word in words], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("pattern,way", [("nbs/**/*.ipynb", "python tools/stamp.py and nbdev_clean"), ("CITATION.cff", "python tools/stamp.py"), ("minibert/**/*.py", "nbdev_export"), ("README.md", "make readme"),
                                         ("nbs/reference/README.md", "make readme"), ("pyproject.toml", "no name at a line's beginning, which nbdev takes for its own")])
def test_what_is_made_is_current(copy, pattern, way):
    files = [{path.relative_to(folder): path.read_bytes() for path in folder.glob(pattern) if ".ipynb_checkpoints" not in path.parts}
             for folder in (ROOT, copy)]
    differing = [str(path) for path in sorted(files[0].keys() | files[1].keys()) if files[0].get(path) != files[1].get(path)]
    assert not differing, f"mend them by {way}"


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
    terms = re.findall(r"^## (.+)\n\n.*\(\[chapter (\d+)\]\(\.\./(.+?)\)\)$", text, re.M)
    assert len(terms) == text.count("## ") > 50
    for term, number, name in terms:
        assert name.startswith(f"{int(number):02}_"), term
        assert f"](guides/glossary.md#{term.replace(' ', '-')})" in (ROOT / "nbs" / name).read_text(encoding="utf8"), (term, name)


def code(path): return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_opens_in_colab(path):
    "Its link names it, under the address that stands in settings.ini."
    settings = ConfigParser(delimiters=["="], interpolation=None)
    settings.read(ROOT / "settings.ini", encoding="utf8")
    where = settings["DEFAULT"]["git_url"].removeprefix("https://github.com/")
    assert f"https://colab.research.google.com/github/{where}/blob/main/nbs/{path.name})" in path.read_text(encoding="utf8")
    assert f"https://github.com/{where}/archive/main.zip" in code(path)[0]


@pytest.mark.parametrize("package,said", [(None, "pip install -e ."), ("", "pip uninstall minibert"), ("the course", None)])
def test_the_first_cell_says_what_is_missing(tmp_path, package, said):
    "No package and no repository, a stranger's package of this name, and ours."
    guard = re.sub(r"%pip .*", "pass", code(CHAPTERS[0])[0].partition("\n\n")[0])
    if package == "": (tmp_path / "minibert").mkdir(), (tmp_path / "minibert/__init__.py").write_text("")
    seen = ROOT if package else tmp_path
    done = subprocess.run([sys.executable, "-ISc", f"import sys; sys.path.insert(0, {str(seen)!r})\n{guard}"], capture_output=True, text=True)
    assert bool(done.returncode) == bool(said), done.stderr
    if said: assert said in done.stderr.splitlines()[-1].removeprefix("ImportError: ")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_imports_are_folded(path):
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        body = [] if cell["cell_type"] != "code" else ast.parse(re.sub(r"^ *%pip.*", "    pass", "".join(cell["source"]), flags=re.M)).body
        if len(body) > 1 and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body):
            assert cell["metadata"].get("jupyter", {}).get("source_hidden"), cell["id"]


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
