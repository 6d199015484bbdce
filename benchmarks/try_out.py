"""What each part is worth to chapter 0's model: held-out losses of three seeds. Run by hand, from the root:

    OMP_NUM_THREADS=1 python benchmarks/try_out.py            every chapter (about four seconds a loss)
    OMP_NUM_THREADS=1 python benchmarks/try_out.py 03 04      these chapters alone; other rows stay as they are

Chapter 0's `try_out` trains a callable `guess` for 300 steps on 392 texts, and asks the 98 others. A chapter's
function yields its variants as (name, guess, weights) for a seed, which draws the initial weights as well as
the masks. The losses go to minibert/measured/try_out.json, chapter -> variant -> three losses, in nats a
hidden word, rounded to a thousandth. A chapter's first variant is the part that it builds, unchanged; the
others take something out or break it.
"""
from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from minibert.core.files import write_whole
from minibert.one_page import MASK, PAD, SEP, D, H, I, S, V, all_weights, block, gelu, layer_norm, new_weights, try_out
from minibert.one_page import guess as page_guess

SEEDS = (0, 1, 2)
MORE_SEEDS = {"08, ten seeds": range(10)}
LOWEST = torch.finfo(torch.float32).min
OUT = Path(__file__).resolve().parents[1] / "minibert/measured/try_out.json"


