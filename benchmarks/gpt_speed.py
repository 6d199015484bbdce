"""How fast does GPT learn and write, beside Hugging Face's? In turn, one thread, about five minutes on a quiet machine.

    python benchmarks/gpt_speed.py [--only training|writing]      writes minibert/measured/gpt_speed.json

Times are processor time, not the clock's: other programs on the machine then count for little.

Training: each side takes a step in turn, in a process of its own, on the same windows without padding, dropout off.
"equal" is our loop with AdamW in float32, "hf" a plain loop with `GPT2LMHeadModel`, AdamW and the same clipping;
"keep" lends theirs our setting that freed memory is kept. Ours and theirs again with bfloat16 products. "gemm" is one
large float32 product: a step's products cannot be faster than it, whoever makes them.

Writing: 256 tokens after a prompt of 8, greedy, with the cache and without it, and theirs with its cache. All write the same.
"no cache" computes the logits of the last token only, as with the cache; "plain loop" asks the model for all of them.
"""
import argparse
import json
import statistics
import sys
import time
from functools import partial
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from minibert.perf import bench
from minibert.perf.bench import GEMM, Peer
from minibert.perf.memory import peak_memory
from minibert.config import SIZES
from minibert.core.files import write_whole
from minibert.core.precision import fast_bfloat16, keep_freed_memory
from minibert.core.seeds import seeded
from minibert.gpt import GPTConfig, GPTForCausalLM, generate, next_logits
from minibert.nn.fast import FastGPTForCausalLM
from minibert.train.optimizers import make_optimizers
from minibert.train.recipe import TrainingConfig
from minibert.train.gradients import Gradients
from minibert.training import Run, train_step
from minibert.weights import to_hf

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "gpt_speed.json"
CASES = (("tiny", 8192, 16), ("mini", 8192, 16), ("tiny", 50257, 8))  # size, V, B
LENGTH, THREADS, BATCHES = 128, 1, 4
TOKENS, PROMPT = 256, 8
PEERS = {
    "hf": Peer("Hugging Face, loop", "hf"),
    "keep": Peer("Hugging Face, memory kept", "hf", keep_memory=True),
    "equal": Peer("ours (equal work)", keep_memory=True),
    "hf bfloat16": Peer("Hugging Face, bfloat16", "hf", precision="bfloat16"),
    "bfloat16": Peer("ours, bfloat16 (default)", keep_memory=True, precision="bfloat16"),
    "gemm": Peer("one product", "gemm"),
}


def sizes(size, V, positions=LENGTH):
    layers, D, H = SIZES[size]
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPTConfig(V, positions, D, layers, H, **off)


def theirs(config):
    import transformers as hf

    hf.logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return hf.GPT2LMHeadModel(hf.GPT2Config(**config.to_dict(), bos_token_id=None, eos_token_id=None))


def windows(config, shape):
    return [torch.randint(config.vocab_size, shape, generator=seeded(0, k)) for k in range(BATCHES)]


def their_steps(peer, config, batches):
    model, low = theirs(config).train(), peer.precision == "bfloat16"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for ids in cycle(batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=low): loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield


def own_steps(peer, config, batches):
    model = FastGPTForCausalLM(config, seeded(0, 0, 2)).train()
    training = TrainingConfig(batch_size=len(batches[0]), length=LENGTH, learning_rate=1e-4, precision=peer.precision)
    optimizers, gradients = make_optimizers(model, training), Gradients(precision=peer.precision)
    for step, ids in enumerate(cycle(batches)):
        train_step(Run(model, optimizers, training, step), dict(input_ids=ids, labels=ids), gradients)
        yield


def prepare(peer, config, shape, threads):
    "A worker's first task."
    torch.set_num_threads(threads)
    if peer.keep_memory: keep_freed_memory()
    if peer.kind == "gemm": bench._steps = bench.peer_steps(peer, config, [])
    else: bench._steps = dict(own=own_steps, hf=their_steps)[peer.kind](peer, config, windows(config, shape))


def products(config, shape):
    "The operations of a step's products, which both sides make: forward, and twice that for backward."
    (B, S), D = shape, config.n_embd
    layer = 24 * B * S * D**2 + 4 * B * S**2 * D
    return 3 * (config.n_layer * layer + 2 * B * (S - 1) * D * config.vocab_size)


