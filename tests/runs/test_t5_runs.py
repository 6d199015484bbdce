"""A run of a T5 is a run like the others; and a story's exact cost."""
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from command import asked_again, call, refused
from minibert.core.seeds import seeded
from minibert.runs.course import open_course
from minibert.data.spans import gap_ids, read_gaps, write_answer
from minibert.runs.tasks import task_of
from minibert.data.spans import SENTINELS
from minibert.data.stories import next_words, stories, story_nats
from minibert.t5 import T5Config, T5ForConditionalGeneration
from minibert.weights import load_pretrained

QUICK = ("pretrain", "--model", "t5", "--steps", 4, "--batch-size", 4, "--length", 24, "--precision", "float32", "--log-steps", 1)


@pytest.fixture(scope="module")
def t5_run(tmp_path_factory):
    "The folder of a T5's run of four steps."
    folder = tmp_path_factory.mktemp("t5")
    out, err = call(*QUICK, "--checkpoint-steps", 2, cwd=folder)
    assert "2 + 2 layers, 128 wide, 956 pieces; 4 steps of 4 texts of 24 tokens" in err
    assert "missing tokens, accuracy" in out and out.count("it writes:") == 4 and 'generate runs/1 \'one morning [MASK]' in out
    return folder / "runs" / "1"


def test_what_a_run_keeps(t5_run):
    summary = json.loads((t5_run / "summary.json").read_text())
    assert {"span_loss", "masked_loss", "masked_accuracy", "unigram_loss", "bigram_loss", "bigram_accuracy", "target_unigram_loss",
            "train_seconds"} <= summary.keys()
    config = json.loads((t5_run / "config.json").read_text())
    assert config["vocab_size"] == 956 + SENTINELS and config["model_type"] == "t5" and config["eos_token_id"] == 3
    told = json.loads(call("evaluate", t5_run, "--json")[0])
    assert told == asked_again(summary)
    again = json.loads(call("evaluate", t5_run, "--dataset", "stories", "--json")[0])
    assert again == told


@pytest.mark.slow
def test_stopped_and_resumed_bit_for_bit(t5_run, tmp_path):
    shutil.copytree(t5_run, tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[-1])))
    for name in ("model.safetensors", "summary.json"): (tmp_path / "run" / name).unlink()
    call("pretrain", "--resume", tmp_path / "run")
    a, b = (load_pretrained(folder).state_dict() for folder in (t5_run, tmp_path / "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    call("pretrain", "--config", t5_run / "run.yaml", "--out", tmp_path / "again")
    c = load_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(a[name], c[name]) for name in a)


@pytest.mark.slow
def test_a_second_phase_begins_with_the_weights_of_the_first(t5_run, tmp_path):
    for split in "train", "validation":
        lines = [json.dumps(dict(text=story.text)) for story in stories(40, split=split)]
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/{split}.jsonl").write_text("\n".join(lines) + "\n")
    call(*QUICK[:3], "--start", t5_run, "--steps", 1, "--batch-size", 2, "--length", 48, "--learning-rate", 1e-9, "--muon-learning-rate",
         1e-9, "--out", tmp_path / "second", "--streaming", "--dataset", tmp_path / "data")
    a, b = (load_pretrained(folder).state_dict() for folder in (t5_run, tmp_path / "second"))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)
    assert (tmp_path / "second/vocab.txt").read_text() == (t5_run / "vocab.txt").read_text()


def test_generate_fills_gaps(t5_run):
    words = ("generate", t5_run, "Anna lost her [MASK] ball. [MASK] found it.", "--tokens", 12)
    out, _ = call(*words, "--samples", 2, "--seed", 5, "--top-p", 0.9, "--top-k", 40)
    lines = out.splitlines()
    assert len(lines) == 2 and all(line.startswith("anna lost her") for line in lines)
    assert out == call(*words, "--samples", 2, "--seed", 5, "--top-p", 0.9, "--top-k", 40)[0]
    assert call(*words, "--temperature", 0)[0] == call(*words, "--temperature", 0)[0]


