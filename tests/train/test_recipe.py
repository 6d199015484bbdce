"""The config of a run, checked at the door, its schedule, and a plan in a file."""
import json
import warnings
from dataclasses import asdict

import pytest

from minibert.core.errors import UserError
from minibert.runs.bert import BertPlan
from minibert.runs.plan import ModelOptions, as_values, as_yaml, of_another_version, read_size, read_values, with_values
from minibert.runs.tasks import read_plan, task_of
from minibert.train.recipe import TrainingConfig, schedule_at


@pytest.mark.parametrize("wrong", [
    dict(optimizer="sgd"), dict(precision="bf16"), dict(schedule="cosine"), dict(steps=2.5), dict(steps=True),
    dict(learning_rate=float("inf")), dict(learning_rate=float("nan")), dict(checkpoint_minutes=float("nan")), dict(seed=-1), dict(seed=0.5),
    dict(warmup=-0.1), dict(weight_decay=float("inf")), dict(steps="10"), dict(max_grad_norm=0), dict(steps=0), dict(colour="red")], ids=str)
def test_a_config_that_describes_no_run_is_refused_by_name(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))): TrainingConfig(**wrong)


@pytest.mark.parametrize("schedule", ["linear", "trapezoid"])
@pytest.mark.parametrize("steps,warmup", [(1, 0.1), (2, 0.0), (7, 1.0), (1000, 0.06)])
def test_schedule_stays_within_its_bounds(schedule, steps, warmup):
    config = TrainingConfig(steps=steps, warmup=warmup, cooldown=0.0 if warmup == 1 else 0.2, schedule=schedule)
    shares = [schedule_at(n, config) for n in range(steps)]
    assert all(0 < share <= 1 for share in shares)


def test_config_survives_json():
    config = TrainingConfig(steps=7, optimizer="muon", gradient_accumulation_steps=3)
    assert TrainingConfig(**json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("text, options", [
    ("learning_rate: 1e-3", dict(learning_rate=0.001)), ("learning-rate: 1", dict(learning_rate=1)), ("name: null", dict(name=None)),
    ("watch: yes", dict(watch=True)), ("units: words", dict(units="words")), ('{"size": "mini"}', dict(size="mini")), ("objectives: [mlm]", dict(objectives=("mlm",)))])
def test_a_file_gives_what_is_meant(tmp_path, text, options):
    (tmp_path / "options.yaml").write_text(text)
    assert read_values(tmp_path / "options.yaml") == options
    assert as_values(with_values(BertPlan(), options)) == as_values(BertPlan()) | options


@pytest.mark.parametrize("text", ["steps: 0", "steps: many", "steps: null", "learning_rate: .inf", "size: {a: 1}", "dataset: ''", "objectives: [clm]"])
def test_a_run_with_a_mistake_in_its_file_is_named(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    with warnings.catch_warnings(), pytest.raises(UserError, match="run.yaml") as problem:
        warnings.simplefilter("ignore")
        read_plan(tmp_path)
    assert text.split(":")[0] in str(problem.value)


def test_a_plan_survives_its_file_and_another_version(tmp_path):
    plan, path = with_values(BertPlan(), dict(steps=7, name="x", learning_rate=1e-5, units="words")), tmp_path / "run.yaml"
    path.write_text(as_yaml(plan, format=2, learned=("mlm",)))
    assert read_plan(tmp_path) == (plan, dict(format=2, learned=("mlm",)))
    values = read_values(path)
    del values["warmup"]
    with pytest.warns(UserWarning, match="colour"): assert of_another_version(BertPlan(), values | dict(colour=1, format=2), path) == plan


@pytest.mark.parametrize("size,sizes", [("tiny", (2, 128, 2, None)), ("3x192x3", (3, 192, 3, None)), ("1x64x1x37", (1, 64, 1, 37))])
def test_a_size_has_a_name_or_its_numbers(size, sizes):
    assert read_size(size) == sizes and ModelOptions(size=size).size == size


@pytest.mark.parametrize("values,size", [
    (dict(num_hidden_layers=3, hidden_size=192, num_attention_heads=3, intermediate_size=512), "3x192x3x512"),
    (dict(n_layer=2, n_embd=64, n_head=4, n_inner=None), "2x64x4"), (dict(num_layers=2, d_model=64, num_heads=4, d_ff=96), "2x64x4x96")])
def test_a_size_may_be_a_config_and_is_kept_as_numbers(values, size, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "options.yaml").write_text(f"size: {tmp_path / 'config.json'}")
    assert with_values(BertPlan(), read_values(tmp_path / "options.yaml")).model.size == size


@pytest.mark.parametrize("model,field", [
    ("bert", "intermediate_size"), ("gpt", "n_inner"), ("t5", "d_ff"), ("roberta", "intermediate_size"), ("modernbert", "intermediate_size"),
    ("variant", "intermediate_size")])
def test_every_kind_has_the_inner_width_that_is_asked_for(model, field):
    task = task_of(model)
    assert getattr(task.config(with_values(task.plan(), dict(size="1x24x2x37")), 101), field) == 37


@pytest.mark.parametrize("size", ["huge", "3x192", "3x192x5", "0x64x2", "3x192x3x0", "axbxc"])
def test_another_size_gets_its_sentence(size):
    with pytest.raises(UserError, match=f"{size}.*3x192x3"): ModelOptions(size=size)
