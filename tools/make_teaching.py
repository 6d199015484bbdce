"""Fill in what the teacher's pages take from elsewhere: minutes from the index, mistakes from the checks.

    python tools/make_teaching.py [FOLDER]

A page in nbs/teaching has the name of its chapter. What stands between two marks is written anew each time, and the rest is left alone.
"""
import json
import re
import sys
from pathlib import Path

from minibert.checks import exercises
from minibert.checks.exercises import Exercise, Wrong, shown
from minibert.checks.experiments import Experiment

ROOT = Path(__file__).resolve().parent.parent
MINUTES = {"predict": 10, "complete": 15, "break": 15, "experiment": 20}  # an estimate, until a class was timed


def index_rows(folder: Path) -> dict[str, list[str]]:
    "The cells of the index's table by chapter: what it gives, what it builds on, minutes, seconds."
    cells = json.loads((folder / "nbs/index.ipynb").read_text(encoding="utf8"))["cells"]
    text = "".join("".join(cell["source"]) + "\n" for cell in cells)
    rows = re.findall(r"^\| (\d\d\w?) \| \[.+?\]\((\S+)\.ipynb\) \| (.+) \| (.+) \| (\d+) \| (\d+) \|$", text, re.M)
    return {stem: list(row) for _, stem, *row in rows}


def exercises_of(stem: str) -> list[Exercise]:
    return list(exercises(stem.partition("_")[0]).values())


def minutes_of(stem: str) -> int:
    "How long a chapter's exercises may take."
    return sum(MINUTES[exercise.kind] for exercise in exercises_of(stem))


def facts(stem: str, row: list[str]) -> str:
    gives, needs, minutes, seconds = row
    count = len(exercises_of(stem))
    return (f"[The chapter](../{stem}.ipynb) · [its answers](../answers/{stem}.ipynb) · [all pages](README.md)\n\n"
            f"What it gives: {gives}. Builds on: {needs}. Alone, it takes {minutes} minutes to read and {seconds} seconds to run; "
            f"its {count} exercises take about {minutes_of(stem)} minutes more (estimate).")


def value(thing) -> str:
    "A value in one line, a set in order."
    return f"`{shown(sorted(thing) if isinstance(thing, set) else thing)}`"


def written(exercise: Exercise, wrong: Wrong) -> str:
    "What a learner wrote, where a line can say it."
    if exercise.is_value:
        made = wrong.answer() if callable(wrong.answer) else wrong.answer
        return f"{value(made)}: "
    old, new = (part.strip() for part in wrong.change or ("", ""))
    if not old or max(len(old), len(new)) > 60 or re.search(r"[`\n]", old + new): return ""
    return f"`{new}` for `{old}`: " if new else f"without `{old}`: "


def mistakes(stem: str) -> str:
    lines = []
    for exercise in exercises_of(stem):
        lines += [f"### {exercise.id}: {exercise.topic}", ""]
        if exercise.is_value: lines += [f"Right: {value(exercise.right())}.", ""]
        if isinstance(exercise, Experiment): lines += [" ".join(exercise.solution()[0].split()), ""]
        for wrong in exercise.wrong: lines.append(f"- {written(exercise, wrong)}{wrong.sentence}")
        lines.append("")
    return "\n".join(lines).strip()


def filled(text: str, **parts: str) -> str:
    "The page with each part between its marks."
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- {name}:")
        head, end, after = rest.partition("<!-- end -->")
        if not end: raise ValueError(f"there is no mark {name}")
        first, _, _ = head.partition("\n")
        text = f"{before}{mark}{first}\n{part}\n{end}{after}"
    return text


def listed(rows: dict[str, list[str]]) -> str:
    lines = ["| chapter | reading | exercises (estimate) |", "| --- | --- | --- |"]
    for stem, (_, _, minutes, _) in rows.items():
        page = f"[{stem.replace('_', ' ')}]({stem}.md)"
        lines.append(f"| {page} | {minutes} | {minutes_of(stem)} |")
    return "\n".join(lines)


def pages(folder: Path) -> dict[Path, str]:
    "Each page as it should be."
    home, rows = folder / "nbs/teaching", index_rows(folder)
    found = {stem: row for stem, row in rows.items() if (home / f"{stem}.md").exists()}
    made = {home / f"{stem}.md": dict(facts=facts(stem, row), mistakes=mistakes(stem)) for stem, row in found.items()}
    made[home / "README.md"] = dict(pages=listed(found))
    return {path: filled(path.read_text(encoding="utf8"), **parts) for path, parts in made.items()}


def main(folder: Path) -> None:
    for path, text in pages(folder).items(): path.write_text(text, encoding="utf8")


if __name__ == "__main__": main(Path(*sys.argv[1:2]) if sys.argv[1:] else ROOT)
