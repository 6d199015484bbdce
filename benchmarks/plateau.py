"""Who leaves the unigram plateau, and when: positions and optimizers on the stories. About a minute on two free cores.

    python benchmarks/plateau.py [STEPS]      writes minibert/measured/plateau.json, which the reference plateau draws

The same model (2 layers, 128 wide, no dropout), vocabulary, batches and masks in all four runs; AdamW at 2e-3, Muon at 0.02
for the layers' matrices; linear schedule with 10 % warm-up. Every 10 steps: the masked loss, and the share of attention
that the most neighbourly head gives to the two neighbours, on a fixed sentence. In the end that head's map.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from minibert.measure.baselines import unigram_baseline
from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.precision import keep_freed_memory
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.model import attentions
from minibert.nn.block import BlockConfig
from minibert.speed import FastBertForPreTraining, FastBlockForPreTraining
from minibert.train.optimizers import make_optimizers
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import make_sampler
from minibert.training import Run, train_step

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "plateau.json"
A, B = "anna lost her red ball .", "she found it under the bed ."
EVERY = 10


def neighbours(probs):  # (S, S)
    "The mean share that goes to the word before and the word after."
    S = len(probs)
    return sum(probs.diagonal(k).sum().item() for k in (-1, 1)) / S


@torch.no_grad()
def gaze(model, ids):
    "The most neighbourly head's share and map."
    model.eval()
    maps = torch.cat([layer[0] for layer in attentions(model.bert, input_ids=ids)])
    model.train()
    shares = [neighbours(head) for head in maps]
    k = max(range(len(shares)), key=shares.__getitem__)
    return shares[k], maps[k]


def run(positions, optimizer, corpus, tokenizer, ids, steps):
    kinds = {"rotary": (BlockConfig, FastBlockForPreTraining)}
    config, form = kinds.get(positions, (BertConfig, FastBertForPreTraining))
    config = config.preset("tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=64, hidden_dropout_prob=0.0,
                           attention_probs_dropout_prob=0.0)
    loop = TrainingConfig(steps=steps, batch_size=32, length=64, optimizer=optimizer, learning_rate=2e-3)
    model, sampler = form(config, seeded(0, 0, 2)).train(), make_sampler(corpus, tokenizer, loop)
    optimizers, found, sums = make_optimizers(model, loop), dict(steps=[], loss=[], neighbours=[]), []
    for step in range(steps):
        sums.append(train_step(Run(model, optimizers, loop, step), sampler.batch(step, 32)).line["mlm_loss"])
        if (step + 1) % EVERY == 0:
            share, seen = gaze(model, ids)
            found["steps"].append(step + 1)
            found["loss"].append(round(sum(sums) / len(sums), 4))
            found["neighbours"].append(round(share, 4))
            sums = []
    print(positions, optimizer, found["loss"][::5], found["neighbours"][::5], flush=True)
    return found | dict(map=[[round(p, 4) for p in row] for row in seen.tolist()])


def main():
    steps = int(sys.argv[1]) if sys.argv[1:] else 500
    keep_freed_memory()
    documents = load_documents("stories", limit=3000)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=8192)
    corpus = Corpus.build(documents, tokenizer)
    pieces = np.asarray(corpus.ids, dtype=np.int64)
    unigram = unigram_baseline(np.bincount(pieces, minlength=tokenizer.vocab_size), pieces)
    ids = torch.tensor([tokenizer.encode(A, B)["input_ids"]])
    runs = {}
    for positions, label in (("absolute", "learned"), ("rotary", "rotary")):
        for optimizer, name in (("adamw", "AdamW"), ("muon", "Muon")):
            runs[f"{label}, {name}"] = run(positions, optimizer, corpus, tokenizer, ids, steps)
    result = dict(steps=steps, unigram_loss=unigram["unigram_loss"], even=2 / ids.shape[1],
                  tokens=[tokenizer.pieces[i] for i in ids[0].tolist()], runs=runs)
    write_whole(OUT, json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
