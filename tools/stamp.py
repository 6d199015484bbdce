"""Stamp the notebooks with what stands in one place, or what JupyterLab forgets.

    python tools/stamp.py [FOLDER]

The repository's address comes from settings.ini: into the links, and into the cell that installs the course where it is missing.
An output that would give a guess away is collapsed until its cell is run. JupyterLab drops that mark when it saves.
"""
import json
import re
import sys
from configparser import ConfigParser, SectionProxy
from pathlib import Path

GUARD = '''from importlib.util import find_spec
if not find_spec("minibert"):  # as in Colab
    %pip install -q "{name}[extra] @ {url}/archive/{branch}.zip"
if not find_spec("minibert"):
    raise ImportError(
        "The course isn't installed, and {url} can't be had. "
        "Run pip install -e . in a folder with the course's files, and restart the kernel.")
if not find_spec("minibert.checks"):
    raise ImportError(
        "The minibert that is installed here is another package of that name. "
        "Run pip uninstall minibert, and restart the kernel.")
'''
ASKS = re.compile(r"[Bb]efore you (look|run|go on|read on)|\bGuess\b|guess:|Make a guess|do you (expect|think)")


def install(cells: list[dict], settings) -> None:
    "Begin the first cell of code with the guard."
    cell = next(cell for cell in cells if cell["cell_type"] == "code")
    rest = re.sub(r"from importlib.util import find_spec\n(if .*\n( .*\n)+)+", "", "".join(cell["source"])).lstrip("\n")
    guard = GUARD.format(name=settings["lib_name"], url=settings["git_url"], branch=settings["branch"])
    cell["source"] = f"{guard}\n{rest}".splitlines(keepends=True)


def collapse(cells: list[dict]) -> None:
    "Hide the first output after a question, unless other prose or an exercise stands between."
    asked = False
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            asked = bool(ASKS.search(source))
            continue
        hidden = asked and bool(cell["outputs"]) and not re.search(r'^#\| exercise|^check\("', source)
        asked = asked and not cell["outputs"]
        jupyter = cell["metadata"].pop("jupyter", {}) | {"outputs_hidden": True}
        tags = [tag for tag in cell["metadata"].pop("tags", []) if tag != "hide-output"]
        if not hidden: del jupyter["outputs_hidden"]
        if hidden: tags.append("hide-output")
        cell["metadata"] |= {key: value for key, value in (("jupyter", jupyter), ("tags", tags)) if value}


def settings_of(folder: Path) -> SectionProxy:
    "What settings.ini says, the repository's address too."
    parser = ConfigParser(delimiters=["="], interpolation=None)
    parser.read(folder / "settings.ini", encoding="utf8")
    return parser["DEFAULT"]


def main(folder: Path) -> None:
    settings = settings_of(folder)
    user_repo = settings["git_url"].removeprefix("https://github.com/")
    citation = folder / "CITATION.cff"
    old = re.search(r'repository-code: "https://github.com/(.+)"', citation.read_text(encoding="utf8"))[1]
    for path in [citation, *sorted((folder / "nbs").rglob("*.md")), *sorted((folder / "nbs").rglob("*.ipynb"))]:
        before = path.read_text(encoding="utf8")
        text = re.sub(rf"(github(?:\.com)?/){re.escape(old)}\b", rf"\g<1>{user_repo}", before)
        if path.suffix == ".ipynb":
            book = json.loads(text)
            if re.match(r"\d", path.name) and path.parent.name == "nbs":
                install(book["cells"], settings)
                collapse(book["cells"])
            text = json.dumps(book, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        if text != before: path.write_text(text, encoding="utf8", newline="\n")


if __name__ == "__main__": main(Path(*sys.argv[1:2]) if sys.argv[1:] else Path(__file__).resolve().parent.parent)
