"""Runs of a variant: the same losses as BERT's where its parts are BERT's, and runs like the others where they aren't."""
import json
import shutil

import pytest
import torch

from command import call, refused
from minibert.nn.variants import FastVariantForPreTraining
from minibert.runs.experiment import read_experiment
from minibert.runs.descendants import VARIANT
from minibert.weights import load_pretrained

QUICK = ("pretrain", "--steps", 4, "--batch-size", 4, "--length", 24, "--precision", "float32", "--log-steps", 1, "--vocab-size", 400)
PARTS = ("--norm", "rms", "--placement", "sandwich", "--positions", "relative", "--activation", "relu2", "--gated", "--no-bias", "--qk-norm",
         "--value-residual", "--no-tied")
PLAN = """
base: {model: variant}
changes:
  "pre-norm": {placement: pre}
  "sandwich norm": {placement: sandwich}
  RMSNorm: {norm: rms}
  sinusoidal: {positions: sinusoidal}
  relative: {positions: relative}
  rotary: {positions: rotary}
  "no positions": {positions: none}
  ReLU: {activation: relu}
  "ReLU squared": {activation: relu2}
  GeGLU: {gated: true}
  "QK-norm": {qk-norm: true}
  "zero init": {zero-init: true, placement: pre}
  "value residual": {value-residual: true}
  "no biases": {bias: false}
  untied: {tied: false}
"""


def losses(folder): return [{name: value for name, value in row.items() if "second" not in name and "time" not in name and name != "peak_mib"} for row in
                            map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variant")
    call(*QUICK, "--model", "variant", *PARTS, "--checkpoint-steps", 2, cwd=folder)
    return folder / "runs" / "1"


def test_a_run_with_berts_parts_is_berts_run(tmp_path):
    for name in ("bert", "variant"): call(*QUICK, "--model", name, "--out", tmp_path / name)
    bert, ours = losses(tmp_path / "bert"), losses(tmp_path / "variant")
    assert bert == ours and len(bert) >= 4 and {"mlm_loss", "nsp_loss", "grad_norm"} <= bert[0].keys()
    a, b = (load_pretrained(tmp_path / name).state_dict() for name in ("bert", "variant"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    figures = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("bert", "variant")]
    assert len({(f["mlm_loss"], f["nsp_accuracy"]) for f in figures}) == 1


def test_it_opens_again_and_answers(a_run, tmp_path):
    model = load_pretrained(a_run)
    assert isinstance(model, FastVariantForPreTraining) and model.config.gated and model.config.intermediate_size == 344
    assert call("fill-mask", a_run, "the [MASK] was red .")[0].count("%") == 5
    assert "%" in call("next-sentence", a_run, "Tom was hungry.", "He ate.")[0] and "masked words" in call("evaluate", a_run)[0]
    assert "FastVariantForPreTraining" in refused("parity", a_run)
    (tmp_path / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n}.,{who}\n" for n in range(20) for who in ("anna", "tom")))
    assert "give a BERT" in refused("finetune", a_run, "--dataset", tmp_path / "who.csv", cwd=tmp_path)


def test_stopped_and_resumed_bit_for_bit(a_run, tmp_path):
    shutil.copytree(a_run, tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[-1])))
    for name in ("model.safetensors", "summary.json"): (tmp_path / "run" / name).unlink()
    call("pretrain", "--resume", tmp_path / "run")
    a, b = (load_pretrained(which).state_dict() for which in (a_run, tmp_path / "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_plan_changes_each_part_in_a_line(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    plans = read_experiment(tmp_path / "plan.yaml")
    configs = {name: VARIANT.config(plan, 956) for name, plan in plans.items()}
    assert len({*configs.values()}) == len(plans) == 16


@pytest.mark.parametrize("words, said", [
    (("--zero-init", "--placement", "sandwich"), "choose one"), (("--start", "runs/1"), "leave it out"),
    (("--backend", "numpy"), "--backend"), (("--positions", "learned"), "positions")])
def test_what_it_cannot_do_is_one_sentence(words, said, tmp_path):
    assert said in refused(*QUICK, "--model", "variant", *words, cwd=tmp_path)
