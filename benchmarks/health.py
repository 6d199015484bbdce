"""Sick runs made on purpose, and twenty healthy ones: what `minibert.measure.health` has to tell apart.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/health.py    about ten minutes of one core

Each run is a small one on the stories, watched, and stands in minibert/measured/health.json with what was done to it, and
the figures of its lines of metrics and its summary that a verdict is read off.
"""
from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from minibert.core.errors import UserError
from minibert.core.files import write_whole
from minibert.data.stories import stories
from minibert.runs.plan import with_values
from minibert.runs.report import finish
from minibert.runs.run import begin, train
from minibert.runs.tasks import task_of
from minibert.train.callbacks import read_metrics

READ = {"step", "loss", "mlm_loss", "clm_loss", "span_loss", "grad_norm", "learning_rate", "gradient/layer_0"}  # of a line
OUT = Path(__file__).resolve().parents[1] / "minibert/measured/health.json"
SMALL = dict(size="2x64x2", batch_size=16, length=32, steps=400, log_steps=20, checkpoint_steps=200, watch=True)
DEEP = dict(size="4x64x4", optimizer="adamw", steps=200, log_steps=10)
ADAMW, NUMPY = dict(optimizer="adamw", learning_rate=5e-3), dict(backend="numpy", optimizer="adamw", learning_rate=5e-3, precision="float32", log_steps=20)
COLD = dict(warmup=0.0)
HEALTHY = {
    "bert": {}, "bert, seed 1": dict(seed=1), "bert, seed 2": dict(seed=2), "bert, no warm-up": COLD,
    "bert, AdamW": ADAMW | dict(steps=800),
    "bert, trapezoid": dict(schedule="trapezoid"), "bert, cosine": dict(schedule="cosine", seed=3),
    "bert, dropout": dict(dropout=0.1, steps=600), "bert, words": dict(units="words", mask_probability=0.15, steps=600),
    "bert, order": dict(objectives=("mlm", "sop")), "bert, rotary": dict(positions="rotary"),
    "bert, short first": dict(curriculum="short", steps=600),
    "gpt": dict(model="gpt"), "gpt, AdamW": dict(model="gpt") | ADAMW, "gpt, no warm-up": dict(model="gpt") | COLD,
    "t5": dict(model="t5"), "t5, seed 1": dict(model="t5", seed=1),
    "numpy": NUMPY | dict(steps=800), "roberta": dict(model="roberta"), "modernbert": dict(model="modernbert", precision="float32"),
    "electra": dict(model="electra", steps=600),
}
SICK = {
    "vanishes": {
        "bert, rate x 10": DEEP | dict(learning_rate=5e-2), "bert, rate x 6": DEEP | dict(learning_rate=3e-2, seed=1),
        "roberta": DEEP | dict(model="roberta", learning_rate=5e-2), "numpy": DEEP | NUMPY | dict(learning_rate=5e-2)},
    "no warm-up": {
        "bert": DEEP | COLD | dict(learning_rate=5e-3), "bert, 0.03": DEEP | COLD | dict(learning_rate=3e-2),
        "roberta": DEEP | COLD | dict(model="roberta", learning_rate=1e-2), "numpy": DEEP | NUMPY | COLD | dict(learning_rate=2e-2)},
    "explodes": {
        "bert, SGD": dict(optimizer="sgd", learning_rate=20.0), "gpt, AdamW": dict(model="gpt", optimizer="adamw", learning_rate=1.0),
        "gpt, SGD": dict(model="gpt", optimizer="sgd", learning_rate=50.0), "t5": dict(model="t5", learning_rate=30.0, muon_learning_rate=10.0),
        "bert, Muon": dict(learning_rate=1.0, muon_learning_rate=5.0), "bert, Lion": dict(optimizer="lion", learning_rate=1.0)},
    "plateau": {
        "bert, low rate": dict(optimizer="adamw", learning_rate=3e-4),
        "gpt, low rate": dict(model="gpt", optimizer="adamw", learning_rate=1.3e-4),
        "t5, low rate": dict(model="t5", optimizer="adamw", learning_rate=5e-4), "numpy, low rate": NUMPY | dict(learning_rate=4e-4)},
    "by heart": {
        "bert": dict(few=40, steps=800), "gpt": dict(model="gpt", few=40, steps=600), "t5": dict(model="t5", few=40, steps=800),
        "roberta": dict(model="roberta", few=40, steps=800)},
}


def watched(options: dict, place: Path) -> dict:
    "A run's lines of metrics and summary, as far as a verdict needs them, and why it stopped if it did."
    options = SMALL | options
    if few := options.pop("few", None):
        path = place / "few.txt"
        path.write_text("\n\n".join("\n".join(story.sentences) for story in stories(few)), encoding="utf8")
        options |= dict(dataset=str(path), validation_share=0.2, checkpoint_steps=100)
    folder, ended, summary = place / "run", "", {}
    plan = with_values(task_of(options.get("model", "bert")).plan(), options | dict(out=str(folder)))
    run, model = begin(plan)
    try:
        model, seconds = train(run, model)
        summary = finish(model, seconds, run)
    except UserError as problem: ended = str(problem).split(":")[0]
    lines = read_metrics(folder)
    shutil.rmtree(folder)
    def short(values, names): return {name: float(f"{values[name]:.4g}") for name in values if name in names}
    figures = READ | {name for pair in run.task.main.items() for name in pair}
    return dict(ended=ended, lines=[short(line, READ) for line in lines], summary=short(summary, figures))


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    found = json.loads(out.read_text(encoding="utf8")) if out.exists() else {}
    runs = {f"{sickness or 'healthy'}: {name}": (sickness, options) for sickness, own in {**SICK, "": HEALTHY}.items() for name, options in own.items()}
    for name, (sickness, options) in runs.items():
        about = json.loads(json.dumps(dict(sickness=sickness, model=options.get("model", "bert"), options=options)))
        if about.items() <= found.get(name, {}).items(): continue  # it is there already
        with tempfile.TemporaryDirectory() as place: found[name] = about | watched(options, Path(place))
        write_whole(out, json.dumps({name: found[name] for name in runs if name in found}) + "\n")
        print(name, found[name]["ended"], len(found[name]["lines"]), flush=True)


if __name__ == "__main__": main()
