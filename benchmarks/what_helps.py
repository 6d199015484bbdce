"""What helps? Chapter 23a's experiment in two stages: all changes with one seed, then the finalists with three.

    OMP_NUM_THREADS=1 python benchmarks/what_helps.py runs/what_helps [--wikitext Salesforce/wikitext]

Runs plans/optimizers.yaml, objectives.yaml and architecture.yaml by `minibert experiment --minutes 2 --seeds 0`. Then the eight best changes and
the four that papers disagree on are judged on seeds 1 to 3: on the stories for two minutes, again with the base's number of
steps where theirs differs (equal tokens), and with rates of their own on WikiText-2. There AdamW doesn't leave the plateau in two minutes, so
the base is what helped, the fast recipe, and its own parts are taken away one by one. Some eleven hours of one core. What is there is not
repeated, so several processes may share the work: name the stages (a plan, a plan with -2, detection, wikitext, longer, more_steps).
The last two stages train the fast recipe, and what could better it, for ten minutes, and for 2,000 steps.
ELECTRA's detection has no loss of masked words, so it stands apart: its frozen vectors and those of the run with Muon are asked who
the hero is (probe_roles).
Writes minibert/measured/what_helps.json.
"""
from __future__ import annotations

import argparse
import json
import math
import platform
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import yaml

from minibert.core.files import read_json, write_whole
from minibert.data.stories import stories
from minibert.measure.probes import probe_roles
from minibert.nn.kinds import load_reading, reading_tokenizer
from minibert.runs.experiment import (
    OpenedRun, Trial, equal_time, find_gains, find_times, judge_gain, list_trials, open_text, read_experiment, run_plan,
    run_trial, run_trials, time_step)
from minibert.runs.plan import with_values

ROOT = Path(__file__).resolve().parent.parent
PLANS = "optimizers", "objectives", "architecture"
STAGES = *PLANS, *(f"{plan}-2" for plan in PLANS), "detection", "wikitext", "longer", "more_steps"
DISPUTED = "neither", "spans", "pre-norm", "Sophia"
JUDGES = 1, 2, 3
MINUTES = 2  # for a run: in one, a processor without AVX-512 only begins to leave the plateau
FAST = dict(recipe="fast")  # the base on WikiText-2
WITHOUT = {"AdamW": dict(optimizer="adamw"), "learned": dict(positions="absolute"), "mask 15 %": dict(mask_probability=0.15)}
LONGER = {"twice the rates": dict(learning_rate=4e-3, muon_learning_rate=0.04), "trapezoid": dict(schedule="trapezoid")}
EACH = dict(loss="mlm_loss", accuracy="mlm_accuracy", pairs="nsp_accuracy")  # of each seed
KEPT = "name", "factor", "steps", "ratio", "value", "gain", "low", "high", "verdict"


def plan_file(name: str) -> Path:
    return ROOT / f"benchmarks/plans/{name}.yaml"


def kept(rows: list[dict], folder: Path, seeds: tuple, same: str = "") -> list[dict]:
    "What the chapter shows of each row, and each seed's figures; JSON has no nan and no inf."
    def finite(value): return value if isinstance(value, str) or math.isfinite(value) else None
    found = []
    for row in rows:
        runs = [folder / f"{row['name']}-x{row['factor']:g}-seed{seed}" for seed in seeds]
        runs = [own if (own := Path(f"{run}{same}")).exists() else run for run in runs]
        summaries = [read_json(run / "summary.json") for run in runs]
        each = {name: [summary.get(key) for summary in summaries] for name, key in EACH.items()}
        found.append({key: finite(row[key]) for key in KEPT if key in row} | each)
    return found


def stage_one(plan: str, out: Path) -> dict:
    "Every change of a plan, with one seed."
    folder, rows = run_plan(plan_file(plan), minutes=MINUTES, seeds=0, out=str(out / plan))
    return dict(one_seed=kept(rows, folder, (0,)))


