"""BERT, GPT and T5 on the same stories, vocabulary and number of positions, asked the same.

    for kind in bert gpt t5; do for seed in 0 1 2; do python benchmarks/three.py train $kind $seed; done; done
    python benchmarks/three.py gather

A position is a token that a stack of the model reads while it trains: 72 a text for BERT ([CLS] and [SEP] included), 70 for GPT,
64 + 14 for T5's encoder and decoder. `train` writes a file for each run into --work, and `gather` puts them into
minibert/measured/three.json, with the baselines and the costs. A cost in seconds is one thread's processor time, the quickest
of some short stretches of steps, so that what else the machine does changes little.
"""
import argparse
import json
import lzma
import math
import platform
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from minibert.core.files import write_whole
from minibert.core.precision import choose_precision, keep_freed_memory
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents, sample_sentences
from minibert.evaluation import evaluate
from minibert.runs.plan import with_values
from minibert.runs.tasks import VAL_SEED, task_of, with_dropout
from minibert.train.optimizers import make_optimizers
from minibert.train.recipe import TrainingConfig
from side_by_side import (
    Masked, ask_bert, ask_gpt, ask_t5, facts_right, masked_losses_of_bert,
    masked_losses_of_t5, story_facts, story_texts)
from minibert.data.spans import Spans, span_sizes
from minibert.data.stories import next_words, stories, story_nats
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.callbacks import Log
from minibert.train.gradients import Gradients
from minibert.training import Run, fit, train_step
from minibert.data.windows import Windows

RAW, BATCH, HELD_OUT = 70, 32, 400  # tokens of text in an example, examples in a step, stories
POSITIONS = dict(bert=RAW + 2, gpt=RAW, t5=RAW + 1 + 2 * span_sizes(RAW)[1] + 1)  # read for one example
TEACH = dict(bert=0.15 * RAW, gpt=RAW - 1, t5=sum(span_sizes(RAW)) + 1)  # with a loss, in one example
ASK = dict(bert=ask_bert, gpt=ask_gpt, t5=ask_t5)


def open_texts() -> tuple[WordPieceTokenizer, Corpus, Corpus]:
    "One vocabulary and both texts, the same for all three."
    documents = list(load_documents("stories"))
    tokenizer = WordPieceTokenizer.train(sample_sentences(documents), vocab_size=8192)
    return tokenizer, Corpus.build(documents, tokenizer), Corpus.build(load_documents("stories", split="validation"), tokenizer)


def examples(kind: str, corpus: Corpus, tokenizer: WordPieceTokenizer, seed: int):
    "The examples of a kind, each made of 70 tokens of the text."
    if kind == "bert": return Masked(corpus, tokenizer, RAW + 2, seed=seed)
    if kind == "gpt": return Windows(corpus, tokenizer, RAW, seed=seed)
    return Spans(corpus, tokenizer, 64, seed=seed)


def fresh(kind: str, tokenizer: WordPieceTokenizer, seed: int):
    "A tiny model of the kind, without dropout."
    task = task_of(kind)
    config = task.config(with_values(task.plan(), dict(length=RAW + 2)), tokenizer.vocab_size)
    return task.build(with_dropout(config, 0.0), seeded(seed, 0, 2))


def recipe(kind: str, positions: int, seed: int) -> TrainingConfig:
    "The command's recipe for the kind, for as many steps as read so many positions."
    own, steps = task_of(kind).plan().training, round(positions / BATCH / POSITIONS[kind])
    return TrainingConfig(steps=steps, batch_size=BATCH, length=RAW, optimizer=own.optimizer, learning_rate=own.learning_rate,
                          precision=choose_precision("auto"), seed=seed, log_steps=max(1, steps // 40))


def figures(kind: str, model, tokenizer, train: Corpus, val: Corpus) -> dict:
    "All that this kind of model can be asked."
    told = {}
    row = Spans(val, tokenizer, 64, seed=VAL_SEED)
    ids, batch, masks = row.in_order(50, BATCH)
    if kind == "bert": loss, right = masked_losses_of_bert(model, tokenizer, ids, masks)
    if kind == "t5": loss, right, _ = masked_losses_of_t5(model, batch, tokenizer.vocab_size)
    if kind == "gpt":
        report = evaluate(model, Windows(val, tokenizer, RAW))
        told |= {name: report[name] for name in ("clm_loss", "clm_accuracy", "bits_per_byte")}
    if kind == "bert": told["own_loss"] = own_loss(model, tokenizer, val)
    if kind != "gpt": told |= dict(masked_loss=loss.mean().item(), masked_accuracy=right.double().mean().item(), masked_tokens=len(loss))
    text, facts = asked_facts(tokenizer, val)
    places = torch.tensor([fact.place for fact in facts])
    scores = ASK[kind](model, tokenizer, story_texts(Spans(val, tokenizer, 64).row if kind != "gpt" else Windows(val, tokenizer, RAW).row,
                                                     facts, RAW), places)
    counts = np.bincount(train.ids, minlength=tokenizer.vocab_size)
    return told | dict(facts=facts_right(scores, facts, text, tokenizer, counts))


def own_loss(model, tokenizer, val: Corpus) -> float:
    "What BERT pays for masks as it learned with: single tokens, some of them shown."
    masked, losses = Masked(val, tokenizer, RAW + 2, seed=VAL_SEED), []
    model.eval()
    with torch.no_grad():
        for step in range(15): losses.append(model(**masked.batch(step, BATCH)).loss.item())
    return float(np.mean(losses))


def asked_facts(tokenizer, val: Corpus) -> tuple[list, list]:
    "Held-out stories and their facts: the last stories are left out, whose runs would pass the end of the text."
    text = stories(HELD_OUT, split="validation")
    return text, [fact for fact in story_facts(text, RAW) if fact.story < HELD_OUT - 3]


def train(kind: str, seed: int, positions: int, work: Path) -> None:
    "One run, and its figures in a file."
    tokenizer, text, val = open_texts()
    model, config = fresh(kind, tokenizer, seed), recipe(kind, positions, seed)
    clock = time.process_time()
    history = fit(model, examples(kind, text, tokenizer, seed), config, [Log()], Gradients(precision=config.precision)).history
    seconds = time.process_time() - clock
    line = dict(kind=kind, seed=seed, config=asdict(config), parameters=sum(p.numel() for p in model.parameters()),
                positions=config.steps * BATCH * POSITIONS[kind], processor_seconds=round(seconds, 1),
                curve=[(h["step"], round(h["loss"], 4)) for h in history], **figures(kind, model, tokenizer, text, val))
    work.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), work / f"{kind}-{seed}.pt")
    write_whole(work / f"{kind}-{seed}.json", json.dumps(line) + "\n")
    print(json.dumps({name: value for name, value in line.items() if name not in ("curve", "config")}), flush=True)


