"""Keep the figures of the demo's run, for the chapters and the README.

    MINIBERT_BFLOAT16=0 minibert pretrain --out /tmp/demo
    python benchmarks/demo.py /tmp/demo

Writes minibert/measured/demo.json (its summary, its metrics, and how many of the 24 names it reads: see course.py) and
nbs/images/demo.png.
"""
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from course import count_names
from minibert.train.callbacks import read_metrics

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    run = Path(sys.argv[1])
    kept = dict(
        command="MINIBERT_BFLOAT16=0 minibert pretrain",
        summary=json.loads((run / "summary.json").read_text(encoding="utf8")),
        names_both_hidden=count_names(run), names_first_given=count_names(run, "{}")[1], metrics=read_metrics(run))
    (ROOT / "minibert" / "measured" / "demo.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf8")
    shutil.copy(run / "curves.png", ROOT / "nbs" / "images" / "demo.png")


if __name__ == "__main__": main()
