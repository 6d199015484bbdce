"""Write README.md from nbs/index.ipynb, and nbs/reference/README.md from the first lines of the reference's notebooks.

    python tools/make_readme.py [FOLDER]

Links in the index are relative to nbs, where it stands; in README.md they are relative to the project.
"""
import json
import re
import sys
from pathlib import Path

from nbconvert import MarkdownExporter

ROOMS = {  # in the order in which a reader meets them
    "core": "What every module may ask for", "text": "Text to pieces", "data": "Examples to learn from", "nn": "Parts of models",
    "hub": "Checkpoints", "train": "Training", "measure": "Measuring", "runs": "A run and its folder", "tuning": "The tasks of fine-tuning", "cli": "The command",
    "show": "Pictures", "perf": "Speed and memory", "numpy_bert": "BERT in NumPy", "checks": "Exercises", "course": "The course as a folder to work in",
}


def readme(folder: Path) -> str:
    "The index as Markdown, its links made relative to the project."
    text, _ = MarkdownExporter().from_filename(str(folder / "nbs" / "index.ipynb"))
    def moved(match):
        path = match[1]
        return f"]({path[3:]})" if path.startswith("../") else f"](nbs/{path})"
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", moved, text).rstrip("\n") + "\n"


def first_lines(path: Path) -> str:
    "What a notebook says of itself under its title."
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        for line in "".join(cell["source"]).splitlines():
            if line.startswith("> "): return line[2:]
    raise ValueError(f"{path.name} says nothing of itself: begin it with a title and a line '> ...'.")


def reference(folder: Path) -> str:
    "The notebooks of the reference, room by room."
    lines = ["# The reference", "", "A notebook for each module that no chapter builds, in a folder for each room of the package. "
             "No learner needs to read them.", ""]
    for room, purpose in ROOMS.items():
        books = sorted((folder / "nbs" / "reference" / room).glob("*.ipynb"))
        rows = [f"| [{book.stem}]({room}/{book.name}) | {first_lines(book)} |" for book in books]
        lines += [f"## {room}: {purpose.lower()}", "", "| notebook | what it holds |", "| --- | --- |", *rows, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def main(folder: Path) -> None:
    (folder / "README.md").write_text(readme(folder), encoding="utf8")
    (folder / "nbs" / "reference" / "README.md").write_text(reference(folder), encoding="utf8")


if __name__ == "__main__": main(Path(*sys.argv[1:2]) if sys.argv[1:] else Path(__file__).resolve().parent.parent)
