"""The other side of the ten-minute aim: Hugging Face's model, trained by Hugging Face's Trainer.

    python benchmarks/trainer.py --data ../shared/data/wikitext --name wikitext-2-v1 --size mini --minutes 30

AdamW at 1e-4, falling linearly, dropout 0.1, everything else as the Trainer has it. Same vocabulary,
pairs and masks as `benchmarks/recipes.py`, and in the end the same held-out batches. --steps N
instead of --minutes fixes the length beforehand, for a machine that is not quiet.

Is 1e-4 a fair rate for a small model? --learning-rate tries another one. With --own, minibert computes the
Trainer's recipe: the same initial weights, batches, rates and AdamW, in the model that is proved equal to
Hugging Face's. That is several times as fast, so that more rates can be tried:

    python benchmarks/trainer.py --data ../shared/data/wikitext --name wikitext-2-v1 --steps 1540 --own --learning-rate 1e-3
"""
import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers as hf
from recipes import KEPT, add_result, open_data

from minibert.config import BertConfig
from minibert.core.precision import choose_precision
from minibert.data.corpus import Corpus
from minibert.evaluation import evaluate_pretraining
from minibert.train.recipe import TrainingConfig
from minibert.runs.tasks import VAL_SEED
from minibert.train.gradients import Gradients
from minibert.train.trainer import make_sampler
from minibert.training import Run, train_step
from minibert.weights import from_hf


class Pairs(torch.utils.data.IterableDataset):
    "The rows of batch 0, 1, 2, ... one after the other."
    def __init__(self, sampler, batch_size): self.sampler, self.batch_size = sampler, batch_size

    def __iter__(self):
        step = 0
        while True:
            batch = self.sampler.batch(step, self.batch_size)
            for k in range(self.batch_size): yield {name: values[k] for name, values in batch.items()}
            step += 1


class Clock(hf.TrainerCallback):
    "When each step ended."
    def __init__(self): self.times = []

    def on_step_end(self, args, state, control, **kwargs): self.times.append(time.perf_counter())


def fresh(config: BertConfig) -> hf.BertForPreTraining:
    torch.manual_seed(0)
    return hf.BertForPreTraining(hf.BertConfig(**asdict(config)))


def train(config: BertConfig, sampler, batch_size: int, steps: int, rate: float):
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        model = fresh(config)
        arguments = hf.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=batch_size, learning_rate=rate,
            lr_scheduler_type="linear", save_strategy="no", report_to=[], logging_steps=100, use_cpu=True)
        clock = Clock()
        hf.Trainer(model, arguments, train_dataset=Pairs(sampler, batch_size), callbacks=[clock]).train()
    return model, clock.times


def train_own(config: BertConfig, sampler, batch_size: int, steps: int, rate: float, precision: str):
    "The Trainer's recipe in minibert: AdamW without decay, from the peak rate straight down to 0."
    with torch.random.fork_rng(): model = from_hf(fresh(config)).train()
    training = TrainingConfig(steps=steps, batch_size=batch_size, length=sampler.length, warmup=0.0, precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, eps=1e-8, weight_decay=0.0)
    for step in range(steps):
        line = train_step(Run(model, [optimizer], training, step), sampler.batch(step, batch_size), Gradients(precision=precision)).line
        if step % 100 == 99: print(f"step {step + 1}: loss {line['loss']:.3f}", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stories")
    parser.add_argument("--name")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--own", action="store_true", help="let minibert compute the same recipe (with --steps)")
    parser.add_argument("--work", default="runs/recipes")
    parser.add_argument("--out", default="minibert/measured/recipes.json")
    arguments = parser.parse_args()
    folder, tokenizer = open_data(arguments)
    train_corpus, val = (Corpus.open(folder / part, tokenizer) for part in ("corpus", "val"))
    config = BertConfig.preset(arguments.size, vocab_size=tokenizer.vocab_size, max_position_embeddings=arguments.length)
    loop = TrainingConfig(length=arguments.length, batch_size=arguments.batch_size)
    sampler = make_sampler(train_corpus, tokenizer, loop)
    steps, rate, precision = arguments.steps, arguments.learning_rate, choose_precision("auto")
    if steps is None:
        if arguments.own: parser.error("--own needs --steps: the steps that the Trainer made")
        _, times = train(config, sampler, arguments.batch_size, 20, rate)
        steps = int(60 * arguments.minutes * 10 / (times[-1] - times[-11]))
    start = time.perf_counter()
    if arguments.own: model = train_own(config, sampler, arguments.batch_size, steps, rate, precision)
    else: model = from_hf(train(config, sampler, arguments.batch_size, steps, rate)[0])
    seconds = time.perf_counter() - start
    ruler = make_sampler(val, tokenizer, TrainingConfig(length=arguments.length, seed=VAL_SEED))
    figures = evaluate_pretraining(model, ruler)
    recipe = f"size={arguments.size} length={arguments.length} batch_size={arguments.batch_size}"
    if rate != 1e-4: recipe += f" learning_rate={rate:g}"
    if arguments.own: recipe += f", computed by minibert in {precision}"
    line = dict(recipe=f"Hugging Face Trainer: {recipe}",
                data=arguments.data, minutes=arguments.minutes, steps=steps, seconds=round(seconds, 1),
                **{key: round(figures[key], 4) for key in KEPT},
                **{key: [round(x, 4) for x in figures[key]] for key in ("mlm_loss_interval", "mlm_accuracy_interval")})
    add_result(Path(arguments.out), line)


if __name__ == "__main__":
    main()
