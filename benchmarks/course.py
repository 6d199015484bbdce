"""Put a run into the package as the model of the course.

    MINIBERT_BFLOAT16=0 minibert pretrain --out /tmp/course
    python benchmarks/course.py /tmp/course

The run's weights, vocabulary, figures, metrics and curves go to minibert/course_model, with a course.json that says how
they were made. `--out` gives another folder.
"""
from __future__ import annotations

import argparse
import json
import platform
import shutil
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from minibert.runs.plan import as_values
from minibert.runs.run import open_run
from minibert.weights import load_pretrained

COMMAND = "MINIBERT_BFLOAT16=0 minibert pretrain"
FILES = ("config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "summary.json",
         "metrics.jsonl", "curves.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "minibert" / "course_model")
    arguments = parser.parse_args()
    options = as_values(open_run(arguments.run).plan) | dict(out=None)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in FILES: shutil.copy(arguments.run / name, arguments.out / name)
    made = dict(
        command=COMMAND,
        versions=dict(python=platform.python_version()) | {name: version(name) for name in ("minibert", "torch", "numpy")},
        parameters=sum(p.numel() for p in load_pretrained(arguments.out).parameters()),
        sha256=sha256((arguments.out / "model.safetensors").read_bytes()).hexdigest(),
        options=options)
    (arguments.out / "course.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf8")
    print(f"{arguments.out} holds {sum(file.stat().st_size for file in arguments.out.iterdir()):,} bytes.")


if __name__ == "__main__": main()
