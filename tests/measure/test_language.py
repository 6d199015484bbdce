"""Heads against links between words, where the right figure is known; and matrices whose spectra are."""
import numpy as np
import pytest
import torch
from torch import nn

from language import tree_links  # the benchmark's

from minibert.attention import MultiHeadAttention
from minibert.config import BertConfig
from minibert.encoder import EncoderLayer
from minibert.measure.language import Linked, best_of, links_right, score_links
from minibert.measure.spectra import head_products, singular_values
from minibert.runs.course import open_course

TREES = """# text = Dogs don't bark
1	Dogs	dog	NOUN	NNS	_	4	nsubj	_	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	_	4	aux	_	_
3	n't	not	PART	RB	_	4	advmod	_	_
3.1	gone	_	_	_	_	_	_	_	_
4	bark	bark	VERB	VB	_	0	root	_	_

"""


class Tree(MultiHeadAttention):
    "Two heads: from each word to the last piece of its head, and from each word to the words that it is the head of."

    def __init__(self, links):
        nn.Module.__init__(self)
        self.links = links

    def probs(self, ids):
        up, down = torch.full((2, ids.shape[1], ids.shape[1]), 1e-3)
        for word, head in self.links:
            for piece in word: up[piece, head[-1]] = 1
            for piece in head: down[piece, word] = 1
        return torch.stack([up, down])[None]

    def forward(self, ids): return ids


class Reader(nn.Module):
    "A model that is nothing but that attention."

    def __init__(self, links):
        super().__init__()
        self.attention, self.config = Tree(links), BertConfig(max_position_embeddings=48)

    def forward(self, input_ids): return self.attention(input_ids)


@pytest.fixture(scope="module")
def tokenizer(): return open_course()[1]


def test_a_tree_is_read_with_its_root_and_empty_words_left_out(tmp_path):
    (tmp_path / "x.conllu").write_text(TREES)
    (text,) = tree_links(tmp_path / "x.conllu")
    assert list(text.words) == ["Dogs", "do", "n't", "bark"]
    assert text.links == [("nsubj", 0, 3), ("aux", 1, 3), ("advmod", 2, 3)]


def test_an_attention_that_is_the_tree_is_always_right(tokenizer):
    words = ["anna", "found", "unbelievably", "red", "buttons"]
    sizes = [len(tokenizer.ids(word)) for word in words]
    assert max(sizes) > 3
    ends = np.cumsum([1, *sizes])
    pieces = [list(range(a, b)) for a, b in zip(ends, ends[1:])]
    links = [("nsubj", 0, 1), ("advmod", 2, 3), ("amod", 3, 4), ("obj", 4, 1)]
    model = Reader([(pieces[word], pieces[head]) for _, word, head in links])
    right = links_right(model, tokenizer, [Linked(words, links)])
    assert right.shape == (2, 1, 2, 4)
    assert right[0, 0, 0].all() and right[1, 0, 1].all()
    assert not right[0, 0, 1].all() and not right[1, 0, 0].all()


def test_head_and_offset_are_chosen_on_one_half_and_measured_on_the_other(tokenizer):
    "In even texts the word after is always right; in odd ones three times of four. No head ever is."
    words = ["anna", "found", "a", "red", "ball"]
    far = [("x", k, k + 1) for k in range(3)]
    texts = [Linked(words, [*far, ("x", 3, 4 if n % 2 == 0 else 0)]) for n in range(10)]
    found = score_links(Reader([([k], [5]) for k in range(1, 5)]), tokenizer, texts, least=40)["x"]
    assert found["links"] == 20 and found["offset"] == 1
    assert found["offset_right"][0] == 0.75 and found["head_right"][0] == 0
    assert found["gain"] == [-0.75, -0.75, -0.75]  # each text alike: no width
    assert score_links(Reader([]), tokenizer, texts, least=41) == {}
    best, answers = best_of(np.array([[1, 0, 0], [0, 1, 1]], bool), np.array([0, 1, 1]))
    assert best == 0 and answers.tolist() == [0, 0]


def test_singular_values_of_known_matrices():
    layer = EncoderLayer(BertConfig(hidden_size=6, num_attention_heads=2, intermediate_size=8, vocab_size=9))
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0]
    with torch.no_grad():
        for part, sizes in dict(query=[2.0] * 6, key=[1, 2, 3, 4, 5, 6], value=[1.0] * 6, output=[1, 1, 1, 5, 5, 5]).items():
            getattr(layer.attention, part).weight.copy_(torch.tensor(sizes).diag())
        layer.attention.value.weight.copy_(turn)
        layer.feed_forward.up.weight.zero_()[:6] = torch.tensor([7, 0, 3, 1, 0, 2.0]).diag() @ turn
    found = singular_values(layer)
    torch.testing.assert_close(found["query-key"], torch.tensor([[6, 4, 2, 0, 0, 0], [12, 10, 8, 0, 0, 0.0]]).double())
    torch.testing.assert_close(found["value-output"], torch.tensor([[1, 1, 1, 0, 0, 0], [5, 5, 5, 0, 0, 0.0]]).double(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found["up"], torch.tensor([7, 3, 2, 1, 0, 0.0]).double(), atol=1e-6, rtol=1e-6)
    score, added = head_products(layer.attention)
    assert (added.sum(0) - (layer.attention.output.weight @ turn).double()).abs().max() < 1e-6 and score.shape == (2, 6, 6)
