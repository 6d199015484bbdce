"""Causes that a fourth round of tries has found in runs, checkpoints and their advice: each refused in a sentence, or mended."""
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command import QUICK, call, leaves_nothing, quick

from minibert.train.checkpoints import (
    check_begins, list_checkpoints, read_about, save_checkpoint, seconds_trained)
from minibert.core.errors import way_on

TEXT = "\n\n".join(f"Anna ran to the house {n}. She sat down there." for n in range(38))


@pytest.fixture(scope="module")
def begun(run, tmp_path_factory):
    "A run that was stopped before its last files."
    twin = shutil.copytree(run, tmp_path_factory.mktemp("begun") / "a")
    for name in ("summary.json", "model.safetensors"): (twin / name).unlink()
    return twin


def twin_of(folder, home): return shutil.copytree(folder, home / "a")


@pytest.mark.parametrize("model,said", [("gpt", "26 tokens"), ("t5", "tokens of text"), ("bert", "two documents")])
def test_a_held_out_part_that_is_too_small_is_refused_before_the_folder(tmp_path, model, said):
    text = TEXT if model != "bert" else "\n\n".join(part if n > 2 else part[:-21] for n, part in enumerate(TEXT.split("\n\n")))
    (tmp_path / "x.txt").write_text(text)
    told = leaves_nothing("pretrain", "--model", model, "--dataset", "x.txt", *QUICK, "--out", "q", cwd=tmp_path)
    assert "The held-out part of x.txt is too small: " in told and said in told


def padded(folder, home, rows):
    "The checkpoint of a run with so many rows more, or fewer, in its table of words."
    import transformers as hf
    model = hf.BertForPreTraining.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size + rows)
    model.save_pretrained(home / "n")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(folder / name, home / "n")


@pytest.mark.slow
def test_a_model_with_more_rows_than_pieces_is_trained_and_measured(run, tmp_path):
    padded(run, tmp_path, 4)
    (tmp_path / "x.txt").write_text(TEXT)
    words = [word for word in QUICK if word not in ("--vocab-size", "1000")]
    call("pretrain", "--start", "n", *words, "--out", "new", cwd=tmp_path)
    assert "mlm_loss" in json.loads(call("evaluate", "n", "--dataset", "x.txt", cwd=tmp_path)[0])


def test_a_model_with_fewer_rows_than_pieces_is_refused(run, tmp_path):
    padded(run, tmp_path, -4)
    words = [word for word in QUICK if word not in ("--vocab-size", "1000")]
    assert "give a model with its own tokenizer" in leaves_nothing("pretrain", "--start", "n", *words, "--out", "new", cwd=tmp_path)


def gone(a): shutil.rmtree(a / "checkpoints")
def link(a): gone(a); (a / "checkpoints").symlink_to("nowhere")
def emptied(a):
    for path in (a / "checkpoints").iterdir(): shutil.rmtree(path)
    (a / "metrics.jsonl").write_text('{"step": 9}\n')


@pytest.mark.parametrize("take", [gone, link, emptied])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(begun, tmp_path, take):
    take(twin_of(begun, tmp_path))
    told = leaves_nothing("pretrain", "--resume", "a", cwd=tmp_path)
    assert "a/checkpoints holds no checkpoint, and a has trained: put what was there back, or begin a new run with --config a/run.yaml" in told


def test_checkpoints_that_nobody_may_read_are_named(begun, tmp_path, monkeypatch):
    twin_of(begun, tmp_path)
    def refuse(path): raise PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr("minibert.core.files.os.listdir", refuse)
    assert "a/checkpoints could not be read or written (Permission denied)" in leaves_nothing("pretrain", "--resume", "a", cwd=tmp_path)


def test_a_start_that_is_gone_or_another_costs_no_metrics(begun, tmp_path):
    from minibert.runs.runs import begin_again, open_run
    twin = twin_of(begun, tmp_path)
    emptied(twin)
    (twin / "metrics.jsonl").write_text('{"step": 1}\n')
    run = open_run(twin)
    run = replace(run, options=replace(run.options, start="elsewhere"))
    with pytest.raises(ValueError, match="a/start is gone or is of another model"): begin_again(run)
    assert (twin / "metrics.jsonl").exists()


