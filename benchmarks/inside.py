"""What the reference observer reads: `python benchmarks/inside.py sick` trains healthy and sick runs with the observer, about ten minutes;
`python benchmarks/inside.py cost` measures the observer's share of the time. Each writes a JSON into minibert/measured."""
import json
import statistics
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch

from minibert.core.errors import UserError
from minibert.nn.block import BlockConfig
from minibert.speed import FastBlockForPreTraining
from minibert.core.files import write_whole
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.measure.observer import Observer, plain_batch
from minibert.train.optimizers import make_optimizers
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import make_sampler, pretrain
from minibert.training import Callback, Run, train_step

RESULTS = Path(__file__).resolve().parents[1] / "minibert/measured"


def material():
    "The stories of chapter 11 and of the reference observer, every word one piece."
    texts = load_documents("stories", limit=1500)
    tokenizer = WordPieceTokenizer.train(s for story in texts for s in story)
    return Corpus.build(texts, tokenizer), tokenizer


def config_of(tokenizer, **sizes):
    return BlockConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=64,
                       hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)


def columns(lines):
    "Lines of metrics as one row of figures for each name; every line has the same."
    return {name: [float(f"{line[name]:.4g}") for line in lines] for name in lines[0]}


def watched(model, corpus, tokenizer, recipe, few):
    "A run's figures, and why it ended where it ended early."
    lines, ended = [], ""
    try:
        pretrain(deepcopy(model), make_sampler(corpus, tokenizer, recipe), recipe, progress=False,
                 callbacks=[Observer(few), Callback(end=lambda run: lines.__setitem__(slice(None), run.history))])
    except UserError as problem: ended = str(problem)
    return dict(ended=ended, figures=columns(lines))


def sick():
    "A healthy run and three that differ from it in one thing each; then Muon with a warm-up and without."
    corpus, tokenizer = material()
    sizes = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256)
    model = FastBlockForPreTraining(config_of(tokenizer, **sizes), seeded(0, 0, 2))
    healthy = TrainingConfig(steps=400, batch_size=16, length=64, learning_rate=5e-3, warmup=0.25, log_steps=5)
    muon = replace(healthy, optimizer="muon", learning_rate=4e-3)
    recipes = {"healthy": healthy, "rate too high": replace(healthy, learning_rate=10 * healthy.learning_rate),
               "no warm-up": replace(healthy, warmup=0.0), "all hidden": replace(healthy, mask_probability=1.0),
               "Muon": muon, "Muon, no warm-up": replace(muon, warmup=0.0)}
    few, runs = plain_batch(make_sampler(corpus, tokenizer, healthy), size=4), {}
    for name, recipe in recipes.items():
        runs[name] = watched(model, corpus, tokenizer, recipe, few)
        print(name, runs[name]["figures"]["mlm_loss"][::8], runs[name]["ended"], flush=True)
    counts = torch.bincount(torch.as_tensor(corpus.ids[:].astype("int64")), minlength=tokenizer.vocab_size).double()
    training = {name: getattr(healthy, name) for name in ("steps", "batch_size", "length", "optimizer", "learning_rate", "warmup")}
    return dict(model=sizes, training=training, unigram_loss=torch.special.entr(counts / counts.sum()).sum().item(), runs=runs)


def timed(callbacks, *step):
    "The seconds that one step takes."
    model, optimizers, batch, n, recipe = step
    run, start = Run(model, optimizers, recipe, n, callbacks=callbacks), time.perf_counter()
    train_step(run, batch)
    for callback in callbacks: callback.after_step(run)
    return time.perf_counter() - start


def compared(name, tokenizer, corpus, batch_size, rounds, **sizes):
    "One model's steps with and without a look, in turns: the median ratio, and the share of a run's time."
    recipe = TrainingConfig(steps=1000, batch_size=batch_size, length=64, optimizer="muon", learning_rate=4e-3)
    sampler = make_sampler(corpus, tokenizer, recipe)
    model = FastBlockForPreTraining(config_of(tokenizer, **sizes), seeded(0, 0, 2)).train()
    optimizers, look, ratios = make_optimizers(model, recipe), Observer(plain_batch(sampler, size=2)), []
    for n in range(rounds + 2):
        step = model, optimizers, sampler.batch(n, batch_size), n, replace(recipe, log_steps=1)
        plain, seen, again, last = (timed(callbacks, *step) for callbacks in ([], [look], [look], []))
        if n >= 2: ratios.append((seen + again) / (plain + last))
    ratio = statistics.median(ratios)
    return dict(model=name, ratio=ratio, log_steps=recipe.log_steps, rounds=rounds, share=(ratio - 1) / recipe.log_steps)


def cost(rounds=40):
    "The observer's share of the time at one look every `log_steps`, for three sizes."
    corpus, tokenizer = material()
    rows = [compared(name, tokenizer, corpus, batch_size, rounds, hidden_size=D, num_hidden_layers=layers, num_attention_heads=heads,
                     intermediate_size=4 * D)
            for name, batch_size, layers, D, heads in (
                ("two layers of 64, 16 pairs", 16, 2, 64, 4), ("tiny, 64 pairs", 64, 2, 128, 2), ("mini, 32 pairs", 32, 4, 256, 4))]
    return dict(threads=torch.get_num_threads(), torch=torch.__version__, rows=rows)


if __name__ == "__main__":
    works = dict(sick=sick, cost=cost)
    if len(sys.argv) != 2 or sys.argv[1] not in works: sys.exit(f"Usage: python {sys.argv[0]} sick|cost")
    RESULTS.mkdir(exist_ok=True)
    write_whole(RESULTS / f"inside_{sys.argv[1]}.json", json.dumps(works[sys.argv[1]]()) + "\n")
