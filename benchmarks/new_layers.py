"""BERT's, DeBERTa's and ModernBERT's layers on the same batches for the same number of steps: five seeds each.

    OMP_NUM_THREADS=1 python benchmarks/new_layers.py         writes minibert/measured/new_layers.json; eight minutes of one core

Each reads stretches of at most 48 tokens of stories, from a random token on, a fifth of them masked, 32 a step. The
held-out loss is that of such stretches of other stories (`within`), and in whole stories, of up to 128 tokens, that of the
tokens after the 48th (`beyond`) and of each eight tokens (`by_position`). The seed draws the initial weights and the
batches; within a seed all models see the same ones. One recipe for all, and none was tuned. The last row is a BERT after
2,400 steps, one seed. `plain` is ModernBERT with BERT's feed-forward in place of the gated one, at about as many parameters.
The committed file's seeds 0 to 2 and its last row come from one session, seeds 3 and 4 from a later one: its losses compare, its
times only roughly.
"""
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.rows import Stretches
from minibert.data.stories import stories
from minibert.encoder import FeedForward
from minibert.heads import BertForPreTraining
from minibert.hub.sizes import DebertaConfig, ModernBertConfig
from minibert.new_layers import (
    DebertaForMaskedLM, ModernBertEncoder, ModernBertForMaskedLM, ModernBertLayer, ModernBertModel)
from minibert.runs.course import open_course
from minibert.train.recipe import TrainingConfig
from minibert.training import fit

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "new_layers.json"
SIZES = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class PlainLayer(ModernBertLayer): feed_forward_class = FeedForward
class PlainEncoder(ModernBertEncoder): layer_class = PlainLayer
class PlainModel(ModernBertModel): encoder_class = PlainEncoder
class Plain(ModernBertForMaskedLM): model_class = PlainModel


def models(tokenizer):
    "Name -> a model for a seed; about as many parameters in each layer."
    own, V = dict(pad_token_id=tokenizer.pad_id, cls_token_id=tokenizer.cls_id, sep_token_id=tokenizer.sep_id), tokenizer.vocab_size
    near = dict(local_attention=16, **own)
    return {
        "bert": lambda s: BertForPreTraining(BertConfig(V, **SIZES, **NO_DROPOUT, intermediate_size=256), seeded(s, 1)),
        "deberta": lambda s: DebertaForMaskedLM(DebertaConfig(V, **SIZES, **NO_DROPOUT, intermediate_size=256, position_buckets=16), seeded(s, 1)),
        "modernbert": lambda s: ModernBertForMaskedLM(ModernBertConfig(V, **SIZES, intermediate_size=171, **near), seeded(s, 1)),
        "plain": lambda s: Plain(ModernBertConfig(V, **SIZES, intermediate_size=256, **near), seeded(s, 1)),
    }


@torch.no_grad()
def losses_by_position(model, texts, batches=12):  # positions (N,), losses (N,)
    "The loss of each masked token, and where it stands."
    places, losses = [], []
    for step in range(batches):
        batch = texts.batch(step, 32)
        labels = batch.pop("labels")
        states = model.eval().bert(**batch).last_hidden_state
        chosen = labels != -100
        logits = model.mlm_head(states[chosen], model.word_embeddings)
        losses.append(F.cross_entropy(logits, labels[chosen], reduction="none"))
        places.append(chosen.nonzero()[:, 1])
    return torch.cat(places), torch.cat(losses)


def texts_of(told, tokenizer, length, seed):
    corpus = Corpus.build([story.sentences for story in told], tokenizer)
    return Stretches(corpus, tokenizer, length, seed=seed, probability=0.2)


def measure(name, make, seed, tokenizer, steps=300):
    texts = texts_of(stories(6000), tokenizer, 48, seed)
    model, start = make(seed), time.process_time()
    recipe = TrainingConfig(steps=steps, batch_size=32, length=48, optimizer="muon", learning_rate=1e-2, warmup=0.05)
    fit(model.train(), texts, recipe)
    seconds = time.process_time() - start
    told = stories(700, split="validation")
    within = losses_by_position(model, texts_of(told, tokenizer, 48, 99))[1].mean().item()
    places, losses = losses_by_position(model, texts_of(told, tokenizer, 128, 99))
    cells = [losses[(places >= k) & (places < k + 8)].mean().item() for k in range(0, 80, 8)]
    parameters = sum(p.numel() for p in model.parameters())
    return dict(model=name, seed=seed, steps=steps, within=within, beyond=losses[places >= 48].mean().item(),
                by_position=cells, parameters=parameters, seconds_a_step=seconds / steps)


def main():
    torch.set_num_threads(1)
    _, tokenizer = open_course()
    rows = []
    for seed in range(5):
        for name, make in models(tokenizer).items():
            rows.append(measure(name, make, seed, tokenizer))
            print(json.dumps(rows[-1]), flush=True)
    rows.append(measure("bert", models(tokenizer)["bert"], 0, tokenizer, steps=2400))  # so that it reads well
    print(json.dumps(rows[-1]), flush=True)
    write_whole(OUT, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__": main()
