"""The bank: wrong implementations, each a small patch of one module, read from this folder's markdown."""
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENTRY = re.compile(r"^## (?P<name>.+)\n\n(?P<who>.+)\n\n```diff\n(?P<diff>(?:[-+ ].*\n)+)```$", re.M)


@dataclass(frozen=True)
class Mutant:
    "One mistake: in which module, what it is called, who makes it, the lines before and after."

    module: str
    name: str
    who: str
    find: str
    put: str

    def __str__(self): return f"{self.module}: {self.name}"


def side(diff: str, sign: str) -> str:
    "One side of a diff: the lines with this sign, and those without any."
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in (sign, " "))


def read_bank(folder: Path = HERE) -> list[Mutant]:
    "Every mistake of the bank; a file is called as the module that it breaks."
    mutants = []
    for file in sorted(folder.glob("*.md")):
        text = file.read_text(encoding="utf8")
        entries = list(ENTRY.finditer(text))
        if len(entries) != text.count("```diff"):
            raise ValueError(f"{file.name} has {text.count('```diff')} diffs and {len(entries)} whole entries: "
                             "write `## name`, a blank line, one line on who, a blank line, the diff.")
        mutants += [Mutant(file.stem, m["name"], m["who"], side(m["diff"], "-"), side(m["diff"], "+")) for m in entries]
    return mutants


def patch(text: str, mutant: Mutant) -> str:
    "The source with the mistake in it; ValueError unless its place is there exactly once."
    if (n := text.count(mutant.find)) != 1:
        raise ValueError(f"{mutant}: its place occurs {n} times in the source, so the module has changed: "
                         f"mend tests/mutants/{mutant.module}.md. It looks for\n{mutant.find}")
    return text.replace(mutant.find, mutant.put)
