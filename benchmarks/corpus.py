"""What chapter 11's data path costs, and how well it cuts sentences. Run by hand, from the root:

    python benchmarks/corpus.py splitter UD.conllu      boundary F1 and speed, beside sentencex and pysbd
    python benchmarks/corpus.py prepare FOLDER NAME     time and memory for 1, 3 and 10 times a data set

UD.conllu is UD English EWT's dev file (conllu, sentencex and pysbd must be installed: they are not part
of the project); FOLDER and NAME are a data set in the hub's layout, as wikitext and wikitext-2-v1.
"""
import json
import re
import resource
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
    from minibert.corpus import split_sentences
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


def prepare(folder, name):
    "Each size in a process of its own, so that its peak memory is its own."
    print("processor seconds of one core; the same text again meets the tokenizer's warm cache")
    print("times  tokens       seconds  tokens/s   peak MB (of which before the data)")
    for times in (1, 3, 10):
        line = subprocess.run([sys.executable, __file__, "one", folder, name, str(times)], check=True, capture_output=True, text=True).stdout
        r = json.loads(line.splitlines()[-1])
        print(f"{times:5}  {r['tokens']:11,}  {r['seconds']:7.2f}  {r['tokens'] / r['seconds']:9,.0f}  {r['peak']:7.0f} ({r['base']:.0f})")


def one(folder, name, times):
    from itertools import chain
    from minibert.corpus import Corpus, load_documents
    from minibert.tokenizer import WordPieceTokenizer
    documents = load_documents(folder, name)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), 8192)
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    base = peak()
    with tempfile.TemporaryDirectory() as aside:
        start = time.process_time()
        corpus = Corpus.build(chain.from_iterable(load_documents(folder, name) for _ in range(int(times))), tokenizer, Path(aside) / "corpus")
        seconds = time.process_time() - start
        print(json.dumps(dict(tokens=corpus.n_tokens, seconds=seconds, peak=peak(), base=base)))


if __name__ == "__main__":
    {"splitter": splitter, "prepare": prepare, "one": one}.get(sys.argv[1] if sys.argv[1:] else "", lambda *_: sys.exit(__doc__))(*sys.argv[2:])
