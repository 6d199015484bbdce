"""A scaling study: five sizes, three budgets of time, two texts; then a law of their losses.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py runs/scaling [--wikitext Salesforce/wikitext] [stories] [wikitext]

Runs plans/sizes.yaml by the parts of `minibert experiment`: three learning rates for half a minute, then the best of them for
three times and nine times as long, one thread, one seed. Each schedule comes to its end. Some eighty minutes of one core for both
texts; two processes may share them. Then fits L(N, D) = E + A / N^a + B / D^b (Hoffmann et al. 2022) to each text's fifteen
losses, with intervals from 200 resamplings of them. Writes minibert/measured/scaling.json.
"""
from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch
import yaml
from scipy.optimize import least_squares
from what_helps import ROOT, plan_file, write_plan

from minibert.core.files import read_json, write_whole
from minibert.core.seeds import seeded
from minibert.runs.experiment import (
    best_rates, equal_time, list_trials, open_text, read_experiment, read_result, run_plan, run_trial)
from minibert.runs.tasks import task_of
from minibert.speed import useful_flops

TEXTS = "stories", "wikitext"
MINUTES = 0.5, 1.5, 4.5  # of a processor with bfloat16 instructions: one without makes half as many steps, or fewer
BASE = dict(parameters=109_482_240, tokens=42.6e9)  # a million steps of 256 texts, 90 % of them of 128 tokens and 10 % of 512


def describe(trial, text) -> dict:
    "What a run was and reached: parameters, tokens read, useful operations, held-out loss."
    plan, task = trial.plan, task_of(trial.plan.model.model)
    config = task.config(plan, text.tokenizer.vocab_size)
    examples = task.examples(plan, text.train, text.tokenizer)
    batches = [examples.batch(step, plan.training.batch_size) for step in range(8)]
    steps = plan.training.steps
    tokens = np.mean([int(batch["attention_mask"].sum()) for batch in batches])
    flops = np.mean([useful_flops(config, batch)["total"] for batch in batches])
    with torch.device("meta"): model = task.build(config, seeded(0))
    return dict(name=trial.name, factor=trial.factor, steps=steps, loss=read_result(trial)["cost"],
                parameters=sum(p.numel() for p in model.parameters()),
                tokens=round(tokens * steps), flops=round(flops * steps))


def study(name: str, dataset: dict, out: Path) -> dict:
    "Five sizes with three budgets on one text."
    values = yaml.safe_load(plan_file("sizes").read_text())
    path = write_plan(out / f"{name}.yaml", values["base"] | dataset, values["changes"])
    folder, _ = run_plan(path, minutes=MINUTES[0], seeds=0, out=str(out / name))
    plans, times = read_experiment(path), read_json(folder / "times.json")
    text = open_text(plans["base"], folder / "text")
    best = best_rates([read_result(trial) for trial in list_trials(equal_time(plans, times, MINUTES[0]), [0], folder)])
    runs = []
    for minutes in MINUTES:
        for trial in list_trials(equal_time(plans, times, minutes), [0], folder if minutes == MINUTES[0] else folder / f"{minutes}", best):
            run_trial(trial, text)
            runs.append(dict(minutes=minutes, **describe(trial, text)))
    return dict(runs=runs, tokens_of_text=len(text.train.ids))


def predicted(law: np.ndarray, N: np.ndarray, D: np.ndarray) -> np.ndarray:  # nats
    "E + A / N^a + B / D^b; `law` is ln E, ln A, a, ln B, b, with N in millions and D in millions of tokens."
    e, A, a, B, b = law
    return np.exp(e) + np.exp(A) * N**-a + np.exp(B) * D**-b


def fit_law(N: np.ndarray, D: np.ndarray, losses: np.ndarray) -> np.ndarray:
    "The law with the smallest Huber distance of logarithms, from several starts."
    def distance(law): return np.log(predicted(law, N, D)) - np.log(losses)
    starts = [(e, A, 0.5, B, 0.5) for e in (-2, 0, 1) for A in (-2, 0) for B in (0, 2)]
    bounds = [-5, -8, 0.02, -8, 0.02], [2, 5, 3, 8, 3]
    found = [least_squares(distance, start, loss="huber", f_scale=0.02, bounds=bounds) for start in starts]
    return min(found, key=lambda one: one.cost).x


def laws(runs: list[dict]) -> dict:
    """The law of all runs, its parts' intervals, what it predicts for BERT-base on its own text, and what the law of the
    shorter runs would have said of the longest."""
    N, D, losses = (np.array([run[key] for run in runs], float) for key in ("parameters", "tokens", "loss"))
    N, D = N / 1e6, D / 1e6
    rng, law = np.random.default_rng(0), fit_law(N, D, losses)
    drawn = [fit_law(N[rows], D[rows], losses[rows]) for rows in rng.integers(len(N), size=(200, len(N)))]
    longest = np.array([run["minutes"] == MINUTES[-1] for run in runs])
    early = fit_law(N[~longest], D[~longest], losses[~longest])
    large = np.array([BASE["parameters"] / 1e6]), np.array([BASE["tokens"] / 1e6])
    base = [predicted(one, *large)[0] for one in (law, *drawn)]
    ends = np.quantile(drawn, (0.025, 0.975), axis=0)
    names = "ln E", "ln A", "a", "ln B", "b"
    return dict(forecast=predicted(early, N[longest], D[longest]).tolist(),
                law={name: [law[k], *ends[:, k]] for k, name in enumerate(names)},
                misses=(predicted(law, N, D) - losses).tolist(), base=[base[0], *np.quantile(base[1:], (0.025, 0.975))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", nargs="*", default=TEXTS)
    parser.add_argument("--wikitext", default="Salesforce/wikitext")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    datasets = dict(stories={}, wikitext=dict(dataset=arguments.wikitext, name="wikitext-2-v1"))
    for name in arguments.texts:
        write_whole(arguments.out / f"{name}.json", json.dumps(study(name, datasets[name], arguments.out)))
    if not all((arguments.out / f"{name}.json").exists() for name in TEXTS): return
    found = dict(machine=f"{platform.machine()}, one thread, torch {torch.__version__}", base=BASE)
    for name in TEXTS:
        own = read_json(arguments.out / f"{name}.json")
        found[name] = own | laws(own["runs"])
    write_whole(ROOT / "minibert/measured/scaling.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
