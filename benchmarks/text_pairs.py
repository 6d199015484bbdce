"""Texts and what is to be written about them: examples for a T5 that answers, and ROUGE-L, which compares its words with the right ones."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor, nn

from minibert.core.precision import check_finite, evaluating
from minibert.core.seeds import seeded
from minibert.data.documents import split_sentences
from minibert.data.stories import Story
from minibert.t5 import T5Config, generate_from
from minibert.tokenizer import WordPieceTokenizer


_PRIZES = {  # plot, end -> who has what
    ("lost", "happy"): "{hero} has the {colour} {thing} .",
    ("lost", "sad"): "nobody has the {colour} {thing} .",
    ("birthday", "happy"): "{friend} has the {colour} {thing} .",
    ("birthday", "sad"): "nobody has the {colour} {thing} .",
    ("contest", "happy"): "{hero} has the prize .",
    ("contest", "sad"): "{friend} has the prize .",
}


def owner_pairs(
    stories: Sequence[Story],  # those whose plot has nothing to own are left out
) -> list[tuple[str, str]]:  # a story, and who has what at its end
    "Stories with the answer to \"who has what?\", which their grammar knows."
    pairs = []
    for story in stories:
        if answer := _PRIZES.get((story.plot, story.sentiment)):
            words = dict(zip(story.flat_columns, story.flat))
            pairs.append((story.text, answer.format(**words)))
    return pairs


def opening_pairs(
    stories: Sequence[Story],
) -> list[tuple[str, str]]:  # a story without its first sentence, and that sentence
    "Stories whose first sentence is missing, and is asked for: it can't be copied."
    return [(" ".join(story.sentences[1:]), story.sentences[0]) for story in stories]


def _words(text: str) -> list[str]:
    "The words that are compared: lower case, without punctuation."
    return re.findall(r"[^\W_]+", text.lower())


def rouge_l(said: str, wanted: str) -> float:
    "The F-measure of the longest common subsequence of words (Lin 2004, 3.1)."
    a, b = _words(said), _words(wanted)
    longest = [0] * (len(b) + 1)  # of the words of a so far and the first j of b
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, start=1):
            above = longest[j]
            longest[j] = diagonal + 1 if word == other else max(above, longest[j - 1])
            diagonal = above
    return 2 * longest[-1] / (len(a) + len(b)) if longest[-1] else 0.0


def same_words(said: str, wanted: str) -> bool:
    "Are the words all the same, capitals and punctuation apart?"
    return _words(said) == _words(wanted)


def lead(text: str) -> str:
    "A text's first sentence: the summary that costs nothing."
    return split_sentences(text)[0]


def write_answers(
    model: nn.Module,  # a T5ForConditionalGeneration
    batch: dict[str, Tensor],  # as `gather` makes it; the labels aren't read
    tokenizer: WordPieceTokenizer,
    tokens: int = 40,  # at most
) -> list[str]:
    "What the model writes about each text, the likeliest token each time."
    c, (pad, end) = model.config, (tokenizer.pad_id, tokenizer.sep_id)
    if (c.pad_token_id, c.eos_token_id) != (pad, end) or c.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"The model has {c.vocab_size:,} ids, pads with {c.pad_token_id} and ends with "
            f"{c.eos_token_id}; the tokenizer has {tokenizer.vocab_size:,}, {pad} and {end}: "
            "give the model its own, or make its sizes by `text_config`.")
    device = next(model.parameters()).device
    ids, real = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
    rows = torch.stack(list(generate_from(model, ids, tokens, real=real, temperature=0)), 1)
    known = tokenizer.vocab_size  # a sentinel is no word
    return [tokenizer.decode([i for i in row if i < known]) for row in rows.tolist()]


def text_config(
    tokenizer: WordPieceTokenizer,
    extra: int = 0,  # ids behind the tokenizer's, as the sentinels of `spans`
    **sizes,  # d_model, d_ff and so on; what isn't given is small
) -> T5Config:
    "A small T5 1.1 whose special ids are the tokenizer's: [SEP] ends a text."
    small = dict(d_model=128, d_kv=64, d_ff=512, num_layers=2, num_heads=2,
                 dropout_rate=0.0, feed_forward_proj="gated-gelu",
                 tie_word_embeddings=False)
    pad = tokenizer.pad_id
    return T5Config(tokenizer.vocab_size + extra, pad_token_id=pad,
                    decoder_start_token_id=pad, eos_token_id=tokenizer.sep_id,
                    **small | sizes)


def _check_pairs(pairs: Sequence[tuple[str, str]], length: int) -> None:
    "Refuse what nothing can be learned from: a ValueError says why."
    if not pairs: raise ValueError("There is no pair: give a text and its summary, or more.")
    if length < 2: raise ValueError(f"length is {length}: give 2 or more, one for the end.")
    for k, pair in enumerate(pairs):
        if len(pair) != 2 or not all(isinstance(x, str) and x.strip() for x in pair):
            raise ValueError(f"Pair {k} is {pair!r}: give a text and a summary, both with "
                             "a word.")


def _stack(rows: list[list[int]], filler: int) -> Tensor:  # (B, the longest)
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


class TextPairs:
    "Texts and what is to be written about them; each batch is a function of (seed, step)."

    objectives = ("span",)  # the name of T5's loss: what is written, token by token

    def __init__(
        self, pairs: Sequence[tuple[str, str]],  # text, summary
        tokenizer: WordPieceTokenizer,
        length: int = 128,  # S: of a longer text, the beginning is read
        *,
        seed: int = 0,
    ):
        _check_pairs(pairs, length)
        self.pairs, self.tokenizer, self.seed = list(pairs), tokenizer, seed
        end, ids = [tokenizer.sep_id], tokenizer.ids
        self.rows = [(ids(a)[:length - 1] + end, ids(b) + end) for a, b in self.pairs]
        told = sha256(json.dumps(self.rows).encode()).hexdigest()
        self.info = dict(count=len(self), length=length, seed=seed, sha256=told,
                         objectives="span")

    def __len__(self): return len(self.rows)

    def gather(self, places: Sequence[int]) -> dict[str, Tensor]:
        "These pairs: input_ids and attention_mask (B, S), labels (B, T), -100 = padding."
        texts, answers = zip(*(self.rows[k] for k in places))
        real = _stack([[1] * len(row) for row in texts], 0)
        return dict(input_ids=_stack(texts, self.tokenizer.pad_id), attention_mask=real,
                    labels=_stack(answers, -100))

    def batch(self, step: int, batch_size: int = 32) -> dict[str, Tensor]:
        "The pairs of a step, each being equally likely at each place."
        g = seeded(self.seed, step)
        return self.gather(torch.randint(len(self), (batch_size,), generator=g).tolist())

    def figures(self, model: nn.Module, batches: int = 50, batch_size: int = 32) -> dict:
        "Loss, ROUGE-L and exact answers, greedy, on the first pairs."
        return pair_figures(model, self, batches, batch_size)

    def baselines(self, batches: int = 50, batch_size: int = 32) -> dict:
        "ROUGE-L and exact answers of each text's own first sentence."
        asked = self.pairs[:batches * batch_size]
        scores, right = zip(*((rouge_l(lead(a), b), same_words(lead(a), b))
                              for a, b in asked))
        return dict(lead_rouge_l=float(np.mean(scores)), lead_exact=float(np.mean(right)))


def pair_figures(
    model: nn.Module,  # a T5ForConditionalGeneration
    examples: TextPairs,
    batches: int = 50,
    batch_size: int = 32,
) -> dict:  # name -> (values, rows): means that get an interval
    "A model's loss and its greedy answers on the first pairs; ValueError if none is asked."
    if batches < 1 or batch_size < 1:
        raise ValueError(f"batches is {batches} and batch_size {batch_size}: "
                         "give 1 or more.")
    places, losses, which, said = range(len(examples))[:batches * batch_size], [], [], []
    tokens = max(len(examples.rows[k][1]) for k in places) + 8
    for start in places[::batch_size]:
        at = places[start:start + batch_size]
        batch = examples.gather(at)
        said += write_answers(model, batch, examples.tokenizer, tokens)
        asked = batch["labels"] != -100
        with evaluating(model) as device:
            logits = model(**{k: v.to(device) for k, v in batch.items()}).logits.cpu()
        logs = logits.double().log_softmax(-1)
        losses.append(-logs.gather(1, batch["labels"][asked][:, None])[:, 0])
        which.append(asked.nonzero()[:, 0] + start)
    loss, rows = torch.cat(losses), np.arange(len(places))
    check_finite("The model's losses", loss)
    wanted = [examples.pairs[k][1] for k in places]
    scores = np.array([rouge_l(a, b) for a, b in zip(said, wanted)])
    right = np.array([same_words(a, b) for a, b in zip(said, wanted)])
    return dict(span_loss=(loss.numpy(), torch.cat(which).numpy()),
                rouge_l=(scores, rows), exact=(right, rows))
