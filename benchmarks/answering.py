"""Questions about stories: the course model, fine-tuned, beside the same sizes from random weights, two baselines and the best possible reader.

    python benchmarks/answering.py --out minibert/measured/answering.json

A reader learns from the questions about 800 stories of the training split and answers 600 about the test split's, with
three seeds, at the learning rate of four whose validation loss was lowest on a fourth seed. Each run is added to --out
when it is done, and what is there is not done again. `f1` and `exact` hold one byte a question, its score in percent; an interval is of the mean over the seeds, for another draw of stories. `cpu_seconds` are
those of one thread, from reading the questions to the last figure. `best_in_windows` is the best possible reader who sees one
window at a time; `something else` are questions about a name or a thing that the story hasn't.
"""
import argparse
import json
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

from minibert.config import BertConfig
from minibert.core.course import COURSE
from minibert.core.files import read_json, write_whole
from minibert.core.precision import keep_freed_memory
from minibert.core.seeds import seeded
from minibert.data.questions import Questions, QuestionSampler, best_answer, story_questions
from minibert.data.stories import stories
from minibert.evaluation import row_interval
from minibert.heads import BertForPreTraining
from minibert.measure.answers import best_sentence
from minibert.runs.plan import FinetuneConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.tuning.answer import score_answers, text_numbers
from minibert.tuning.finetune import run_finetuning
from minibert.tuning.predict import predict
from minibert.weights import save_pretrained

RECIPE = dict(epochs=2, dropout=0.0)
RATES = 5e-4, 1e-3, 2e-3, 4e-3
STORIES, ASKED, SEEDS, CHOOSES = 800, 600, (0, 1, 2), 3
KINDS = "answer", "not told", "something else"


def write(path: Path, questions: Questions) -> str:
    "Questions as JSON lines."
    rows = (dict(question=question, context=text, answers=[dict(text=words, answer_start=start) for words, start in own])
            for (question, text), own in zip(questions.texts, questions.labels))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return str(path)


def packed(scores: np.ndarray) -> str: return np.round(100 * scores).astype(np.uint8).tobytes().hex()


def unpacked(text: str) -> np.ndarray: return np.frombuffer(bytes.fromhex(text), np.uint8) / 100


def fresh(folder: Path, seed: int) -> str:
    "The course model's sizes and vocabulary with random weights."
    config = BertConfig.from_dict(read_json(COURSE / "config.json"))
    save_pretrained(BertForPreTraining(config, seeded(seed)), WordPieceTokenizer.from_pretrained(COURSE), folder)
    return str(folder)


def reader(kind: str, rate: float, seed: int, test: Questions) -> dict:
    "One run: its scores, and what it costs."
    with tempfile.TemporaryDirectory() as place:
        work, start = Path(place), time.process_time()
        run = str(COURSE) if kind == "course" else fresh(work / "fresh", seed)
        asked = write(work / "train.jsonl", story_questions(stories(STORIES)))
        options = FinetuneConfig(run, asked, str(work / "reader"), task="answer", test=write(work / "test.jsonl", test), seed=seed, learning_rate=rate, precision="float32", **RECIPE)
        figures = run_finetuning(options, progress=False)
        seconds, pairs = time.process_time() - start, [*test.texts]
        lines = [json.loads(line) for line in (work / "reader/metrics.jsonl").read_text().splitlines()]
        answers = [row["answer"] for row in predict(work / "reader", pairs)]
    exact, f1 = score_answers(answers, test)
    assert abs(f1.mean() - figures["bert"]["f1"]) < 1e-9
    return dict(exact=packed(exact), f1=packed(f1), examples=figures["examples"], steps=lines[-1]["step"], cpu_seconds=round(seconds, 1),
                val=[[line["step"], line["val_loss"], line["val_accuracy"]] for line in lines if "val_loss" in line])


def best_in_windows(test: Questions, length: int = 48) -> list[str]:
    "What the best possible reader answers who sees one window of the course model at a time."
    sampler, found = QuestionSampler(test, WordPieceTokenizer.from_pretrained(COURSE), length), [""] * len(test)
    for k, places in zip(sampler.question, sampler.places):
        (question, text), inside = test.texts[k], places[places[:, 1] >= 0]
        found[k] = found[k] or best_answer(question, text[inside[0, 0]:inside[-1, 1]])
    return found


def summary(rows: list[np.ndarray], test: Questions, kinds: np.ndarray) -> dict:
    "The mean over seeds and questions, its interval, and that of each kind of question."
    mean = np.mean(rows, 0)
    return dict(mean=float(mean.mean()), interval=[min(max(x, 0.0), 1.0) for x in row_interval(mean, text_numbers(test))],
                of_seeds=[float(row.mean()) for row in rows], kinds={kind: float(mean[kinds == kind].mean()) for kind in KINDS})


def figures(runs: dict, rates: dict, test: Questions, kinds: np.ndarray) -> dict:
    "Exact match and F1 of every reader."
    plain = {"best_possible": [best_answer(*pair) for pair in test.texts], "best_in_windows": best_in_windows(test),
             "best_sentence": [best_sentence(*pair) for pair in test.texts], "no_answer": [""] * len(test)}
    scores = {reader: score_answers(answers, test)[:, None] for reader, answers in plain.items()}
    for kind in ("course", "fresh"):
        known = [runs[f"{kind}/{rates[kind]:g}/{seed}"] for seed in SEEDS]
        scores[kind] = [[unpacked(run[key]) for run in known] for key in ("exact", "f1")]
    return {reader: {key: summary([*rows], test, kinds) for key, rows in zip(("exact", "f1"), both)} for reader, both in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="minibert/measured/answering.json")
    path = Path(parser.parse_args().out)
    keep_freed_memory()
    told = story_questions(stories(150, split="test"))
    last = {text: k for k, (_, text) in enumerate(told.texts)}  # is about what the story hasn't
    kinds = np.array(["answer" if own else "something else" if last[text] == k else "not told" for k, ((_, text), own) in enumerate(zip(told.texts, told.labels))])[:ASKED]
    test = told.take(range(ASKED))
    result = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    result |= dict(recipe=RECIPE | dict(rates=RATES), stories=STORIES, asked=len(test), kinds={kind: int((kinds == kind).sum()) for kind in KINDS})

    def run(kind: str, rate: float, seed: int) -> dict:
        "A run, made once."
        if (name := f"{kind}/{rate:g}/{seed}") not in result["runs"]:
            result["runs"][name] = reader(kind, rate, seed, test)
            write_whole(path, json.dumps(result, indent=1) + "\n")
            print(name, result["runs"][name]["cpu_seconds"], flush=True)
        return result["runs"][name]

    result["rate"] = {kind: min(RATES, key=lambda rate: run(kind, rate, CHOOSES)["val"][-1][1]) for kind in ("course", "fresh")}
    for seed, (kind, rate) in product(SEEDS, result["rate"].items()): run(kind, rate, seed)
    result["figures"] = figures(result["runs"], result["rate"], test, kinds)
    write_whole(path, json.dumps(result, indent=1) + "\n")
    for name, own in result["figures"].items(): print(f"{name:16}", *(f"{key} {found['mean']:.4f}" for key, found in own.items()), own["exact"]["kinds"])


if __name__ == "__main__": main()
