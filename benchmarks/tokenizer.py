"""Words per second and memory of our tokenizer beside the `tokenizers` library, on one core.

    python benchmarks/tokenizer.py [--megabytes 100] [--rounds 3] [--out results.json]

Reads WikiText-2 and BERT's vocabulary from ../shared/data. The two take turns on the same lines; the table shows
medians over the rounds and their ratio. "new" starts with an empty cache in each round, "warm" does not. Memory is
what the process gained at its peak while one of them read the text, each in a process of its own.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

from datasets import load_dataset
from tokenizers import __version__ as tokenizers_version
from tokenizers.implementations import BertWordPieceTokenizer

from minibert.tokenizer import WordPieceTokenizer

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
BLOCK = 2_000  # lines handed over at once


def lines_of(split):
    return list(load_dataset(str(DATA / "wikitext"), "wikitext-2-v1", split=split)["text"])


def blocks(megabytes):
    "WikiText-2's training lines, again and again, up to so many megabytes, in blocks."
    lines, done = lines_of("train"), 0
    sizes = [len(line.encode()) for line in lines]
    while True:
        for start in range(0, len(lines), BLOCK):
            if done >= megabytes * 1e6: return
            done += sum(sizes[start:start + BLOCK])
            yield lines[start:start + BLOCK]


def make():
    ours = WordPieceTokenizer.from_vocab(DATA / "bert-base-uncased" / "vocab.txt")
    theirs = BertWordPieceTokenizer(ours.vocab, lowercase=True)

    def read_ours(lines): return sum(len(ours.ids(line)) for line in lines)

    def read_theirs(lines): return sum(len(e.ids) for e in theirs.encode_batch(lines, add_special_tokens=False))

    def read_fast(lines):
        return sum(len(e.ids) for e in theirs._tokenizer.encode_batch_fast(lines, add_special_tokens=False))

    return ours, {"ours": read_ours, "encode_batch": read_theirs, "encode_batch_fast": read_fast}


def timed(read, lines):
    start = time.perf_counter()
    return read(lines), time.perf_counter() - start


def peak_mb():
    "The process's largest resident memory so far (the kernel's own mark; ru_maxrss counts the parent's too)."
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"): return int(line.split()[1]) / 1024
    return 0.0


def memory(who, megabytes):
    "By how much the peak grows in a process of its own in which `who` reads it all, the lines' 12 MB included."
    code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "import tokenizer as t\n"
            f"ours, readers = t.make(); readers[{who!r}](t.lines_of('validation')[:10])\n"
            "before = t.peak_mb()\n"
            f"for lines in t.blocks({megabytes}): readers[{who!r}](lines)\n"
            "print(t.peak_mb() - before)")
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def measure(megabytes, rounds):
    ours, readers = make()
    rows = {}
    for split in ("validation", "train"):
        lines = lines_of(split)
        words = sum(len(line.split()) for line in lines)
        for state in ("new", "warm"):
            seconds = {name: [] for name in readers}
            for _ in range(rounds):
                for name, read in readers.items():
                    if name == "ours" and state == "new": ours.cache.clear(); ours.clean.table.clear()
                    seconds[name].append(timed(read, lines)[1])
            rows[f"{split}, {state}"] = {name: words / statistics.median(s) for name, s in seconds.items()}
    seconds, words = {name: [] for name in readers}, 0
    ours.cache.clear()
    for lines in blocks(megabytes):
        found = {name: timed(read, lines) for name, read in readers.items()}
        assert len({count for count, _ in found.values()}) == 1
        for name, (_, s) in found.items(): seconds[name].append(s)
        words += sum(len(line.split()) for line in lines)
    rows[f"{megabytes:g} MB"] = {name: words / sum(s) for name, s in seconds.items()}
    return rows


def learning(rounds):
    lines, seconds = lines_of("train"), {"ours": [], "theirs": []}

    def learn_ours(texts): WordPieceTokenizer.train(texts, 8192)

    def learn_theirs(texts):
        BertWordPieceTokenizer(lowercase=True).train_from_iterator(texts, vocab_size=8192, show_progress=False)

    for _ in range(rounds):
        seconds["ours"].append(timed(learn_ours, lines)[1])
        seconds["theirs"].append(timed(learn_theirs, lines)[1])
    return {name: statistics.median(s) for name, s in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="size of the long text")
    parser.add_argument("--rounds", type=int, default=3, help="turns of which the median is shown")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    if not DATA.exists(): sys.exit(f"The benchmark reads {DATA}, which is not there: put WikiText-2 and BERT's vocab.txt there.")
    rows, learned = measure(options.megabytes, options.rounds), learning(options.rounds)
    peak = {name: memory(name, options.megabytes) for name in ("ours", "encode_batch", "encode_batch_fast")}
    print("| million words/s | ours | encode_batch | encode_batch_fast | ratio | ratio to fast |\n| --- | --- | --- | --- | --- | --- |")
    for name, row in rows.items():
        a, b, c = (row[k] / 1e6 for k in ("ours", "encode_batch", "encode_batch_fast"))
        print(f"| {name} | {a:.2f} | {b:.2f} | {c:.2f} | {a / b:.1f} | {a / c:.1f} |")
    print(f"| peak memory, MB | {peak['ours']:.0f} | {peak['encode_batch']:.0f} | {peak['encode_batch_fast']:.0f} | | |")
    print(f"| learning 8,192 pieces, s | {learned['ours']:.2f} | {learned['theirs']:.2f} | | {learned['theirs'] / learned['ours']:.1f} | |")
    if options.out:
        about = dict(python=platform.python_version(), tokenizers=tokenizers_version, machine=platform.machine(), cores=os.cpu_count(),
                     megabytes=options.megabytes, rounds=options.rounds)
        options.out.write_text(json.dumps(dict(about=about, words_per_second=rows, peak_memory_mb=peak, learning_seconds=learned), indent=2) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
