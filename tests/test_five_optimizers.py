"""The optimizers of chapter 23b beside their references, through a checkpoint, and in a run."""
import math
from functools import partial

import pytest
import torch
from torch import nn

from command import as_json, bits_of, quick, refused
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.heads import BertForPreTraining
from minibert.parity import assert_same, reference_batch
from minibert.train.checkpoints import optimizer_tensors, restore_optimizers_
from minibert.train.recipe import TrainingConfig
from minibert.training import Run, train_step
from minibert.optimizers import OPTIMIZERS, SCHEDULES, SGD, AdaFactor, Adam, Choose, Lion, Sophia, constant_at, cosine_at

SHAPES = (5, 7), (9, 4), (6,), (1, 3)


def drawn(seed, steps):
    "Parameters, and their gradients in each step."
    generator = seeded(seed)
    make = lambda: [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return make(), [make() for _ in range(steps)]


def ends(kind, seed, steps=6, missing=(), pause=None):
    "Where the parameters end; `missing` have no gradient in the second step; at `pause` another optimizer goes on."
    first, gradients = drawn(seed, steps)
    parameters = [nn.Parameter(p) for p in first]
    optimizer = kind(parameters)
    for step, grads in enumerate(gradients):
        if step == pause:
            kept, optimizer = optimizer_tensors([optimizer]), kind(parameters)
            restore_optimizers_([optimizer], {name: value.clone() for name, value in kept.items()})
        for k, (p, g) in enumerate(zip(parameters, grads)): p.grad = None if step == 1 and k in missing else g
        if isinstance(optimizer, Sophia) and step % 3 == 0: optimizer.look(sum((p**2).sum() for p in parameters), 7)
        optimizer.step()
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ours,theirs,numbers", [
    (SGD, torch.optim.SGD, dict(lr=0.05, momentum=0.7)), (Adam, torch.optim.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-8)),
    (Adam, torch.optim.AdamW, dict(lr=0.02, weight_decay=0.3, eps=1e-6)), (AdaFactor, torch.optim.Adafactor, dict(lr=0.1)),
    (AdaFactor, torch.optim.Adafactor, dict(lr=3.0))], ids=["sgd", "adam", "adamw", "adafactor", "adafactor, a high rate"])
def test_each_takes_the_steps_of_pytorchs(ours, theirs, numbers, seed):
    for missing in ((), (0, 2)):
        assert_same(ends(partial(ours, **numbers), seed, missing=missing), ends(partial(theirs, **numbers), seed, missing=missing), tol=1e-12)


