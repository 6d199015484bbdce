"""The command: what it makes, what it says, how it exits. Signals go to processes of their own."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from command import QUICK, asked_again, bits_of, call, quick, refused, start, turned_away


def figures_of(folder):
    "The figures that `evaluate` gets again: all of summary.json but the time of the training."
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["train_seconds"] > 0
    return asked_again(summary)


def until(path, process):
    while not list(path.parent.glob(path.name)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_run_has_everything(run):
    files = {path.name for path in run.iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "run.yaml",
            "metrics.jsonl", "summary.json", "curves.png"} <= files
    summary = json.loads((run / "summary.json").read_text())
    assert {"mlm_loss", "mlm_perplexity", "mlm_accuracy", "nsp_accuracy", "unigram_accuracy", "mlm_accuracy_bound"} <= summary.keys()
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4


@pytest.mark.parametrize("words, code", [(("fill-mask", "{run}", "a [MASK]"), 0), ((), 0),
                                         pytest.param(("fill-mask", "{run}", "no mask"), 2, marks=pytest.mark.slow)])
def test_in_a_process_of_its_own(run, words, code):
    process = start(*(word.format(run=run) for word in words))
    out, err = process.communicate()
    assert process.returncode == code and bool(out) == (code == 0) and "Traceback" not in err


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
    assert json.loads(call("evaluate", run, "--json")[0]) == figures_of(run)


def test_fill_mask_and_next_sentence(run):
    lines = call("fill-mask", run, "[MASK] lost her [MASK] ball.", "--k", 3)[0].splitlines()
    assert len(lines) == 2 and all(line.count("%") == 3 for line in lines)
    assert call("next-sentence", run, "Anna lost her ball.", "She found it.")[0].startswith(("yes:", "no:"))


def test_parity_agrees_and_says_so(run, tmp_path):
    out, _ = call("parity", run, "--out", tmp_path / "results")
    assert "agree" in out and (tmp_path / "results/parity.json").exists() and (tmp_path / "results/parity.png").exists()


def test_parity_exits_with_one_where_they_differ(run, monkeypatch):
    import minibert.hub.compare as compare
    from minibert.cli.main import main
    opened = compare.load_pretrained

    def moved(*args, **kwargs):
        model = opened(*args, **kwargs)
        with torch.no_grad(): model.bert.encoder.layers[1].feed_forward.down.bias[0] += 1e-3
        return model
    monkeypatch.setattr(compare, "load_pretrained", moved)
    assert main(["parity", str(run)]) == 1


def test_config_file_is_weaker_than_words(run, tmp_path):
    (tmp_path / "options.yaml").write_text("steps: 7\nseed: 3\nunits: words\n")
    given = yaml.safe_load(call("pretrain", "--config", tmp_path / "options.yaml", "--seed", 5, "--print-config")[0])
    assert (given["steps"], given["seed"], given["units"]) == (7, 5, "words")
    bert = yaml.safe_load(call("pretrain", "--recipe", "bert", "--lr", "0.01", "--print-config")[0])
    assert (bert["optimizer"], bert["learning_rate"], bert["dropout"]) == ("adamw", 0.01, 0.1)


def test_run_yaml_repeats_a_run_bit_for_bit(run, tmp_path):
    call("pretrain", "--config", run / "run.yaml", "--out", tmp_path / "twin")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert len({*bits_of(run, tmp_path / "twin", name=name)}) == 1
    assert figures_of(run) == figures_of(tmp_path / "twin")


@pytest.mark.slow
def test_minutes_decide_the_steps(tmp_path):
    call("pretrain", *quick("--minutes", 0.03, "--out", tmp_path / "run"))
    options = yaml.safe_load((tmp_path / "run/run.yaml").read_text())
    assert options["steps"] not in (4, 10**9) and options["minutes"] == 0.03


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, id="ctrl-c"),
                                    pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.slow)])
def test_a_signal_saves_and_resume_goes_on(tmp_path, number):
    process = start("pretrain", *quick("--steps", 5000, "--out", tmp_path / "run"))
    until(tmp_path / "run/metrics.jsonl", process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130 and f"saved in {tmp_path / 'run'}; go on with --resume" in err
    checkpoint, = (tmp_path / "run/checkpoints").iterdir()
    assert json.loads((checkpoint / "state.json").read_text())["step"] == int(checkpoint.name)


FROM = (*QUICK[:6], "--start")  # a vocabulary is not asked for: it is the model's
BY_HAND = ("--optimizer", "adamw", "--lr", "2e-3", "--mask-probability", "0.15", "--precision", "float32", "--log-steps", "1")


@pytest.mark.slow
def test_a_second_phase_starts_from_the_weights_of_the_first(run, tmp_path):
    first = tmp_path / "first"
    call("pretrain", *QUICK, "--max-position-embeddings", 48, "--out", first)
    assert json.loads((first / "config.json").read_text())["max_position_embeddings"] == 48
    call("pretrain", "--batch-size", 4, "--start", first, "--length", 48, "--dropout", 0.2, "--steps", 1,
         "--learning-rate", 1e-12, "--muon-learning-rate", 1e-12, "--out", tmp_path / "second")
    from minibert.weights import load_pretrained
    old, new = (load_pretrained(tmp_path / name) for name in ("first", "second"))
    assert new.config.hidden_dropout_prob == new.config.attention_probs_dropout_prob == 0.2
    assert new.config.vocab_size == old.config.vocab_size  # the vocabulary is the first one's
    for name, value in old.state_dict().items(): torch.testing.assert_close(new.state_dict()[name], value, rtol=0, atol=1e-6)
    assert (tmp_path / "second/vocab.txt").read_bytes() == (first / "vocab.txt").read_bytes()
    told = refused("pretrain", *FROM[:4], "--start", run, "--length", 48, "--out", tmp_path / "third")
    assert "48" in told and "reads 32" in told and not (tmp_path / "third").exists()


@pytest.mark.slow
def test_a_second_phase_is_repeated_and_resumed_bit_for_bit(run, tmp_path):
    words = (*FROM, run, "--checkpoint-steps", 2)
    call("pretrain", *words, "--out", tmp_path / "a")
    call("pretrain", "--config", tmp_path / "a/run.yaml", "--out", tmp_path / "b")
    (tmp_path / "b/model.safetensors").unlink()
    for done in (tmp_path / "b/checkpoints").glob("*4"): shutil.rmtree(done)
    call("pretrain", "--resume", tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_watch_writes_what_the_observer_sees(run, tmp_path):
    call("pretrain", *QUICK, "--watch", "--out", tmp_path / "watched")
    lines = [json.loads(line) for line in (tmp_path / "watched/metrics.jsonl").read_text().splitlines()]
    plain = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, seen in zip(plain, lines, strict=True):  # who is watched does the same
        assert all(seen[name] == value for name, value in line.items() if "loss" in name)
    for kind in ("gradient", "update", "weight"): assert all(line[f"{kind}/embeddings"] > 0 for line in lines)
    assert all(0 < line["entropy/layer_1"] < 6 for line in lines)


@pytest.mark.parametrize("model,parts", [("gpt", ["layer_1"]), ("t5", ["layer_1", "decoder_1", "decoder_1_cross"])])
def test_other_kinds_are_watched_too(model, parts, tmp_path):
    call("pretrain", *QUICK, "--model", model, "--watch", "--out", tmp_path / "run")
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    for part in parts:
        assert 0 < line[f"entropy/{part}"] < 6 and (part.endswith("cross") or 0 < line[f"gradient/{part}"] <= 1)


def test_numpy_is_watched_and_shows_what_torch_shows(tmp_path):
    seen = []
    for words in (("--backend", "numpy"), BY_HAND):
        call("pretrain", *quick(*words, "--steps", 3, "--log-steps", 1, "--watch", "--out", tmp_path / words[1]))
        seen.append([json.loads(line) for line in (tmp_path / words[1] / "metrics.jsonl").read_text().splitlines()])
    for mine, theirs in zip(*seen, strict=True):
        assert mine.keys() == theirs.keys() and {"gradient/layer_0", "update/heads", "weight/embeddings", "entropy/layer_1"} <= mine.keys()
        for name in theirs.keys() - {"peak_mib"}: assert mine[name] == pytest.approx(theirs[name], rel=1e-2), name


def test_inspect_writes_one_page(run, tmp_path):
    out, _ = call("inspect", run, "anna lost her [MASK] ball .", "--pair", "she found it .", "--out", tmp_path / "page")
    page = tmp_path / "page" / "index.html"
    assert str(page) in out and "://" not in page.read_text(encoding="utf8")
    assert "page exists" in refused("inspect", run, "anna", "--out", tmp_path / "page")
    assert not list(tmp_path.glob(".*"))


@pytest.fixture(scope="module")
def numpy_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numpy") / "run"
    out, _ = call("pretrain", *quick("--backend", "numpy", "--steps", 6, "--log-steps", 1, "--out", folder))
    assert f"Saved in {folder}" in out and "masked words, accuracy" in out
    return folder


def test_numpy_takes_the_same_steps_as_torch(numpy_run, tmp_path):
    call("pretrain", *quick(*BY_HAND, "--steps", 6, "--out", tmp_path / "run"))
    lines = [[json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
             for folder in (numpy_run, tmp_path / "run")]
    assert [line["step"] for line in lines[0]] == [1, 2, 3, 4, 5, 6]
    for mine, theirs in zip(*lines):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            assert name == "peak_mib" or mine[name] == pytest.approx(value, rel=1e-4), (mine, theirs)
    other = json.loads((tmp_path / "run/summary.json").read_text())
    assert json.loads((numpy_run / "summary.json").read_text())["mlm_loss"] == pytest.approx(other["mlm_loss"], rel=1e-4)


def test_a_run_with_numpy_is_a_run(numpy_run):
    import transformers as hf
    from minibert.weights import load_pretrained
    assert (numpy_run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(call("evaluate", numpy_run, "--json")[0]) == figures_of(numpy_run)
    assert call("fill-mask", numpy_run, "[MASK] lost her ball.")[0].count("%") == 5
    assert call("next-sentence", numpy_run, "Anna lost her ball.", "She found it.")[0].startswith(("yes:", "no:"))
    model, loading = hf.BertForPreTraining.from_pretrained(numpy_run, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    ids = hf.AutoTokenizer.from_pretrained(numpy_run)("Anna lost her ball.", "She found it.", return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(load_pretrained(numpy_run)(**ids).prediction_logits, model(**ids).prediction_logits, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_numpy_repeats_from_run_yaml_and_takes_minutes(numpy_run, tmp_path):
    call("pretrain", "--config", numpy_run / "run.yaml", "--out", tmp_path / "twin")
    assert len({*bits_of(numpy_run, tmp_path / "twin", name="metrics.jsonl")}) == 1
    call("pretrain", *quick("--backend", "numpy", "--minutes", 0.02, "--out", tmp_path / "timed"))
    options = yaml.safe_load((tmp_path / "timed/run.yaml").read_text())
    assert options["steps"] != 4 and options["backend"] == "numpy" and options["precision"] == "float32"


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="sigterm")])
def test_a_signal_with_numpy_saves_the_weights(tmp_path, number):
    process = start("pretrain", *quick("--backend", "numpy", "--steps", 100_000, "--out", tmp_path / "run"))
    until(tmp_path / "run/metrics.jsonl", process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130 and f"the weights are saved in {tmp_path / 'run'}" in err
    assert "%" in call("fill-mask", tmp_path / "run", "a [MASK]")[0]


def test_recipes_and_positions_are_printed_in_full(tmp_path):
    for recipe, positions, masks in (("own", "absolute", 0.2), ("bert", "absolute", 0.15), ("fast", "rotary", 0.3)):
        given = yaml.safe_load(call("pretrain", "--recipe", recipe, "--print-config")[0])
        assert (given["positions"], given["mask_probability"]) == (positions, masks) and "recipe" not in given
        (tmp_path / "again.yaml").write_text(yaml.safe_dump(given))
        assert yaml.safe_load(call("pretrain", "--config", tmp_path / "again.yaml", "--print-config")[0]) == given


@pytest.mark.slow
def test_rotary_positions_end_to_end(tmp_path):
    import transformers as hf
    call("pretrain", *QUICK, "--positions", "rotary", "--out", tmp_path / "run")
    assert hf.RoFormerForMaskedLM.from_pretrained(tmp_path / "run").config.model_type == "roformer"
    assert json.loads(call("evaluate", tmp_path / "run", "--json")[0]) == figures_of(tmp_path / "run")


def test_evaluate_on_another_text(run, tmp_path):
    text = tmp_path / "rooms.txt"
    text.write_text("\n\n".join(f"The room has {n} doors. Its walls are painted grey." for n in range(40)))
    told = json.loads(call("evaluate", run, "--dataset", text, "--json")[0])
    assert told["mlm_tokens"] > 0 and "unigram_loss" in told and "mlm_accuracy_bound" not in told
    own = figures_of(run)
    again = json.loads(call("evaluate", run, "--dataset", "stories", "--json")[0])
    assert again == own
    shutil.copytree(run, tmp_path / "plain", ignore=shutil.ignore_patterns("run.yaml", ".run.yaml", "corpus", "val", "*.jsonl"))
    plain = json.loads(call("evaluate", tmp_path / "plain", "--dataset", "stories", "--json")[0])
    assert "unigram_loss" not in plain and plain["mlm_loss"] == own["mlm_loss"]
    assert "plain" in refused("evaluate", tmp_path / "plain")


@pytest.mark.slow
def test_the_val_text_is_asked_at_checkpoints(run, tmp_path):
    words = quick("--batch-size", 64, "--length", 16, "--steps", 150, "--checkpoint-steps", 75)
    call("pretrain", *words, "--out", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val_loss" in line] == [75, 150]
    assert not any("val_loss" in line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    states = [json.loads(path.read_text()) for path in (tmp_path / "run/checkpoints").glob("*/state.json")]
    assert {state["step"]: state["measured"]["val_loss"] for state in states} == {
        line["step"]: line["val_loss"] for line in lines if "val_loss" in line}


@pytest.mark.slow
def test_tensorboard_on_request(tmp_path):
    if not __import__("importlib.util").util.find_spec("tensorboard"):
        assert "pip install tensorboard" in refused("pretrain", *QUICK, "--tensorboard", "--out", tmp_path / "run")
        return
    call("pretrain", *QUICK, "--tensorboard", "--out", tmp_path / "run")
    assert list((tmp_path / "run/tensorboard").glob("events*"))


@pytest.mark.slow
def test_bench_prints_a_table(tmp_path):
    out, _ = call("bench", "--size", "tiny", "--vocab-size", 200, "--batch-size", 2, "--length", 16, "--rounds", 1,
                  "--minutes", 0.1, "--threads", 1, "--out", tmp_path / "bench.json")
    assert "GEMM" in out and json.loads((tmp_path / "bench.json").read_text())["cases"] and (tmp_path / "bench.png").exists()


def test_finetune_and_classify(run, tmp_path):
    table = tmp_path / "who.csv"
    table.write_text("text,label\n" + "".join(f"{who} lost a ball {n}.,{who}\n" for n in range(40) for who in ("anna", "tom")))
    quick = ("--epochs", 1, "--length", 12, "--batch-size", 8)
    out, _ = call("finetune", run, "--dataset", table, *quick, cwd=tmp_path)
    assert "Saved in runs/1" in out and "bag of words" in out
    answer = call("classify", tmp_path / "runs/1", "tom lost a ball.")[0].split()
    assert set(answer[::2]) == {"anna", "tom"}
    import transformers as hf
    theirs = hf.pipeline("text-classification", str(tmp_path / "runs/1"))("tom lost a ball.")[0]
    assert theirs["label"] == answer[0] and abs(100 * theirs["score"] - float(answer[1][:-1])) < 0.06
    assert "who" in refused("finetune", run, "--dataset", table, "--label-column", "who")
    assert "nothing to learn from" in turned_away("finetune", run)
    assert "exists" in refused("finetune", run, "--dataset", table, "--out", tmp_path / "runs/1")
    told = refused("finetune", "--resume", tmp_path / "runs/1", "--epochs", 9)
    assert "--epochs was 1 and is 9" in told
    assert "--epochs was 1 and is 3" in refused("finetune", "--resume", tmp_path / "runs/1", "--epochs", 3)
    call("finetune", "--resume", tmp_path / "runs/1", *quick)


def test_the_command_starts_light():
    "Help and small commands do not wait for what only some commands need."
    code = "import sys, minibert.cli.main; print([m for m in ('torch', 'numpy', 'rich', 'matplotlib', 'sklearn', 'scipy', 'datasets', 'transformers', 'pandas', 'tensorboard', 'accelerate') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stdout.strip() == "[]", told


@pytest.mark.slow
def test_real_text_from_a_folder_in_the_hubs_layout(shared_data, tmp_path):
    "WikiText-2 itself: documents, vocabulary, ids and a few steps."
    call("pretrain", "--dataset", shared_data / "wikitext", "--name", "wikitext-2-v1", "--steps", 3, "--length", 32,
         "--batch-size", 4, "--out", tmp_path / "run")
    assert len((tmp_path / "run/vocab.txt").read_text().split("\n")) >= 8192
    assert "mlm_accuracy_bound" not in json.loads((tmp_path / "run/summary.json").read_text())


def test_the_time_of_the_training_is_kept(run, numpy_run):
    checkpoint, = run.glob("checkpoints/00000004")
    seconds = json.loads((run / "summary.json").read_text())["train_seconds"]
    assert seconds == json.loads((checkpoint / "state.json").read_text())["seconds"] and 0 < seconds < 600
    assert 0 < json.loads((numpy_run / "summary.json").read_text())["train_seconds"] < 600


def stopped_early(folder):
    "A copy of a run as one leaves it who stops it before its first checkpoint."
    shutil.copytree(folder, twin := folder.parent / f"{folder.name}-stopped")
    for name in ("summary.json", "curves.png"): (twin / name).unlink()
    shutil.rmtree(twin / "checkpoints")
    (twin / "checkpoints").mkdir()
    (twin / "metrics.jsonl").write_text(json.dumps(dict(step=1, loss=9.0)) + "\n{\"step\": 2, \"lo")
    return twin


@pytest.mark.slow
def test_a_run_stopped_before_its_first_checkpoint_begins_again(tmp_path):
    call("pretrain", *QUICK, "--dropout", 0.1, "--seed", 3, "--out", tmp_path / "whole")
    twin = stopped_early(tmp_path / "whole")
    told = refused("pretrain", "--resume", twin)  # a trained model is no beginning
    assert "no checkpoint" in told
    (twin / "model.safetensors").unlink()
    out, _ = call("pretrain", "--resume", twin)
    assert f"Saved in {twin}" in out and figures_of(twin) == figures_of(tmp_path / "whole")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert len({*bits_of(twin, tmp_path / "whole", name=name)}) == 1


@pytest.mark.slow
def test_a_second_phase_stopped_early_begins_with_the_weights_of_the_first(run, tmp_path):
    call("pretrain", *FROM, run, "--out", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "first")
    twin = stopped_early(tmp_path / "whole")
    (twin / "model.safetensors").unlink()
    (twin / "start").mkdir()  # a finished run has none
    for name in ("config.json", "model.safetensors"): shutil.copy(run / name, twin / "start")
    call("pretrain", "--resume", twin)
    assert (twin / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path):
    process = start("pretrain", *QUICK, cwd=tmp_path)
    until(tmp_path / "runs" / "1", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err and not list(tmp_path.iterdir()), err


@pytest.mark.slow
def test_two_at_once_get_two_folders(run, tmp_path):
    table = tmp_path / "who.csv"
    table.write_text("text,label\n" + "".join(f"{who} lost a ball {n}.,{who}\n" for n in range(20) for who in ("anna", "tom")))
    for words, numbers in ((("pretrain", *QUICK), "12"), (("finetune", run, "--dataset", table, "--epochs", 1, "--length", 12), "34")):
        both = [start(*words, cwd=tmp_path) for _ in range(2)]
        told = [process.communicate() for process in both]
        assert [process.returncode for process in both] == [0, 0], told
        assert {out.split("Saved in ")[1].split()[0].rstrip(".") for out, _ in told} == {f"runs/{k}" for k in numbers}
        for k in numbers: assert (tmp_path / "runs" / k / "model.safetensors").exists()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1", "2", "3", "4"]


def test_weights_that_are_no_numbers_give_no_answer(run, tmp_path):
    from safetensors.torch import load_file, save_file
    shutil.copytree(run, tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    for name in ("bert.encoder.layer.1.output.dense.bias", "cls.seq_relationship.bias", "cls.predictions.bias"):
        broken = {key: value.clone() for key, value in weights.items()}
        broken[name][0] = float("nan")
        save_file(broken, tmp_path / "run/model.safetensors", {"format": "pt"})
        asked = {"fill-mask": ["a [MASK]"], "next-sentence": ["It ran.", "It sat."], "evaluate": []}
        if "predictions" in name: del asked["next-sentence"]
        if "relationship" in name: del asked["fill-mask"]
        for command, words in asked.items():
            assert "finite" in refused(command, tmp_path / "run", *words), (command, name)


@pytest.mark.parametrize("command", ["", "pretrain", "evaluate", "fill-mask", "next-sentence", "parity", "finetune", "classify", "answer", "inspect", "probe", "bench", "runs", "compare", "generate", "experiment"])
def test_every_option_has_a_help_text(command):
    out, _ = call(*command.split(), "--help")
    lines = [line for line in (line.strip("│ ") for line in out.splitlines()) if line]
    for line, after in zip(lines, lines[1:] + [""]):
        if line.startswith("--") and line.strip("-"):
            text = " ".join(line.split("  ")[1:]) or after
            text = "" if text.startswith("--") else text
            assert text.split("(default")[0].split("(required")[0].strip(), line
    assert call(*command.split(), "--nonsense", 1, code=2)


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path):
    words = ("--steps", 6, "--batch-size", 8, "--length", 32, "--vocab-size", 1000, "--precision", "float32", "--log-steps", 1)
    call("pretrain", *words, "--out", tmp_path / "one")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617", "-m",
              "minibert.cli.main", "pretrain"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    two = subprocess.run([*launch, *map(str, words), "--out", str(tmp_path / "two")], env=env, capture_output=True, text=True)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("Saved in") == two.stderr.count("Training in") == 1
    losses = [[json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
              for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    again = subprocess.run([*launch, *map(str, words), "--out", str(tmp_path / "two")], env=env, capture_output=True, text=True)
    assert again.returncode != 0 and "exists" in again.stderr
    bad = subprocess.run([*launch, "--dataset", str(tmp_path / "none.txt"), "--out", str(tmp_path / "bad")], env=env,
                         capture_output=True, text=True, timeout=300)
    assert bad.returncode != 0 and "none.txt" in bad.stderr and not (tmp_path / "bad").exists()


@pytest.mark.slow
def test_two_processes_fine_tune_as_one_does(run, tmp_path):
    table = tmp_path / "who.csv"
    table.write_text("text,label\n" + "".join(f"{who} lost a ball {n}.,{who}\n" for n in range(60) for who in ("anna", "tom")))
    words = ("finetune", run, "--dataset", table, "--epochs", 2, "--length", 12, "--batch-size", 9, "--dropout", 0,
             "--precision", "float32", "--learning-rate", 1e-3)
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    def by_two(*words, cwd=tmp_path):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29618", "-m", "minibert.cli.main"]
        return subprocess.run([*launch, *map(str, words)], env=env, cwd=cwd, capture_output=True, text=True, timeout=300)
    def figures(name): return json.loads((tmp_path / name / "figures.json").read_text())
    def losses(name): return [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    call(*words, "--out", tmp_path / "one")
    two = by_two(*words)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("Saved in runs/1") == two.stdout.count("bag of words") == 1
    assert losses("runs/1") == pytest.approx(losses("one"), rel=1e-4) and figures("runs/1") == figures("one")
    shutil.rmtree(max((tmp_path / "runs/1/checkpoints").iterdir()))
    for name in ("figures.json", "model.safetensors"): (tmp_path / "runs/1" / name).unlink()
    again = by_two("finetune", "--resume", tmp_path / "runs/1")
    assert again.returncode == 0 and figures("runs/1") == figures("one"), again.stderr
    frozen = by_two("finetune", run, "--dataset", table, "--length", 12, "--frozen")
    assert frozen.returncode == 0 and frozen.stdout.count("Saved in runs/2") == 1, frozen.stderr
    taken = by_two(*words, "--out", tmp_path / "one")
    assert taken.returncode != 0 and "exists: give a new folder" in taken.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1", "2"]


@pytest.mark.parametrize("objective, other", [("mlm", "nsp"), pytest.param("nsp", "mlm", marks=pytest.mark.slow)])
def test_one_objective_alone(objective, other, tmp_path):
    "It is learned, measured and shown, and nothing is said of the other one."
    out, _ = call("pretrain", *QUICK, "--objectives", objective, "--watch", "--checkpoint-steps", 4, "--out", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert all(f"{objective}_loss" in line and f"{other}_loss" not in line for line in lines)
    assert f"{objective}_accuracy" in summary and not [name for name in summary if name.startswith(other)]
    assert ("masked words" in out, "next sentence" in out, "likeliest" in out, "follow" in out) == (2 * (objective == "mlm", objective == "nsp"))
    assert ("fill-mask" if objective == "mlm" else "next-sentence") in out.splitlines()[-1]
    told = json.loads(call("evaluate", tmp_path / "run", "--json")[0])
    assert told == asked_again(summary)




# what a run costs, and one batch by heart

def test_a_run_says_what_a_step_needs_and_how_often_the_text_was_read(tmp_path):
    _, err = call("pretrain", *QUICK, "--log-steps", 2, "--out", tmp_path / "run")
    assert "MiB: weights" in err and "epochs; " in err
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    read = [line["tokens"] for line in lines]
    assert sorted(read) == read and 4 * 4 * 16 < read[-1] <= 4 * 4 * 32 and 50 < lines[-1]["peak_mib"] < 10**5
    assert json.loads((tmp_path / "run/summary.json").read_text())["cost"] == {name: lines[-1][name] for name in ("tokens", "epochs", "peak_mib")}


@pytest.mark.parametrize("words", [(), ("--model", "gpt"), ("--model", "t5"), ("--backend", "numpy")], ids=["bert", "gpt", "t5", "numpy"])
def test_every_kind_learns_one_batch_of_the_users_text_and_says_yes(words, tmp_path):
    from minibert.data.stories import stories
    (tmp_path / "mine.txt").write_text("\n\n".join("\n".join(story.sentences) for story in stories(60)))
    words = "--size", "1x32x2", "--length", "24", "--dataset", "mine.txt", *words
    assert call("pretrain", "--overfit-one-batch", *words, cwd=tmp_path)[0].startswith("Yes: ")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_one_batch_that_is_not_learned_ends_with_no_and_1(tmp_path):
    words = "pretrain", "--overfit-one-batch", "--size", "1x32x2", "--lr", "1e-9", "--muon-learning-rate", "1e-9"
    assert call(*words, cwd=tmp_path, code=1)[0].startswith("No: ")
