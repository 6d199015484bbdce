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
from minibert.one_page import PAD, SEP, D, H, I, S, V, all_weights, block, layer_norm, new_weights, try_out
from minibert.one_page import guess as page_guess

SEEDS = (0, 1, 2)
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


CHAPTERS = {"00": chapter_00, "03": chapter_03, "05": chapter_05, "06": chapter_06}


def measure(chapter):
    "variant -> one held-out loss a seed; each is printed with its mean and how far seeds go apart."
    rows = {}
    for seed in SEEDS:
        for name, guess, weights in CHAPTERS[chapter](seed):
            rows.setdefault(name, []).append(round(try_out(guess, weights, seed), 3))
    for name, losses in rows.items():
        print(f"{chapter}  {name:40}{statistics.mean(losses):.3f} +- {statistics.stdev(losses):.3f}  {losses}", flush=True)
    return rows


if __name__ == "__main__":
    if set(sys.argv[1:]) - set(CHAPTERS): sys.exit(__doc__)
    for chapter in sys.argv[1:] or CHAPTERS:
        rows = measure(chapter)
        found = json.loads(OUT.read_text()) if OUT.exists() else {}
        write_whole(OUT, json.dumps(dict(sorted((found | {chapter: rows}).items())), indent=1) + "\n")
