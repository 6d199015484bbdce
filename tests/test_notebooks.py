"""The notebooks' gates: clean, exported without a difference, linked, and drawn whole."""
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from conftest import ROOT

NOTEBOOKS = sorted(path for path in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    "The project in another folder, cleaned, exported and with its README made again there."
    folder = tmp_path_factory.mktemp("export")
    for name in ("nbs", "minibert"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    for name in ("settings.ini", "setup.py", "pyproject.toml"): shutil.copy(ROOT / name, folder)
    tools = Path(sys.executable).parent
    for words in ([tools / "nbdev_clean"], [tools / "nbdev_export"], [sys.executable, ROOT / "tools/make_readme.py", folder]):
        subprocess.run([str(word) for word in words], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("pattern,way", [("nbs/**/*.ipynb", "nbdev_clean"), ("minibert/**/*.py", "nbdev_export"), ("README.md", "make readme"),
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
