"""The loss of bfloat16 logits on a CPU, slice by slice, against PyTorch's over all rows at once."""
import pytest
import torch
import torch.nn.functional as F

from minibert import heads
from minibert.config import BertConfig
from minibert.corpus import seeded
from minibert.heads import BertForPreTraining, _loss


def both(N, V, scale=1.0, seed=0):
    dice = torch.Generator().manual_seed(seed)
    logits, targets = scale * torch.randn(N, V, generator=dice), torch.randint(V, (N,), generator=dice)
    ours, theirs = (logits.bfloat16().requires_grad_() for _ in range(2))
    return (ours, _loss("labels", ours, targets)), (theirs, F.cross_entropy(theirs.float(), targets))


@pytest.mark.parametrize("N,V", [(1, 2), (7, 101), (600, 8192), (20, 300_000)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_slices_change_nothing(N, V, scale):
    (ours, sliced), (theirs, whole) = both(N, V, scale)
    sliced.backward(), whole.backward()
    assert torch.equal(ours.grad, theirs.grad)
    assert sliced.dtype == torch.float32 and abs(sliced - whole) <= 1e-5 * whole


def test_a_share_of_the_loss_has_its_share_of_the_gradient():
    (ours, sliced), (theirs, whole) = both(50, 7000)
    (0.3 * sliced).backward(), (0.3 * whole).backward()
    assert (ours.grad - theirs.grad).abs().max() <= 2**-7 * theirs.grad.abs().max()


def test_without_gradient_there_is_only_the_loss():
    logits, targets = torch.randn(5, 11).bfloat16(), torch.arange(5)
    assert _loss("labels", logits, targets).requires_grad is False


def test_a_label_outside_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="labels holds numbers from 0 to 11 beside -100, and there are 11"):
        _loss("labels", torch.randn(2, 11).bfloat16().requires_grad_(), torch.tensor([0, 11]))


def test_a_whole_step_is_the_same(monkeypatch):
    config = BertConfig(101, 24, 2, 4, 37, max_position_embeddings=19)
    model = BertForPreTraining(config, seeded(0)).eval()
    ids = torch.randint(5, 101, (3, 11), generator=seeded(1))
    labels, found = ids.where(torch.arange(11) % 3 == 1, -100), []
    for numbers in (2**18, 250):  # one slice, then many
        monkeypatch.setattr(heads, "_SLICE", numbers)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16): loss = model(ids, labels=labels).loss
        loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found))
