"""BERT, GPT and T5's encoder on the same labels: pre-trained on equally many positions of the stories, then fine-tuned and probed alike.

    python benchmarks/kinds.py train          # nine small runs, and three of a T5 that tosses a coin for each token: eight minutes of a core
    python benchmarks/kinds.py ask            # fine-tuned, from scratch and probed: five
    python benchmarks/kinds.py train --positions 1e7 --work runs/kinds-long    # ten times as long, as three.json: eighty minutes of a core
    python benchmarks/kinds.py tinystories --data FOLDER   # the commands of two long runs, half an hour of a core each; then their figures

Each run is a folder in --work, each answer a line of --out, and what is there is not done again. The labels are chapter 19's: from which
of twelve plots is this sentence? A kind's learning rate, fine-tuned and from scratch, is the one with the lowest loss on the part of the
labels that is set aside, on seed 0 alone. `right` holds a bit for each question. The probe asks for the parts of speech in 600
sentences of the stories, each word by its first and last piece, which is where a GPT has read all of it.
"""
import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from torch.nn.utils.rnn import pad_sequence

from minibert.core.files import write_whole
from minibert.core.precision import choose_precision, evaluating, keep_freed_memory
from minibert.data.spans import Spans, spans
from minibert.evaluation import row_interval, wilson
from minibert.finetuning import difference
from minibert.measure.baselines import bag_of_words
from minibert.measure.everything import write_plots
from minibert.measure.probe_runs import probe_checkpoint
from minibert.runs.plan import FinetuneConfig
from minibert.runs.tasks import VAL_SEED
from minibert.train.gradients import Gradients
from minibert.training import fit
from minibert.tuning.classify import TASK, accuracy_figures
from minibert.tuning.finetune import read_parts, run_finetuning
from minibert.tuning.predict import predict
from minibert.weights import load_pretrained, save_pretrained
from three import POSITIONS, examples, fresh, open_texts, recipe

KINDS, SEEDS, READ = tuple(POSITIONS), (0, 1, 2), 10**6
TINYSTORIES = dict(bert=1000, t5=300)  # steps, about equally dear
RATES, EPOCHS, SENTENCES = (3e-4, 1e-3, 3e-3, 1e-2), 6, 600


class Coins(Spans):
    "The spans of a coin for each token, which chapter 21 shows first and calls wrong."

    def corrupted(self, ids, generator):
        masks = torch.rand(ids.shape, generator=generator) < self.sizes[0]
        masks[:, 0] |= ~masks.any(1)
        pairs = [spans(row, mask, self.vocab_size - 1, self.tokenizer.sep_id) for row, mask in zip(ids, masks)]
        inputs, labels = (pad_sequence(part, True, pad) for part, pad in zip(map(list, zip(*pairs)), (self.tokenizer.pad_id, -100)))
        real = torch.tensor([len(part) for part, _ in pairs])
        return dict(input_ids=inputs, labels=labels, attention_mask=(torch.arange(inputs.shape[1]) < real[:, None]).long()), masks


def train(work: Path, positions: int) -> None:
    "Each run as a checkpoint in a folder of its own."
    tokenizer, text, _ = open_texts()
    for kind, seed in [(kind, seed) for seed in SEEDS for kind in (*KINDS, "coins")]:
        if (folder := work / f"{kind}-{seed}").exists(): continue
        own, clock = kind.replace("coins", "t5"), time.process_time()
        model, config = fresh(own, tokenizer, seed), recipe(own, positions, seed)
        some = Coins(text, tokenizer, 64, seed=seed) if kind == "coins" else examples(kind, text, tokenizer, seed)
        fit(model, some, config, [], Gradients(precision=config.precision))
        save_pretrained(model, tokenizer, folder)
        print(folder, config.steps, f"{time.process_time() - clock:.0f} s", flush=True)