def cost(kind: str, tokenizer, text: Corpus) -> dict:
    "What a position costs in training: floating-point operations counted, processor time measured."
    model, config = fresh(kind, tokenizer, 0), recipe(kind, 10**7, 0)
    some, optimizers = examples(kind, text, tokenizer, 0), make_optimizers(model, config)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(**some.batch(0, BATCH)).loss.backward()
    clocks = []
    for stretch in range(6):
        start = time.process_time()
        for step in range(5): train_step(Run(model, optimizers, config, 5 * stretch + step), some.batch(step, BATCH), Gradients(precision=config.precision))
        clocks.append((time.process_time() - start) / 5)
    read = BATCH * POSITIONS[kind]
    return dict(positions=POSITIONS[kind], teach=TEACH[kind] / POSITIONS[kind], flops=counter.get_total_flops() / read,
                seconds_a_step=min(clocks), microseconds=1e6 * min(clocks) / read)


def baselines(tokenizer, text: Corpus, val: Corpus) -> dict:
    "What is paid without a model: chance, counts, xz, and the best that the grammar allows."
    def spelled(corpus): return "\n".join(
        tokenizer.decode(np.concatenate(corpus.document(k)).tolist()) for k in range(corpus.n_documents)).encode()
    def packed(data): return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    seen, new = spelled(text), spelled(val)
    windows = Windows(val, tokenizer, RAW).with_baselines(Windows(text, tokenizer, RAW))
    cut = Spans(val, tokenizer, 64, seed=VAL_SEED).with_baselines(Spans(text, tokenizer, 64))
    tokens, told = len(windows.row), stories(HELD_OUT, split="validation")
    nats = sum(story_nats(story.flat) for story in told)
    hits = []
    for story in told[:100]:
        for at in range(len(story.flat) + 1):
            chances = next_words(story.flat[:at])
            hits.append(max(chances.values()) / sum(chances.values()))
    return dict(
        windows=windows.baselines(50, BATCH), masked=cut.baselines(50, BATCH), chance=math.log(tokenizer.vocab_size),
        tokens=tokens, bytes=windows.bytes, best_loss=nats / tokens, best_accuracy=float(np.mean(hits)),
        xz=8 * (packed(seen + b"\n" + new) - packed(seen)) / len(new))


def gather(work: Path, out: Path) -> None:
    "All runs, measured once more, baselines and costs in one file."
    torch.set_num_threads(1)
    tokenizer, text, val = open_texts()
    lines = [json.loads(path.read_text()) for path in sorted(work.glob("*.json"))]
    for line in lines:
        model = fresh(line["kind"], tokenizer, 0)
        model.load_state_dict(torch.load(work / f"{line['kind']}-{line['seed']}.pt", weights_only=True))
        line |= figures(line["kind"], model, tokenizer, text, val)
    result = dict(
        machine=f"{platform.machine()}, one thread a run, {choose_precision('auto')}, torch {torch.__version__}",
        pieces=tokenizer.vocab_size, texts=[text.n_documents, val.n_documents], raw=RAW, batch_size=BATCH,
        cost={kind: cost(kind, tokenizer, text) for kind in POSITIONS}, baselines=baselines(tokenizer, text, val), runs=lines)
    write_whole(out, json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "gather"])
    parser.add_argument("kind", nargs="?", choices=list(POSITIONS))
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--positions", type=float, default=1e7)
    parser.add_argument("--work", type=Path, default=Path("runs/three"))
    parser.add_argument("--out", type=Path, default=Path("minibert/measured/three.json"))
    arguments = parser.parse_args()
    keep_freed_memory()
    if arguments.what == "gather": gather(arguments.work, arguments.out)
    else: train(arguments.kind, arguments.seed, int(arguments.positions), arguments.work)


if __name__ == "__main__":
    main()
