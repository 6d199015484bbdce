"""Three kinds of model asked the same: what the benchmark asks them."""
from dataclasses import replace

import numpy as np
import torch

from side_by_side import FACTS, Masked, masked_losses_of_t5, story_facts

from minibert.runs.course import open_course
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.data.spans import Spans
from minibert.data.stories import stories
from minibert.t5 import T5Config, T5ForConditionalGeneration


def test_facts_are_settled_by_the_side_that_their_kind_says():
    told = stories(10, split="validation")
    facts = story_facts(told, 40)
    assert {fact.kind for fact in facts} == {*FACTS} and max(fact.place for fact in facts) < 40
    for fact in facts:
        story = told[fact.story]
        both = story.posterior({fact.place}, range(min(40, len(story.flat))))[fact.place]
        assert both == {story.flat[fact.place]: 1.0} and story.flat[fact.place] in fact.choices
        left = story.posterior({fact.place}, range(fact.place))[fact.place]
        assert (len(left) > 1) == (fact.kind == "the right tells") and fact.left_best == max(left.values())


def test_the_losses_of_a_t5_are_those_of_its_own_figures():
    _, tokenizer = open_course()
    val = Corpus.build(load_documents("stories", split="validation", limit=30), tokenizer)
    examples = Spans(val, tokenizer, 24)
    model = T5ForConditionalGeneration(replace(T5Config(), vocab_size=examples.vocab_size, d_model=16, d_kv=8, d_ff=16, num_layers=1,
                                               num_decoder_layers=1, num_heads=2, eos_token_id=3), seeded(0))
    ids, batch, masks = examples.in_order(3, 8)
    loss, right, tokens = masked_losses_of_t5(model, batch, tokenizer.vocab_size, 8)
    figures = examples.figures(model, 3, 8)
    assert torch.equal(tokens, ids[masks]) and figures["masked_tokens"] == len(loss)
    np.testing.assert_allclose(loss.numpy(), figures["masked_loss"][0], atol=1e-12)
    assert np.array_equal(right.numpy(), figures["masked_accuracy"][0])


def test_masked_texts_are_a_function_of_seed_and_step():
    _, tokenizer = open_course()
    text = Corpus.build(load_documents("stories", limit=30), tokenizer)
    a, b = (Masked(text, tokenizer, 30, seed=seed).batch(2, 5) for seed in (1, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["input_ids"], Masked(text, tokenizer, 30, seed=2).batch(2, 5)["input_ids"])
