"""What the data path of the reference (documents, corpus) costs, and how well it cuts sentences. Run by hand, from the root:

    python benchmarks/corpus.py splitter UD.conllu      boundary F1 and speed, beside sentencex and pysbd
    python benchmarks/corpus.py all FOLDER NAME [OUT]   what preparing and reading a corpus costs, into OUT

UD.conllu is UD English EWT's dev file (conllu, sentencex and pysbd must be installed: they are not part
of the project); FOLDER and NAME are a data set in the hub's layout, as wikitext and wikitext-2-v1. OUT is
minibert/measured/corpus.json unless said otherwise; --short measures less, to see that it works.

`all` measures: preparing 1, 3 and 10 times the text, streamed from parquet files to the memory map, each in
a process of its own (processor seconds of one core, resident memory before and at its peak); the same in
shards with 1 and 2 processes (equal byte by byte?); learning the vocabulary from 1/10, 3/10 and all of the
text; and the sampler with its masks beside a training step of `tiny`, interleaved.
"""
import hashlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def ends(sentences):
    "Where sentences end, counted in characters that are not white space; the last is not asked."
    k, found = 0, set()
    for sentence in sentences:
        k += len("".join(sentence.split()))
        found.add(k)
    return found - {k}


def paragraphs(path):
    "Gold sentences of each paragraph of a CoNLL-U file, as printed."
    import conllu
    found = []
    for sentence in conllu.parse_incr(open(path, encoding="utf-8")):
        if not found or {"newpar", "newpar id", "newdoc", "newdoc id"} & set(sentence.metadata): found.append([])
        found[-1].append(" ".join(sentence.metadata["text"].split()))
    return found


def marked(paragraph):
    "Ends that the text marks: a stop before, and no lower-case letter after (nobody can see the others)."
    k, found = 0, set()
    for now, then in zip(paragraph, paragraph[1:]):
        k += len("".join(now.split()))
        if re.search(r"[.!?…][\"'”’)\]]*$", now) and not then.lstrip("\"'“‘([")[:1].islower(): found.add(k)
    return found


def splitter(path):
    from minibert.data.documents import split_sentences
    import pysbd
    import sentencex
    gold = paragraphs(path)
    segmenter = pysbd.Segmenter(language="en", clean=False)
    peers = {"ours": split_sentences, "sentencex": lambda text: list(sentencex.segment("en", text)), "pysbd": segmenter.segment}
    print(f"{len(gold)} paragraphs, {sum(map(len, gold))} sentences; words a second from the best of 3 interleaved rounds")
    seconds = {name: [] for name in peers}
    for _ in range(3):
        for name, split in peers.items():
            start = time.perf_counter()
            for p in gold: split(" ".join(p))
            seconds[name].append(time.perf_counter() - start)
    words = sum(len(s.split()) for p in gold for s in p)
    print(f"{'':12}precision recall  F1     recall of marked ends   words/s")
    for name, split in peers.items():
        hits = said = true = seen = shown = 0
        for p in gold:
            g, ours, m = ends(p), ends(split(" ".join(p))), marked(p)
            hits += len(g & ours); said += len(ours); true += len(g); seen += len(m & ours); shown += len(m)
        print(f"{name:12}{hits / said:.4f}    {hits / true:.4f}  {2 * hits / (said + true):.4f}  {seen / shown:.4f}"
              f"                 {words / min(seconds[name]):12,.0f}")


def resident():
    "Megabytes of this process that are in memory now."
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak():
    "Megabytes that this process had in memory at most."
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def copies(folder, name, aside, most):
    "The training text as a folder of tables in the hub's layout, for each of 1, 3, ... times."
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    datasets.disable_progress_bars()
    table = pa.table({"text": datasets.load_dataset(folder, name)["train"]["text"]})
    for times in most:
        (place := aside / f"{times}/data").mkdir(parents=True)
        for k in range(times): pq.write_table(table, place / f"train-{k:05}-of-{times:05}.parquet", row_group_size=2000)
        pq.write_table(table.slice(0, 100), place / "validation-00000-of-00001.parquet")


def child(*arguments):
    "Run a part of this script in a process of its own; what it printed last."
    said = subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


def one(folder, tokenizer, target, processes):
    from minibert.data.corpus import Corpus
    from minibert.data.documents import load_documents
    from minibert.tokenizer import WordPieceTokenizer
    documents, tokenizer = load_documents(folder, streaming=True), WordPieceTokenizer.from_pretrained(tokenizer)
    next(iter(documents))
    before = resident()
    start, wall = time.process_time(), time.perf_counter()
    corpus = Corpus.build(documents, tokenizer, target, processes=int(processes))
    seconds, wall = time.process_time() - start, time.perf_counter() - wall
    most = peak()
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(target).iterdir()))).hexdigest()
    print(json.dumps(dict(documents=corpus.n_documents, sentences=corpus.n_sentences, tokens=corpus.n_tokens, seconds=round(seconds, 2),
                          wall_seconds=round(wall, 2), resident_before_mb=round(before), resident_peak_mb=round(most), sha256=digest)))