def test_a_dated_folder_is_no_checkpoint(begun, tmp_path):
    twin = twin_of(begun, tmp_path)
    before, seconds = list_checkpoints(twin), seconds_trained(twin)
    (twin / "checkpoints/20260101").mkdir()
    assert list_checkpoints(twin) == before
    (twin / "checkpoints/20260101").rmdir()
    shutil.copytree(before[-1], twin / "checkpoints/20260101")
    assert seconds_trained(twin) == seconds and read_about(twin)[0] == before[-1]


def test_the_newest_stays_beside_a_dated_folder(begun, tmp_path):
    from minibert.weights import load_pretrained
    twin = twin_of(begun, tmp_path)
    last = list_checkpoints(twin)[-1]
    shutil.copytree(last, twin / "checkpoints/20260101")
    save_checkpoint(twin, 5, load_pretrained(last), [], {}, 1)
    assert [path.name for path in list_checkpoints(twin)] == ["00000005", "20260101"]


def test_of_damaged_checkpoints_alone_no_other_is_promised(begun, tmp_path):
    twin = twin_of(begun, tmp_path)
    (list_checkpoints(twin)[-1] / "optimizer.safetensors").unlink()
    told = leaves_nothing("pretrain", "--resume", "a", cwd=tmp_path)
    assert "no whole checkpoint" in told and "one before" not in told and "Errno" not in told


