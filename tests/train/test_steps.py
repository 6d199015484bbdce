"""Single steps of a training: their batches, their dropout, their parts."""
import json
from dataclasses import replace

import pytest
import torch

from command import call, quick
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.heads import BertForPreTraining
from minibert.pairs import PairSampler
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.recipe import TrainingConfig
from minibert.training import fit

SMALL = BertConfig(vocab_size=41, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=19)
FIVE = TrainingConfig(steps=5, batch_size=2, length=16)


@pytest.fixture(scope="module")
def sampler():
    documents = [document[:4] for document in load_documents("stories", limit=8)]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=200)
    return PairSampler(Corpus.build(documents, tokenizer), tokenizer, 16)


def bert(sampler, dropout=0.5):
    return BertForPreTraining(replace(SMALL, vocab_size=sampler.tokenizer.vocab_size, hidden_dropout_prob=dropout), seeded(0))


def losses_of(model, sampler, config):
    "The loss of each step, as the model's own forward pass gave it."
    losses = []
    model.register_forward_hook(lambda module, inputs, output: losses.append(float(output.loss)))
    fit(model, sampler, config)
    return losses


def test_training_drops_out_even_if_the_model_came_in_eval_mode(sampler):
    wild, calm = (losses_of(bert(sampler, dropout).eval(), sampler, FIVE) for dropout in (0.5, 0.0))
    assert len(wild) == 5 and abs(wild[0] - calm[0]) > 1e-4


def test_dropout_is_another_one_at_each_step_and_the_same_one_again(sampler, monkeypatch):
    first = sampler.batch(0, 2)
    monkeypatch.setattr(sampler, "batch", lambda step, size: first)
    still = replace(FIVE, learning_rate=1e-12, muon_learning_rate=1e-12)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        one = losses_of(bert(sampler), sampler, still)
        torch.manual_seed(2)
        assert losses_of(bert(sampler), sampler, still) == one
    assert len({round(loss, 5) for loss in one}) == 5


def test_each_step_asks_for_its_own_batch(sampler, monkeypatch):
    asked, batch = [], sampler.batch
    monkeypatch.setattr(sampler, "batch", lambda step, size: asked.append((step, size)) or batch(step, size))
    fit(bert(sampler), sampler, FIVE)
    assert asked == [(step, 2) for step in range(5)]


def test_parts_of_a_batch_weigh_what_they_predict(tmp_path):
    "Rows predict unlike numbers of words; cut into parts, the steps are those of the whole."
    words = quick("--precision", "float32", "--log-steps", 1)
    for parts in (1, 4): call("pretrain", *words, "--gradient-accumulation-steps", parts, "--out", tmp_path / str(parts))
    one, other = ([json.loads(line) for line in (tmp_path / parts / "metrics.jsonl").read_text().splitlines()] for parts in "14")
    for whole, cut in zip(one, other, strict=True):
        for name in ("loss", "mlm_loss", "nsp_loss"): assert cut[name] == pytest.approx(whole[name], rel=1e-4)