def finalists(out: Path) -> dict[str, list[str]]:  # plan -> its changes
    "The eight changes that gained most with one seed, and the disputed four."
    rows = {plan: read_json(out / f"{plan}.json")["one_seed"][1:] for plan in PLANS}
    gains = {row["name"]: row["gain"] or -math.inf for own in rows.values() for row in own if row["name"] not in DISPUTED}
    chosen = {*sorted(gains, key=gains.get)[-8:], *DISPUTED}
    return {plan: [row["name"] for row in own if row["name"] in chosen] for plan, own in rows.items()}


def write_plan(path: Path, base: dict, changes: dict) -> Path:
    write_whole(path, yaml.safe_dump(dict(base=base, changes=changes), sort_keys=False))
    return path


def stage_two(plan: str, out: Path) -> dict:
    "The finalists of a plan with three seeds and stage one's rates, at equal time and at equal tokens."
    values, names = yaml.safe_load(plan_file(plan).read_text()), finalists(out)[plan]
    path = write_plan(out / f"{plan}-finalists.yaml", values["base"], {name: values["changes"][name] for name in names})
    plans, folder = read_experiment(path), out / plan
    best = {row["name"]: row["factor"] for row in read_json(out / f"{plan}.json")["one_seed"]}
    text = open_text(plans["base"], folder / "text")
    times = find_times(plans, text, folder)
    timed = equal_time(plans, times, MINUTES)
    steps = timed["base"].training.steps

    def apart(trial: Trial) -> Trial:
        "In a folder of its own, if its steps are others than at equal time."
        if tokens[trial.name] is timed[trial.name]: return trial
        return replace(trial, plan=with_values(trial.plan, dict(out=f"{trial.folder}-tokens")))

    time = [row | times[row["name"]] for row in find_gains(run_trials(list_trials(timed, JUDGES, folder, best), text))]
    near = {name: abs(own.training.steps / steps - 1) < 0.03 for name, own in timed.items()}  # but for the clock's noise
    tokens = {name: own if near[name] else with_values(own, dict(steps=steps)) for name, own in timed.items()}
    equal = find_gains(run_trials(map(apart, list_trials(tokens, JUDGES, folder, best)), text))
    return dict(time=kept(time, folder, JUDGES), tokens=kept(equal, folder, JUDGES, "-tokens"))


def judged(plans: dict, text: OpenedRun, folder: Path, best: dict | None = None) -> list[dict]:
    "The plans' figures on seeds 1 to 3, each at its best rate, or at its own."
    trials = list_trials(plans, JUDGES, folder, best or dict.fromkeys(plans, 1.0))
    return kept(find_gains(run_trials(trials, text)), folder, JUDGES)


def role_accuracy(folder: Path) -> tuple[float, float]:  # this encoder, an untrained one
    "Hero or friend? Balanced accuracy of a probe on the frozen vectors of all layers."
    bert, tokenizer = load_reading(folder).float(), reading_tokenizer(folder)
    found = probe_roles(bert, tokenizer, stories(2000), stories(500, 0, "validation"), seeds=1)
    return tuple(found[f"{kind}_balanced"][-1][0] for kind in ("trained", "untrained"))


