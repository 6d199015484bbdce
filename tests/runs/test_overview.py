"""Runs beside each other: `compare` asks the same questions of both, and says what can be told apart."""
import json

import pytest

from command import QUICK, as_json, call, quick, refused
from minibert.runs.overview import verdict


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other") / "other"
    call("pretrain", *QUICK, "--seed", 1, "--lr", 1e-2, "--out", folder)
    return folder


def test_compare_is_paired_and_signed(run, other, tmp_path):
    there = as_json("compare", run, other, "--out", tmp_path / "x.png")["figures"]
    back = as_json("compare", other, run, "--out", tmp_path / "y.png")["figures"]
    for name, row in there.items():
        low, high = row["interval"]
        assert row["b"] - row["a"] == pytest.approx(row["difference"], abs=1e-9) and low <= row["difference"] <= high
        assert back[name]["difference"] == pytest.approx(-row["difference"]) and back[name]["interval"] == pytest.approx([-high, -low])
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, other)]
    loss = there["mlm_loss"]  # of the questions of `evaluate`
    assert [summary["mlm_loss"] for summary in summaries] == pytest.approx([loss["a"], loss["b"]])
    apart = sum((high - low) ** 2 for low, high in (summary["mlm_loss_interval"] for summary in summaries)) ** 0.5
    assert loss["interval"][1] - loss["interval"][0] < apart
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_compare_refuses_what_cannot_be_paired(run, gpt, classifier, tmp_path):
    call("pretrain", *quick("--vocab-size", 300), "--out", tmp_path / "small")
    (tmp_path / "there.png").touch()
    for b, name in ((tmp_path / "small", "vocab"), (gpt, "gpt"), (classifier, classifier.name), (tmp_path / "none", "none")):
        assert name in refused("compare", run, b, "--out", tmp_path / "x.png")
    assert "there.png" in refused("compare", run, run, "--out", tmp_path / "there.png")
    assert f"{tmp_path}/no" in refused("compare", run, run, "--out", tmp_path / "no/x.png")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.slow
def test_compare_of_two_objectives_asks_what_both_have_learned(run, tmp_path):
    call("pretrain", *QUICK, "--objectives", "nsp", "--out", tmp_path / "nsp")
    assert as_json("compare", run, tmp_path / "nsp", "--out", tmp_path / "a.png")["figures"].keys() == {"nsp_accuracy"}


def test_the_verdict_is_what_the_printed_intervals_say():
    def row(difference, around): return dict(difference=difference, interval=(difference - around, difference + around))
    assert verdict("one", "two", dict(mlm_loss=row(2e-2, 1e-2))) == "one is better at mlm loss."
    assert verdict("one", "two", dict(mlm_loss=row(-2e-2, 1e-2))) == "two is better at mlm loss."
    for small in (row(2e-8, 1e-8), row(1e-2, 2e-2), row(0, 0)):  # no rounding wins
        assert verdict("one", "two", dict(mlm_loss=small)) == "No difference can be told at mlm loss."
    open_loss = dict(mlm_loss=row(-0.01, 0.02), mlm_accuracy=row(0.020, 0.004), nsp_accuracy=row(-0.1, 0.01))
    assert verdict("one", "two", open_loss) == ("two is better at mlm accuracy; one is better at nsp accuracy; "
                                                "no difference can be told at mlm loss.")
