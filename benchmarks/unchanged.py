"""Does a change of the code leave every number as it was, bit for bit?

    python benchmarks/unchanged.py record before.json        # before the change, and after.json after it
    python benchmarks/unchanged.py compare before.json after.json --renamed old=new

Short runs through the command, on one thread and in float32: the three recipes, dropout and accumulation, two processes,
a run that is stopped and resumed, fine-tuning, a probe, an evaluation. Kept are the floats of every line of
metrics.jsonl and of every summary, as hexadecimals and without the times, and a SHA-256 of every tensor of the final
weights under its name. `compare` prints each difference and ends with 1 if there is one; --renamed maps keys of the
first file to those of the second, and what it maps is printed.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file

from minibert.data.stories import stories

SHORT = ("--length", 48, "--vocab-size", 1000, "--precision", "float32", "--log-steps", 1)
RUNS = {  # folder: the words after `pretrain`
    "own": ("--steps", 12, "--batch-size", 16, *SHORT),
    "bert": ("--recipe", "bert", "--steps", 8, "--batch-size", 16, *SHORT),
    "fast": ("--recipe", "fast", "--steps", 8, "--batch-size", 16, *SHORT),
    "parts": ("--steps", 6, "--batch-size", 10, "--gradient-accumulation-steps", 3, "--dropout", 0.1, "--units", "words", "--optimizer", "adamw",
              "--schedule", "trapezoid", "--watch", *SHORT),
    "resumed": ("--steps", 12, "--batch-size", 16, "--checkpoint-steps", 6, "--dropout", 0.1, *SHORT),
    "half": ("--steps", 4, "--batch-size", 8, "--precision", "bfloat16", *(SHORT[:4] + SHORT[6:])),
    "numpy": ("--steps", 4, "--batch-size", 8, "--backend", "numpy", *SHORT),
}
TIMES = {"time", "seconds", "train_seconds", "prepare_seconds", "seconds_per_step", "tokens_per_second", "tokens_per_s", "pairs_per_second", "out"}


def call(*words, launch=("-m", "minibert.cli.main")) -> str:  # what it prints
    env = os.environ | dict(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    done = subprocess.run([sys.executable, *launch, *map(str, words)], env=env, capture_output=True, text=True)
    if done.returncode: raise SystemExit(f"minibert {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def floats(name: str, value) -> Iterator[tuple[str, str]]:
    "Every number below `value` with its path, floats as hexadecimals; times are left out."
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in TIMES: yield from floats(f"{name}/{key}", part)
    elif isinstance(value, list):
        for k, part in enumerate(value): yield from floats(f"{name}/{k}", part)
    else: yield name, value.hex() if isinstance(value, float) else str(value)


def read(folder: Path, name: str) -> dict[str, str]:
    "The figures and the tensors below a folder."
    found = {}
    for file in sorted(folder.rglob("*")):
        where = f"{name}/{file.relative_to(folder).as_posix()}"
        if "checkpoints" in file.parts or "corpus" in file.parts or "val" in file.parts: continue
        if file.name == "metrics.jsonl":
            for line in map(json.loads, file.read_text(encoding="utf8").splitlines()): found |= floats(f"{where}/{line['step']}", line)
        elif file.name in ("summary.json", "figures.json", "probe.json"): found |= floats(where, json.loads(file.read_text(encoding="utf8")))
        elif file.name == "model.safetensors":
            for tensor, values in load_file(file).items():
                bits = hashlib.sha256(values.contiguous().view(-1).numpy().tobytes()).hexdigest()[:16]
                found[f"{where}/{tensor}"] = f"{values.dtype} {tuple(values.shape)} {bits}"
    return found


def record() -> dict[str, str]:
    found = {}
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        for name, words in RUNS.items():
            call("pretrain", *words, "--out", place / name)
            if name == "resumed":  # as if it had been killed at step 6
                shutil.rmtree(place / name / "checkpoints/00000012")
                for file in ("model.safetensors", "summary.json"): (place / name / file).unlink()
                call("pretrain", "--resume", place / name)
            print(name, flush=True)
        two = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29637", "-m", "minibert.cli.main")
        call("pretrain", *RUNS["parts"], "--out", place / "two", launch=two)
        print("two", flush=True)
        lines = ["text\tlabel", *(f"{story.text}\t{story.sentiment}" for story in stories(120))]
        (place / "moods.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")
        table, steps = ("--dataset", place / "moods.tsv", "--length", 48), ("--batch-size", 16, "--epochs", 1, "--precision", "float32")
        for name, more in {"tuned": steps, "tuned-parts": (*steps, "--gradient-accumulation-steps", 3, "--pooling", "mean"), "frozen": ("--frozen",)}.items():
            call("finetune", place / "own", *table, *more, "--out", place / name)
            print(name, flush=True)
        call("probe", place / "own", "--seeds", 1, "--out", place / "probed")
        found |= floats("evaluated", json.loads(call("evaluate", place / "own", "--dataset", "stories", "--json")))
        for folder in sorted(place.iterdir()):
            if folder.is_dir(): found |= read(folder, folder.name)
    return found


def compare(before: dict[str, str], after: dict[str, str], renamed: dict[str, str]) -> int:
    for old, new in renamed.items():
        moved = {key: key.replace(old, new) for key in before if old in key}
        print(f"{old} -> {new}: {len(moved)} keys")
        before = {moved.get(key, key): value for key, value in before.items()}
    different = [key for key in before.keys() & after.keys() if before[key] != after[key]]
    for what, keys in (("differs", different), ("is gone", before.keys() - after.keys()), ("is new", after.keys() - before.keys())):
        for key in sorted(keys)[:20]: print(f"{what}: {key}  {before.get(key, '')}  {after.get(key, '')}")
        if len(keys) > 20: print(f"... and {len(keys) - 20} more that {what.split()[0]}")
    print(f"{len(before.keys() & after.keys()) - len(different):,} values alike, {len(different)} different, "
          f"{len(before.keys() - after.keys())} gone, {len(after.keys() - before.keys())} new")
    return int(bool(different or before.keys() ^ after.keys()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--renamed", nargs="*", default=[], metavar="old=new")
    arguments = parser.parse_args()
    if len(arguments.files) != 1 + (arguments.what == "compare"): parser.error("record takes one file, compare two")
    if arguments.what == "record":
        found = record()
        arguments.files[0].write_text(json.dumps(found, indent=0) + "\n", encoding="utf8")
        return print(f"{len(found):,} values in {arguments.files[0]}") or 0
    return compare(*(json.loads(file.read_text(encoding="utf8")) for file in arguments.files), dict(pair.split("=") for pair in arguments.renamed))


if __name__ == "__main__":
    sys.exit(main())