def test_each_command_names_the_other_for_its_run(begun, tmp_path):
    twin_of(begun, tmp_path)
    assert "a is a run of minibert pretrain, not of minibert finetune: go on with minibert pretrain --resume a." in leaves_nothing("finetune", "--resume", "a", cwd=tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/options.json").write_text("{}")
    assert "b is a run of minibert finetune, not of minibert pretrain: go on with minibert finetune --resume b." in leaves_nothing("pretrain", "--resume", "b", cwd=tmp_path)


@pytest.mark.slow
def test_a_fine_tuning_goes_on_from_another_folder_and_after_a_move(run, tmp_path):
    shutil.copytree(run, tmp_path / "bert")
    rows = [f"Anna ran to the {'red' if n % 2 else 'blue'} house {n}.,{'ab'[n % 2]}" for n in range(60)]
    (tmp_path / "who.csv").write_text("\n".join(["text,label", *rows]))
    call("finetune", "bert", "--dataset", "who.csv", "--epochs", 1, "--out", "out", cwd=tmp_path)
    kept = json.loads((tmp_path / "out/options.json").read_text())
    assert kept["run"] == str(tmp_path / "bert") and kept["dataset"] == str(tmp_path / "who.csv")
    (tmp_path / "other").mkdir()
    call("finetune", "--resume", "../out", cwd=tmp_path / "other")
    call("finetune", "bert", "--resume", "out", "--dataset", "who.csv", cwd=tmp_path)
    (tmp_path / "bert").rename(tmp_path / "moved")
    call("finetune", "moved", "--resume", "out", cwd=tmp_path)
    assert "of moved" not in call("runs", ".", cwd=tmp_path)[0] and "of bert" in call("runs", ".", cwd=tmp_path)[0]


@pytest.mark.parametrize("part", ["corpus", "val"])
def test_a_text_of_another_run_is_refused(run, tmp_path, part):
    twin = twin_of(run, tmp_path)
    shutil.rmtree(twin / part)
    shutil.copytree(run / ("val" if part == "corpus" else "corpus"), twin / part)
    for words in (("evaluate", "a"), ("pretrain", "--resume", "a")):
        assert f"a/{part}/corpus.json is not the file that was written" in leaves_nothing(*words, cwd=tmp_path)


def test_advice_can_be_copied_into_a_shell(tmp_path):
    from minibert.core.errors import going_on
    from minibert.hub.files import find_checkpoint
    from minibert.runs.overview import _state
    from minibert.train.state import TrainState, stopped
    assert way_on("my runs/a", "pretrain") == "go on with minibert pretrain --resume 'my runs/a'"
    (folder := tmp_path / "my runs").mkdir()
    (folder / "run.yaml").touch()
    state = TrainState(None, [], None, replace_config(), folder, {})
    with pytest.raises(FileNotFoundError, match="--resume '.*my runs'"): find_checkpoint(folder)
    with pytest.raises(RuntimeError, match="--resume '.*my runs'"), going_on("pretrain", folder): raise MemoryError
    assert f"--resume '{folder}'" in str(stopped(state)) and f"--resume '{folder}'" in _state(folder, False, 1, False)


def replace_config():
    from minibert.train.recipe import TrainingConfig
    return TrainingConfig()


def test_a_damaged_corpus_tells_to_copy_it_again(run, tmp_path):
    twin = twin_of(run, tmp_path)
    (twin / "val/ids.npy").write_bytes(b"")
    assert "copy it again" in leaves_nothing("evaluate", "a", cwd=tmp_path)
    (twin / "val/corpus.json").unlink()
    assert "copy it again" in leaves_nothing("evaluate", "a", cwd=tmp_path)


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    "The folder of a tiny GPT without a run around it."
    home = tmp_path_factory.mktemp("writer")
    call("pretrain", *quick("--model", "gpt", "--steps", 1), "--out", "gpt", cwd=home)
    for name in ("run.yaml", ".run.yaml"): (home / "gpt" / name).unlink()
    return home


def test_a_short_text_is_measured_without_an_interval_or_refused_as_one(writer):
    (writer / "x.txt").write_text(TEXT.replace("there.", "there and sang to him."))
    found = json.loads(call("evaluate", "gpt", "--dataset", "x.txt", cwd=writer)[0])
    assert found["clm_tokens"] == 31 and "clm_loss_interval" not in found and "clm_accuracy_interval" in found
    (writer / "y.txt").write_text(TEXT)
    told = leaves_nothing("evaluate", "gpt", "--dataset", "y.txt", cwd=writer)
    assert "y.txt is too short: the text has" in told and told.endswith(": give more text.")


def test_pairs_for_a_model_of_single_texts_are_refused():
    import torch

    from minibert.config import BertConfig
    from minibert.nn.inputs import checked
    config, ids = BertConfig.preset("tiny", vocab_size=9, type_vocab_size=1), torch.ones(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="reads one text at a time.*give a model for pairs"), checked(config, ids, ids): raise IndexError


def test_a_t5_begins_with_its_padding_where_its_config_names_no_start():
    from minibert.t5 import T5Config
    assert T5Config.from_dict(dict(vocab_size=99, pad_token_id=7)).decoder_start_token_id == 7


@pytest.mark.slow
def test_a_plain_t5_of_transformers_is_compared(tmp_path):
    import transformers as hf
    call("pretrain", *quick("--model", "t5", "--steps", 1), "--out", "own", cwd=tmp_path)
    from minibert.text.foreign import open_tokenizer
    sizes = dict(vocab_size=open_tokenizer(tmp_path / "own").vocab_size, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    hf.T5ForConditionalGeneration(hf.T5Config(**sizes)).save_pretrained(tmp_path / "plain")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(tmp_path / "own" / name, tmp_path / "plain")
    assert "minibert and transformers agree" in call("parity", "plain", cwd=tmp_path)[0]


def test_compare_says_first_that_its_picture_cannot_be_written(run, tmp_path, monkeypatch):
    twin_of(run, tmp_path)
    monkeypatch.setattr("minibert.runs.overview.os.access", lambda *_: False)
    monkeypatch.setattr("minibert.runs.runs.open_run", lambda *_: pytest.fail("measured before the check"))
    assert "nobody lets us write into" in leaves_nothing("compare", "a", "a", cwd=tmp_path)


def test_a_run_that_was_never_saved_may_begin_again(tmp_path):
    check_begins(tmp_path, 4, "run.yaml")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    check_begins(tmp_path, 4, "run.yaml")
    assert os.listdir(tmp_path / "checkpoints") == [] and Path(tmp_path / "metrics.jsonl").exists()
