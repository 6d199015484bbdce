"""What leaky sentence pairs do to a model: held-out losses of five seeds. Run by hand, from the root (some four minutes):

    OMP_NUM_THREADS=1 python benchmarks/leaky_pairs.py

Google's recipe, walked over short stories, leaks: the lengths of A and B tell part of the answer, and so does a B that
opens a story. Chapter 9 trains a bag of words on such pairs and on the package's own, and both take the same exam of
honest held-out pairs. Rows of minibert/measured/leaky_pairs.json: under `bags` the losses and accuracies in the honest
exam and in the leaky one, for seeds 0 to 4, after training on Google's pairs, on ours, and on ours with as many random
ones as Google's have; under `bert` the same for a small BERT with 400 steps in rows of 64, seeds 0 to 2.
"""
from __future__ import annotations

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F

from minibert.config import BertConfig
from minibert.core.files import write_whole
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.data.pairs import Places, draw_pairs
from minibert.heads import BertForPreTraining
from minibert.tokenizer import WordPieceTokenizer

OUT = Path(__file__).resolve().parents[1] / "minibert/measured/leaky_pairs.json"


def pop_by_pop(a, b, room, rng):
    "Chapter 9's, like the next two."
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)
    return a, b


def run_elsewhere(documents, d, length, rng):
    others = (rng.randrange(len(documents)) for _ in range(10))
    document = documents[next((k for k in others if k != d), d)]
    b = []
    for sentence in document[rng.randrange(len(document)):]:
        b += sentence
        if len(b) >= length: break
    return b


def google_pairs(documents, room, rng, short=0.1):
    for d, document in enumerate(documents):
        target = rng.randint(2, room) if rng.random() < short else room
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a, b = (sum(part, []) for part in (chunk[:cut], chunk[cut:]))
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    b = run_elsewhere(documents, d, target - len(a), rng)
                    i -= len(chunk) - cut  # put back
                yield *pop_by_pop(a, b, room, rng), is_random
                chunk = []
            i += 1


def walk(corpus, seeds, length):
    "Google's pairs of one walk for each seed."
    rows = [[s.tolist() for s in corpus.document(d)] for d in range(corpus.n_documents)]
    return [pair for seed in seeds for pair in google_pairs(rows, length - 3, random.Random(seed))]


def our_pairs(corpus, n, seed, length, share=0.5):
    "The package's pairs, a share of them random."
    drawn = draw_pairs(Places(corpus), n, length, 0.1, seeded(seed), share)
    return [(corpus.ids[a : a + i], corpus.ids[b : b + j], bool(r)) for a, i, b, j, r in zip(*vars(drawn).values())]


def answers(pairs): return torch.tensor([int(is_random) for *_, is_random in pairs])


def bags(pairs, V):
    counts = [[np.bincount(side, minlength=V) for side in pair[:2]] for pair in pairs]
    return torch.tensor(np.array(counts, np.uint8)), answers(pairs)


def judge_by_words(pairs, seed, steps=500):
    "Chapter 9's."
    counts, labels = pairs
    generator = seeded(seed)
    shapes = (counts.shape[-1], 64), (192, 64), (64, 2)
    words, inner, outer = weights = [
        (torch.randn(shape, generator=generator) / shape[0] ** 0.5).requires_grad_() for shape in shapes]

    def judge(counts):
        a, b = (counts.float() @ words).unbind(1)
        return F.gelu(torch.cat([a, b, a * b], -1) @ inner) @ outer

    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    for _ in range(steps):
        some = torch.randint(len(labels), (64,), generator=generator)
        loss = F.cross_entropy(judge(counts[some]), labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return judge


def laid_out(pairs, tokenizer, length):
    "The rows of pairs (3, n, S), and the labels."
    rows = np.zeros((3, len(pairs), length), int)
    for n, (a, b, _) in enumerate(pairs):
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
        rows[0, n, : len(ids)], rows[1, n, len(a) + 2 : len(ids)], rows[2, n, : len(ids)] = ids, 1, 1
    return torch.from_numpy(rows), answers(pairs)


def judge_by_bert(pairs, seed, V, steps=400):
    "A BERT of two layers, 64 wide, trained on the pairs alone."
    rows, labels = pairs
    config = BertConfig(V, 64, 2, 4, 256, max_position_embeddings=rows.shape[-1],
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForPreTraining(config, seeded(seed, 0, 2))

    def judge(rows): return model.nsp_head(model.bert(*rows).pooler_output)

    optimizer, generator = torch.optim.AdamW(model.parameters(), lr=1e-3), seeded(seed)
    for _ in range(steps):
        some = torch.randint(len(labels), (32,), generator=generator)
        loss = F.cross_entropy(judge(rows[:, some]), labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return judge


def grade(judge, exam):
    "Loss and accuracy."
    with torch.no_grad(): logits = judge(exam[0])
    return F.cross_entropy(logits, exam[1]).item(), (logits.argmax(-1) == exam[1]).double().mean().item()


def measure(learn, prepare, train, unseen, length, seeds):
    "kind of training pairs -> losses and accuracies in both exams, after the share of Google's that are random."
    google = walk(train, range(8), length)
    share = sum(is_random for *_, is_random in google) / len(google)
    kinds = {"Google's": google, "ours": our_pairs(train, len(google), 2, length),
             "ours, as many random": our_pairs(train, len(google), 2, length, share)}
    exams = {"": prepare(our_pairs(unseen, 4000, 3, length)), "leaky_": prepare(walk(unseen, range(100, 104), length))}
    found = {}
    for kind, pairs in kinds.items():
        pairs, rows = prepare(pairs), found.setdefault(kind, {})
        for seed in seeds:
            judge = learn(pairs, seed)
            for exam, asked in exams.items():
                for name, value in zip(("loss", "accuracy"), grade(judge, asked)):
                    rows.setdefault(exam + name, []).append(round(value, 4))
        print(kind, rows, flush=True)
    return round(share, 4), found


def main() -> None:
    documents = list(load_documents("stories", limit=1000))
    tokenizer = WordPieceTokenizer.train((s for document in documents for s in document), 1000)
    V = tokenizer.vocab_size
    texts = [Corpus.build(some, tokenizer) for some in (documents, load_documents("stories", split="validation"))]
    share, by_bags = measure(judge_by_words, lambda pairs: bags(pairs, V), *texts, 128, range(5))
    _, by_bert = measure(lambda pairs, seed: judge_by_bert(pairs, seed, V),
                         lambda pairs: laid_out(pairs, tokenizer, 64), *texts, 64, range(3))
    write_whole(OUT, json.dumps(dict(share_random=share, bags=by_bags, bert=by_bert), indent=1) + "\n")


if __name__ == "__main__": main()
