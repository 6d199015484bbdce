"""Runs of a DeBERTa and a ModernBERT are runs like the others: trained, stopped, resumed bit for bit, asked."""
import json
import shutil

import pytest
import torch

from command import call, refused
from minibert.weights import load_pretrained

QUICK = ("pretrain", "--steps", 4, "--batch-size", 4, "--length", 24, "--precision", "float32", "--log-steps", 1)
CLASSES = dict(deberta="DebertaForMaskedLM", modernbert="ModernBertForMaskedLM")


@pytest.fixture(scope="module", params=CLASSES)
def a_run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    out, err = call(*QUICK, "--model", request.param, "--checkpoint-steps", 2, cwd=folder)
    assert "2 layers, 128 wide, 956 pieces; 4 steps of 4 rows of 24 tokens" in err and "next sentence" not in out + err
    return request.param, folder / "runs" / "1"


def test_it_opens_again_and_is_asked_what_it_learned(a_run, tmp_path):
    name, folder = a_run
    assert type(load_pretrained(folder)).__name__ == CLASSES[name]
    summary = json.loads((folder / "summary.json").read_text())
    assert {"mlm_loss", "mlm_accuracy", "unigram_loss"} <= summary.keys() and "nsp_accuracy" not in summary
    assert call("fill-mask", folder, "the [MASK] was red .")[0].count("%") == 5
    assert "agree" in call("parity", folder)[0]
    call("inspect", folder, "anna lost her red ball.", "--out", tmp_path / "page")
    (folder / "run.yaml").rename(tmp_path / "run.yaml")  # a checkpoint from elsewhere: no file says what it learned
    assert "trained head for nsp" in refused("next-sentence", folder, "Tom was hungry.", "He ate.")
    (tmp_path / "run.yaml").rename(folder / "run.yaml")
    (tmp_path / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n}.,{who}\n" for n in range(20) for who in ("anna", "tom")))
    assert "give a BERT" in refused("finetune", folder, "--dataset", tmp_path / "who.csv", cwd=tmp_path)


def test_stopped_and_resumed_bit_for_bit(a_run, tmp_path):
    _, folder = a_run
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[-1])))
    for name in ("model.safetensors", "summary.json"): (tmp_path / "run" / name).unlink()
    call("pretrain", "--resume", tmp_path / "run")
    a, b = (load_pretrained(which).state_dict() for which in (folder, tmp_path / "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("words, said", [
    (("--model", "deberta", "--objectives", "mlm"), "--objectives"), (("--model", "modernbert", "--dropout", 0.1), "dropout"),
    (("--model", "modernbert", "--positions", "rotary"), "--positions")])
def test_what_they_cannot_do_is_one_sentence(words, said, tmp_path):
    assert said in refused(*QUICK, *words, cwd=tmp_path)