def turn():
    "A worker's every other task: a step, and the processor time that it took."
    begun = time.process_time()
    next(bench._steps)
    return time.process_time() - begun, peak_memory()


def take_turns(peers, config, shape, rounds, warm_up=2):
    "Seconds of each side by round, and its peak of memory."
    times, peaks, order = {name: [] for name in peers}, {}, list(peers)
    with bench._workers(peers, prepare, config, shape, THREADS) as pools:
        for k in range(warm_up + rounds):
            first = k % len(order)
            for name in order[first:] + order[:first]:
                took, peaks[name] = bench._answer(name, pools[name].submit(turn))
                if k >= warm_up: times[name].append(took)
    return times, peaks


def ratio(times, slow, fast): return statistics.median(a / b for a, b in zip(times[slow], times[fast]))


def training(size, V, batch, rounds):
    config, shape = sizes(size, V), (batch, LENGTH)
    peers = {name: p for name, p in PEERS.items() if p.precision == "float32" or fast_bfloat16()}
    times, peaks = take_turns(peers, config, shape, rounds)
    work = products(config, shape)
    line = dict(size=size, vocab_size=V, batch_size=batch, gflop=work / 1e9, rounds=rounds,
                ms={name: 1e3 * statistics.median(values) for name, values in times.items()},
                best_ms={name: 1e3 * min(values) for name, values in times.items()}, peak_mib=peaks)
    pairs = [("hf", "equal"), ("keep", "equal"), ("hf", "bfloat16"), ("hf bfloat16", "bfloat16")]
    line["ratios"] = {f"{slow} / {fast}": ratio(times, slow, fast) for slow, fast in pairs if fast in times and slow in times}
    line["share of gemm"] = {name: work / (2 * GEMM**3) * ratio(times, "gemm", name) for name in ("hf", "keep", "equal")}
    return line


def last_logits(model, ids):
    "The logits for the last token only, as with the cache."
    return next_logits(model, ids, torch.ones_like(ids))


def uncached(logits_of, ids, tokens):
    "Each token from the whole text."
    with torch.no_grad():
        for _ in range(tokens): ids = torch.cat([ids, logits_of(ids).argmax(-1, keepdim=True)], 1)
    return ids[:, -tokens:]


def writing(size, V, rows, rounds):
    config = sizes(size, V, PROMPT + TOKENS)
    model, other = GPTForCausalLM(config, seeded(0)).eval(), theirs(config).eval()
    other.load_state_dict(to_hf(model), strict=False)
    ids = torch.randint(V, (rows, PROMPT), generator=seeded(1))
    how = dict(max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    ways = {
        "cache": lambda: torch.stack(list(generate(model, ids, TOKENS, temperature=0)), 1),
        "no cache": lambda: uncached(partial(last_logits, model), ids, TOKENS),
        "plain loop": lambda: uncached(lambda text: model(text).logits[:, -1], ids, TOKENS),
        "hf": lambda: other.generate(ids, attention_mask=torch.ones_like(ids), **how)[:, PROMPT:]}
    times, said = {name: [] for name in ways}, {}
    for turn in range(rounds):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            begun = time.process_time()
            said[name] = ways[name]()
            times[name].append(time.process_time() - begun)
    same = {name: (text == said["cache"]).float().mean().item() for name, text in said.items()}
    return dict(size=size, vocab_size=V, rows=rows, tokens=TOKENS, rounds=rounds, same=same,
                ms_a_token={name: 1e3 * statistics.median(values) / TOKENS for name, values in times.items()},
                ratios={name: ratio(times, name, "cache") for name in ways if name != "cache"})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("training", "writing"))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    found = json.loads(OUT.read_text()) if OUT.exists() else {}
    found |= dict(torch=torch.__version__, threads=THREADS, length=LENGTH, fast_bfloat16=fast_bfloat16())
    if given.only != "writing":
        found["training"] = []
        for case in CASES:
            found["training"].append(training(*case, given.rounds))
            print(json.dumps(found["training"][-1], indent=1), flush=True)
            write_whole(OUT, json.dumps(found, indent=1) + "\n")
    if given.only != "training":
        found["writing"] = []
        for size, rows, rounds in (("tiny", 1, 2), ("mini", 1, 2), ("mini", 4, 1), ("small", 1, 1)):
            found["writing"].append(writing(size, 8192, rows, rounds))
            print(json.dumps(found["writing"][-1]), flush=True)
    write_whole(OUT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__": main()
