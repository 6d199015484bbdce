"""What do the fused AdamW and the batched Muon of chapter 10 save? In turn, on all cores.

    python benchmarks/update.py          writes minibert/measured/speed_update.json; half a minute, a quiet machine please

Two models take the same steps with the default recipe (bfloat16, no dropout), one with PyTorch's Muon and AdamW as
they come, one with `make_optimizers`. Noted: the update alone and the whole step, medians in ms, medians of the ratios.
"""
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.precision import keep_freed_memory
from minibert.core.seeds import seeded
from minibert.train.optimizers import make_optimizers, parameter_groups
from minibert.train.recipe import TrainingConfig
from minibert.speed import FastBertForPreTraining, synthetic_batch
from minibert.train.gradients import Gradients
from minibert.training import Run, train_step

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "speed_update.json"
CASES = (("tiny", 30522), ("tiny", 8192), ("mini", 8192))


def as_they_come(model, config):
    "The same recipe with PyTorch's own Muon, and AdamW without `fused`."
    groups, decay = parameter_groups(model, config), config.weight_decay
    adamw = torch.optim.AdamW([dict(params=groups["decay"], weight_decay=decay),
                               dict(params=groups["no_decay"], weight_decay=0.0)], lr=config.learning_rate, eps=1e-6)
    return [torch.optim.Muon(groups["muon"], lr=config.muon_learning_rate, weight_decay=decay), adamw]


def timed(optimizer, spent):
    "Let each step of an optimizer add its seconds to a list."
    step = optimizer.step

    def measured():
        start = time.perf_counter()
        step()
        spent.append(time.perf_counter() - start)
    optimizer.step = measured


def measure(size, V, rounds, warm_up=3):
    config = BertConfig.preset(size, vocab_size=V, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    loop, sides = TrainingConfig(optimizer="muon", precision="bfloat16"), {}
    for name, make in dict(before=as_they_come, after=make_optimizers).items():
        model = FastBertForPreTraining(config, seeded(0)).train()
        optimizers, spent = make(model, loop), dict(muon=[], adamw=[], step=[])
        for optimizer, part in zip(optimizers, ("muon", "adamw")): timed(optimizer, spent[part])
        sides[name] = model, optimizers, spent
    for n in range(warm_up + rounds):
        batch = synthetic_batch(config, n % 8)
        for model, optimizers, spent in list(sides.values())[::1 if n % 2 else -1]:
            start = time.perf_counter()
            train_step(Run(model, optimizers, loop, n), batch, Gradients(precision="bfloat16"))
            spent["step"].append(time.perf_counter() - start)
    line = dict(size=size, vocab_size=V, rounds=rounds, threads=torch.get_num_threads())
    for part in ("muon", "adamw", "step"):
        a, b = (sides[name][2][part][warm_up:] for name in ("before", "after"))
        line[part] = dict(before_ms=1e3 * statistics.median(a), after_ms=1e3 * statistics.median(b),
                          ratio=statistics.median(x / y for x, y in zip(a, b)))
    return line


def main(rounds=30):
    keep_freed_memory()
    lines = []
    for size, V in CASES:
        lines.append(measure(size, V, rounds if size == "tiny" else rounds // 2))
        print(json.dumps(lines[-1]), flush=True)
    write_whole(OUT, json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__": main()
