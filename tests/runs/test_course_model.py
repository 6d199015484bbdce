"""The course model's figures are those that stand beside it; the demo's command makes the demo's again."""
import json
import os
import subprocess
import sys
import tarfile

import pytest
import torch

from conftest import ROOT, copy_checkout
from course import count_names
from minibert.train.callbacks import read_metrics
from minibert.core.course import COURSE
from minibert.runs.course import course_run, course_sampler, open_course, read_course
from minibert.evaluation import evaluate
from minibert.parity import assert_same

SUMMARY = json.loads((COURSE / "summary.json").read_text(encoding="utf8"))
MARGINS = dict(mlm_loss=0.1, mlm_accuracy=0.03, nsp_accuracy=0.04)  # over three times what seeds and threads differ by


@pytest.fixture(scope="module")
def course(): return open_course()


def test_figures_are_those_that_stand_beside_it(course):
    "Of the weights and of the baselines; another processor may differ in the fifth decimal, and in a word of ten thousand."
    figures = evaluate(course[0], course_sampler(course_run()))
    assert {*figures} == {*SUMMARY} - {"train_seconds"}
    for name, value in SUMMARY.items():
        if name in ("train_seconds", "nsp_confusion"): continue
        within = 1e-3 if "accuracy" in name or "perplexity" in name else 1e-4
        assert figures[name] == pytest.approx(value, abs=within), name
    assert sum(map(sum, figures["nsp_confusion"])) == SUMMARY["nsp_pairs"]


def test_what_chapter_3_says_of_its_positions(course):
    positions = course[0].bert.embeddings.position_embeddings.weight.detach()
    alike = torch.cosine_similarity(positions[:, None], positions, dim=-1)
    random = torch.randn(48, 128, generator=torch.Generator().manual_seed(0))
    far = (torch.arange(48)[:, None] - torch.arange(48)).abs() > 4
    assert 0.88 < (alike[far].abs() < 0.25).double().mean() < 0.92
    assert (torch.cosine_similarity(random[:, None], random, dim=-1)[far].abs() < 0.25).double().mean() > 0.99
    assert 0.45 < alike.diagonal(1)[16:38].mean() < 0.52 and 0.24 < alike.diagonal(1)[1:10].mean() < 0.28
    assert max(alike.diagonal(n).mean() for n in (19, 31)) < -0.25


def test_held_out_questions_need_no_training_text(course):
    run = course_run(train=False)
    figures = evaluate(course[0], course_sampler(run))
    assert run.train is None and "unigram_loss" not in figures
    assert figures["mlm_loss"] == pytest.approx(SUMMARY["mlm_loss"], abs=1e-4)


def test_transformers_opens_it_and_computes_the_same(course):
    import transformers as hf
    model, tokenizer = course
    theirs, info = hf.BertForPreTraining.from_pretrained(COURSE, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    vocabulary = hf.BertTokenizer.from_pretrained(COURSE)
    ids = tokenizer.encode_batch(["Tom wanted to cook soup.", ("It began to rain.", "Ben had no umbrella.")], return_tensors="pt")
    assert vocabulary("Tom wanted to cook soup.")["input_ids"] == ids["input_ids"][0][ids["attention_mask"][0] == 1].tolist()
    with torch.no_grad(): ours, same = model(**ids), theirs.eval()(**ids)
    assert_same(ours.prediction_logits, same.prediction_logits, tol=1e-4)
    assert_same(ours.seq_relationship_logits, same.seq_relationship_logits, tol=1e-4)


def test_metrics_are_of_the_whole_run():
    lines, options = read_metrics(COURSE), read_course()["options"]
    assert lines[0]["step"] == 1 and lines[-1]["step"] == options["steps"]
    assert [line["step"] for line in lines if "val_loss" in line] == [*range(500, options["steps"] + 1, 500)]
    assert options["precision"] == "float32" and options["out"] is None


def test_source_distribution_holds_it(tmp_path):
    "What a wheel holds is asked in test_package; the sources must hold it too."
    words = [sys.executable, "-c", "from setuptools import build_meta as b; b.build_sdist(__import__('sys').argv[1])", str(tmp_path)]
    copy = tmp_path / "source"
    copy_checkout(copy)
    done = subprocess.run(words, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    archive, = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed: held = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"minibert/course_model/{file.name}" for file in COURSE.iterdir()} <= held and "minibert/data/grammar.txt" in held


def test_it_reads_the_names(course):
    "Where both pronouns are hidden, the name alone tells: 44 of 48 at least."
    assert sum(count_names(COURSE)) >= 44 and read_course()["names"] == count_names(COURSE)


@pytest.mark.slow
def test_the_demo_makes_its_figures_again(tmp_path):
    "Not to the bit, because another processor adds in another order; its figures are within the margins."
    kept = json.loads((ROOT / "minibert" / "measured" / "demo.json").read_text(encoding="utf8"))["summary"]
    env = os.environ | dict(MINIBERT_BFLOAT16="0", MPLBACKEND="Agg")
    words = [sys.executable, "-m", "minibert.cli.main", "pretrain", "--out", str(tmp_path / "run")]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf8"))
    assert (tmp_path / "run" / "vocab.txt").read_text(encoding="utf8") == (COURSE / "vocab.txt").read_text(encoding="utf8")
    for name, margin in MARGINS.items(): assert summary[name] == pytest.approx(kept[name], abs=margin), name
    for name in ("unigram_loss", "bigram_loss", "mlm_accuracy_bound", "mlm_tokens"): assert summary[name] == pytest.approx(kept[name])