def test_lion_and_sophia_follow_their_formulas():
    "In plain numbers, one parameter after the other."
    first, gradients = drawn(5, 6)
    lion, sophia = (ends(partial(kind, lr=0.03, weight_decay=0.2), 5) for kind in (Lion, Sophia))
    for k, p in enumerate(first):
        for place in range(p.numel()):
            a = b = p.flatten()[place].item()
            m = n = h = 0.0
            for step, grads in enumerate(gradients):
                g = grads[k].flatten()[place].item()
                if step % 3 == 0: h = 0.99 * h + 0.01 * 7 * (2 * b) ** 2
                n = 0.96 * n + 0.04 * g
                b += -0.03 * 0.2 * b - 0.03 * max(-1, min(1, n / max(0.05 * h, 1e-12)))
                a += -0.03 * 0.2 * a - 0.03 * math.copysign(1, 0.9 * m + 0.1 * g)
                m = 0.99 * m + 0.01 * g
            assert lion[k].flatten()[place] == pytest.approx(a, abs=1e-12)
            assert sophia[k].flatten()[place] == pytest.approx(b, abs=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_remembered_goes_through_a_checkpoint(name):
    kind = partial(OPTIMIZERS[name], lr=0.02)
    assert assert_same(ends(kind, 1, pause=3), ends(kind, 1)) == 0


def test_schedules_stay_within_their_bounds_and_one_comes_down():
    for steps, warmup in (1, 0.1), (2, 0.0), (7, 1.0), (1000, 0.06):
        config = TrainingConfig(steps=steps, warmup=warmup)
        down, flat = ([at(step, config) for step in range(steps)] for at in (cosine_at, constant_at))
        assert all(0 < a <= b <= 1 for a, b in zip(down, flat)) and max(flat) == 1
        if steps == 1000: assert down[-1] < 1e-5 and down[529] == pytest.approx(0.5, abs=2e-3)


def small_run(optimizer, dropout=0.0):
    config = BertConfig(101, 32, 2, 4, 48, max_position_embeddings=19, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    from minibert.train.optimizers import make_optimizers
    model, training = BertForPreTraining(config, seeded(0)), TrainingConfig(steps=9, learning_rate=1e-3)
    run = Run(model, make_optimizers(model, training), training, callbacks=[Choose(optimizer, "none")])
    run.callbacks[0].begin(run)
    return run, reference_batch(config)


def test_a_run_gets_the_optimizer_with_its_groups_and_decays():
    run, batch = small_run("lion")
    assert [type(optimizer) for optimizer in run.optimizers] == [Lion] and run.schedule is SCHEDULES["none"]
    decays = {p: group["weight_decay"] for group in run.optimizers[0].param_groups for p in group["params"]}
    assert all(decays[p] == (0.01 if p.dim() > 1 else 0) for p in run.model.parameters())
    before = [p.clone() for p in run.model.parameters()]
    train_step(run, batch)
    assert all(not torch.equal(a, b) for a, b in zip(before, run.model.parameters()))


def test_sophia_looks_at_answers_drawn_from_the_model_without_touching_the_gradient():
    run, batch = small_run("sophia")
    run.batch = batch
    run.model(**batch).loss.backward()
    before = [p.grad.clone() for p in run.model.parameters()]
    run.callbacks[0].before_update(run)
    assert all(torch.equal(a, p.grad) for a, p in zip(before, run.model.parameters()))
    seen = {name for name, p in run.model.named_parameters() if run.optimizers[0].memory(p)["h"].any()}
    assert len(seen) > 20
    assert not any("nsp" in name for name in seen)  # the words alone are drawn


def test_sophia_looks_without_dropout():
    seen = []
    for seed in 0, 1:
        run, batch = small_run("sophia", dropout=0.3)
        run.batch = batch
        run.model.nsp_head.eval()  # a part that somebody froze stays as it is
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            run.callbacks[0].before_update(run)
        seen.append(run.optimizers[0].memory(run.model.word_embeddings)["h"])
    assert torch.equal(*seen) and run.model.training and not run.model.nsp_head.training


@pytest.mark.parametrize("name", ["sophia", pytest.param("adafactor", marks=pytest.mark.slow)])
def test_the_command_trains_with_it_and_goes_on_bit_for_bit(name, tmp_path):
    import shutil
    words = quick("--optimizer", name, "--schedule", "cosine", "--checkpoint-steps", "2", "--lr", "1e-3")
    as_json("pretrain", *words, "--out", tmp_path / "whole")
    half = shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for path in (half / "checkpoints/00000004", ): shutil.rmtree(path)
    for path in ("model.safetensors", "summary.json"): (half / path).unlink()
    as_json("pretrain", "--resume", half)
    assert len({*bits_of(tmp_path / "whole", half)}) == 1


def test_a_schedule_that_minutes_cannot_follow_is_refused():
    assert "cosine" in refused("pretrain", "--minutes", 1, "--schedule", "cosine")


def test_without_a_warmup_the_cosine_is_pytorchs():
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 50)
    for step in range(50):
        assert cosine_at(step, TrainingConfig(steps=50, warmup=0.0)) == pytest.approx(sgd.param_groups[0]["lr"], abs=1e-12)
        sgd.step()
        theirs.step()


def test_sophias_estimate_is_on_average_the_diagonal():
    "Of a softmax's curvature, p (1 - p), whatever the number of answers."
    theta = nn.Parameter(torch.randn(5, generator=seeded(1), dtype=torch.float64))
    probs, sophia, seen = theta.detach().softmax(0), Sophia([theta], lr=0.0, betas=(0.0, 0.0)), []
    for seed in range(1000):
        drawn = torch.multinomial(probs, 8, replacement=True, generator=seeded(2, seed))
        sophia.look(nn.functional.cross_entropy(theta.expand(8, 5), drawn), 8)
        seen.append(sophia.memory(theta)["h"].clone())
    seen = torch.stack(seen)
    assert ((seen.mean(0) - probs * (1 - probs)).abs() < 5 * seen.std(0) / 1000**0.5).all()


def test_a_name_that_nobody_knows_is_not_taken_for_adamw():
    for names in (["loin"], ["lion", "cosin"]):
        with pytest.raises(KeyError): Choose(*names)
