"""The loss of bfloat16 logits on a CPU, slice by slice, against PyTorch's over all rows at once."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.speed import FastBertForPreTraining


class Fixed(nn.Module):
    "In the head's place: logits that are given."

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, hidden, word_embeddings): return self.logits


def loss_of(logits, targets):
    "The model's MLM loss where its head says `logits` (N, V) for N texts of one token; the logits as a leaf."
    model = FastBertForPreTraining(BertConfig(11, 4, 1, 2, 4, max_position_embeddings=1), seeded(0)).eval()
    model.mlm_head = Fixed(logits.clone())
    return model.mlm_head.logits, model(torch.ones_like(targets)[:, None], labels=targets[:, None]).loss


def both(N, V, scale=1.0, seed=0):
    "Ours, and the way it was always done: autograd through all rows, lifted at once."
    logits = (scale * torch.randn(N, V, generator=seeded(seed))).bfloat16()
    targets = torch.randint(V, (N,), generator=seeded(seed, 1))
    theirs = logits.clone().requires_grad_()
    return loss_of(logits, targets), (theirs, F.cross_entropy(theirs.float(), targets))


@pytest.mark.parametrize("N,V", [(1, 2), (7, 101), (600, 8192), (64, 30_522), (20, 300_000)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_slices_change_no_bit_of_the_gradient(N, V, scale):
    "Exactly: the formula p - y, divided by N, already differs in one number of some 400,000."
    (ours, sliced), (theirs, whole) = both(N, V, scale)
    sliced.backward(), whole.backward()
    assert torch.equal(ours.grad, theirs.grad)
    assert sliced.dtype == torch.float32 and abs(sliced - whole) <= 1e-5 * whole


def test_a_share_of_the_loss_has_its_share_of_the_gradient():
    (ours, sliced), (theirs, whole) = both(50, 7000)
    (0.3 * sliced).backward(), (0.3 * whole).backward()
    assert (ours.grad - theirs.grad).abs().max() <= 2**-7 * theirs.grad.abs().max()


def test_without_gradient_there_is_only_the_loss():
    logits, targets = torch.randn(5, 11, generator=seeded(0)).bfloat16(), torch.arange(5)
    with torch.no_grad(): loss = loss_of(logits, targets)[1]
    assert loss.requires_grad is False and abs(loss - F.cross_entropy(logits.float(), targets)) < 1e-5



def test_a_whole_step_is_the_same():
    "70 predicted words of 8,192, three slices: every gradient is that of PyTorch's loss of the same logits."
    model = FastBertForPreTraining(BertConfig(8192, 24, 2, 4, 37, max_position_embeddings=19), seeded(0)).eval()
    ids = torch.randint(5, 8192, (10, 14), generator=seeded(1))
    labels, found = ids.where(torch.arange(14) % 2 == 1, -100), []
    for sliced in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16): out = model(ids, labels=labels)
        assert out.prediction_logits.dtype == torch.bfloat16 and len(out.prediction_logits) == 70
        loss = out.loss if sliced else F.cross_entropy(out.prediction_logits.float(), labels[labels != -100])
        loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
