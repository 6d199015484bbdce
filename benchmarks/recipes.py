"""Quality for time: train each recipe for the same minutes, measure all on the same held-out text.

    python benchmarks/recipes.py --data ../shared/data/wikitext --name wikitext-2-v1 --minutes 3 \\
        "size=mini" "size=mini positions=rotary" "size=tiny learning_rate=4e-3 dropout=0.1"

Each argument is one recipe: what it changes of the base, which is the command's default but for longer texts, the paper's
share of masks and half the rate. Every result is added to --out at once, so a search that is stopped keeps what it tried.
"""
import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.precision import keep_freed_memory
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.evaluation import evaluate_pretraining
from minibert.runs.plan import Plan, as_values, with_values
from minibert.runs.run import definite, prepare, training_config
from minibert.runs.tasks import task_of, with_dropout
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.callbacks import Budget
from minibert.train.trainer import train_model
from minibert.weights import save_pretrained

BERT = task_of("bert")
BASE = dict(length=64, learning_rate=2e-3, mask_probability=0.15, steps=2000)  # what all recipes here begin with
KEPT = ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "nsp_loss")


def open_data(arguments) -> tuple[Path, WordPieceTokenizer]:
    folder = Path(arguments.work)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(with_values(BERT.plan(), dict(dataset=arguments.data, name=arguments.name)), folder)
    return folder, WordPieceTokenizer.from_pretrained(folder)


def recipe_of(words: str) -> dict:
    "Numbers as JSON writes them, for YAML takes 4e-3 for a word; all else is a word."
    def read(value):
        try: return json.loads(value)
        except ValueError: return value
    return {key: read(value) for key, value in (word.split("=") for word in words.split())}


def planned(recipe: dict, tokenizer) -> tuple[BertConfig, Plan]:
    "The model's config and the plan: the base, changed by the recipe's options and sizes."
    options = {key: recipe[key] for key in recipe.keys() & as_values(BERT.plan()).keys()}
    plan = definite(with_values(BERT.plan(), BASE | options))
    config = with_dropout(BERT.config(plan, tokenizer.vocab_size), plan.model.dropout)
    return replace(config, **{key: recipe[key] for key in recipe.keys() - options.keys()}), plan


def add_result(out: Path, line: dict) -> None:
    "Print a result and add it to the file of all."
    print(json.dumps(line), flush=True)
    lines = json.loads(out.read_text()) if out.exists() else []
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, json.dumps(lines + [line], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--data", default="stories")
    parser.add_argument("--name")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--steps", type=int, help="instead of the minutes")
    parser.add_argument("--work", default="runs/recipes", help="where the ids are kept")
    parser.add_argument("--save", help="a folder for the checkpoints and the last model")
    parser.add_argument("--out", default="minibert/measured/recipes.json")
    arguments = parser.parse_args()
    folder, tokenizer = open_data(arguments)
    train, val = (Corpus.open(folder / part, tokenizer) for part in ("corpus", "val"))
    keep_freed_memory()
    for words in arguments.recipes:
        config, plan = planned(recipe_of(words), tokenizer)
        training = training_config(plan)
        model = BERT.build(config, seeded(training.seed, 0, 2))
        budget = [] if arguments.steps else [Budget(arguments.minutes)]
        if arguments.steps: training = replace(training, steps=arguments.steps)
        start = time.perf_counter()
        steps = train_model(model, BERT.examples(plan, train, tokenizer), training, arguments.save, callbacks=budget).step
        seconds = time.perf_counter() - start
        held_out = BERT.held_out(plan, val, tokenizer)
        figures = evaluate_pretraining(model, held_out)
        line = dict(recipe=words, data=arguments.data, minutes=arguments.minutes, steps=steps,
                    seconds=round(seconds, 1), **{key: round(figures[key], 4) for key in KEPT})
        add_result(Path(arguments.out), line)
        if arguments.save: save_pretrained(model, tokenizer, arguments.save)


if __name__ == "__main__":
    main()
