"""Does a cross-entropy pay whose gradient is made in place, or slice by slice? In turn, on all cores.

    python benchmarks/loss.py            writes minibert/measured/speed_loss.json

The loss in place is an older idea, the one in slices what the model takes (chapter 07). 614 predicted positions, as in 32 pairs of 128 tokens.
"""
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

from minibert.core.files import write_whole
from minibert.core.precision import keep_freed_memory
from minibert.nn.shortcuts import SlicedLoss

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "speed_loss.json"


class InPlaceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        exact = torch.promote_types(logits.dtype, torch.float32)
        table, at = logits.log_softmax(-1, dtype=exact), targets[:, None]
        loss = -table.gather(1, at).mean()
        ctx.gradient = table.exp_().scatter_add_(1, at, torch.full_like(at, -1, dtype=exact))
        ctx.kind = logits.dtype
        return loss

    @staticmethod
    def backward(ctx, up): return ctx.gradient.mul_(up / len(ctx.gradient)).to(ctx.kind), None


def plain(logits, targets): return F.cross_entropy(logits.float(), targets)


def main(repeats=15, positions=614):
    keep_freed_memory()
    lines, ways = [], dict(plain=plain, in_place=InPlaceLoss.apply, sliced=SlicedLoss.apply)
    for V in (8192, 30522):
        for kind in (torch.float32, torch.bfloat16):
            logits, targets = torch.randn(positions, V).to(kind), torch.randint(V, (positions,))
            spent = {name: [] for name in ways}
            for _ in range(repeats):
                for name, way in ways.items():
                    given = logits.clone().requires_grad_()
                    start = time.perf_counter()
                    way(given, targets).backward()
                    spent[name].append(time.perf_counter() - start)
            # the quickest of each: what other processes do to the caches only ever adds
            best = {name: 1e3 * min(values) for name, values in spent.items()}
            middle = {name: 1e3 * statistics.median(values) for name, values in spent.items()}
            line = dict(vocab_size=V, precision=str(kind).removeprefix("torch."), positions=positions,
                        threads=torch.get_num_threads(), best_ms=best, median_ms=middle,
                        **{name: best[name] / best["plain"] for name in ("in_place", "sliced")})
            print(json.dumps(line), flush=True)
            lines.append(line)
    write_whole(OUT, json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
