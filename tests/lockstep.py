"""What the tests of GPT and T5 share: one thread for tiny matrices, drawn cases, and a step of a reference model beside ours."""
import pytest
import torch
from hypothesis import HealthCheck, given, settings

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