def prepare(aside, sizes):
    "Each size in a process of its own, so that its peak memory is its own."
    rows = []
    print("times  tokens       seconds  tokens/s   resident MB: before, at most")
    for times in sizes:
        r = dict(times=times) | child("one", aside / f"{times}", aside / "tokenizer", aside / f"corpus-{times}", 0)
        rows.append(r)
        print(f"{times:5}  {r['tokens']:11,}  {r['seconds']:7.2f}  {r['tokens'] / r['seconds']:9,.0f}   {r['resident_before_mb']} {r['resident_peak_mb']}")
    return rows


def shards(aside, times, whole):
    rows = []
    for processes in (1, 2):
        r = child("one", aside / f"{times}", aside / "tokenizer", aside / f"shards-{processes}", processes)
        rows.append(dict(times=times, processes=processes, wall_seconds=r["wall_seconds"], resident_peak_mb=r["resident_peak_mb"], equal=r["sha256"] == whole["sha256"]))
        print(f"shards, {processes} processes: {r['wall_seconds']:.2f} s (in one go: {whole['wall_seconds']:.2f} s), equal: {rows[-1]['equal']}")
    return rows


def learn(folder, target, every, pieces=8192):
    from minibert.data.documents import load_documents, sample_sentences
    from minibert.tokenizer import WordPieceTokenizer
    before, start = resident(), time.process_time()
    tokenizer = WordPieceTokenizer.train(sample_sentences(load_documents(folder, streaming=True), every=int(every)), pieces)
    seconds = time.process_time() - start
    tokenizer.save_pretrained(target)
    print(json.dumps(dict(every=int(every), seconds=round(seconds, 2), resident_before_mb=round(before),
                          resident_peak_mb=round(peak()))))


def vocabulary(aside):
    "Pieces learned from a share of the documents, and the tokens that all of the text then takes."
    from minibert.data.documents import load_documents
    from minibert.tokenizer import WordPieceTokenizer
    rows, sentences = [], [s for d in load_documents(aside / "1", streaming=True) for s in d]
    for every in (10, 3, 1):
        row = child("learn", aside / "1", aside / ("tokenizer" if every == 1 else f"tokenizer-{every}"), every)
        tokenizer = WordPieceTokenizer.from_pretrained(aside / ("tokenizer" if every == 1 else f"tokenizer-{every}"))
        rows.append(row | dict(pieces=tokenizer.vocab_size, tokens=sum(len(tokenizer.ids(s)) for s in sentences)))
        print(f"vocabulary from 1/{every} of the documents: {row['seconds']:.2f} s, {rows[-1]['tokens']:,} tokens")
    return rows


def batch(aside, rounds):
    "Processor milliseconds of the sampler with its masks, and of a training step of `tiny`, in turns."
    import torch
    from minibert.config import BertConfig
    from minibert.speed import FastBertForPreTraining
    from minibert.data.corpus import Corpus
    from minibert.train.optimizers import make_optimizers
    from minibert.train.recipe import TrainingConfig
    from minibert.tokenizer import WordPieceTokenizer
    from minibert.train.trainer import make_sampler
    from minibert.training import Run, train_step
    tokenizer, rows = WordPieceTokenizer.from_pretrained(aside / "tokenizer"), []
    corpus = Corpus.open(aside / "corpus-1", tokenizer)
    for pairs, length in ((64, 64), (32, 128)):
        config = TrainingConfig(batch_size=pairs, length=length, steps=rounds + 10)
        sampler = make_sampler(corpus, tokenizer, config)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = FastBertForPreTraining(BertConfig.preset("tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=length,
                                                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).train()
        optimizers, data, steps = make_optimizers(model, config), [], []
        for step in range(rounds + 3):
            start = time.process_time()
            drawn = sampler.batch(step, pairs)
            middle = time.process_time()
            train_step(Run(model, optimizers, config, step), drawn)
            data.append(1e3 * (middle - start))
            steps.append(1e3 * (time.process_time() - middle))
        row = dict(pairs=pairs, length=length, threads=torch.get_num_threads(), batch_ms=round(statistics.median(data[3:]), 2), step_ms=round(statistics.median(steps[3:]), 1))
        rows.append(row | dict(share=round(row["batch_ms"] / row["step_ms"], 4)))
        print(f"{pairs} pairs of {length}: batch {row['batch_ms']:.2f} ms, step {row['step_ms']:.1f} ms: {100 * rows[-1]['share']:.1f} %")
    return rows


def everything(folder, name, *rest):
    short = "--short" in rest
    out = Path(next((r for r in rest if r != "--short"), Path(__file__).resolve().parents[1] / "minibert/measured/corpus.json"))
    with tempfile.TemporaryDirectory() as aside:
        aside = Path(aside)
        copies(folder, name, aside, sizes := (1, 3, 10))
        found = dict(command=f"python benchmarks/corpus.py all {Path(folder).name} {name}", cores=os.cpu_count(), load_average=[round(x, 1) for x in os.getloadavg()],
                     note="seconds are processor seconds of one core; the same text again meets the tokenizer's warm cache")
        found["vocabulary"] = vocabulary(aside)
        found["prepare"] = prepare(aside, sizes)
        found["shards"] = shards(aside, 3, found["prepare"][1])
        found["batch"] = batch(aside, 5 if short else 60)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parts = {"splitter": splitter, "all": everything, "one": one, "learn": learn}
    parts.get(sys.argv[1] if sys.argv[1:] else "", lambda *_: sys.exit(__doc__))(*sys.argv[2:])