def detection(out: Path) -> dict:
    "ELECTRA against the run with Muon, at equal time."
    electra, muon = read_experiment(plan_file("detection"))["base"], read_experiment(plan_file("optimizers"))["Muon"]
    own, other = (open_text(plan, out / name / "text") for plan, name in ((electra, "detection"), (muon, "optimizers")))
    known = next(row for row in read_json(out / "optimizers.json")["one_seed"] if row["name"] == "Muon")
    if not (path := out / "detection/times.json").exists():
        pairs = [(time_step(other, muon), time_step(own, electra)) for _ in range(9)]
        write_whole(path, json.dumps(dict(ratio=median(theirs / ours for ours, theirs in pairs[1:]))))
    ratio = read_json(path)["ratio"]
    electra = with_values(electra, dict(steps=round(known["steps"] / ratio)))

    def asked(seeds: tuple, best: dict | None = None) -> list[tuple[float, float]]:  # accuracy, times its rates
        found = []
        for trial in list_trials({"ELECTRA": electra}, seeds, out / "detection", best):
            run_trial(trial, own)
            found.append((role_accuracy(trial.folder)[0], trial.factor))
        return found

    _, factor = max(asked((0,)))
    theirs = [accuracy for accuracy, _ in asked(JUDGES, dict(ELECTRA=factor))]
    ours, untrained = zip(*(role_accuracy(out / f"optimizers/Muon-x{known['factor']:g}-seed{seed}") for seed in JUDGES))
    low, high, verdict = judge_gain([b - a for a, b in zip(ours, theirs)])
    return dict(steps=electra.training.steps, ratio=ratio, factor=factor, bert=ours, electra=theirs, untrained=untrained[0],
                low=low, high=high, verdict=verdict)


def wikitext(out: Path, dataset: str) -> dict:
    "The fast recipe on WikiText-2, without each of its parts, and with each finalist; all with rates of their own."
    known = {plan: yaml.safe_load(plan_file(plan).read_text())["changes"] for plan in PLANS}
    chosen = {name: known[plan][name] for plan, names in finalists(out).items() for name in names}
    changes = WITHOUT | {name: own for name, own in chosen.items() if name not in ("Muon", "rotary")}  # the recipe has these
    path = write_plan(out / "wikitext.yaml", FAST | dict(model="variant", batch_size=32, dataset=dataset, name="wikitext-2-v1"), changes)
    folder, rows = run_plan(path, minutes=MINUTES, seeds=3, out=str(out / "wikitext"))
    return dict(time=kept(rows, folder, JUDGES))


def longer(out: Path, dataset: str) -> dict:
    "The fast recipe on WikiText-2 as the command has it, and what did better in two minutes, for ten."
    path = write_plan(out / "longer.yaml", FAST | dict(dataset=dataset, name="wikitext-2-v1"), LONGER)
    plans, folder = read_experiment(path), out / "longer"
    text = open_text(plans["base"], folder / "text")
    return dict(time=judged(equal_time(plans, find_times(plans, text, folder), 5 * MINUTES), text, folder))


def more_steps(out: Path, dataset: str) -> dict:
    "As many pairs as in ten minutes, in twice as many steps: does the trapezoid still help?"
    more = FAST | dict(batch_size=32, steps=2000, dataset=dataset, name="wikitext-2-v1")
    path = write_plan(out / "more_steps.yaml", more, dict(trapezoid=LONGER["trapezoid"]))
    plans, folder = read_experiment(path), out / "more_steps"
    return dict(steps=judged(plans, open_text(plans["base"], folder / "text"), folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("stages", nargs="*", default=STAGES, help=" ".join(STAGES))
    parser.add_argument("--wikitext", default="Salesforce/wikitext")
    arguments = parser.parse_args()
    out = arguments.out
    for stage in arguments.stages:
        plan = stage.removesuffix("-2")
        if stage == "wikitext": found = wikitext(out, arguments.wikitext)
        elif stage == "longer": found = longer(out, arguments.wikitext)
        elif stage == "more_steps": found = more_steps(out, arguments.wikitext)
        elif stage == "detection": found = detection(out)
        else: found = stage_one(plan, out) if stage == plan else stage_two(plan, out)
        write_whole(out / f"{stage}.json", json.dumps(found))
    measured = ROOT / "minibert/measured/what_helps.json"
    machine = f"{platform.machine()}, one thread, torch {torch.__version__}"
    found = {stage: read_json(out / f"{stage}.json") for stage in STAGES if (out / f"{stage}.json").exists()}
    known = read_json(measured) if measured.exists() else {}
    write_whole(measured, json.dumps(known | dict(machine=machine, minutes=MINUTES) | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
