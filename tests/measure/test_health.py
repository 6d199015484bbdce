"""The verdicts on recorded runs, sick and healthy, and on series whose verdict is known."""
import json
from importlib.resources import files

import pytest

from command import QUICK, as_json, call
from minibert.measure.health import SENTENCES, judge_health
from minibert.runs.tasks import task_of

RUNS = json.loads((files("minibert") / "measured/health.json").read_text(encoding="utf8"))
MAIN = {"mlm_loss": "unigram_loss"}


def judged(run): return judge_health(run["lines"], run["summary"], task_of(run["model"]).main)


def steps(losses, rates=None, **more):
    "Lines of metrics; `more` has the other series."
    rates = rates or [0.1, *[1.0] * (len(losses) - 1)]
    rows = zip(losses, rates, *more.values())
    return [dict(step=n, loss=loss, mlm_loss=loss, learning_rate=rate, grad_norm=1.0) | dict(zip(more, rest)) for n, (loss, rate, *rest) in enumerate(rows)]


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run["sickness"]])
def test_a_sick_run_is_named(name): assert RUNS[name]["sickness"] in judged(RUNS[name])


def test_no_healthy_run_is():
    healthy = {name: judged(run) for name, run in RUNS.items() if not run["sickness"]}
    assert len(healthy) >= 20 and not any(healthy.values()), healthy


def test_every_kind_and_every_sickness_is_there():
    assert {run["sickness"] for run in RUNS.values()} == {"", *SENTENCES}
    assert {"bert", "gpt", "t5"} <= {run["model"] for run in RUNS.values()}
    assert sum(run["options"].get("backend") == "numpy" for run in RUNS.values()) >= 3


def test_a_missing_warm_up_is_named_only_where_the_run_is_sick():
    cold, well = [1.0] * 10, [7.0, 6, 5, 4, 3, 3, 2, 2, 2, 2]
    assert judge_health(steps(well, cold), dict(mlm_loss=2.0, unigram_loss=5.0), MAIN) == []
    assert judge_health(steps([7.0, *[5.0] * 9], cold), dict(mlm_loss=5.0, unigram_loss=5.0), MAIN) == ["plateau", "no warm-up"]
    assert judge_health(steps([7.0, *[5.0] * 9]), dict(mlm_loss=5.0, unigram_loss=5.0), MAIN) == ["plateau"]


def test_gradients_that_fall_with_the_loss_do_not_vanish():
    falling = [0.5 * 0.1 ** n for n in range(10)]
    lines = steps([7.0] * 10, **{"gradient/layer_0": falling})
    assert judge_health(lines, {}, MAIN) == ["vanishes"]
    assert judge_health([line | dict(grad_norm=2 * line["gradient/layer_0"]) for line in lines], {}, MAIN) == []


def test_what_is_not_known_is_not_judged():
    assert judge_health([], {}, MAIN) == judge_health(steps([7.0, 50.0]), {}, MAIN) == []
    assert judge_health(steps([7.0, 50.0, 60.0, 70.0, 80.0]), {}, MAIN) == ["explodes"]


def test_the_command_and_the_list_name_a_sick_run(tmp_path):
    words = *QUICK[2:], "--steps", 60, "--size", "3x32x2", "--optimizer", "adamw", "--lr", "0.1", "--warmup", "0", "--watch"
    out, _ = call("pretrain", *words, "--out", tmp_path / "runs/sick")
    named = json.loads((tmp_path / "runs/sick/summary.json").read_text())["health"]
    assert {"vanishes", "no warm-up"} <= {*named} and all(SENTENCES[name] in out for name in named) and "not yet better" not in out
    assert as_json("runs", tmp_path / "runs")["runs"][0]["health"] == named
    assert "finished, vanishes" in call("runs", tmp_path / "runs")[0]
