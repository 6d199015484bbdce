"""Chapter 0's page: as short as it says, and each part what it is called."""
import inspect

import torch
import torch.nn.functional as F

from minibert import one_page as page


def test_the_model_has_forty_lines():
    parts = "new_weights layer_norm gelu split merge attention block bert guess".split()
    lines = "".join(inspect.getsource(getattr(page, name)) for name in parts).splitlines()
    assert sum(bool(line.strip()) for line in lines) == 40


def test_gelu_and_attention_are_pytorchs():
    x = torch.randn(2, page.S, page.D, generator=torch.Generator().manual_seed(0))
    weights, mask = page.new_weights()["blocks"][0], torch.ones(page.S, page.S, dtype=torch.bool).tril()
    q, k, v = (page.split(x @ weights[name]) for name in "qkv")
    theirs = page.merge(F.scaled_dot_product_attention(q, k, v, mask)) @ weights["o"]
    torch.testing.assert_close(page.attention(x, weights, mask)[0], theirs)
    torch.testing.assert_close(page.gelu(x), F.gelu(x))


def test_fifteen_words_in_a_hundred_are_hidden_and_nothing_else():
    words = page.train_ids > page.MASK
    masked, chosen = page.hide(page.train_ids, torch.Generator().manual_seed(1))
    assert not chosen[~words].any() and torch.equal(masked[~chosen], page.train_ids[~chosen])
    assert abs(chosen.sum() - 0.15 * words.sum()) < 5 * (0.15 * 0.85 * words.sum()) ** 0.5
