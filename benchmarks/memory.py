"""How much memory does a training step take above what its process has anyway?

    python benchmarks/memory.py          writes minibert/measured/speed_memory.json

Each peer of the race takes four steps in a process of its own. Noted are, in MiB, the most resident memory
after one step of a minuscule model, by which all libraries are loaded (the floor), and the most at the end.
"""
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.perf.bench import CASES, list_peers, peer_steps
from minibert.perf.memory import peak_memory
from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.speed import synthetic_batch

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "speed_memory.json"
LEAST = BertConfig(101, 24, 2, 4, 37, max_position_embeddings=40)
PEERS = "hf", "trainer", "rows", "equal", "onednn", "muon"


def one(name: str, size: str, V: int, steps: int = 4) -> None:
    "In a process of its own: print the floor and the peak."
    torch.set_num_threads(1)
    peer, config = list_peers()[name], BertConfig.preset(size, vocab_size=V)
    batches = [synthetic_batch(config, seed) for seed in range(steps)]
    few = synthetic_batch(LEAST, 0, 2, 12)
    next(peer_steps(peer, LEAST, [few]))
    floor, turns = peak_memory(), peer_steps(peer, config, batches)
    for _ in range(steps): next(turns)
    turns.close()
    print(json.dumps([floor, peak_memory()]))


def main() -> None:
    lines = []
    for size, V in CASES[:3]:
        for name in PEERS:
            command = [sys.executable, __file__, name, size, str(V)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            floor, peak = json.loads(said.splitlines()[-1])
            lines.append(dict(size=size, vocab_size=V, peer=name, floor_mib=floor, peak_mib=peak))
            print(json.dumps(lines[-1]), flush=True)
    write_whole(OUT, json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    one(sys.argv[1], sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 1 else main()
