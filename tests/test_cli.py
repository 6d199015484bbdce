"""The command in processes of its own: what it makes, what it says, how it exits."""
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

COMMAND = (sys.executable, "-c", "import sys; from minibert.cli import main; sys.exit(main())")
QUICK = ("--steps", "4", "--batch-size", "4", "--length", "32", "--vocab-size", "1000")


def start(*words, cwd=None):
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen([*COMMAND, *map(str, words)], cwd=cwd, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def call(*words, cwd=None, code=0):
    process = start(*words, cwd=cwd)
    out, err = process.communicate()
    assert process.returncode == code, (words, process.returncode, out, err)
    return out, err


def refused(*words, cwd=None):
    "The one sentence with which the command refuses: exit code 2, nothing printed, no traceback."
    out, err = call(*words, cwd=cwd, code=2)
    assert not out and err.startswith("minibert: ") and err.count("\n") == 1, err
    return err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    out, _ = call("pretrain", *QUICK, cwd=folder)
    assert "Saved in runs/1" in out and "masked words, accuracy" in out and "next sentence" in out
    return folder / "runs" / "1"


def test_a_run_has_everything(run):
    files = {path.name for path in run.iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "run.yaml",
            "metrics.jsonl", "summary.json", "curves.png"} <= files
    summary = json.loads((run / "summary.json").read_text())
    assert {"mlm_loss", "mlm_perplexity", "mlm_accuracy", "nsp_accuracy", "unigram_accuracy", "mlm_accuracy_bound"} <= summary.keys()
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4


def test_the_second_run_gets_the_next_number(run):
    out, _ = call("pretrain", *QUICK, cwd=run.parent.parent)
    assert "Saved in runs/2" in out


def test_transformers_opens_a_run(run):
    import transformers as hf
    model, loading = hf.BertForPreTraining.from_pretrained(run, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    tokenizer = hf.AutoTokenizer.from_pretrained(run)
    ids = tokenizer("Anna lost her ball.", "She found it.", return_tensors="pt")
    from minibert.weights import load_pretrained
    ours = load_pretrained(run)
    with torch.no_grad():
        torch.testing.assert_close(ours(**ids).prediction_logits, model(**ids).prediction_logits, atol=1e-5, rtol=0)


def test_evaluate_gets_the_same_figures(run):
    assert json.loads(call("evaluate", run)[0]) == json.loads((run / "summary.json").read_text())


def test_fill_mask_and_next_sentence(run):
    lines = call("fill-mask", run, "[MASK] lost her [MASK] ball.", "--k", 3)[0].splitlines()
    assert len(lines) == 2 and all(line.count("%") == 3 for line in lines)
    assert call("next-sentence", run, "Anna lost her ball.", "She found it.")[0].startswith(("yes:", "no:"))


def test_parity_agrees_and_says_so(run, tmp_path):
    out, _ = call("parity", run, "--out", tmp_path / "results")
    assert "agree" in out and (tmp_path / "results/parity.json").exists() and (tmp_path / "results/parity.png").exists()


def test_parity_exits_with_one_where_they_differ(run, monkeypatch):
    import minibert.weights as weights
    from minibert.cli import main
    opened = weights.load_pretrained

    def moved(*args, **kwargs):
        model = opened(*args, **kwargs)
        with torch.no_grad(): model.bert.encoder.layers[1].feed_forward.down.bias[0] += 1e-3
        return model
    monkeypatch.setattr(weights, "load_pretrained", moved)
    assert main(["parity", str(run)]) == 1


def test_config_file_is_weaker_than_words(run, tmp_path):
    (tmp_path / "options.yaml").write_text("steps: 7\nseed: 3\nwhole_words: true\n")
    given = yaml.safe_load(call("pretrain", "--config", tmp_path / "options.yaml", "--seed", 5, "--print-config")[0])
    assert (given["steps"], given["seed"], given["whole_words"]) == (7, 5, True)
    bert = yaml.safe_load(call("pretrain", "--recipe", "bert", "--lr", "0.01", "--print-config")[0])
    assert (bert["optimizer"], bert["learning_rate"], bert["dropout"]) == ("adamw", 0.01, 0.1)


def test_run_yaml_repeats_a_run_bit_for_bit(run, tmp_path):
    call("pretrain", "--config", run / "run.yaml", "--out", tmp_path / "twin")
    for name in ("model.safetensors", "metrics.jsonl", "summary.json"):
        assert (run / name).read_bytes() == (tmp_path / "twin" / name).read_bytes()


def test_minutes_decide_the_steps(tmp_path):
    call("pretrain", *QUICK, "--minutes", 0.03, "--out", tmp_path / "run")
    options = yaml.safe_load((tmp_path / "run/run.yaml").read_text())
    assert options["steps"] != 4 and options["minutes"] is None


def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    process = start("pretrain", *QUICK, "--steps", 2000, "--out", tmp_path / "run")
    while not (tmp_path / "run/metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and f"saved in {tmp_path / 'run'}; go on with --resume" in err
    checkpoint, = (tmp_path / "run/checkpoints").iterdir()
    assert json.loads((checkpoint / "state.json").read_text())["step"] == int(checkpoint.name)


def test_real_text_from_a_folder_in_the_hubs_layout(shared_data, tmp_path):
    "WikiText-2 itself: documents, vocabulary, ids and a few steps."
    call("pretrain", "--dataset", shared_data / "wikitext", "--name", "wikitext-2-v1", "--steps", 3, "--length", 32,
         "--batch-size", 4, "--out", tmp_path / "run")
    assert len((tmp_path / "run/vocab.txt").read_text().split("\n")) >= 8192
    assert "mlm_accuracy_bound" not in json.loads((tmp_path / "run/summary.json").read_text())


def test_mistakes_get_a_sentence_and_leave_nothing(run, tmp_path):
    def file(name, data):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name
    good = b"\n\n".join(b"It is document %d. It goes on." % i for i in range(9))
    texts = {
        "empty.txt": (b"", "is empty"),
        "latin.txt": ("Käse ist gut. Wein auch.\n".encode("latin-1"), "not UTF-8"),
        "one.txt": (b"Only one document. It has two sentences.\n", "needs four documents"),
        "short.txt": (b"\n\n".join(b"Number %d." % i for i in range(99)), "two sentences"),
    }
    asked = [(("pretrain", "--dataset", file(name, data), "--out", "new"), said) for name, (data, said) in texts.items()]
    asked += [
        (("pretrain", "--dataset", "nobody/nothing", "--out", "new"), "could not be loaded"),
        (("pretrain", "--dataset", file("good.txt", good), "--vocab-size", 9, "--out", "new"), "no room"),
        (("pretrain", "--dataset", tmp_path / "good.txt", "--length", 3, "--out", "new"), "5 places"),
        (("pretrain", "--out", run), "exists"),
        (("pretrain", "--resume", tmp_path), "not the folder of a run"),
        (("pretrain", "--config", tmp_path / "good.txt"), "options"),
        (("pretrain", "--minutes", 0), "minutes is 0"),
        (("evaluate", tmp_path / "none"), "not the folder of a run"),
        (("fill-mask", tmp_path / "none", "a [MASK]"), "none"),
        (("fill-mask", run, "no mask"), "[MASK]"),
        (("fill-mask", run, "[MASK] " * 40), "shorten"),
        (("next-sentence", run, "a " * 40, "b"), "shorten"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for words, said in asked:
        assert said in refused(*words, cwd=tmp_path), words
    assert sorted(tmp_path.rglob("*")) == before


def test_impossible_options_are_refused_before_anything_is_read():
    _, err = call("pretrain", "--steps", -1, code=2)
    assert "steps is -1: give a whole number of 1 or more" in err


@pytest.mark.parametrize("name,damage", [
    ("model.safetensors", lambda data: data[: len(data) // 2]),
    ("config.json", lambda data: data[:20]),
    ("vocab.txt", lambda data: b""),
])
def test_a_damaged_run_is_named(run, tmp_path, name, damage):
    import shutil
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(damage(path.read_bytes()))
    if name == "vocab.txt": (tmp_path / "run/tokenizer.json").unlink()
    said = "vocabulary" if name == "vocab.txt" else name
    assert said in refused("fill-mask", tmp_path / "run", "a [MASK]")


@pytest.mark.parametrize("command", ["", "pretrain", "evaluate", "fill-mask", "next-sentence", "parity"])
def test_every_option_has_a_help_text(command):
    out, _ = call(*command.split(), "--help")
    lines = [line.strip("│ ") for line in out.splitlines()]
    for line, after in zip(lines, lines[1:] + [""]):
        if line.startswith("--"):
            text = " ".join(line.split("  ")[1:]) or after
            assert text.split("(default")[0].split("(required")[0].strip(), line
    assert call(*command.split(), "--nonsense", 1, code=2)
