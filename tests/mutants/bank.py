"""The bank: wrong implementations, each a small patch of one module, read from this folder's markdown.

A diff may begin with a line `@@ function @@` or `@@ Class.method @@`: its lines are then looked for in that function
alone, so that the same lines elsewhere, and a function that moves within its module, are no trouble.
"""
import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ENTRY = re.compile(r"^## (?P<name>.+)\n\n(?P<who>.+)\n\n```diff\n(?:@@ (?P<where>[\w.]+) @@\n)?(?P<diff>(?:[-+ ].*\n)+)```$", re.M)


@dataclass(frozen=True)
class Mutant:
    "One mistake: in which module, what it is called, who makes it, the lines before and after, and the function that has them."

    module: str
    name: str
    who: str
    find: str
    put: str
    where: str = ""  # a function or Class.method; "" for the module's own lines

    def __str__(self): return f"{self.module}: {self.name}"


def side(diff: str, sign: str) -> str:
    "One side of a diff: the lines with this sign, and those without any."
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in (sign, " "))


def read_bank(folder: Path = HERE) -> list[Mutant]:
    "Every mistake of the bank; a file is called as the module that it breaks."
    mutants = []
    for file in sorted(folder.rglob("*.md")):
        text = file.read_text(encoding="utf8")
        entries = list(ENTRY.finditer(text))
        if len(entries) != text.count("```diff"):
            raise ValueError(f"{file.name} has {text.count('```diff')} diffs and {len(entries)} whole entries: "
                             "write `## name`, a blank line, one line on who, a blank line, the diff.")
        mutants += [Mutant(".".join(file.relative_to(folder).with_suffix("").parts), m["name"], m["who"], side(m["diff"], "-"), side(m["diff"], "+"), m["where"] or "")
                    for m in entries]
    return mutants


@cache  # many mistakes stand in one source
def stretch(text: str, where: str) -> tuple[int, int]:
    "Where a function stands in a source, as two offsets; the whole source for \"\", nothing for one that it has not."
    if not where: return 0, len(text)
    body = ast.parse(text).body
    for name in where.split("."):
        found = next((node for node in body if getattr(node, "name", None) == name), None)
        if found is None: return 0, 0
        body = found.body
    lines = text.splitlines(keepends=True)
    first = min([found.lineno, *(node.lineno for node in found.decorator_list)])
    return sum(map(len, lines[: first - 1])), sum(map(len, lines[: found.end_lineno]))


def places(text: str, mutant: Mutant) -> int:
    "How often the lines of a mistake stand where it says."
    start, stop = stretch(text, mutant.where)
    return text[start:stop].count(mutant.find)


def patch(text: str, mutant: Mutant) -> str:
    "The source with the mistake in it; ValueError unless its place is there exactly once."
    if (n := places(text, mutant)) != 1:
        inside = f" in {mutant.where}" if mutant.where else ""
        raise ValueError(f"{mutant}: its place occurs {n} times{inside} in the source, so the module has changed: "
                         f"mend tests/mutants/{mutant.module.replace('.', '/')}.md. It looks for\n{mutant.find}")
    start, stop = stretch(text, mutant.where)
    return text[:start] + text[start:stop].replace(mutant.find, mutant.put) + text[stop:]
