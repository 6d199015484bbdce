"""BERT, GPT and T5 asked the same: the same hidden tokens of the same texts, and the same facts of the same stories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minibert.core.precision import evaluating
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.masking import mask_tokens
from minibert.data.spans import SENTINELS, hidden_tokens, label_losses
from minibert.data.stories import Story, story_tables
from minibert.tokenizer import WordPieceTokenizer
from minibert.data.windows import Joined


def read_by_bert(
    ids: Tensor,  # (N, L)
    tokenizer: WordPieceTokenizer,
) -> Tensor:  # (N, L + 2)
    "Runs of tokens as BERT reads them, between [CLS] and [SEP]."
    first, last = (ids.new_full((len(ids), 1), i) for i in (tokenizer.cls_id, tokenizer.sep_id))
    return torch.cat([first, ids, last], 1)


class Masked:
    "Runs of a text with masked tokens: T5's texts with BERT's question."

    objectives = ("mlm",)

    def __init__(
        self, corpus: Corpus, tokenizer: WordPieceTokenizer,
        length: int = 72,  # S, [CLS] and [SEP] included
        *,
        seed: int = 0,
        probability: float = 0.15,
    ):
        self.corpus, self.tokenizer, self.length = corpus, tokenizer, length
        self.seed, self.probability = seed, probability
        self.row = Joined(corpus, tokenizer.cls_id)

    @property
    def info(self) -> dict:
        "What a run that goes on must find again."
        return self.corpus.info | dict(objectives="mlm")

    def batch(self, step: int, batch_size: int = 32) -> dict[str, Tensor]:
        "The texts of a step: input_ids and labels (B, S), without padding."
        g, t = seeded(self.seed, step), self.tokenizer
        ids = read_by_bert(self.row.draw(batch_size, self.length - 2, g), t)
        text = torch.ones_like(ids, dtype=torch.bool)
        text[:, [0, -1]] = False
        masked, labels = mask_tokens(
            ids, text, mask_id=t.mask_id, vocab_size=t.vocab_size,
            probability=self.probability, generator=g)
        return dict(input_ids=masked, labels=labels)


def masked_losses_of_bert(
    model: nn.Module,  # its output has `logits` or, for both heads, `prediction_logits`
    tokenizer: WordPieceTokenizer,
    ids: Tensor,  # (N, L) runs of text
    masks: Tensor,  # (N, L) bools: True is hidden
    batch_size: int = 32,
) -> tuple[Tensor, Tensor]:  # (M,) nats, (M,) right: in the order of ids[masks]
    "What BERT pays for hidden tokens, each shown as [MASK]."
    losses, right = [], []
    shown = read_by_bert(ids.masked_fill(masks, tokenizer.mask_id), tokenizer)
    with evaluating(model) as device:
        for part, mask, truth in zip(*(x.split(batch_size) for x in (shown, masks, ids))):
            logits = model(input_ids=part.to(device)).prediction_logits[:, 1:-1].cpu()
            logs = logits[mask].double().log_softmax(-1)
            losses.append(-logs.gather(-1, truth[mask][:, None])[:, 0])
            right.append(logs.argmax(-1) == truth[mask])
    return torch.cat(losses), torch.cat(right)


def masked_losses_of_t5(
    model: nn.Module,
    batch: dict[str, Tensor],  # of `Spans.in_order`
    vocab_size: int,  # of the tokenizer: sentinels lie behind it
    batch_size: int = 32,
) -> tuple[Tensor, Tensor, Tensor]:  # (M,) nats, (M,) right, (M,) the tokens
    "What T5 pays for the tokens that were cut out, sentinels and ends left out."
    text = hidden_tokens(labels := batch["labels"], vocab_size)
    loss, right = label_losses(model, batch, batch_size)
    return loss[text], right[text], labels[text]

FACTS = "pronoun", "comes back", "goes with", "the right tells"


@dataclass(frozen=True)
class Fact:
    "A word of a story that other words of it settle."

    story: int
    place: int  # in the story's words
    kind: str  # one of FACTS
    choices: tuple[str, ...]  # the words that could stand there, in any story
    left_best: float  # the best guess's chance for one who sees only what comes before


def story_facts(
    stories: Sequence[Story],
    length: int,  # only what stands in the first so many words
) -> list[Fact]:
    "The words that are settled by others, sorted by what tells them."
    facts = []
    for k, story in enumerate(stories):
        seen, tags = range(min(length, len(story.flat))), [t for row in story.tags for t in row]
        for p in seen:
            if not (column := story.flat_columns[p]): continue
            choices = tuple(story_tables()[column].bits[column])
            left = story.posterior({p}, range(p))[p]
            if len(choices) < 2 or len(story.posterior({p}, seen)[p]) > 1: continue
            if len(left) > 1: kind = "the right tells"
            elif tags[p] == "PRON": kind = "pronoun"
            else: kind = "comes back" if story.flat[p] in story.flat[:p] else "goes with"
            facts.append(Fact(k, p, kind, choices, max(left.values())))
    return facts


def story_texts(row: Joined, facts: Sequence[Fact], length: int) -> Tensor:  # (N, length)
    "The run of tokens that begins with each fact's story; ValueError past the text's end."
    first = torch.as_tensor([int(row.starts[f.story]) for f in facts])
    if (first + length > len(row)).any():
        raise ValueError(f"A run of {length} tokens from a fact's story passes the end of "
                         "the text: ask about earlier stories.")
    return row.stretches(first.numpy(), length)


def ask_bert(model: nn.Module, tokenizer, texts: Tensor, places: Tensor) -> Tensor:  # (N, V)
    "Scores of the token at each text's place, which shows [MASK]."
    rows = torch.arange(len(texts))
    shown = texts.clone()
    shown[rows, places] = tokenizer.mask_id
    with evaluating(model) as device:
        logits = [model(input_ids=part.to(device)).prediction_logits.cpu()
                  for part in read_by_bert(shown, tokenizer).split(32)]
    return torch.cat(logits)[rows, places + 1]


def ask_gpt(model: nn.Module, tokenizer, texts: Tensor, places: Tensor) -> Tensor:  # (N, V)
    "Scores of the token at each text's place, after all that stands before it."
    ids = torch.cat([texts.new_full((len(texts), 1), tokenizer.sep_id), texts[:, :-1]], 1)
    with evaluating(model) as device:
        logits = [model(part.to(device)).logits.cpu() for part in ids.split(32)]
    return torch.cat(logits)[torch.arange(len(texts)), places]


def ask_t5(model: nn.Module, tokenizer, texts: Tensor, places: Tensor) -> Tensor:  # (N, V)
    "Scores of the first token that is written into a gap at each text's place."
    V, start = tokenizer.vocab_size, model.config.decoder_start_token_id
    shown = texts.clone()
    shown[torch.arange(len(texts)), places] = V + SENTINELS - 1
    inputs = torch.cat([shown, texts.new_full((len(texts), 1), tokenizer.sep_id)], 1)
    written = texts.new_tensor([[start, V + SENTINELS - 1]]).expand(len(texts), 2)
    with evaluating(model) as device:
        logits = [model(a.to(device), None, b.to(device)).logits[:, -1].cpu()
                  for a, b in zip(inputs.split(32), written.split(32))]
    return torch.cat(logits)


def facts_right(
    scores: Tensor,  # (N, V)
    facts: Sequence[Fact],
    stories: Sequence[Story],
    tokenizer: WordPieceTokenizer,
    counts: Sequence[int],  # (V,) how often each token occurs in the training text
) -> dict[str, dict]:  # kind -> n, right, commonest, left_best
    "The share of the facts whose right word has the highest score of its choices."
    told = {kind: [] for kind in FACTS}
    for row, fact in zip(scores, facts, strict=True):
        ids = [tokenizer.vocab[word] for word in fact.choices]
        wanted = fact.choices.index(stories[fact.story].flat[fact.place])
        common = max(range(len(ids)), key=lambda k: counts[ids[k]])
        told[fact.kind].append(
            (int(row[ids].argmax()) == wanted, common == wanted, fact.left_best))
    return {kind: dict(zip(("n", "right", "commonest", "left_best"), (
        len(rows), *(sum(column) / len(rows) for column in zip(*rows)))))
        for kind, rows in told.items() if rows}
