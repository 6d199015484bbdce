"""The default recipe in a fifth of the time against Hugging Face's Trainer with a tuned rate, for the same BERT.

    OMP_NUM_THREADS=1 python benchmarks/trainer.py runs/trainer [--minutes 30] [--dataset Salesforce/wikitext]

Times a step of both in turn. The Trainer's recipe (AdamW without decay, from its rate straight down to 0, dropout 0.1) gets
as many steps as the Trainer makes in these minutes of one thread, by the best of three rates on seed 0. minibert computes
them: the same recipe gives the same losses in either library (proofs/plateau). The default recipe gets a fifth of the
minutes, by the rate that it comes with. Both are judged on seeds 1 to 3, on the same held-out batches. What is there is not
repeated. Writes minibert/measured/trainer.json.
"""
from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from statistics import median

import torch
import yaml
from what_helps import ROOT, judged, plan_file, reached, write_plan

from minibert.core.files import read_json, write_whole
from minibert.perf.bench import available_peers, take_turns
from minibert.runs.experiment import best_rates, list_trials, open_text, read_experiment
from minibert.runs.plan import with_values

SHARE = 5  # the default recipe gets the minutes divided by this


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--dataset", default="Salesforce/wikitext")
    arguments = parser.parse_args()
    out, minutes = arguments.out, arguments.minutes
    values = yaml.safe_load(plan_file("trainer").read_text())
    plans = read_experiment(write_plan(out / "trainer.yaml", values["base"] | dict(dataset=arguments.dataset, name="wikitext-2-v1"), values["changes"]))
    text = open_text(plans["base"], out / "text")
    base = plans["base"]
    if not (out / "times.json").exists():
        config = text.task.config(base, text.tokenizer.vocab_size)
        peers = {name: available_peers(base.model.size)[name] for name in ("muon", "trainer")}
        times, *_ = take_turns(peers, config, shape=(base.training.batch_size, base.training.length))
        ratios = sorted(theirs / ours for ours, theirs in zip(*times.values()))
        write_whole(out / "times.json", json.dumps(dict(seconds=[median(own) for own in times.values()], ratios=ratios)))
    known = read_json(out / "times.json")
    steps = [round(60 * minutes / share / second) for share, second in zip((SHARE, 1), known["seconds"])]
    plans = {name: with_values(plan, dict(steps=own)) for own, (name, plan) in zip(steps, plans.items())}

    tried = reached(list_trials({"Trainer": plans["Trainer"]}, (0,), out), text)
    found = dict(machine=f"{platform.machine()}, one thread, torch {torch.__version__}", minutes=minutes, share=SHARE, **known,
                 tried=[{key: row[key] for key in ("factor", "steps", "cost")} for row in tried],
                 judged=judged(plans, text, out, dict(base=1.0) | best_rates(tried)))
    write_whole(ROOT / "minibert/measured/trainer.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
