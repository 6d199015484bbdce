"""The other side of the ten-minute aim: Hugging Face's model, trained by Hugging Face's Trainer.

    python benchmarks/trainer.py --data ../shared/data/wikitext --name wikitext-2-v1 --size mini --minutes 30

AdamW at 1e-4, falling linearly, dropout 0.1, everything else as the Trainer has it. Same vocabulary,
pairs and masks as `benchmarks/recipes.py`, and in the end the same held-out batches. --steps N
instead of --minutes fixes the length beforehand, for a machine that is not quiet.
"""
import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers as hf
from recipes import KEPT, add_result, open_data

from minibert.cli import HELD_OUT_SEED
from minibert.config import BertConfig
from minibert.corpus import Corpus
from minibert.evaluation import evaluate_pretraining
from minibert.training import INPUTS, TrainingConfig, make_sampler
from minibert.weights import from_hf


class Pairs(torch.utils.data.IterableDataset):
    "The rows of batch 0, 1, 2, ... one after the other."
    def __init__(self, sampler, batch_size): self.sampler, self.batch_size = sampler, batch_size

    def __iter__(self):
        step = 0
        while True:
            batch = self.sampler.batch(step, self.batch_size)
            for k in range(self.batch_size): yield {name: batch[name][k] for name in INPUTS}
            step += 1


class Clock(hf.TrainerCallback):
    "When each step ended."
    def __init__(self): self.times = []

    def on_step_end(self, args, state, control, **kwargs): self.times.append(time.perf_counter())


def train(config: BertConfig, sampler, batch_size: int, steps: int):
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = hf.BertForPreTraining(hf.BertConfig(**asdict(config)))
        arguments = hf.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=batch_size, learning_rate=1e-4,
            lr_scheduler_type="linear", save_strategy="no", report_to=[], logging_steps=100, use_cpu=True)
        clock = Clock()
        hf.Trainer(model, arguments, train_dataset=Pairs(sampler, batch_size), callbacks=[clock]).train()
    return model, clock.times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stories")
    parser.add_argument("--name")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--work", default="runs/recipes")
    parser.add_argument("--out", default="benchmarks/results/recipes.json")
    arguments = parser.parse_args()
    folder, tokenizer = open_data(arguments)
    train_corpus, held_out = (Corpus.open(folder / part, tokenizer) for part in ("corpus", "held-out"))
    config = BertConfig.preset(arguments.size, vocab_size=tokenizer.vocab_size, max_position_embeddings=arguments.length)
    loop = TrainingConfig(length=arguments.length, batch_size=arguments.batch_size)
    sampler = make_sampler(train_corpus, tokenizer, loop)
    steps = arguments.steps
    if steps is None:
        _, times = train(config, sampler, arguments.batch_size, 20)
        steps = int(60 * arguments.minutes * 10 / (times[-1] - times[-11]))
    start = time.perf_counter()
    model, _ = train(config, sampler, arguments.batch_size, steps)
    seconds = time.perf_counter() - start
    ruler = make_sampler(held_out, tokenizer, TrainingConfig(length=arguments.length, seed=HELD_OUT_SEED))
    figures = evaluate_pretraining(from_hf(model), ruler)
    line = dict(recipe=f"Hugging Face Trainer: size={arguments.size} length={arguments.length} batch_size={arguments.batch_size}",
                data=arguments.data, minutes=arguments.minutes, steps=steps, seconds=round(seconds, 1),
                **{key: round(figures[key], 4) for key in KEPT})
    add_result(Path(arguments.out), line)


if __name__ == "__main__":
    main()
