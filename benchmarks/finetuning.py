"""SST-2 by labels: a bag of words, frozen and full fine-tuning of several BERTs, 1, 10 and 100 % of the labels.

    python benchmarks/finetuning.py --data ../shared/data/sst2 --model minilm=FOLDER wikitext=runs/wikitext
    python benchmarks/finetuning.py --data ../shared/data/sst2 --model minilm=FOLDER --search

FOLDER is any checkpoint in Hugging Face's layout. Every cell (model, way, share, seed) is added to
--out when it is done, and what is there already by the same recipe is not done again: stop at any time and start the
same command again. --search tries the rates on a tenth of the labels and keeps what the held-out part said, under "tried".
--only picks cells by the start of their names, as `--only minilm/full/0.01 wikitext`. The way "full" tunes every weight
and reads the pooler's vector, "full-mean" the mean over the tokens; "fresh" is full fine-tuning of the same sizes from
random weights: add `--fresh wikitext` for it. `--count Salesforce/wikitext wikitext-2-v1` says how often a text to pre-train
on has the words that weigh most in the bag.
Hardly anything is known of a run but what is in the file: RECIPES below are all the choices there are.
"""
import argparse
import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from minibert.core.files import write_whole
from minibert.core.precision import choose_precision, keep_freed_memory
from minibert.core.seeds import seeded
from minibert.measure.baselines import bag_of_words, word_counters
from minibert.nn.classifier_parts import pool
from minibert.finetuning import BertClassifier, finetune, train_frozen
from minibert.runs.plan import FinetuneConfig
from minibert.tuning.finetune import training_for
from minibert.tuning.tasks import start_classifier
from minibert.tuning.classify import TASK
from minibert.data.labels import ExampleSampler, ask, judge
from minibert.data.labels import hold_out, read_examples, take_share
from minibert.data.tables import load_table
from minibert.model import BertModel
from minibert.train.processes import own_device
from minibert.tokenizer import WordPieceTokenizer

SHARES, SEEDS, LENGTH = (0.01, 0.1, 1.0), (0, 1, 2), 64
RECIPES = {  # model and way: share -> epochs, rate; chosen on seed 0's held-out part, see "tried"
    "minilm/full": {0.01: (6, 1e-4), 0.1: (3, 1e-4), 1.0: (3, 1e-4)},
    "minilm/full-mean": {0.01: (6, 1e-4), 0.1: (3, 1e-4), 1.0: (2, 5e-5)},
    "other": {0.01: (10, 5e-4), 0.1: (4, 5e-4), 1.0: (2, 5e-4)},
}
RATES = {"minilm": (5e-5, 1e-4, 2e-4), "other": (2e-4, 5e-4, 1e-3)}


def pack(right) -> str:
    "Right and wrong, one bit an example, as hexadecimal."
    return np.packbits(right).tobytes().hex()


class Work:
    "The data, the models, and the file of results."

    def __init__(self, arguments):
        read = dict(text_column="sentence", names=("negative", "positive"))
        self.train = read_examples(arguments.data, **read)
        self.test = read_examples(arguments.data, split="validation", **read)
        self.folders = dict(pair.split("=", 1) for pair in arguments.model)
        self.device, self.path, self.known = own_device(), Path(arguments.out), {}
        self.precision = choose_precision("auto", self.device)
        self.result = json.loads(self.path.read_text()) if self.path.exists() else {"cells": {}, "tried": [], "models": {}}

    def keep(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self.result, indent=1) + "\n")

    def parts(self, share, seed):
        "Learned from, chosen by."
        return hold_out(take_share(self.train, share, seed)[0], seed)

    def samplers(self, model, parts, seed):
        tokenizer = WordPieceTokenizer.from_pretrained(self.folders[model])
        return [ExampleSampler(part, tokenizer, LENGTH, seed) for part in parts]

    def options(self, model, seed, epochs=1, rate=1e-4, **more):
        return FinetuneConfig(str(self.folders[model]), "sst2", "runs", epochs=epochs, learning_rate=rate, seed=seed,
                              length=LENGTH, precision=self.precision, **more)

    def vectors(self, model):
        "Both pooled vectors of every text, computed once for a model."
        if model not in self.known:
            bert = start_classifier(TASK, self.options(model, 0), self.train.names).bert.to(self.device)
            both = lambda batch: torch.cat([pool(bert, way, **batch) for way in ("cls", "mean")], 1)
            rows = [ask(BertClassifier(bert, self.train.names), sampler, answer=both).float()  # in float32, as always
                    for sampler in self.samplers(model, (self.train, self.test), 0)]
            self.known = {model: [dict(zip(("cls", "mean"), row.chunk(2, 1))) for row in rows]}
        return self.known[model]


def frozen(work: Work, model: str, pooling: str, share: float, seed: int) -> dict:
    seen, test = work.vectors(model)
    place = {text: k for k, text in enumerate(zip(work.train.texts, work.train.labels.tolist()))}
    parts = work.parts(share, seed)
    rows = [seen[pooling][[place[pair] for pair in zip(part.texts, part.labels.tolist())]] for part in parts]
    classifier = start_classifier(TASK, work.options(model, seed, frozen=True, pooling=pooling), work.train.names)
    tried = train_frozen(classifier, *work.samplers(model, parts, seed), vectors=rows)
    with torch.no_grad(): logits = classifier.classifier(test[pooling])
    return figures(work, logits) | dict(tried=tried)


