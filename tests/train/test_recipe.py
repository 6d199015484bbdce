"""The config of a run, checked at the door, and its schedule."""
import json
from dataclasses import asdict

import pytest

from minibert.train.recipe import (
    PretrainOptions, TrainingConfig, as_yaml, read_options, schedule_at, unmade)


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


@pytest.mark.parametrize("text, options", [
    ("learning_rate: 1e-3", dict(learning_rate=0.001)), ("learning-rate: 1", dict(learning_rate=1.0)), ("steps: '7'", dict(steps=7)),
    ("name: 2024", dict(name="2024")), ("name: null", dict(name=None)), ("minutes: None", dict(minutes=None)),
    ("whole_words: yes", dict(whole_words=True)), ("gradient_accumulation_steps: 100", dict(gradient_accumulation_steps=100)),
    ('{"size": "mini"}', dict(size="mini")), ("dataset: yes", dict(dataset="yes")), ("out: 2026-11-22", dict(out="2026-11-22"))])
def test_a_file_gives_what_is_meant(tmp_path, text, options):
    (tmp_path / "options.yaml").write_text(text)
    assert repr(read_options(tmp_path / "options.yaml", PretrainOptions)) == repr(options)
    assert unmade(PretrainOptions, options, None).vocab_size == PretrainOptions().vocab_size


@pytest.mark.parametrize("text, said", [
    ("only prose", "no options"), ("", "no options"), ("- 1", "no options"), ("a: [", "cannot be read"), ("batchsize: 8", "'batchsize', which is no option: write batch_size"),
    ("colour: red", "leave it out"), ("1: 2", "leave it out"), ("steps: 2.5", "steps is '2.5'"), ("steps: 0", "steps is 0"), ("steps: yes", "steps is 'yes'"), ("steps: null", "steps is None"),
    ("learning_rate: .inf", "learning_rate is '.inf'"), ("learning_rate: 1e999", "learning_rate is inf"), ("whole_words: maybe", "whole_words is 'maybe'"),
    ("recipe: bert", "'recipe'"), ("size: {a: 1}", "size is"), ("name: [a, b]", "name is"), ("dataset: ''", "dataset is ''")])
def test_a_file_with_a_mistake_is_named(tmp_path, text, said):
    (tmp_path / "options.yaml").write_text(text)
    with pytest.raises(ValueError, match="options.yaml") as problem: read_options(tmp_path / "options.yaml", PretrainOptions)
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_options_survive_yaml(tmp_path):
    options = PretrainOptions(steps=7, name="x", learning_rate=1e-5, whole_words=True)
    (tmp_path / "options.yaml").write_text(as_yaml(options))
    assert PretrainOptions(**read_options(tmp_path / "options.yaml", PretrainOptions)) == options
