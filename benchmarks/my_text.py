"""How much text and time one's own model takes, and the guide's six lines on a German text.

    OMP_NUM_THREADS=1 python benchmarks/my_text.py --wikitext ../shared/data/wikitext --german ../shared/data/german

Writes minibert/measured/my_text.json, which nbs/guides/my_text.ipynb shows.

sizes: a text file of 1, 10 and 100 MB, the built-in stories; seconds of the processor until the first step (vocabulary
and ids), seconds of 100 steps, and the most memory that the command had.
text: the first 1 MB and all 10 MB of WikiText-2, 2,000 steps each, asked about the same validation text.
german: Kafka's Verwandlung and the raw sentences of a treebank's development part, with capitals and umlauts kept; 500 steps, then
part-of-speech tags learned from that part in 10 epochs and asked on the treebank's test part, from this model and from a fresh one.
"""
from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from minibert.core.files import write_whole
from minibert.data.documents import load_documents
from minibert.data.stories import stories

OUT = Path(__file__).resolve().parent.parent / "minibert/measured/my_text.json"
FIGURES = "mlm_loss", "mlm_accuracy", "mlm_accuracy_interval", "unigram_loss", "unigram_accuracy", "nsp_accuracy"


def command(*words: object) -> tuple[float, float]:  # seconds of the processor, peak MB
    "Run minibert with these words."
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "minibert", *map(str, words)]
    timed = f"import resource, subprocess, sys; subprocess.run({program!r}, check=True, stdout=sys.stderr); " \
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    peak = subprocess.run([sys.executable, "-c", timed], check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1), round(int(peak) / 1024)


def write_documents(documents, path: Path, size: int) -> Path:
    "As many documents as come to so many bytes, a sentence a line, a blank line between two."
    written = 0
    with path.open("w", encoding="utf8") as file:
        for document in documents:
            written += file.write("\n".join(document) + "\n\n")
            if written > size: return path
    return path


def measure_sizes(folder: Path) -> list[dict]:
    rows = []
    for megabytes in (1, 10, 100):
        told = (story.sentences for story in stories(6_000 * megabytes))
        file = write_documents(told, folder / f"{megabytes}.txt", megabytes * 10**6)
        (first, _), (later, peak) = (
            command("pretrain", "--dataset", file, "--steps", steps, "--quiet", "--out", folder / f"{megabytes}-{steps}")
            for steps in (1, 101))
        rows.append(dict(megabytes=round(file.stat().st_size / 1e6, 1), seconds_before=first,
                         seconds_100_steps=round(later - first, 1), peak_megabytes=peak))
        print(rows[-1], flush=True)
    return rows


def summary(run: Path) -> dict:
    found = json.loads((run / "summary.json").read_text(encoding="utf8"))
    return {name: found[name] for name in FIGURES}


def measure_text(wikitext: str, folder: Path, steps: int = 2000) -> list[dict]:
    validation = load_documents(wikitext, "wikitext-2-v1", "validation")
    rows = []
    for megabytes in (1, 10):
        source = folder / f"wiki{megabytes}"
        source.mkdir()
        train = load_documents(wikitext, "wikitext-2-v1")
        write_documents(train, source / "train.txt", megabytes * 10**6)
        write_documents(islice(validation, 10**6), source / "validation.txt", 10**9)
        out = folder / f"wiki{megabytes}-run"
        seconds, _ = command("pretrain", "--dataset", source, "--recipe", "fast", "--steps", steps, "--batch-size", 32,
                             "--quiet", "--out", out)
        rows.append(dict(megabytes=megabytes, steps=steps, seconds=seconds, **summary(out)))
        print(rows[-1], flush=True)
    return rows


def measure_german(german: str, folder: Path, steps: int = 500) -> dict:
    source, result = folder / "german", {}
    source.mkdir()
    for file in Path(german).glob("*.txt"):
        (source / file.name).write_bytes(file.read_bytes())
    dev, test = (next(Path(german).glob(f"*{part}.conllu")) for part in ("dev", "test"))
    raw = [line[9:] for line in dev.read_text(encoding="utf8").splitlines() if line.startswith("# text = ")]
    (source / "treebank.txt").write_text("\n".join(raw), encoding="utf8")
    shape = "--dataset", source, "--cased", "--recipe", "fast", "--batch-size", 32, "--quiet"
    for name, count in dict(mine=steps, fresh=1).items():
        run, tagger = folder / f"{name}-german", folder / f"{name}-tagger"
        seconds, _ = command("pretrain", *shape, "--steps", count, "--out", run)
        tags, _ = command("finetune", run, "--task", "tag", "--dataset", dev, "--test", test, "--learning-rate", 1e-3,
                          "--epochs", 10, "--out", tagger)
        figures = json.loads((tagger / "figures.json").read_text(encoding="utf8"))
        result[name] = dict(steps=count, seconds=seconds, **summary(run), seconds_tags=tags, tags=figures)
        print(name, result[name], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wikitext", required=True)
    parser.add_argument("--german", required=True)
    parser.add_argument("--parts", nargs="+", default=["german", "text", "sizes"], help="what is measured anew")
    arguments = parser.parse_args()
    result = json.loads(OUT.read_text(encoding="utf8")) if OUT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if "german" in arguments.parts: result["german"] = measure_german(arguments.german, folder)
        if "text" in arguments.parts: result["text"] = measure_text(arguments.wikitext, folder)
        if "sizes" in arguments.parts: result["sizes"] = measure_sizes(folder)
    write_whole(OUT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__": main()
