"""Dropout belongs to training, and reaches the probs of attention by themselves."""
from dataclasses import replace

import pytest
import torch

from minibert.config import BertConfig
from minibert.heads import BertForPreTraining
from minibert.parity import randomise_, reference_batch

SMALL = BertConfig(vocab_size=41, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=19)


@pytest.mark.parametrize("name", ["attention_probs_dropout_prob", "hidden_dropout_prob"])
def test_each_dropout_acts_in_training_alone(name):
    still = dict(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    model, batch = randomise_(BertForPreTraining(replace(SMALL, **still | {name: 0.5}))), reference_batch(SMALL)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        one, other = (model.train()(**batch).loss for _ in range(2))
        assert (one - other).abs() > 1e-3
        assert torch.equal(model.eval()(**batch).loss, model(**batch).loss)