def full(work: Work, model: str, way: str, share: float, seed: int, epochs: int, rate: float) -> dict:
    options = work.options(model, seed, epochs, rate, pooling="mean" if way.endswith("mean") else "cls")
    classifier = start_classifier(TASK, options, work.train.names)
    if way == "fresh": classifier.bert = BertModel(classifier.config, seeded(seed, 0, 2))
    *parts, test = work.samplers(model, (*work.parts(share, seed), work.test), seed)
    config = training_for(options, len(parts[0]))
    lines = finetune(classifier.to(work.device), *parts, config)
    val = [line for line in lines if "val_loss" in line]
    best = min(val, key=lambda line: line["val_loss"])
    kept = dict(steps=config.steps, epochs=epochs, rate=rate, best_step=best["step"],
                val_loss=best["val_loss"], val_accuracy=best["val_accuracy"],
                lines=[[line["step"], line["loss"], line["val_loss"], line["val_accuracy"]] for line in val])
    return figures(work, ask(classifier, test)) | kept


def recipe(model: str, way: str, share: float) -> tuple[int, float]:
    "Epochs and rate."
    return RECIPES.get(f"{model}/{way}", RECIPES["other"])[share]


def figures(work: Work, logits) -> dict:
    right = logits.argmax(-1).numpy() == work.test.labels
    return dict(accuracy=float(right.mean()), loss=judge(logits, work.test.labels)["val_loss"], right=pack(right))


def cells(work: Work, fresh: list[str]) -> dict:
    "name -> what to call for it, the cheap ones first."
    plan = {}
    for share in SHARES:
        for seed in SEEDS:
            def bag(share=share, seed=seed):
                right = bag_of_words(*work.parts(share, seed), work.test) == work.test.labels
                return dict(accuracy=float(right.mean()), right=pack(right))
            plan[f"words/bag/{share}/{seed}"] = bag
    for model in work.folders:
        for share in SHARES:
            for seed in SEEDS:
                for pooling in ("cls", "mean"):
                    plan[f"{model}/frozen-{pooling}/{share}/{seed}"] = (
                        lambda m=model, p=pooling, s=share, k=seed: frozen(work, m, p, s, k))
    for share in SHARES:
        for seed in SEEDS:
            for model in work.folders:
                for way in ("full", *["full-mean"] * (f"{model}/full-mean" in RECIPES), *["fresh"] * (model in fresh)):
                    plan[f"{model}/{way}/{share}/{seed}"] = (
                        lambda m=model, s=share, k=seed, w=way: full(work, m, w, s, k, *recipe(m, w, s)))
    return plan


def up_to_date(work: Work, name: str) -> bool:
    "Is the cell there, and was it made by today's recipe?"
    model, way, share, _ = name.split("/")
    told = work.result["cells"].get(name)
    if told is None or way not in ("full", "full-mean", "fresh"): return told is not None
    return (told["epochs"], told["rate"]) == recipe(model, way, float(share))


def search(work: Work, share: float = 0.1, seed: int = 0) -> None:
    "Try the rates; what the held-out part says is kept, the validation set is not asked for a choice."
    done = {(row["model"], row["share"], row["epochs"], row["rate"]) for row in work.result["tried"]}
    for model in work.folders:
        epochs = recipe(model, "full", share)[0]
        for rate in RATES.get(model, RATES["other"]):
            if (model, share, epochs, rate) in done: continue
            told = full(work, model, "full", share, seed, epochs, rate)
            row = dict(model=model, share=share) | {k: told[k] for k in ("epochs", "rate", "best_step", "val_loss", "val_accuracy")}
            print(row, flush=True)
            work.result["tried"].append(row)
            work.keep()


def count_weightiest(work: Work, dataset: str, name: str, most: int = 200) -> dict[str, int]:  # the weightiest first
    "How often a text has the words that weigh most in a bag of all labels."
    Vectorizer, Regression = word_counters()
    bag = Vectorizer()
    fit = Regression(C=10.0, max_iter=1000).fit(bag.fit_transform(work.train.texts), work.train.labels)
    words, split = bag.build_analyzer(), load_table(dataset, name)["train"]
    counts = Counter(word for row in split(["text"]) for word in words(row["text"] or ""))
    heaviest = bag.get_feature_names_out()[np.argsort(-abs(fit.coef_[0]))[:most]]
    return {word: counts[word] for word in heaviest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stanfordnlp/sst2")
    parser.add_argument("--model", nargs="*", default=[], help="name=folder")
    parser.add_argument("--fresh", nargs="*", default=[], help="models whose sizes are trained from random weights too")
    parser.add_argument("--only", nargs="*", help="cells whose names start so")
    parser.add_argument("--search", action="store_true", help="try the rates instead")
    parser.add_argument("--count", nargs=2, metavar=("DATASET", "NAME"), help="count the bag's weightiest words there")
    parser.add_argument("--share", type=float, default=0.1, help="for --search")
    parser.add_argument("--out", default="minibert/measured/finetuning.json")
    arguments = parser.parse_args()
    keep_freed_memory()  # the library leaves that to commands
    work = Work(arguments)
    for model in work.folders:
        config = start_classifier(TASK, work.options(model, 0), work.train.names).config
        work.result["models"][model] = {k: v for k, v in asdict(config).items() if "dropout" not in k}
    work.result["data"] = dict(train=len(work.train), asked=len(work.test), length=LENGTH)
    if arguments.count:
        work.result["counts"] = count_weightiest(work, *arguments.count)
        work.keep()
    if arguments.search: return search(work, arguments.share)
    for name, call in cells(work, arguments.fresh).items():
        if up_to_date(work, name) or arguments.only and not name.startswith(tuple(arguments.only)): continue
        start = time.perf_counter()
        told = call()
        work.result["cells"][name] = told | dict(precision=work.precision, seconds=round(time.perf_counter() - start, 1))
        print(f"{name:32} {told['accuracy']:.4f}  {time.perf_counter() - start:7.1f} s", flush=True)
        work.keep()


if __name__ == "__main__": main()
