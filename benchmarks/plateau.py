"""Who leaves the unigram plateau, and when: positions and optimizers on the stories. Some ten minutes of one core.

    OMP_NUM_THREADS=1 python benchmarks/plateau.py runs/plateau

Runs plans/plateau.yaml by `minibert experiment` (500 steps, three rates on seed 0, the best of them on seeds 1 to 3), and
writes minibert/measured/plateau.json: the verdicts, each judging run's loss in every tenth step, and for a fixed pair of
sentences the share of its attention that the most neighbourly head gives to the two neighbours, with seed 1's map.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from minibert.core.files import write_whole
from minibert.data.corpus import Corpus
from minibert.measure.baselines import unigram_baseline
from minibert.model import attentions
from minibert.runs.experiment import run_plan
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.callbacks import read_metrics
from minibert.weights import load_pretrained

ROOT = Path(__file__).resolve().parent.parent
A, B = "anna lost her red ball .", "she found it under the bed ."


def neighbours(probs: torch.Tensor) -> float:  # (S, S)
    "The mean share that goes to the word before and the word after."
    return sum(probs.diagonal(k).sum().item() for k in (-1, 1)) / len(probs)


@torch.no_grad()
def nearest_head(run: Path, ids: torch.Tensor) -> torch.Tensor:  # (S, S)
    "The map of the head that looks most at its neighbours."
    model = load_pretrained(run).eval()
    return max(torch.cat([layer[0] for layer in attentions(model.bert, input_ids=ids)]), key=neighbours)


def main() -> None:
    folder, found = run_plan(ROOT / "benchmarks/plans/plateau.yaml", out=sys.argv[1])
    tokenizer = WordPieceTokenizer.from_pretrained(folder / "text")
    ids = torch.tensor([tokenizer.encode(A, B)["input_ids"]])
    pieces = np.asarray(Corpus.open(folder / "text/corpus", tokenizer).ids, dtype=np.int64)
    counts = np.bincount(pieces, minlength=tokenizer.vocab_size)
    runs = {}
    for row in found:
        folders = [folder / f"{row['name']}-x{row['factor']:g}-seed{seed}" for seed in (1, 2, 3)]
        lines = [read_metrics(run) for run in folders]
        maps = [nearest_head(run, ids) for run in folders]
        runs["learned, AdamW" if row["name"] == "base" else row["name"]] = dict(
            factor=row["factor"], gain=[row[key] for key in ("gain", "low", "high")], verdict=row["verdict"],
            steps=[line["step"] for line in lines[0]],
            loss=[[round(line["mlm_loss"], 4) for line in own] for own in lines],
            neighbours=[round(neighbours(own), 4) for own in maps],
            map=[[round(p, 4) for p in line] for line in maps[0].tolist()])
    runs["learned, AdamW"].update(gain=None, verdict="the base")  # there is nothing to compare it with
    result = dict(
        unigram_loss=unigram_baseline(counts, pieces)["unigram_loss"], even=2 / ids.shape[1],
        tokens=[tokenizer.pieces[i] for i in ids[0].tolist()], runs=runs)
    write_whole(ROOT / "minibert/measured/plateau.json", json.dumps(result) + "\n")


if __name__ == "__main__": main()
