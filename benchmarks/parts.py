"""Where does a step's time go? The parts of the reference profiling, for equal work and for the default recipe.

    python benchmarks/parts.py             writes minibert/measured/speed_profile.json

One thread, 32 pairs of 128 tokens, V = 8,192; each loop profiled three times, in turn. The shares of one run
can be compared with each other on a machine that does other things beside; the milliseconds cannot.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.perf.bench import available_peers, peer_steps
from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.precision import choose_precision
from minibert.perf.profiling import profile_loop
from minibert.speed import synthetic_batch

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "speed_profile.json"


def main(rounds=3):
    torch.set_num_threads(1)
    found = {}
    for _ in range(rounds):
        for size in ("tiny", "mini"):
            config = BertConfig.preset(size, vocab_size=8192)
            batches = [synthetic_batch(config, seed) for seed in range(4)]
            for name in ("equal", "muon"):
                parts = profile_loop(peer_steps(available_peers(size)[name], config, batches), repeats=3)
                total = found.setdefault(f"{size}, {name}", {})
                for part, ms in parts.items(): total[part] = total.get(part, 0.0) + ms / rounds
    result = dict(threads=1, rounds=rounds, torch=torch.__version__, precision=choose_precision("auto"), ms=found)
    write_whole(OUT, json.dumps(result, indent=1) + "\n")
    for name, parts in found.items():
        total = sum(parts.values())
        print(name, ", ".join(f"{part} {ms / total:.1%}" for part, ms in sorted(parts.items(), key=lambda item: -item[1])))


if __name__ == "__main__": main()
