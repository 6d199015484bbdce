"""Runs of BERT's descendants are runs like the others: kept, measured, resumed bit for bit, opened again."""
import json
import shutil

import pytest
import torch
import transformers as hf

from command import asked_again, call, refused
from minibert.weights import load_pretrained, to_hf

KINDS = "roberta", "albert", "distilbert", "electra"
QUICK = "--steps", 4, "--batch-size", 4, "--length", 24, "--precision", "float32", "--log-steps", 1, "--checkpoint-steps", 2
THEIRS = dict(roberta="RobertaForMaskedLM", albert="AlbertForPreTraining", distilbert="DistilBertForMaskedLM", electra="ElectraForPreTraining")
FIGURES = dict(roberta={"mlm_loss"}, albert={"mlm_loss", "sop_loss", "sop_accuracy"}, distilbert={"mlm_loss"},
               electra={"mlm_loss", "rtd_loss", "rtd_accuracy", "rtd_recall"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "The folder of a run of four steps for each kind, and what it said."
    folder = tmp_path_factory.mktemp("descendants")
    said = {kind: call("pretrain", "--model", kind, *QUICK, "--out", folder / kind) for kind in KINDS}
    return folder, said


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_keeps_and_says(runs, kind):
    folder, said = runs
    summary = json.loads((folder / kind / "summary.json").read_text())
    assert FIGURES[kind] | {"unigram_loss", "bigram_loss", "mlm_accuracy_bound"} <= summary.keys()
    told = json.loads(call("evaluate", folder / kind, "--json")[0])
    assert told == asked_again(summary)
    out, err = said[kind]
    assert "4 steps of 4" in err and "masked words, accuracy" in out
    lines = [json.loads(line) for line in (folder / kind / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["loss"] == pytest.approx(sum(value for name, value in lines[0].items() if name in (
        "mlm_loss", "sop_loss", "kl_loss", "cosine_loss", "rtd_loss")))
    assert call("runs", folder)[0].count(kind) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_resumed_bit_for_bit(runs, kind, tmp_path):
    whole, run = runs[0] / kind, tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(max((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[-1])))
    for name in ("model.safetensors", "summary.json"): (run / name).unlink()
    call("pretrain", "--resume", run)
    a, b = (load_pretrained(folder).state_dict() for folder in (whole, run))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    call("pretrain", "--config", whole / "run.yaml", "--out", tmp_path / "again")
    c = load_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(a[name], c[name]) for name in a)


@pytest.mark.parametrize("kind", KINDS)
def test_theirs_opens_what_a_run_saves(runs, kind):
    theirs, info = getattr(hf, THEIRS[kind]).from_pretrained(runs[0] / kind, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ours = to_hf(load_pretrained(runs[0] / kind))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_its_weights(runs, kind, tmp_path):
    call("pretrain", "--model", kind, "--start", runs[0] / kind, *QUICK, "--steps", 1, "--learning-rate", 1e-9, "--muon-learning-rate",
         1e-9, "--out", tmp_path / "second")
    a, b = (load_pretrained(folder).state_dict() for folder in (runs[0] / kind, tmp_path / "second"))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


@pytest.mark.parametrize("kind", KINDS)
def test_both_libraries_agree_and_it_is_drawn(runs, kind, tmp_path):
    "Of an ELECTRA's two models the discriminator, which has no guess to draw."
    assert "agree" in call("parity", runs[0] / kind)[0]
    call("inspect", runs[0] / kind, "anna lost her red ball.", "--out", tmp_path / "page")
    page = (tmp_path / "page/index.html").read_text()
    assert ("No guess is drawn" in page) == (kind == "electra") and "Neighbours in the word table" in page


@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_blank_is_filled(runs, kind):
    assert call("fill-mask", runs[0] / kind, "anna lost her [MASK] ball.", "--k", 3)[0].count("%") >= 3


def test_a_roberta_reads_as_many_tokens_as_it_says(runs):
    text = "[MASK] " + "anna " * 21  # 24 with [CLS] and [SEP]
    assert "%" in call("fill-mask", runs[0] / "roberta", text)[0]
    assert "reads 24" in refused("fill-mask", runs[0] / "roberta", text + "anna")


def test_a_student_begins_with_its_teacher_and_its_words(runs, tmp_path):
    call("pretrain", *QUICK, "--out", tmp_path / "bert", "--steps", 1, "--size", "mini")
    call("pretrain", "--model", "distilbert", "--teacher", tmp_path / "bert", *QUICK, "--steps", 1, "--out", tmp_path / "student",
         "--learning-rate", 1e-9, "--muon-learning-rate", 1e-9)
    bert, student = (load_pretrained(tmp_path / name) for name in ("bert", "student"))
    assert len(student.bert.encoder.layers) == 2
    for k in (0, 1):
        a, b = (part.feed_forward.up.weight for part in (student.bert.encoder.layers[k], bert.bert.encoder.layers[2 * k + 1]))
        assert torch.allclose(a, b, atol=1e-6)
    assert (tmp_path / "student/vocab.txt").read_text() == (tmp_path / "bert/vocab.txt").read_text()


@pytest.mark.parametrize("words, said", [
    (("next-sentence", "roberta", "a", "b"), "nsp"), (("next-sentence", "albert", "a", "b"), "nsp"),
    (("fill-mask", "electra", "a [MASK]"), "neither fills masks"), (("generate", "roberta", "a"), "write texts"),
    (("pretrain", "--model", "roberta", "--objectives", "mlm"), "--objectives"), (("pretrain", "--teacher", "roberta"), "--teacher"),
    (("pretrain", "--model", "electra", "--start", "roberta"), "--model is electra"),
    (("pretrain", "--model", "distilbert", "--size", "mini"), "--size"), (("pretrain", "--model", "distilbert", "--teacher", "electra"), "neither fills"),
    (("pretrain", "--model", "distilbert", "--teacher", "roberta"), "give a BERT"),
    (("pretrain", "--model", "roberta", "--start", "roberta", "--length", 25), "reads 24"),
])
def test_what_they_cannot_do_is_one_sentence(runs, tmp_path, words, said):
    assert said in refused(*(runs[0] / word if word in KINDS and words[k - 1] != "--model" else word for k, word in enumerate(words)), cwd=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_wants_a_bert(runs, kind, tmp_path):
    (tmp_path / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n}.,{who}\n" for n in range(20) for who in ("anna", "tom")))
    assert "give" in refused("finetune", runs[0] / kind, "--dataset", tmp_path / "who.csv", cwd=tmp_path)