def masked_nats(model, questions: Spans) -> tuple[np.ndarray, np.ndarray]:
    "What a T5 pays for each hidden token of the held-out texts, 800 at most, sentinels and ends left out, and the text of each."
    losses, rows, (_, batch, _) = [], [], questions.in_order(25, 32)
    with evaluating(model):
        for k in range(0, len(batch["labels"]), 32):
            part = {name: values[k:k + 32] for name, values in batch.items()}
            labels = part["labels"]
            nats = torch.nn.functional.cross_entropy(model(**part).logits.double(), labels[labels != -100], reduction="none")
            text = (labels >= 0) & (labels < questions.tokenizer.vocab_size) & (labels != questions.tokenizer.sep_id)
            losses.append(nats[text[labels != -100]])
            rows.append(k + text.nonzero()[:, 0])
    return torch.cat(losses).numpy(), torch.cat(rows).numpy()


def compare_spans(work: Path) -> dict:
    "T5s of spans and of coins, each asked both questions: nats a hidden token, with the interval of the mean over seeds."
    tokenizer, _, val = open_texts()
    found = {}
    for asked, questions in dict(spans=Spans(val, tokenizer, 64, seed=VAL_SEED), coins=Coins(val, tokenizer, 64, seed=VAL_SEED)).items():
        told = {}
        for learned in ("t5", "coins"):
            answers = [masked_nats(load_pretrained(work / f"{learned}-{seed}"), questions) for seed in SEEDS]
            told[learned], rows = np.mean([nats for nats, _ in answers], 0), answers[0][1]
            found[f"{learned} asked {asked}"] = dict(nats=float(told[learned].mean()), interval=[*row_interval(told[learned], rows)],
                                                     of_seeds=[float(nats.mean()) for nats, _ in answers], tokens=len(rows))
        apart = told["coins"] - told["t5"]
        found[f"coins less spans, asked {asked}"] = dict(nats=float(apart.mean()), interval=[*row_interval(apart, rows)])
    return found


def brief(found: dict) -> dict:
    "Of a probe's figures, each layer's accuracy and interval, and the dictionary."
    return {name: [{key: row[key] for key in ("accuracy", "interval")} for row in found[name]]
            for name in ("trained", "trained_control", "untrained")} | {name: found[name] for name in ("majority", "best", "words")}


class Work:
    "The tables of labels and the file of results."

    def __init__(self, work: Path, out: Path, folder: Path, positions: int):
        self.work, self.out, self.folder = work, out, folder
        learned, asked = write_plots(folder)
        self.options = FinetuneConfig(run="-", dataset=learned, test=asked, out="-", epochs=EPOCHS, precision="float32")
        self.parts = read_parts(TASK, self.options)
        self.found = json.loads(out.read_text()) if out.exists() else dict(lines={})
        self.found |= dict(positions=positions, recipe=dict(epochs=EPOCHS, rates=RATES, dropout=0.1), texts=[len(part) for part in self.parts], machine=(
            f"{platform.machine()}, one thread, pre-training in {choose_precision('auto')}, torch {torch.__version__}"))

    def line(self, name: str, make, *given, **options) -> dict:
        "What `make` finds, or has found before."
        if name not in self.found["lines"]:
            self.found["lines"][name] = make(*given, **options)
            write_whole(self.out, json.dumps(self.found, indent=1) + "\n")
            print(name, self.found["lines"][name].get("accuracy", ""), flush=True)
        return self.found["lines"][name]

    def tune(self, kind: str, way: str, seed: int, rate: float) -> dict:
        "One fine-tuning: its loss on the part set aside, and which questions it has right."
        with tempfile.TemporaryDirectory() as place:
            run = self.work / f"{kind}-{seed}"
            if way == "scratch":
                tokenizer, _, _ = open_texts()
                save_pretrained(fresh(kind, tokenizer, seed), tokenizer, run := Path(place) / "fresh")
            own = replace(self.options, run=str(run), out=f"{place}/c", seed=seed, learning_rate=rate)
            run_finetuning(own, progress=False)
            lines = [json.loads(line) for line in (Path(place) / "c/metrics.jsonl").read_text().splitlines()]
            told = [row["label"] for row in predict(f"{place}/c", [*self.parts[2].texts])]
        right = np.array(told) == np.array(self.parts[2].names)[self.parts[2].labels]
        return dict(val_loss=min(line["val_loss"] for line in lines if "val_loss" in line), accuracy=float(right.mean()),
                    right=np.packbits(right).tobytes().hex())


