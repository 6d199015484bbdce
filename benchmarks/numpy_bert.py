"""What BERT in NumPy (chapters 14 to 16) costs, and what it learns. Run by hand, from the root:

    python benchmarks/numpy_bert.py speed                      a training step beside PyTorch's, interleaved, and its parts
    python benchmarks/numpy_bert.py train stories "" 1200      a run and its held-out figures
    python benchmarks/numpy_bert.py train FOLDER NAME [STEPS]  the same on a data set, as wikitext wikitext-2-v1
    python benchmarks/numpy_bert.py keep LOG SOURCE [NAME]     enter what such a run has printed into a file

`speed` (about a minute on two quiet cores) writes minibert/measured/numpy_bert_speed.json, `train` and `keep` write
minibert/measured/numpy_bert.json; nbs/proofs/numpy_training.ipynb reads both.

The configuration is that of the reference: L=3, D=192, H=4, F=768, S=64, V=8192; float32; no dropout.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from minibert.config import BertConfig
from minibert.speed import FastBertForPreTraining
from minibert.core.files import write_whole
from minibert.core.precision import keep_freed_memory
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.numpy_bert import layers
from minibert.numpy_bert import model as backward_module
from minibert.numpy_bert.layers import forward
from minibert.numpy_bert.model import backward
from minibert.numpy_bert.parts import as_arrays, evaluate_numpy, norms_by_part
from minibert.numpy_bert.training import adamw_, clip_, first_moments, gradients, pretrain_numpy, update_
from minibert.numpy_bert.weights import first_weights, from_state_dict
from minibert.train.optimizers import make_optimizers
from minibert.pairs import PairSampler
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.training import Callback, Run, train_step
from minibert.weights import to_hf

CONFIG = BertConfig(8192, 192, 3, 4, 768, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
B, S = 8, 64
RESULTS = Path(__file__).resolve().parents[1] / "minibert/measured"


def synthetic(seed):
    "A batch of B full rows, 15 % of them predicted."
    dice = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, CONFIG.vocab_size, (B, S), generator=dice)
    labels = ids.masked_fill(torch.rand(B, S, generator=dice) >= 0.15, -100)
    types = (torch.arange(S) >= S // 2).long().expand(B, S).contiguous()
    return dict(input_ids=ids, token_type_ids=types, attention_mask=torch.ones_like(ids), labels=labels,
                next_sentence_label=torch.randint(2, (B,), generator=dice))


def speed():
    "One thread, with the parts of a step, then two, each in a process of its own; the file is written after each."
    def run(what, threads):
        env = os.environ | dict(OMP_NUM_THREADS=threads, OPENBLAS_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        done = subprocess.run([sys.executable, __file__, what], env=env, capture_output=True, text=True)
        if done.returncode: sys.exit(done.stderr)
        print(done.stdout, end="", flush=True)
        return json.loads(done.stdout.splitlines()[-1])
    found = dict(processors=os.cpu_count(), step=[run("step", "1")], parts=run("parts", "1"))
    write_whole(RESULTS / "numpy_bert_speed.json", json.dumps(found, indent=1) + "\n")
    found["step"].append(run("step", "2"))
    write_whole(RESULTS / "numpy_bert_speed.json", json.dumps(found, indent=1) + "\n")


def step(steps=40):
    "The same weights and batches on both sides, one step of each in turn; medians, and the median of the ratios."
    keep_freed_memory()
    model = FastBertForPreTraining(CONFIG, torch.Generator().manual_seed(0)).train()
    params = from_state_dict(to_hf(model), CONFIG)
    training = TrainingConfig(steps=1000, batch_size=B, length=S)
    optimizers, moments = make_optimizers(model, training), first_moments(params)
    seconds = {"torch": [], "numpy": []}
    for step in range(steps + 5):
        batch = synthetic(step)
        for name in sorted(seconds, reverse=step % 2):
            start = time.perf_counter()
            if name == "torch": train_step(Run(model, optimizers, training, step), batch)
            else: update_(params, CONFIG, moments, as_arrays(batch), step, training)
            seconds[name].append(time.perf_counter() - start)
    ratios = [n / t for n, t in zip(seconds["numpy"][5:], seconds["torch"][5:])]
    middle = {name: statistics.median(values[5:]) for name, values in seconds.items()}
    q = statistics.quantiles(ratios, n=4)
    print(json.dumps(dict(threads=torch.get_num_threads(), steps=steps, ratio=statistics.median(ratios),
                          quartiles=[q[0], q[2]], torch_ms=1e3 * middle["torch"], numpy_ms=1e3 * middle["numpy"])))


def parts(steps=30):
    "Each function's own time in a step, the functions that it calls not counted twice."
    keep_freed_memory()
    params = first_weights(CONFIG)
    moments, spent, stack = first_moments(params), {}, []

    def timed(name, function):
        def run(*args, **kwargs):
            start = time.perf_counter()
            stack.append(0.0)
            try: return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - start
                spent[name] = spent.get(name, 0.0) + whole - stack.pop()
                if stack: stack[-1] += whole
        return run

    for module, names in ((layers, "linear layer_norm gelu softmax attention cross_entropy embed"),
                          (backward_module, "linear_backward layer_norm_backward gelu_backward softmax_backward "
                           "attention_backward cross_entropy_backward embed_backward")):
        for name in names.split():
            wrapped = timed(name, getattr(module, name))
            setattr(module, name, wrapped)
    for step in range(steps + 3):
        if step == 3: spent.clear()
        batch = as_arrays(synthetic(step))
        _, cache = timed("the rest", forward)(params, CONFIG, batch)
        grads = timed("the rest", backward)(cache)
        timed("clip_", clip_)(grads, 1.0)
        timed("adamw_", adamw_)(params, grads, moments, step + 1, 1e-4)
    total = sum(spent.values())
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{name:24}{1e3 * value / steps:7.1f} ms {value / total:6.1%}")
    print(f"{'a step':24}{1e3 * total / steps:7.1f} ms")
    print(json.dumps({name: value / total for name, value in spent.items()}))


def share_of_unk(source, name):
    words = {split: [word for document in load_documents(source, name, split) for sentence in document for word in sentence.split()]
             for split in ("train", "validation")}
    return {split: found.count("<unk>") / len(found) for split, found in words.items()}


def keep(log, source, name=None):
    "Enter the lines that `train` printed: the corpus first, the metrics, the held-out figures last."
    lines = [json.loads(line) for line in Path(log).read_text().splitlines() if line.startswith("{")]
    file, title = RESULTS / "numpy_bert.json", "stories" if source == "stories" else "WikiText-2" if name.startswith("wikitext-2") else name
    runs = json.loads(file.read_text()) if file.exists() else {}
    runs[title] = lines[0] | lines[-1] | dict(share_of_unk=share_of_unk(source, name), lines=lines[1:-1])
    write_whole(file, json.dumps(dict(sorted(runs.items(), key=lambda run: run[0] != "stories")), indent=1) + "\n")


def train(source, name=None, steps="1500"):
    "Pre-train on 32 rows a step, in parts of 8, and measure on held-out text."
    keep_freed_memory()
    load = lambda split: load_documents(source, name, split)
    tokenizer = WordPieceTokenizer.train((s for d in load("train") for s in d), vocab_size=CONFIG.vocab_size)
    corpus, other = (Corpus.build(load(split), tokenizer) for split in ("train", "validation"))
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size)
    training = TrainingConfig(steps=int(steps), batch_size=32, gradient_accumulation_steps=4, length=S, learning_rate=1e-3, log_steps=25)
    counts = np.bincount(np.asarray(corpus.ids), minlength=tokenizer.vocab_size)
    val = PairSampler(other, tokenizer, S, seed=1)
    log = []

    def tell(line):
        log.append(json.dumps(line))
        print(log[-1], flush=True)

    tell(dict(vocab_size=tokenizer.vocab_size, tokens=corpus.n_tokens, val_tokens=other.n_tokens))
    start = time.perf_counter()
    params, history = pretrain_numpy(config, PairSampler(corpus, tokenizer, S, seed=0), training,
                                     callbacks=[Callback(after_step=lambda run: run.history[-1]["step"] == run.step and tell(run.history[-1]))])
    minutes = (time.perf_counter() - start) / 60
    found = evaluate_numpy(params, config, val, counts, batches=32)
    drawn = as_arrays(PairSampler(corpus, tokenizer, S, seed=0).batch(training.steps, 32))
    _, grads = gradients(params, config, drawn, 4)
    finite = all(bool(np.isfinite(g).all()) for g in grads.values())
    tell(dict(minutes=round(minutes, 1), steps=training.steps, finite=finite, gradient_norms=norms_by_part(grads), **found))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "log").write_text("\n".join(log))
        keep(Path(folder, "log"), source, name)


if __name__ == "__main__":
    {"speed": speed, "step": step, "parts": parts, "train": train, "keep": keep}.get(sys.argv[1] if sys.argv[1:] else "", lambda *_: sys.exit(__doc__))(*sys.argv[2:])
