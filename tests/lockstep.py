"""What the tests of GPT and T5 share: one thread for tiny matrices, drawn cases, and a step of a reference model beside ours."""
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from minibert.parity import assert_same
from minibert.train.gradients import Gradients
from minibert.train.optimizers import make_optimizers
from minibert.train.recipe import TrainingConfig
from minibert.training import Run, train_step

few_and_many = pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.slow)])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_drawn(check, count, *strategies):
    "Run `check` on `count` cases, the same ones each time."
    drawn = settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    drawn(given(*strategies)(check))()


def update_by_hand(model, optimizers, rate, most):
    "Clip the gradient to a norm of `most`, step with this rate, forget the gradient; the norm before."
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), most)
    for optimizer in optimizers:
        for group in optimizer.param_groups: group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return norm


def parts_add_up(fresh, batch, loss):
    "The loss and the gradient of a batch of six do not depend on how it is cut; the last model."
    told = []
    for parts in 1, 2, 3:
        model, config = fresh(), TrainingConfig(steps=4, batch_size=6)
        line = train_step(Run(model, make_optimizers(model, config), config), batch, Gradients(parts)).line
        told.append([line["loss"], line[loss], line["grad_norm"]])
    for other in told[1:]: assert_same(told[0], other, tol=1e-12)
    return model