def ask(work: Path, out: Path, positions: int) -> None:
    "All lines, and the table of them."
    with tempfile.TemporaryDirectory() as place:
        w, right, table = Work(work, out, Path(place), positions), {}, {}
        n = len(w.parts[2])
        for kind, way in [(kind, way) for way in ("tuned", "scratch") for kind in KINDS]:
            tried = {rate: w.line(f"{kind}/{way}/0/{rate:g}", w.tune, kind, way, 0, rate) for rate in RATES}
            rate = min(tried, key=lambda rate: tried[rate]["val_loss"])
            runs = [w.line(f"{kind}/{way}/{seed}/{rate:g}", w.tune, kind, way, seed, rate) for seed in SEEDS]
            right[kind, way] = np.array([np.unpackbits(np.frombuffer(bytes.fromhex(run["right"]), np.uint8))[:n] for run in runs])
            table[f"{kind} {way}"] = dict(rate=rate) | accuracy_figures(right[kind, way])
        bag = bag_of_words(*w.parts) == w.parts[2].labels
        table["bag of words"] = dict(accuracy=float(bag.mean()), interval=[*wilson(int(bag.sum()), n)])
        gaps = {f"{kind} less bert": difference(right[kind, "tuned"], right["bert", "tuned"]) for kind in KINDS[1:]}
        gaps |= {f"{kind} tuned less scratch": difference(right[kind, "tuned"], right[kind, "scratch"]) for kind in KINDS}
        for kind in KINDS:
            probed = [w.line(f"{kind}/probe/{seed}", probe_checkpoint, work / f"{kind}-{seed}", limit=SENTENCES, seeds=1, both=True)
                      for seed in SEEDS]
            w.found["lines"] |= {f"{kind}/probe/{seed}": brief(one) for seed, one in zip(SEEDS, probed)}
            table[f"{kind} probe"] = {name: np.mean([[row["accuracy"] for row in one[name]] for one in probed], 0).tolist()
                                      for name in ("trained", "untrained", "trained_control")} | dict(
                intervals=[one["trained"][one["best"]]["interval"] for one in probed], majority=probed[0]["majority"])
        w.found |= dict(table=table, differences=gaps)
        if (work / "coins-0").exists(): w.found |= dict(coins=compare_spans(work))
        write_whole(out, json.dumps(w.found, indent=1) + "\n")
        print(json.dumps(dict(table=table, differences=gaps, coins=w.found.get("coins")), indent=1))


def tinystories(data: str, work: Path) -> None:
    "The commands of the long runs; what those of a BERT and a T5 reached goes beside the GPT's figures."
    out = Path("minibert/measured/tinystories.json")
    found = json.loads(out.read_text())
    for kind, steps in TINYSTORIES.items():
        folder = work / f"tinystories-{kind}"
        command = f"minibert pretrain --model {kind} --dataset {data} --size mini --vocab-size 2048 --dropout 0.3 --weight-decay 0.1 --steps {steps}"
        print(command, "--out", folder)
        if not (folder / "summary.json").exists(): continue
        precision = yaml.safe_load((folder / "run.yaml").read_text())["precision"]
        held_out = json.loads((folder / "summary.json").read_text())
        del held_out["train_seconds"]  # such a run shares its machine
        found[kind] = dict(command=command, seed=0, precision=precision, steps=steps, held_out=held_out)
    write_whole(out, json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "ask", "tinystories"])
    parser.add_argument("--positions", type=float, default=READ, help="that each run reads")
    parser.add_argument("--data", default="roneneldan/TinyStories")
    parser.add_argument("--work", type=Path, default=Path("runs/kinds"))
    parser.add_argument("--out", type=Path, default=Path("minibert/measured/kinds.json"))
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    if arguments.what == "train": train(arguments.work, int(arguments.positions))
    elif arguments.what == "ask": ask(arguments.work, arguments.out, int(arguments.positions))
    else: tinystories(arguments.data, arguments.work)


if __name__ == "__main__": main()