def config(**changes):
    "The sizes of chapter 0's model as a `BertConfig`, without dropout."
    from minibert.config import BertConfig
    sizes = dict(vocab_size=V, hidden_size=D, num_hidden_layers=2, num_attention_heads=H, intermediate_size=I,
                 max_position_embeddings=S, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertConfig(**sizes | changes)


def types(ids):
    "Token types (B, S): 0 up to and including the first `[SEP]`, then 1."
    ends = (ids == SEP).cumsum(-1) - (ids == SEP).long()
    return (ends > 0).long()


def built(seed, make):
    "What `make()` builds with the initial weights of this seed."
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def chapter_00(seed):
    w = new_weights(seed=seed)
    yield "chapter 0's page", lambda ids: page_guess(ids, w), all_weights(w)


def embeddings(seed):
    "The package's embeddings, with chapter 0's initial standard deviation of 0.02."
    from minibert.embeddings import Embeddings

    def make():
        module = Embeddings(config())
        for name, parameter in module.named_parameters():
            if "embeddings" in name: nn.init.normal_(parameter, std=0.02)
        return module
    return built(seed, make)


def around(embed, w):
    "A guess and its weights: `embed` below chapter 0's blocks, and its words as the answers."
    def guess(ids):
        x, mask = embed(ids, types(ids)), (ids != PAD)[:, None, None]
        for weights in w["blocks"]: x, _ = block(x, weights, mask)
        return x @ embed.word_embeddings.weight.T
    blocks = [weight for weights in w["blocks"] for weight in weights.values()]
    return guess, [*(p for p in embed.parameters() if p.requires_grad), *blocks]


def chapter_03(seed):
    def none(table): nn.init.zeros_(table.weight).requires_grad_(False)

    for name in ("the package's embeddings", "no positions", "no segments", "no LayerNorm"):
        embed = embeddings(seed)
        if name == "no positions": none(embed.position_embeddings)
        if name == "no segments": none(embed.token_type_embeddings)
        if name == "no LayerNorm": embed.norm = nn.Identity()
        yield name, *around(embed, new_weights(seed=seed))


def no_root(attention):
    "A subclass of the package's attention whose scores aren't divided by the root of K."
    class NoRoot(attention):
        def heads_of(self, x, memory=None):
            q, k, v = super().heads_of(x, memory)
            return q.shape[-1] ** 0.5 * q, k, v
    return NoRoot


def attentions(seed, heads=H, root=True):
    "Two of the package's attentions, with chapter 0's initial standard deviation of the root of 1/D."
    from minibert.attention import MultiHeadAttention
    kind = MultiHeadAttention if root else no_root(MultiHeadAttention)

    def make():
        modules = nn.ModuleList(kind(config(num_attention_heads=heads)) for _ in range(2))
        for parameter in modules.parameters():
            if parameter.dim() > 1: nn.init.normal_(parameter, std=D**-0.5)
            else: nn.init.zeros_(parameter)
        return modules
    return built(seed, make)


def with_attentions(attentions, w):
    "A guess and its weights: the package's attention in chapter 0's model."
    def guess(ids):
        x = layer_norm(w["tokens"][ids] + w["positions"])
        mask = (ids == PAD)[:, None, None] * torch.finfo(x.dtype).min
        for attention, weights in zip(attentions, w["blocks"]):
            x = layer_norm(x + attention(x, mask))
            x = layer_norm(x + gelu(x @ weights["inner"]) @ weights["outer"])
        return x @ w["tokens"].T
    return guess, [*(p for p in attentions.parameters() if p.requires_grad), *all_weights(w)]


def chapter_04(seed):
    def variant(off=None, **changes):
        parts = attentions(seed, **changes)
        for part in parts if off else ():
            for p in part.get_submodule(off).parameters(): nn.init.zeros_(p).requires_grad_(False)
        return with_attentions(parts, new_weights(seed=seed))

    yield "our attention", *variant()
    yield "the plain mean of all tokens", *variant("key")  # all scores are equal
    yield "no attention", *variant("output")
    yield "no root", *variant(root=False)
    yield "one head", *variant(heads=1)
    yield "one head, no root", *variant(heads=1, root=False)


def layer(layer_class, weights):
    "A layer of this class with the weights of a block of chapter 0: biases are 0, LayerNorms 1 and 0."
    made = layer_class(config())
    ours = dict(q=made.attention.query, k=made.attention.key, v=made.attention.value, o=made.attention.output,
                inner=made.feed_forward.up, outer=made.feed_forward.down)
    for name, linear in ours.items():
        linear.weight.data = weights[name].detach().T.clone()
        nn.init.zeros_(linear.bias)
    return made


def chapter_05(seed):
    from minibert.encoder import EncoderLayer

    class NoResidual(EncoderLayer):
        def forward(self, x, mask=None):
            return self.output_norm(self.feed_forward(self.attention_norm(self.attention(x, mask))))

    class NoNorm(EncoderLayer):
        def forward(self, x, mask=None):
            x = x + self.attention(x, mask)
            return x + self.feed_forward(x)

    def parts(layer_class, count, std=None):
        w = new_weights(count, seed)
        if std:
            for block in w["blocks"]:
                for weight in block.values(): weight.data *= std * weight.shape[0] ** 0.5
        layers = nn.ModuleList(layer(layer_class, weights) for weights in w["blocks"])

        def guess(ids):
            x, mask = layer_norm(w["tokens"][ids] + w["positions"]), (ids == PAD)[:, None, None] * LOWEST
            for one in layers: x = one(x, mask)
            return x @ w["tokens"].T
        return guess, [w["tokens"], w["positions"], *layers.parameters()]

    yield "the package's layer", *parts(EncoderLayer, 2)
    yield "no residual", *parts(NoResidual, 2)
    yield "no LayerNorm", *parts(NoNorm, 2)
    yield "six layers", *parts(EncoderLayer, 6)
    yield "six layers, no LayerNorm", *parts(NoNorm, 6)
    yield "six layers of 0.02", *parts(EncoderLayer, 6, 0.02)
    yield "six layers of 0.02, no LayerNorm", *parts(NoNorm, 6, 0.02)


def chapter_06(seed):
    from minibert.model import BertModel

    def model(tables, others, layers=2):
        "`BertModel` whose tables, and whose other matrices, start with these standard deviations."
        made = BertModel(config(num_hidden_layers=layers), torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for name, p in made.named_parameters():
                if p.dim() > 1: p.mul_((tables if "embeddings" in name else others) / 0.02)

        def guess(ids):
            hidden = made(ids, attention_mask=(ids != PAD).long()).last_hidden_state
            return hidden @ made.embeddings.word_embeddings.weight.T
        return guess, [p for name, p in made.named_parameters() if "pooler" not in name]

    even = D**-0.5
    yield "the package's model", *model(0.02, 0.02)
    yield "1 / sqrt(D) everywhere", *model(even, even)
    yield "1 / sqrt(D) in the tables", *model(even, 0.02)
    yield "1 / sqrt(D) in the layers", *model(0.02, even)
    yield "six layers", *model(0.02, 0.02, 6)
    yield "six layers, 1 / sqrt(D) everywhere", *model(even, even, 6)


def model_of(seed):
    "The package's whole model with chapter 6's initial weights, and its guess."
    from minibert.core.seeds import seeded
    from minibert.heads import BertForPreTraining
    model = BertForPreTraining(config(), seeded(seed))
    return model, lambda ids: model(ids, attention_mask=ids != PAD).prediction_logits


def chapter_07(seed):
    def states(model, ids): return model.bert(ids, attention_mask=ids != PAD).last_hidden_state

    model, guess = model_of(seed)
    yield "the MLM head", guess, model.parameters()
    plain, _ = model_of(seed)
    yield "the dot product alone", lambda ids: states(plain, ids) @ plain.word_embeddings.T, plain.parameters()
    untied, _ = model_of(seed)
    own = nn.Parameter(untied.word_embeddings.detach().clone())
    yield ("an output matrix of its own", lambda ids: untied.mlm_head(states(untied, ids), own),
           [*untied.parameters(), own])


def masked(probability=0.15):
    "`mask_tokens` as the bench's `hide`."
    from minibert.masking import mask_tokens

    def hide(rows, generator):
        masked, labels = mask_tokens(rows, rows > MASK, mask_id=MASK, vocab_size=V, generator=generator,
                                     probability=probability)
        return masked, labels != -100
    return hide


def chapter_08(seed):
    "The model of chapter 7, trained with other masks; the exam is always the same."
    for name, *masks in (("80/10/10", masked()), ("[MASK] alone",), ("80/10/10, 40 %", masked(0.4)),
                         ("80/10/10, 80 %", masked(0.8))):
        model, guess = model_of(seed)
        yield name, guess, model.parameters(), *masks


def share_masked(seed):
    "Chapter 8's experiment with more seeds than a reader has time for."
    for share in (0.15, 0.4):
        model, guess = model_of(seed)
        yield f"{share:.0%} chosen", guess, model.parameters(), masked(share)


CHAPTERS = {"00": chapter_00, "03": chapter_03, "04": chapter_04, "05": chapter_05, "06": chapter_06, "07": chapter_07,
            "08": chapter_08, "08, ten seeds": share_masked}


def measure(chapter):
    "variant -> one held-out loss a seed; each is printed with its mean and how far seeds go apart."
    rows = {}
    for seed in MORE_SEEDS.get(chapter, SEEDS):
        for name, guess, weights, *masks in CHAPTERS[chapter](seed):
            rows.setdefault(name, []).append(round(try_out(guess, weights, seed, *masks), 3))
    for name, losses in rows.items():
        print(f"{chapter}  {name:40}{statistics.mean(losses):.3f} +- {statistics.stdev(losses):.3f}  {losses}", flush=True)
    return rows


if __name__ == "__main__":
    if set(sys.argv[1:]) - set(CHAPTERS): sys.exit(__doc__)
    for chapter in sys.argv[1:] or CHAPTERS:
        rows = measure(chapter)
        found = json.loads(OUT.read_text()) if OUT.exists() else {}
        write_whole(OUT, json.dumps(dict(sorted((found | {chapter: rows}).items())), indent=1) + "\n")
