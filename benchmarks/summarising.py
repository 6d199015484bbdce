"""What does a small T5 write about the stories? `--task summarize` on two tables, three seeds, from scratch and from spans.

    python benchmarks/summarising.py [SEEDS]      writes minibert/measured/summarising.json; some minutes on a quiet machine

"owner": a story, and who has what at its end; "opening": a story without its first sentence, and that sentence, which
can't be copied. The T5 is of chapter 21's size, and the options are the same in every run. The pre-trained ones begin
from the weights that a T5 of this seed has after `PRETRAIN` steps on spans of the stories. Asked: held-out stories.
"""
import csv
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minibert.core.files import write_whole
from minibert.core.precision import choose_precision, keep_freed_memory
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.data.spans import SENTINELS, Spans
from minibert.data.stories import Story, stories
from minibert.runs.course import open_course
from minibert.runs.plan import FinetuneConfig
from minibert.t5 import T5Config, T5ForConditionalGeneration
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.recipe import TrainingConfig
from minibert.training import fit
from minibert.tuning.finetune import run_finetuning
from minibert.tuning.predict import predict
from minibert.weights import save_pretrained

OUT = Path(__file__).resolve().parents[1] / "minibert/measured" / "summarising.json"
LEARNED, ASKED, PRETRAIN, EPOCHS = 1000, 200, 150, 6
OWNERS = {  # plot, end -> who has what
    ("lost", "happy"): "{hero} has the {colour} {thing}.",
    ("lost", "sad"): "nobody has the {colour} {thing}.",
    ("birthday", "happy"): "{friend} has the {colour} {thing}.",
    ("birthday", "sad"): "nobody has the {colour} {thing}.",
    ("contest", "happy"): "{hero} has the prize.",
    ("contest", "sad"): "{friend} has the prize.",
}


def owner_pairs(
    stories: Sequence[Story],  # those whose plot has nothing to own are left out
) -> list[tuple[str, str]]:  # a story, and who has what at its end
    "Stories with the answer to \"who has what?\", which their grammar knows."
    return [(story.text, owner.format(**dict(zip(story.flat_columns, story.flat)))) for story in stories
            if (owner := OWNERS.get((story.plot, story.sentiment)))]


def opening_pairs(stories: Sequence[Story]) -> list[tuple[str, str]]:  # a story without its first sentence, and that sentence
    "Stories whose first sentence is missing, and is asked for."
    return [(" ".join(story.sentences[1:]), story.sentences[0]) for story in stories]


TASKS = dict(owner=owner_pairs, opening=opening_pairs)


def write_tables(work):
    "Both tables, to learn from and to ask; no text twice."
    for task, make in TASKS.items():
        seen = {}
        for split, count in (("train", LEARNED), ("validation", ASKED)):
            pairs = [pair for pair in dict(make(stories(6 * count, split=split))).items() if pair[0] not in seen][:count]
            seen |= dict(pairs)
            with open(work / f"{task}-{split}.csv", "w", newline="", encoding="utf8") as file:
                csv.writer(file).writerows([("text", "summary"), *pairs])


def write_models(work, seed, documents, tokenizer):
    "A fresh T5, and the same after spans."
    pad = tokenizer.pad_id
    sizes = T5Config(tokenizer.vocab_size + SENTINELS, d_model=64, d_kv=32, d_ff=256, num_layers=2, num_heads=2, dropout_rate=0.0,
                     feed_forward_proj="gated-gelu", tie_word_embeddings=False, pad_token_id=pad, decoder_start_token_id=pad,
                     eos_token_id=tokenizer.sep_id)
    model = T5ForConditionalGeneration(sizes, seeded(seed, 0, 2))
    save_pretrained(model, tokenizer, work / f"scratch-{seed}")
    fit(model, Spans(Corpus.build(documents, tokenizer), tokenizer, 64, seed=seed),
        TrainingConfig(steps=PRETRAIN, batch_size=32, length=64, optimizer="muon", learning_rate=1e-2, warmup=0.05, seed=seed))
    save_pretrained(model, tokenizer, work / f"pretrained-{seed}")


def one_run(work, seed, task, start):
    begun, tables = time.perf_counter(), [str(work / f"{task}-{split}.csv") for split in ("train", "validation")]
    out = work / f"{task}-{start}-{seed}"
    figures = run_finetuning(FinetuneConfig(
        str(work / f"{start}-{seed}"), tables[0], str(out), task="summarize", label_column="summary", test=tables[1],
        epochs=EPOCHS, learning_rate=3e-3, dropout=0.0, precision=choose_precision("auto"), seed=seed), progress=False)
    with open(tables[1], newline="", encoding="utf8") as file: rows = [row for row, _ in zip(csv.DictReader(file), range(6))]
    said = predict(out, [row["text"] for row in rows])
    print(seed, task, start, json.dumps({name: figures[name] for name in ("t5", "lead_sentence", "commonest_summary")}), flush=True)
    return dict(seconds=time.perf_counter() - begun, **figures, answers=[row | dict(said=own["summary"]) for row, own in zip(rows, said)])


def main():
    keep_freed_memory()
    result = dict(pretraining_steps=PRETRAIN, epochs=EPOCHS, threads=torch.get_num_threads(), precision=choose_precision("auto"), seeds=[])
    tokenizer, documents = WordPieceTokenizer(open_course()[1].vocab), load_documents("stories", limit=3000)
    with tempfile.TemporaryDirectory() as work:
        write_tables(work := Path(work))
        for seed in range(int(sys.argv[1]) if sys.argv[1:] else 3):
            write_models(work, seed, documents, tokenizer)
            result["seeds"].append(dict(seed=seed, runs={
                f"{task}, {start}": one_run(work, seed, task, start) for task in TASKS for start in ("scratch", "pretrained")}))
            write_whole(OUT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__": main()