@pytest.mark.parametrize("words, said", [
    (("generate", "RUN", "anna lost her ball."), "no gap"), (("generate", "RUN", ""), "no gap"),
    (("generate", "RUN", "[MASK] a " * 33), "33 gaps"), (("generate", "RUN", "[MASK]", "--top-p", 0), "top_p"),
    (("fill-mask", "RUN", "a [MASK]"), "minibert classify or generate"), (("next-sentence", "RUN", "a", "b"), "next sentences"),
    (("classify", "RUN", "a"), "T5ForConditionalGeneration"),
    (("pretrain", "--model", "t5", "--objectives", "mlm"), "--objectives"), (("pretrain", "--objectives", "span"), "span"),
    (("pretrain", "--model", "t5", "--length", 999), "55 gaps"), (("pretrain", "--model", "t5", "--length", 2), "give 3 or more"),
    (("pretrain", "--model", "gpt", "--start", "RUN"), "--model is gpt"), (("pretrain", "--model", "t5", "--positions", "rotary"), "--positions"),
])
def test_what_a_t5_cannot_do_is_one_sentence(t5_run, tmp_path, words, said):
    assert said in refused(*(t5_run if word == "RUN" else word for word in words), cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.posix
def test_two_processes_train_what_one_does(tmp_path):
    eight = *QUICK[:6], 8, *QUICK[7:]
    call(*eight, "--out", tmp_path / "one")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29641", "-m", "minibert.cli.main"]
    two = subprocess.run([*launch, *map(str, eight), "--out", str(tmp_path / "two")], capture_output=True, text=True,
                         env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert two.returncode == 0, two.stderr
    losses = [[json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["anna", "lost her", "[MASK]", "ball."]), min_size=1, max_size=12))
def test_gaps_are_numbered_from_the_left_and_neighbours_are_one(parts):
    _, tokenizer = open_course()
    merged = [part for k, part in enumerate(parts) if part != "[MASK]" or k == 0 or parts[k - 1] != part]
    top, gaps = tokenizer.vocab_size + SENTINELS - 1, iter(range(SENTINELS))
    wanted = [i for part in merged for i in ([top - next(gaps)] if part == "[MASK]" else tokenizer.ids(part))]
    assert read_gaps(tokenizer, " ".join(parts)) == [tokenizer.cls_id, *wanted, tokenizer.sep_id]


def test_a_gap_is_filled_and_what_was_not_asked_is_left_out():
    _, tokenizer = open_course()
    model = T5ForConditionalGeneration(replace(T5Config(), vocab_size=tokenizer.vocab_size + SENTINELS, d_model=8, d_kv=4, d_ff=8,
                                               num_layers=1, num_decoder_layers=1, num_heads=2), seeded(0)).eval()
    top, red = gap_ids(tokenizer)[0], tokenizer.ids("red")[0]
    says = iter([top, red, top - 1, red])
    def logits(hidden): return torch.nn.functional.one_hot(torch.tensor([next(says)]), model.config.vocab_size).float() * 9
    model.logits = logits
    assert write_answer(model, tokenizer, "Anna lost her [MASK] ball.", temperature=0) == "anna lost her red ball."
    assert next(says) == red  # it was stopped at the second gap
    with pytest.raises(StopIteration): next(says)


@pytest.mark.parametrize("seed", range(3))
def test_the_chances_of_what_follows_sum_to_that_of_the_prefix(seed):
    for story in stories(4, seed=seed):
        whole = 1.0
        for at, word in enumerate([*story.flat, None]):
            shares = next_words(story.flat[:at])
            assert math.isclose(sum(shares.values()), whole, rel_tol=1e-12)
            whole = shares[word]
        assert math.isclose(story_nats(story.flat), -math.log(whole), rel_tol=1e-12)
        assert story_nats(story.flat[:-1]) == math.inf == story_nats([*story.flat, "."])


def test_no_story_is_cheaper_than_its_own_templates_allow():
    "Knowing the plot, the end and the lines, a story costs its rows alone; a prefix never costs more than the whole."
    for story in stories(20, split="test"):
        known = sum(-math.log(max(told.values())) for p, told in
                    ((p, story.posterior({p}, range(p))[p]) for p in range(len(story.flat))) if max(told.values()) < 1)
        assert 0 < known < story_nats(story.flat) + 1e-9


def test_the_best_loss_is_that_of_the_generator_itself():
    "Counting prefixes in many stories comes close to the exact chances, from above."
    told = stories(3000)
    starts = {}
    for story in told: starts[story.flat[0]] = starts.get(story.flat[0], 0) + 1
    exact = next_words([])
    loss = -sum(n * math.log(exact[w]) for w, n in starts.items()) / 3000
    entropy = -sum(p * math.log(p) for p in exact.values())
    assert abs(loss - entropy) < 0.1


def test_every_kind_says_what_its_own_options_are():
    assert [*task_of("t5").objectives] == ["span"]
