"""What does `fast_products` bring to a training step? CPU seconds, one thread, the two ways in turn.

    python benchmarks/products.py          writes minibert/measured/speed_products.json

Forward and backward of the same batch (32 x 128, float32, dropout 0.1), with PyTorch's product and with oneDNN's. CPU
time, not the clock's, and the least of the rounds: so it can be taken on a machine that does other things beside.
"""
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.precision import keep_freed_memory
from minibert.core.seeds import seeded
from minibert.perf.products import fast_products
from minibert.speed import FastBertForPreTraining, synthetic_batch

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "speed_products.json"


def main(rounds=6):
    torch.set_num_threads(1)
    keep_freed_memory()
    lines = []
    for size in ("tiny", "mini"):
        config = BertConfig.preset(size, vocab_size=8192)
        model, batch = FastBertForPreTraining(config, seeded(0)).train(), synthetic_batch(config)
        spent = dict(default=[], onednn=[])
        for n in range(rounds):
            for name, block in (("default", nullcontext), ("onednn", fast_products))[::1 if n % 2 else -1]:
                start = time.process_time()
                with block(): model(**batch).loss.backward()
                spent[name].append(time.process_time() - start)
        best = {name: min(values) for name, values in spent.items()}
        lines.append(dict(size=size, vocab_size=8192, rounds=rounds, cpu_ms={name: 1e3 * value for name, value in best.items()},
                          ratio=best["default"] / best["onednn"]))
        print(json.dumps(lines[-1]), flush=True)
    write_whole(OUT, json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__": main()
