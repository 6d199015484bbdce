"""What does a small T5 write about the stories, after a few steps? Three seeds, two tasks, from scratch and from spans.

    python benchmarks/summarising.py [SEEDS]      writes minibert/measured/summarising.json; some minutes on a quiet machine

"owner": a story, and who has what at its end; "opening": a story without its first sentence, and that sentence.
The model, the steps, the rate and the batches are the same in every run of a seed; the pre-trained ones begin from
the weights that a T5 of this seed has after `PRETRAIN` steps on spans of the stories. Held-out stories, greedy.
"""
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.core.files import write_whole
from minibert.core.precision import choose_precision, keep_freed_memory
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.evaluation import evaluate
from minibert.train.recipe import TrainingConfig
from minibert.data.spans import SENTINELS, Spans
from minibert.data.stories import stories
from text_pairs import (
    TextPairs, opening_pairs, owner_pairs, text_config, write_answers)
from minibert.t5 import T5ForConditionalGeneration
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.callbacks import Log
from minibert.train.gradients import Gradients
from minibert.training import fit

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "summarising.json"
TASKS = dict(owner=owner_pairs, opening=opening_pairs)
TOLD, PRETRAIN, STEPS, BATCH = 9000, 200, 150, 16


def loop(steps, seed):
    return TrainingConfig(steps=steps, batch_size=BATCH, length=96, optimizer="muon", learning_rate=1e-2, warmup=0.05,
                          log_steps=10, precision=choose_precision("auto"), seed=seed)


def train(model, examples, steps, seed):
    begun = time.perf_counter()
    history = fit(model, examples, loop(steps, seed), [Log()], Gradients(precision=loop(steps, seed).precision)).history
    return [round(line["span_loss"], 3) for line in history], time.perf_counter() - begun


def one_seed(seed, told, held_out, documents, tokenizer):
    def fresh(): return T5ForConditionalGeneration(text_config(tokenizer, SENTINELS), seeded(seed, 0, 2))
    pretrained = fresh()
    curve, took = train(pretrained, Spans(Corpus.build(documents, tokenizer), tokenizer, 64, seed=seed), PRETRAIN, seed)
    found = dict(seed=seed, pretraining=dict(curve=curve, seconds=took), runs={})
    for task, make in TASKS.items():
        examples, val = TextPairs(make(told), tokenizer, 96, seed=seed), TextPairs(make(held_out), tokenizer, 96)
        for start in ("scratch", "pretrained"):
            model = fresh()
            if start == "pretrained": model.load_state_dict(pretrained.state_dict())
            curve, took = train(model, examples, STEPS, seed)
            figures = evaluate(model, val, batches=10, batch_size=20)
            said = write_answers(model, val.gather(range(6)), tokenizer)
            shown = [dict(text=a, wanted=b, said=c) for (a, b), c in zip(val.pairs, said)]
            found["runs"][f"{task}, {start}"] = dict(pairs=len(examples), curve=curve, seconds=took, **figures, answers=shown)
            print(seed, task, start, f"{took:.0f} s", {k: round(figures[k], 3) for k in ("span_loss", "rouge_l", "exact",
                  "lead_rouge_l", "lead_exact")}, flush=True)
    return found


def main():
    keep_freed_memory()
    wanted = int(sys.argv[1]) if sys.argv[1:] else 3
    told, held_out = stories(TOLD), stories(1000, split="validation")
    documents = load_documents("stories", limit=3000)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=8192)
    result = dict(pretraining_steps=PRETRAIN, steps=STEPS, batch_size=BATCH, threads=torch.get_num_threads(),
                  precision=choose_precision("auto"), seeds=[])
    for seed in range(wanted):
        result["seeds"].append(one_seed(seed, told, held_out, documents, tokenizer))
        write_whole(OUT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__": main()
