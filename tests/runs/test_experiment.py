"""An experiment: a table and a plot at its end, nothing twice after a kill, and a sentence for a wrong plan."""
import json
import math

import pytest

import minibert.runs.experiment as experiment
from command import as_json, call, everything_in, leaves_nothing

PLAN = """
base: {steps: 3, batch-size: 4, length: 32, vocab-size: 600, optimizer: adamw}
changes:
  lion: {optimizer: lion, learning-rate: 4e-4}
  "forty-percent masks": {mask-probability: 0.4, objectives: [mlm]}
"""


@pytest.fixture(autouse=True)
def one_rate(monkeypatch): monkeypatch.setattr(experiment, "RATES", (1.0,))


def test_every_variant_has_three_rates_and_then_its_best_on_other_seeds(tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "plan.yaml").write_text(PLAN)
    plans = experiment.read_experiment(tmp_path / "plan.yaml")
    first = [*experiment.list_trials(plans, [0], tmp_path)]
    assert len(first) == 3 * 3 and {trial.plan.training.seed for trial in first} == {0}
    rates = {(trial.name, trial.factor): trial.plan.training.learning_rate for trial in first}
    assert rates["lion", 0.5] == 2e-4 and rates["lion", 2] == 8e-4 and rates["base", 2] == 2 * rates["base", 1]
    best = experiment.best_rates([dict(name=t.name, factor=t.factor, cost=-t.factor * (t.name == "lion")) for t in first])
    assert best == {"base": 0.5, "lion": 2, "forty-percent masks": 0.5}  # the first of equals
    then = [*experiment.list_trials(plans, [1, 2], tmp_path, best)]
    assert [trial.seed for trial in then] == [1] * 3 + [2] * 3 and {(t.name, t.factor) for t in then} == {*best.items()}
    assert len({trial.folder for trial in first + then}) == 15


def test_a_slow_step_gets_fewer_steps_and_a_known_time_is_not_taken_again(tmp_path, monkeypatch):
    (tmp_path / "plan.yaml").write_text(PLAN)
    plans = experiment.read_experiment(tmp_path / "plan.yaml")
    seconds = iter([9, 9, 1, 2, 2, 4, 4, 10, 1, 2] * 3)  # base and variant in turn; the first round is the warm-up
    monkeypatch.setattr(experiment, "time_step", lambda text, plan: next(seconds))
    times = {name: experiment.time_variant(plans["base"], plan, None, rounds=5) for name, plan in plans.items()}
    assert times["base"]["ratio"] == 1 and times["lion"]["ratio"] == 2 and times["lion"]["quartiles"] == [2, 2]
    steps = {name: plan.training.steps for name, plan in experiment.equal_time(plans, times, 1).items()}
    assert steps == {"base": 40, "lion": 20, "forty-percent masks": 20}  # a base's step took 1.5 seconds
    (tmp_path / "times.json").write_text('{"lion": {"base": 1.5, "ratio": 3.0}}')
    monkeypatch.setattr(experiment, "time_step", lambda text, plan: 1.0)
    found = experiment.find_times(plans, None, tmp_path)
    assert found["lion"]["ratio"] == 3 and found["base"]["ratio"] == found["forty-percent masks"]["ratio"] == 1


