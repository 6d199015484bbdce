"""What warm-up, clipping, pre-norm and Muon are worth on chapter 0's texts: held-out losses of three seeds or five.
Run by hand, from the root (four minutes on a free core):

    OMP_NUM_THREADS=1 python benchmarks/warmup.py

Chapter 10's `fit` trains the package's BERT, of chapter 0's size, on chapter 0's 392 texts for 130 steps, and asks the 98
others. The rate is 0.002, and the matrices start at chapter 0's standard deviation, the root of 1/D, unless a variant
says otherwise. The losses go to minibert/measured/warmup.json: six (or two) layers -> variant -> a loss for each seed.
"""
from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert import one_page as page
from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.seeds import seeded
from minibert.encoder import Encoder, EncoderLayer
from minibert.heads import BertForPreTraining
from minibert.model import BertModel
from minibert.train.recipe import TrainingConfig
from minibert.training import fit

OUT = Path(__file__).resolve().parents[1] / "minibert/measured/warmup.json"


class Blanks:
    "Chapter 0's texts and masks, as examples for `fit`."

    def __init__(self, seed): self.seed = seed

    def batch(self, step, n):
        generator = seeded(self.seed, step)
        rows = torch.randint(len(page.train_ids), (n,), generator=generator)
        ids, chosen = page.hide(page.train_ids[rows], generator)
        labels = page.train_ids[rows].masked_fill(~chosen, -100)
        return dict(input_ids=ids, attention_mask=(ids != page.PAD).long(), labels=labels)


class PreNormLayer(EncoderLayer):
    "x + f(norm(x)): the same parts in the other order."

    def forward(self, x, mask=None, memory=None):
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.feed_forward(self.output_norm(x))


class PreNorm(BertForPreTraining):
    "The head's own LayerNorm ends it."

    class model_class(BertModel):
        class encoder_class(Encoder): layer_class = PreNormLayer


def try_fit(layers, warmup, seed=0, std=page.D**-0.5, model_class=BertForPreTraining, **changes):
    "Held-out loss after 130 steps."
    config = BertConfig(page.V, page.D, layers, page.H, page.I, max_position_embeddings=page.S,
                        initializer_range=std, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    model = model_class(config, seeded(seed, 0, 2))
    recipe = dict(steps=130, length=page.S, learning_rate=2e-3, warmup=warmup, seed=seed)
    fit(model, Blanks(seed), TrainingConfig(**recipe | changes))
    def guess(ids): return model(ids, attention_mask=(ids != page.PAD).long()).prediction_logits
    return page.held_out_loss(guess)


SIX = {
    "warm-up": dict(warmup=0.1),
    "no warm-up": dict(warmup=0.0),
    "no warm-up, pre-norm": dict(warmup=0.0, model_class=PreNorm),
    "warm-up, pre-norm": dict(warmup=0.1, model_class=PreNorm),
    "warm-up, no clipping": dict(warmup=0.1, max_grad_norm=1e9),
    "no warm-up, initial weights of 0.02": dict(warmup=0.0, std=0.02),
    "warm-up, initial weights of 0.02": dict(warmup=0.1, std=0.02),
    "warm-up, initial weights of 0.02, Muon": dict(warmup=0.1, std=0.02, optimizer="muon"),
}
TWO = {
    "warm-up": dict(warmup=0.1),
    "no warm-up": dict(warmup=0.0),
    "warm-up, no clipping": dict(warmup=0.1, max_grad_norm=1e9),
    "warm-up, initial weights of 0.02": dict(warmup=0.1, std=0.02),
    "warm-up, initial weights of 0.02, Muon": dict(warmup=0.1, std=0.02, optimizer="muon"),
}


def main() -> None:
    found = {}
    for name, layers, variants, seeds in (("two", 2, TWO, range(5)), ("six", 6, SIX, range(3))):
        for variant, changes in variants.items():
            losses = [round(try_fit(layers, seed=seed, **changes), 3) for seed in seeds]
            found.setdefault(name, {})[variant] = losses
            print(f"{name}  {variant:40}{statistics.mean(losses):.3f} +- {statistics.stdev(losses):.3f}  {losses}", flush=True)
    write_whole(OUT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__": main()
