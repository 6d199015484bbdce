"""Make the course model: first the openings of the stories, then the stories.

    MINIBERT_BFLOAT16=0 python benchmarks/course.py --seed 0

In whole stories a pronoun that is hidden can mostly be copied from another one, and a small
model learns that and never reads the names. So it reads the first sentences of each
story at first, with 40 % of the words hidden: there the name is often all that is left. Then
`minibert pretrain --start` teaches it whole stories. The run's weights, vocabulary, figures,
metrics and curves go to minibert/course_model (or --out), with a course.json that says how
they were made; --seed 1 and 2 tell how far another seed ends.
"""
from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from minibert.config import BertConfig
from minibert.core.course import COURSE
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.data.stories import stories, story_tables
from minibert.pairs import PairSampler
from minibert.runs.plan import as_values
from minibert.runs.run import open_run
from minibert.speed import FastBertForPreTraining
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.recipe import TrainingConfig
from minibert.train.trainer import pretrain
from minibert.weights import load_pretrained, save_pretrained

COMMAND = "MINIBERT_BFLOAT16=0 python benchmarks/course.py --seed {seed}"
OPENINGS = TrainingConfig(steps=2000, batch_size=64, length=40, optimizer="muon", learning_rate=4e-3)
WHOLE = ("--steps", "2500", "--learning-rate", "2e-3", "--mask-probability", "0.3", "--short-probability", "0.3")
FILES = ("config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "summary.json",
         "metrics.jsonl", "curves.png")


def openings(story) -> list[list[str]]:
    "Its first sentences, after one that says what the hero was: two apart, and the two as one before the third."
    at = "was" in story.words[0]
    first, second, third = (" ".join(words) for words in story.words[at : at + 3])
    return [first, second], [f"{first} {second}", third]


def learn_openings(seed: int, folder: Path) -> None:
    "The first phase: masked words in the openings of the 4,000 stories."
    tokenizer = WordPieceTokenizer.train((s for document in load_documents("stories") for s in document), 8192)
    config = replace(BertConfig.preset("tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=48),
                     num_attention_heads=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = FastBertForPreTraining(config, seeded(seed))
    texts = Corpus.build([text for story in stories(4000) for text in openings(story)], tokenizer)
    examples = PairSampler(texts, tokenizer, OPENINGS.length, seed=seed, short=0.0, probability=0.4, objectives=("mlm",))
    pretrain(model, examples, replace(OPENINGS, seed=seed))
    save_pretrained(model, tokenizer, folder)


def count_names(folder: Path, first: str = "[MASK]") -> list[int]:
    "Of the 24 names, how many get the right word first: her or his (unless it is given), and she or he."
    model, tokenizer = load_pretrained(folder).eval(), WordPieceTokenizer.from_pretrained(folder)
    people = {row["hero"]: (row["his"], row["he"]) for row in story_tables()["hero"].rows}
    texts = [f"{name} lost {first.format(words[0])} red ball . [MASK] looked under the bed , but the ball was not there ."
             for name, words in people.items()]
    batch = tokenizer.encode_batch(texts, return_tensors="pt")
    with torch.no_grad(): logits = model(**batch).prediction_logits
    right = torch.zeros(2, dtype=torch.int)
    for row, ids, words in zip(logits, batch["input_ids"], people.values()):
        blanks = (ids == tokenizer.mask_id).nonzero().flatten().tolist()
        for k, at in zip((0, 1)[-len(blanks):], blanks): right[k] += tokenizer.pieces[row[at].argmax()] == words[k]
    return right.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=COURSE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        start, run = Path(place) / "openings", Path(place) / "run"
        learn_openings(arguments.seed, start)
        subprocess.run([sys.executable, "-m", "minibert", "pretrain", "--start", start, "--out", run,
                        *WHOLE, "--seed", str(arguments.seed)], check=True)
        options = as_values(open_run(run).plan) | dict(out=None, start="openings")
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name in FILES: shutil.copy(run / name, arguments.out / name)
    made = dict(
        command=COMMAND.format(seed=arguments.seed),
        versions=dict(python=platform.python_version()) | {name: version(name) for name in ("minibert", "torch", "numpy")},
        parameters=sum(p.numel() for p in load_pretrained(arguments.out).parameters()),
        names=count_names(arguments.out), openings=vars(OPENINGS) | dict(mask_probability=0.4, short_probability=0.0),
        options=options)
    (arguments.out / "course.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf8")
    print(f"{made['names']} of 24 names; {sum(file.stat().st_size for file in arguments.out.iterdir()):,} bytes.")


if __name__ == "__main__": main()
