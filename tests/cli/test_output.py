"""What the command prints and says: results on stdout, one JSON object where asked, progress on stderr, help in groups, all without torch where there is no work."""
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from command import QUICK, as_json, call, leaves_nothing, quick, refused, start

NAMES = ("pretrain", "evaluate", "fill-mask", "next-sentence", "generate", "parity", "finetune", "classify", "answer", "inspect", "probe", "bench", "runs", "compare", "experiment")


WITHOUT_TORCH = [("--help",), ("pretrain", "--help"), ("--version",), ("pretrain", "--steps", "0"), ("pretrain", "--batchsize", "8"),
                 ("pretrain", "--print-config"), ("nothing",), ("runs", "nowhere")]


def test_torch_is_imported_for_work_alone(tmp_path):
    code = f"""import sys
from minibert.cli.main import main
for words in {WITHOUT_TORCH}:
    try: main([*words])
    except SystemExit: pass
    assert 'torch' not in sys.modules, words"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_version():
    from minibert import __version__
    assert call("--version") == (f"minibert {__version__}\n", "")


def test_the_overview_names_all_commands():
    out, _ = call("--help")
    assert all(re.search(rf"\b{name}\b", out) for name in NAMES)


@pytest.mark.parametrize("command", NAMES)
def test_help_of_a_command_names_it(command):
    out, err = call(command, "--help")
    assert not err and f"minibert {command}" in out and "--quiet" in out and "--json" in out


@pytest.mark.parametrize("words,meant", [("pretrian", "pretrain"), ("pretrain --batchsize 8", "--batch-size"), ("finetune r --epoch=3", "--epochs")])
def test_a_misspelt_word_gets_the_nearest(tmp_path, words, meant):
    assert meant in leaves_nothing(*words.split(), cwd=tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "A run in a folder whose name has a space, and what was printed and said."
    home = tmp_path_factory.mktemp("a home")
    return home, call("pretrain", *quick("--log-steps", 2, "--out", "my run"), cwd=home)


def test_progress_is_told_line_by_line_beside_the_result(trained):
    out, err = trained[1]
    assert "\r" not in err and not {*out.splitlines()} & {*err.splitlines()}
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("step ")] == [f"step {k} of 4" for k in (1, 2, 4)]


def test_the_command_that_is_named_at_the_end_works(trained):
    home, (out, _) = trained
    minibert, *words = shlex.split(out.splitlines()[-1])
    assert minibert == "minibert" and "my run" in words
    assert "%" in call(*words, cwd=home)[0]


def test_quiet_prints_the_result_alone(tmp_path):
    out, err = call("pretrain", *QUICK, "--quiet", "--out", tmp_path / "r")
    assert not err and "masked words, loss" in out


def test_json_is_one_object(run, gpt, classifier, tmp_path):
    new = as_json("pretrain", *quick("--steps", 1), "--out", "new", cwd=tmp_path)
    assert new["folder"] == "new" and new["mlm_loss"] > 0
    assert len(as_json("fill-mask", run, "a [MASK] [MASK]", "--k", 2)["masks"]) == 2
    assert as_json("next-sentence", run, "It ran.", "It sat.").keys() == {"follows", "share"}
    assert sum(as_json("classify", classifier, "a film")["labels"].values()) == pytest.approx(1)
    assert len(as_json("generate", gpt, "one", "--tokens", 5, "--samples", 2)["texts"]) == 2
    assert as_json("parity", run)["same"] is True
    assert as_json("inspect", run, "a [MASK]", "--out", tmp_path / "page")["page"].endswith("index.html")


@pytest.mark.slow
def test_json_of_the_larger_commands(run):
    assert "roles" in as_json("probe", run, "--seeds", 1)
    assert as_json("bench", "--size", "tiny", "--vocab-size", 200, "--batch-size", 2, "--length", 16, "--rounds", 1, "--minutes", 0.1,
                   "--threads", 1)["cases"]


def test_what_the_vocabulary_does_not_know_is_said(run):
    with pytest.warns(UserWarning, match="unknown"): call("fill-mask", run, "明 天 [MASK]")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_text_in_other_letters_is_answered_in_any_console(run, encoding):
    done = subprocess.run([sys.executable, "-m", "minibert", "fill-mask", run, "Käse [MASK] 日本", "--json"], capture_output=True,
                          env=os.environ | {"PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and len(json.loads(done.stdout)["masks"]) == 1, done.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_mistake(run):
    process = start("evaluate", run, "--quiet", "--json")
    process.stdout.close()
    assert process.wait() != 3 and "Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize("value,shown", [("", False), ("1", True)])
def test_debugging_shows_where(monkeypatch, value, shown):
    monkeypatch.setenv("MINIBERT_DEBUG", value)
    _, err = call("runs", "nowhere", code=2)
    assert "nowhere" in err and ("Traceback" in err) == shown


# --- options in a file ---


GIVEN = [  # what a file says, what is given by hand, what comes of it
    ("steps: 7\nseed: 3\nunits: words", "--seed 5", dict(steps=7, seed=5, units="words")),
    ("steps: 9", "--minutes 7", dict(minutes=7.0)), ("schedule: trapezoid\ncooldown: 0.4", "--schedule linear", dict(schedule="linear")),
    ("recipe: bert\nlength: 64", "", dict(length=64, dropout=0.1)), ("length: 64", "--recipe fast", dict(length=64, positions="rotary")),
    ("positions: rotary", "--model bert", dict(positions="rotary")), ("out: a\nminutes: null", "", dict(out="a", minutes=None)),
]


@pytest.mark.parametrize("file,words,wanted", GIVEN, ids=range(len(GIVEN)))
def test_a_word_by_hand_is_stronger_than_a_file(tmp_path, file, words, wanted):
    (tmp_path / "o.yaml").write_text(file)
    out, err = call("pretrain", "--config", "o.yaml", *words.split(), "--print-config", cwd=tmp_path)
    options = yaml.safe_load(out)
    assert {name: options[name] for name in wanted} == wanted and not err


@pytest.mark.parametrize("words", ["", "--recipe bert", "--recipe fast", "--backend numpy", "--model gpt", "--model t5", "--model distilbert", "--model electra", "--minutes 3",
                                   "--schedule trapezoid --cooldown 0.3", "--objectives mlm --mask-probability 0.3 --units words"])
def test_printed_options_are_read_again(tmp_path, words):
    out, _ = call("pretrain", *words.split(), "--print-config")
    (tmp_path / "o.yaml").write_text(out)
    assert call("pretrain", "--config", "o.yaml", "--print-config", cwd=tmp_path)[0] == out


@pytest.mark.parametrize("text,named", [("stepz: 4", "stepz"), ("steps: many", "steps"), ("steps: [1]", "steps"), ("steps: true", "steps"),
                                        ("optimizer: adamax", "optimizer"), ("- a", "o.yaml"), ("steps: [", "o.yaml")])
def test_a_mistake_in_a_file_is_named(tmp_path, text, named):
    (tmp_path / "o.yaml").write_text(text)
    assert named in leaves_nothing("pretrain", "--config", "o.yaml", "--print-config", cwd=tmp_path)


def test_a_text_may_look_like_an_option(classifier):
    assert as_json("classify", classifier, "None")["labels"]
    assert refused("classify", classifier, "a", "--pair=--json")  # the pair is --json, and the classifier reads single texts
