"""The config of a run, checked at the door, and its schedule."""
import json
from dataclasses import asdict

import pytest

from minibert.recipe import TrainingConfig, schedule_at


@pytest.mark.parametrize("wrong", [
    dict(optimizer="sgd"), dict(precision="bf16"), dict(precision="auto"), dict(schedule="cosine"), dict(steps=2.5), dict(steps=True),
    dict(learning_rate=float("inf")), dict(learning_rate=float("nan")), dict(checkpoint_minutes=float("nan")), dict(seed=-1), dict(seed=0.5),
    dict(whole_words="no"), dict(warmup=-0.1), dict(weight_decay=float("inf")), dict(steps="10"), dict(max_grad_norm=0), dict(steps=0)],
    ids=str)
def test_a_config_that_describes_no_run_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))): TrainingConfig(**wrong)


@pytest.mark.parametrize("schedule", ["linear", "trapezoid"])
@pytest.mark.parametrize("steps,warmup", [(1, 0.1), (2, 0.0), (7, 1.0), (1000, 0.06)])
def test_schedule_stays_within_its_bounds(schedule, steps, warmup):
    config = TrainingConfig(steps=steps, warmup=warmup, cooldown=0.0 if warmup == 1 else 0.2, schedule=schedule)
    shares = [schedule_at(n, config) for n in range(steps)]
    assert all(0 < share <= 1 for share in shares)


def test_config_survives_json():
    config = TrainingConfig(steps=7, optimizer="muon", objectives="nsp", gradient_accumulation_steps=3)
    assert TrainingConfig(**json.loads(json.dumps(asdict(config)))) == config