def test_a_plan_ends_with_a_table_and_a_plot_and_a_kill_repeats_nothing(tmp_path, monkeypatch):
    (tmp_path / "plan.yaml").write_text(PLAN)
    words, out, real, calls = ("experiment", "plan.yaml", "--seeds", 2), tmp_path / "runs/plan", experiment.train, []

    def killed(run, model):
        "After seven runs a kill in the middle of the eighth, and Ctrl-C."
        calls.append(run.folder)
        if len(calls) == 8: raise KeyboardInterrupt
        return real(run, model)
    monkeypatch.setattr(experiment, "train", killed)
    assert "same command" in call(*words, cwd=tmp_path, code=130)[1]
    assert len([*out.glob("*/summary.json")]) == 7 and not (out / "table.md").exists()
    (out / "forty-percent masks-x1-seed2").mkdir()  # a process that was killed before it had a plan
    (out / "forty-percent masks-x1-seed2/config.json").touch()
    before = {path: everything_in(path.parent) for path in out.glob("*/summary.json")}
    monkeypatch.setattr(experiment, "train", real)
    found = as_json(*words, cwd=tmp_path)
    assert {path: everything_in(path.parent) for path in before} == before
    assert [row["name"] for row in found["variants"]] == ["base", "lion", "forty-percent masks"]
    table = (out / "table.md").read_text().splitlines()
    assert len(table) == 5 and "verdict" in table[0] and (out / "forest.png").read_bytes().startswith(b"\x89PNG")
    costs = [json.loads(path.read_text())["mlm_loss"] for path in out.glob("*/summary.json")]
    assert len(costs) == len({*costs}) == 3 * 3 and all(map(math.isfinite, costs))  # each has its own
    losses = [json.loads((out / f"lion-x1-seed{seed}/summary.json").read_text())["mlm_loss"] for seed in (1, 2)]
    assert found["variants"][1]["value"] == pytest.approx(sum(losses) / 2)
    again = everything_in(*(path.parent for path in out.glob("*/summary.json")))
    monkeypatch.setattr(experiment, "train", None)
    assert as_json(*words, cwd=tmp_path) == found
    assert everything_in(*(path.parent for path in out.glob("*/summary.json"))) == again
    (tmp_path / "plan.yaml").write_text(PLAN.replace("0.4", "0.3"))  # another plan, the same folder
    assert "--mask-probability was 0.4 and is 0.3" in " ".join(call(*words, cwd=tmp_path, code=2)[1].split())


def test_a_rate_that_diverges_is_a_result(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN.split("  lion")[0] + "  sgd: {optimizer: sgd, learning-rate: 1e30}\n")
    base, sgd = as_json("experiment", "plan.yaml", "--seeds", 0, "--out", "out", cwd=tmp_path)["variants"]
    assert base["factor"] == 1 and math.isfinite(base["value"]) and sgd["value"] is None and sgd["verdict"] == "diverged"
    assert "diverged" in json.loads((tmp_path / "out/sgd-x1-seed0/summary.json").read_text())


@pytest.mark.parametrize("plan,named", [
    ("base: {steps: 3}", "two parts"), ("steps: 3", "two parts"), ("base: 3\nchanges: {}", "base"),
    ("base: {stps: 3}\nchanges: {}", "did you mean steps"), ("base: {}\nchanges: {lion: 3}", "lion"),
    ("base: {}\nchanges: {lion: {optimiser: lion}}", "did you mean optimizer"), ("base: {}\nchanges: {lion: {optimizer: leon}}", "leon"),
    ("base: {}\nchanges: {a: {length: 9}}", "length"), ("base: {}\nchanges: {../a: {dropout: 0.1}}", "../a"),
    ("base: {start: runs/1}\nchanges: {}", "start"), ("base: {}\nchanges: {base: {dropout: 0.1}}", "base"), ("base: {model: brt}\nchanges: {}", "brt"), ("only prose", "no options")])
def test_a_wrong_plan_gets_its_sentence(plan, named, tmp_path):
    (tmp_path / "plan.yaml").write_text(plan)
    assert named in leaves_nothing("experiment", "plan.yaml", cwd=tmp_path)


def result(name, factor, cost):
    return dict(name=name, factor=factor, figure="nsp_accuracy" if cost < 0 else "mlm_loss", cost=cost, steps=7)


@pytest.mark.parametrize("gains,verdict", [((0.1, 0.11, 0.12), "better"), ((-0.1, -0.11, -0.12), "worse"), ((-0.1, 0.2, 0.1), "no difference"),
                                           ((0.1, 0.2, -math.inf), "diverged"), ((0.1,), "one seed tells nothing")])
@pytest.mark.parametrize("start", [3.0, -0.5])
def test_gains_are_paired_and_signed_for_losses_and_accuracies(gains, verdict, start):
    rows = [result(name, 1.0, start + seed / 4 * abs(start) / 3 - (gain if name == "new" else 0))
            for name in ("base", "new") for seed, gain in enumerate(gains)]
    base, new = experiment.find_gains(rows)
    assert (base["verdict"], new["verdict"]) == ("", verdict)
    if math.isfinite(sum(gains)): assert new["gain"] == pytest.approx(sum(gains) / len(gains)) and math.isnan(base["gain"])
    assert experiment.gain_rows([base, new])[2][-1] == verdict
