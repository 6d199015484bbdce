"""What does ModernBERT's unpadding save, and what its local attention? Padded and packed forms of one model, in turn.

    python benchmarks/packing.py         writes minibert/measured/packing.json; two minutes, a quiet machine please

One thread, float32, process time, so that a busy machine disturbs less. Each row is a batch of texts of these lengths,
and each form computes the loss and its gradients. The ratio is that of the two times of a round, padded over packed; noted
are its median and quartiles. `tokens` is what the share of padding alone would save if each token cost the same.
"""
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.core.files import write_whole
from minibert.core.seeds import seeded
from minibert.hub.sizes import ModernBertConfig
from minibert.new_layers import ModernBertForMaskedLM
from minibert.nn.packing import PackedModernBertForMaskedLM

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "packing.json"
CASES = {  # what the lengths are: how many texts, the shortest, the longest
    "equal, 128": (16, 128, 128), "mixed, up to 128": (16, 8, 128), "mixed, up to 512": (8, 8, 512),
    "equal, 512": (4, 512, 512), "equal, 1024": (2, 1024, 1024)}
SIZES = dict(vocab_size=1000, hidden_size=128, num_hidden_layers=6, num_attention_heads=2, intermediate_size=192,
             pad_token_id=0, cls_token_id=2, sep_token_id=3)


def mixed_batch(texts: int, shortest: int, longest: int, seed: int = 0) -> dict:
    "Texts of lengths drawn evenly, the longest among them; a fifth of the tokens is asked for."
    g = seeded(seed)
    lengths = torch.randint(shortest, longest + 1, (texts, 1), generator=g)
    lengths[0] = longest
    real = torch.arange(longest) < lengths
    ids = torch.randint(5, SIZES["vocab_size"], real.shape, generator=g) * real
    labels = ids.masked_fill(~real | (torch.rand(real.shape, generator=g) > 0.2), -100)
    return dict(input_ids=ids, attention_mask=real.long(), labels=labels)


def forms(window: int) -> dict:
    "The two forms, with the same weights."
    config = ModernBertConfig(**SIZES, local_attention=2 * window)
    padded, packed = ModernBertForMaskedLM(config, seeded(0)), PackedModernBertForMaskedLM(config, seeded(0))
    return dict(padded=padded, packed=packed)


def seconds(model, batch) -> float:
    start = time.process_time()
    model.zero_grad()
    model(**batch).loss.backward()
    return time.process_time() - start


def measure(case: str, window: int, rounds: int) -> dict:
    batch, models = mixed_batch(*CASES[case]), forms(window)
    for model in models.values(): seconds(model, batch)
    losses = [float(model(**batch).loss.detach()) for model in models.values()]
    assert abs(losses[0] - losses[1]) < 1e-4
    took = {name: [] for name in models}
    for n in range(rounds):
        for name in [*models][:: 1 if n % 2 else -1]: took[name].append(seconds(models[name], batch))
    low, middle, high = statistics.quantiles([a / b for a, b in zip(took["padded"], took["packed"])], n=4)
    real = batch["attention_mask"]
    return dict(case=case, window=window, rounds=rounds, ratio=middle, quartiles=[low, high],
                tokens=real.numel() / int(real.sum()), padded_ms=1e3 * statistics.median(took["padded"]),
                packed_ms=1e3 * statistics.median(took["packed"]))


def main(rounds: int = 12) -> None:
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        rows.append(measure(case, 64, rounds))
        print(json.dumps(rows[-1]), flush=True)
    write_whole(OUT, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__": main()
