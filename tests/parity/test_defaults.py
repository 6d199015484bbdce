"""Where nothing is said, a model of ours has Hugging Face's sizes; and no size of the numbers excuses a difference."""
from dataclasses import asdict

import pytest
import torch
import transformers as hf

from minibert.config import BertConfig
from minibert.gpt import GPTConfig
from minibert.parity import assert_same
from minibert.t5 import T5Config


@pytest.mark.parametrize("ours,theirs,least", [(BertConfig(), hf.BertConfig(), 12), (GPTConfig(), hf.GPT2Config(), 6), (T5Config(), hf.T5Config(), 8)],
                         ids=["bert", "gpt", "t5"])
def test_default_sizes_are_hugging_faces(ours, theirs, least):
    theirs, ours = theirs.to_dict(), asdict(ours)
    shared = {name: value for name, value in ours.items() if name in theirs and not name.endswith("token_id")}
    assert len(shared) >= least and shared == {name: theirs[name] for name in shared}


def test_the_tolerance_is_absolute():
    large = torch.tensor([1e6, 1.0], dtype=torch.float64)
    with pytest.raises(AssertionError): assert_same(large + torch.tensor([1e-4, 0.0], dtype=torch.float64), large)
