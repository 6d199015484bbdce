"""A command that is a pleasure to use: at once, in groups, with results that speak, for people and for programs."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import fields

import pytest

from command import QUICK, call, quick, refused

FIRST = "import sys, time; from minibert.cli.main import main\ntry: code = main(sys.argv[1:])\nexcept SystemExit as stopped: code = stopped.code\n" \
        "print('torch' in sys.modules, code, file=sys.stderr)"


def alone(*words, cwd=None):
    "The command in a process of its own: what it printed, what it said, and whether torch was imported."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", FIRST, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=env)
    *said, last = done.stderr.splitlines()
    torch, code = last.split()
    return done.stdout, said, torch == "True", int(code)


@pytest.mark.parametrize("words, code", [
    (["--help"], 0), (["pretrain", "--help"], 0), (["--version"], 0), (["pretrain", "--steps", "0"], 2), (["pretrain", "--batchsize", "8"], 2),
    (["pretrain", "--backend", "numpy", "--optimizer", "muon"], 2), (["pretrain", "--model", "gpt", "--whole-words"], 2),
    (["pretrain", "--objectives", "clm"], 2), (["pretrain", "--print-config"], 0), (["fill-mask", "runs/1", "the", "[MASK]"], 2), (["nothing"], 2),
    (["runs"], 2)], ids=str)
def test_torch_is_not_imported_for(words, code, tmp_path):
    assert alone(*words, cwd=tmp_path)[2:] == (False, code)


@pytest.mark.slow
def test_the_first_line_comes_before_torch_could_be_imported(tmp_path):
    "Beside what importing torch takes on this machine at this moment, in turn, the best of three."
    def seconds(code, *words):
        start = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", code, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        line = process.stderr.readline()
        took = time.monotonic() - start
        process.kill()
        process.communicate()
        return took, line
    tried = [(seconds("import sys; from minibert.cli.main import main; main(sys.argv[1:])", "pretrain"),
              seconds("import torch, sys; print('done', file=sys.stderr)")) for _ in range(3)]
    assert all(line == "Reading the stories ...\n" for (_, line), _ in tried)
    ours, torchs = (min(each[k][0] for each in tried) for k in (0, 1))
    assert ours < 0.5 * torchs, (ours, torchs)


def test_version():
    from minibert import __version__
    assert call("--version") == (f"minibert {__version__}\n", "")


COMMAND_NAMES = ("pretrain", "evaluate", "fill-mask", "next-sentence", "generate", "parity", "finetune", "classify", "inspect", "probe", "bench",
                 "runs", "compare")


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_help_is_in_groups_with_two_examples(command):
    from minibert.cli.options import COMMANDS, WORDS
    out, err = call(command, "--help")
    assert not err and out.startswith(f"usage: minibert {command}") and "\noutput:\n" in out
    assert out.split("\nexamples:\n")[1].count(f"  minibert {command}") == 2
    for each in fields(COMMANDS[command]):
        if each.name not in WORDS: assert len(re.findall(rf"^  --{each.name.replace('_', '-')}\b", out, re.M)) == 1
    assert "{" not in out.splitlines()[0] and max(map(len, out.splitlines())) <= 100
    if command in ("fill-mask", "classify", "inspect", "generate"): assert "RUN TEXT" in out.splitlines()[0]
    if command in ("pretrain", "finetune"): assert all(f"\n{name}:\n" in out for name in ("data", "model", "training", "output")) and "AdamW's" in out


def test_the_overview_names_all_commands_and_how_they_end():
    out, _ = call("--help")
    assert all(re.search(rf"^  {name} ", out, re.M) for name in COMMAND_NAMES)
    assert "exit codes: 0" in out and "MINIBERT_DEBUG" in out and "--tyro-write-completion" in out


def test_a_shell_can_complete():
    out, _ = call("--tyro-print-completion", "bash", code=None)  # tyro exits without a code, which is 0
    assert "fill-mask" in out and "batch-size" in out


@pytest.mark.parametrize("words, said", [
    ("fill-mask R the [MASK] was", "put the text in quotes"), ("classify R what a day", "put the text in quotes"),
    ("next-sentence R a b c", "put the text in quotes"), ("pretrain --batchsize 8", "did you mean --batch-size? minibert pretrain --help"),
    ("bench extra", "takes options alone"), ("runs --nonsense", "minibert runs --help"), ("pretrian", "did you mean pretrain?"),
    ("", "minibert --help lists"), ("zzz", "There is no command 'zzz'"), ("finetune --epoch=3", "did you mean --epochs?")])
def test_a_word_too_many_or_misspelt_gets_a_sentence(words, said, tmp_path):
    assert said in refused(*words.split(), cwd=tmp_path)


def test_the_commands_own_help_is_named_in_tyros_errors():
    for words in (["pretrain", "--steps", "x"], ["fill-mask", "R"], ["finetune", "--epochs", "0"]):
        _, err = call(*words, code=2)
        assert f"minibert {words[0]} --help" in " ".join(err.split())


def test_the_same_short_name_everywhere():
    from minibert.cli.options import parse
    assert parse(["pretrain", "--lr", "0.5"]).learning_rate == parse(["finetune", "--lr", "0.5"]).learning_rate == 0.5


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "Three runs of four steps in a folder whose name has a space, and what each printed and said."
    home = tmp_path_factory.mktemp("a home")
    (home / "my runs").mkdir()
    more = {"1": ("--log-steps", 2), "2": ("--seed", 1, "--lr", 1e-2, "--quiet"), "other": ("--vocab-size", 300, "--json")}
    return home, {name: call("pretrain", *quick(*words, "--out", f"my runs/{name}"), cwd=home) for name, words in more.items()}


def test_what_is_being_done_is_said_line_by_line(trained):
    out, err = trained[1]["1"]
    begins = ["Reading the stories ...", "Learning the vocabulary ...", "Turning the text into ids ...", "Training in my runs/1",
              "step 1 of 4: ", "step 2 of 4: ", "step 4 of 4: ", "Measuring on held-out text ..."]
    lines = err.splitlines()
    assert len(lines) == len(begins) and all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True)), err
    assert re.search(r"steps/s, done at \d\d:\d\d$", lines[4]) or "done at" in lines[4]
    assert "\r" not in err and not any(line in out for line in lines)


def test_the_result_speaks(trained):
    out, _ = trained[1]["1"]
    assert "not yet better than the unigram: train longer" in out and "best: all that can be known" in out and "bigram: by the piece before" in out
    command = out.splitlines()[-1]
    assert "'my runs/1'" in command and out.splitlines()[-2] == "Saved in my runs/1. Ask it more:"
    _, *words = shlex.split(command)
    assert "%" in call(*words, cwd=trained[0])[0]


def test_quiet_prints_the_result_alone(trained):
    out, err = trained[1]["2"]
    assert not err and "masked words, loss" in out and out.endswith("Saved in my runs/2.\n") and "likeliest" not in out


def one_object(*words, cwd=None, code=0):
    "What a command with --json prints: one object, and nothing else."
    out, err = call(*words, "--json", cwd=cwd, code=code)
    assert not re.search(r"^[{}\[]", err, re.M)
    return json.loads(out)


def test_json_is_one_object(trained, tmp_path):
    home, told = trained
    run = home / "my runs/1"
    new = json.loads(told["other"][0])
    assert new["folder"] == "my runs/other" and new["mlm_loss"] > 0
    assert one_object("fill-mask", run, "a [MASK] [MASK]", "--k", 2)["masks"][1]
    assert one_object("next-sentence", run, "It ran.", "It sat.").keys() == {"follows", "share"}
    assert len(one_object("runs", home / "my runs")["runs"]) == 3
    assert one_object("pretrain", *QUICK, "--print-config")["steps"] == 4


def test_one_folder_for_all_runs(trained, tmp_path):
    copied(trained, tmp_path, "7")
    table = tmp_path / "who.csv"
    table.write_text("text,label\n" + "".join(f"{who} lost {n}.,{who}\n" for n in range(20) for who in ("anna", "tom")))
    tuned = one_object("finetune", "runs/7", "--dataset", table, "--epochs", 1, "--length", 12, cwd=tmp_path)
    assert tuned["folder"] == "runs/8" and 0 <= tuned["bert"]["accuracy"] <= 1 and not (tmp_path / "tuned").exists()
    assert sum(one_object("classify", tmp_path / "runs/8", "tom ran.")["labels"].values()) == pytest.approx(1)
    assert [run["model"] for run in one_object("runs", cwd=tmp_path)["runs"]] == ["bert", "classifier"]


@pytest.mark.slow
def test_json_of_the_larger_commands(trained, tmp_path):
    run = trained[0] / "my runs/1"
    assert one_object("parity", run)["same"] is True
    assert one_object("evaluate", run) == json.loads(call("evaluate", run)[0])  # a pipe gets it anyway
    assert one_object("inspect", run, "a [MASK]", "--out", tmp_path / "page")["page"].endswith("index.html")
    call("pretrain", *QUICK, "--model", "gpt", "--out", tmp_path / "gpt")
    assert len(one_object("generate", tmp_path / "gpt", "one", "--tokens", 5, "--samples", 2)["texts"]) == 2
    assert "compare runs of one --model" in refused("compare", run, tmp_path / "gpt", "--out", tmp_path / "a.png")
    call("pretrain", *QUICK, "--objectives", "nsp", "--out", tmp_path / "nsp")
    assert one_object("compare", run, tmp_path / "nsp", "--out", tmp_path / "a.png")["figures"].keys() == {"nsp_accuracy"}
    assert "roles" in one_object("probe", run, "--seeds", 1)
    assert one_object("bench", "--size", "tiny", "--vocab-size", 200, "--batch-size", 2, "--length", 16, "--rounds", 1, "--minutes", 0.1,
                      "--threads", 1)["cases"]


def test_a_table_has_lines_in_a_terminal_and_none_in_a_pipe(trained, capsys, monkeypatch):
    from minibert.cli.main import main
    folder = str(trained[0] / "my runs")
    assert main(["runs", folder]) == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["runs", folder]) == 0
    rich = capsys.readouterr().out
    assert "│" in rich and "│" not in plain and "\x1b" not in plain
    assert set(re.findall(r"[\d.]{4,}", plain)) == set(re.findall(r"[\d.]{4,}", rich))


def copied(trained, tmp_path, *numbers):
    for number in numbers: shutil.copytree(trained[0] / "my runs/1", tmp_path / "runs" / number)
    return tmp_path / "runs"


def test_runs_tells_each_state(trained, tmp_path):
    from filelock import FileLock
    runs = copied(trained, tmp_path, "1", "2", "3", "10")
    (runs / "2/summary.json").unlink()
    (runs / "3/summary.json").write_text("{")
    (runs / "10/run.yaml").write_text("steps: many")
    for name in ("empty", ".4.making"): (runs / name).mkdir()
    before = [path.read_bytes() for path in sorted(runs.rglob("*.*")) if path.is_file()]
    with FileLock(runs / "1/.lock"):
        found = one_object("runs", "runs", cwd=tmp_path)["runs"]
    assert [run["run"] for run in found] == ["runs/1", "runs/2", "runs/3", "runs/10", "runs/empty"]
    assert found[0]["state"] == "being trained now" and found[1]["state"] == "stopped at step 4: go on with --resume runs/2"
    assert [("summary.json" in found[2]["damaged"]), "steps is 'many'" in found[3]["damaged"], "neither" in found[4]["damaged"]] == [True] * 3
    out, err = call("runs", "runs", cwd=tmp_path)
    assert not err and out.count("damaged") >= 3 and "summary.json is no whole JSON object" in out
    assert one_object("runs", "runs", cwd=tmp_path)["runs"][0]["state"] == "finished"
    assert before == [path.read_bytes() for path in sorted(runs.rglob("*.*")) if path.is_file()]
    assert "There is no folder nowhere" in refused("runs", "nowhere", cwd=tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{\"a\": 1}", "7", "\x00"])
@pytest.mark.parametrize("name", ["summary.json", "run.yaml", "checkpoints/00000004/state.json"])
def test_no_damage_stops_the_list(trained, tmp_path, name, text):
    runs = copied(trained, tmp_path, "1")
    (runs / "1" / name).write_text(text)
    assert len(one_object("runs", runs)["runs"]) == 1
    assert "runs" in call("runs", runs)[0]


def test_compare_is_paired_and_signed(trained, tmp_path):
    a, b = (str(trained[0] / "my runs" / k) for k in "12")
    there = one_object("compare", a, b, "--out", tmp_path / "x.png")
    back, _ = call("compare", b, a, "--out", tmp_path / "y.png")
    for row in there["figures"].values():
        low, high = row["interval"]
        assert row["b"] - row["a"] == pytest.approx(row["difference"], abs=1e-9) and low <= row["difference"] <= high
        assert f"{-row['difference']:+.3f}" in back and f"{-high:+.3f} to {-low:+.3f}" in back
    loss = there["figures"]["mlm_loss"]
    own = [json.loads((trained[0] / "my runs" / k / "summary.json").read_text()) for k in "12"]
    assert [told["mlm_loss"] for told in own] == pytest.approx([loss["a"], loss["b"]])  # the questions of `evaluate`
    apart = sum((told["mlm_loss_interval"][1] - told["mlm_loss_interval"][0]) ** 2 for told in own) ** 0.5
    assert loss["interval"][1] - loss["interval"][0] < apart
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG") and "The curves are in" in back


def test_compare_refuses_what_cannot_be_paired(trained, tmp_path):
    one, other = (trained[0] / "my runs" / name for name in ("1", "other"))
    assert "different vocabularies" in refused("compare", one, other, "--out", tmp_path / "a.png")
    assert "There is no folder" in refused("compare", one, one, "--out", tmp_path / "no/a.png")
    assert "not the folder of a run" in refused("compare", one, tmp_path / "none", "--out", tmp_path / "b.png")
    assert not list(tmp_path.iterdir())
