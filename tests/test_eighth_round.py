"""What the seventh round of tries had left, and what the eighth and the ninth have found: advice that can be followed, and nothing wrong in silence."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from command import call, leaves_nothing, quick, refused, start


def write_rows(path, count=40):
    path.write_text("text,label\n" + "".join(f"{'a good film' if k % 2 else 'a bad film'} {k},{k % 2}\n" for k in range(count)))


def test_true_and_false_are_the_same_classes_in_every_table(tmp_path):
    from minibert.data.labels import read_examples
    rows = [dict(text=f"number {k}", label=bool(k % 2)) for k in range(8)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    one, other = (read_examples(tmp_path / name) for name in ("a.jsonl", "a.csv"))
    assert one.names == other.names == ("False", "True")
    assert one.labels.tolist() == other.labels.tolist() == [0, 1] * 4


@pytest.mark.parametrize("words,said", [
    ("pretrain --dropout 0.999", "dropout is 0.999: give a share from 0 to 0.9"),
    ("finetune base --dataset t.csv --dropout 0.95", "dropout is 0.95"),
    ("pretrain --config none.yaml", "minibert: There is no file none.yaml: check its path."),
    ("finetune --config none.yaml", "minibert: There is no file none.yaml: check its path."),
])
def test_a_sentence_says_what_is_wrong(tmp_path, words, said):
    write_rows(tmp_path / "t.csv")
    assert said in leaves_nothing(*words.split(), cwd=tmp_path)


def test_classifiers_are_called_so(run, tmp_path):
    write_rows(tmp_path / "t.csv")
    shutil.copytree(run, tmp_path / "base")
    call("finetune", "base", "--dataset", "t.csv", "--out", "c", "--frozen", cwd=tmp_path)
    assert "c is a classifier: give one that minibert pretrain made" in refused("compare", "c", "c", cwd=tmp_path)
    call("finetune", "base", "--dataset", "t.csv", "--epochs", 1, "--out", "d", cwd=tmp_path)
    (tmp_path / "base").rename(tmp_path / "moved")
    said = refused("finetune", "--resume", "d", cwd=tmp_path)
    assert "base is gone" in said and "where it is now, by RUN" in said
    (tmp_path / "t.csv").rename(tmp_path / "u.csv")
    assert "t.csv is gone" in refused("finetune", "moved", "--resume", "d", cwd=tmp_path)
    call("finetune", "moved", "--resume", "d", "--dataset", "u.csv", cwd=tmp_path)


def test_a_run_that_diverged_is_not_to_go_on(tmp_path):
    out, err = call("pretrain", *quick("--steps", 3, "--learning-rate", 1e30, "--out", "runs/x"), cwd=tmp_path, code=2)
    assert "batch-of-step" in err
    assert "diverged: begin anew with a lower learning rate" in call("runs", cwd=tmp_path)[0]


def test_a_fine_tuning_that_diverged_says_so():
    from minibert.runs.finetune import _warn_of_loss
    with pytest.warns(UserWarning, match="best loss on the part set aside is 100, .* costs 0.69"):
        _warn_of_loss([dict(loss=0.6), dict(val_loss=4590.6), dict(val_loss=100.2)], 2, 50.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_loss([dict(val_loss=4590.6), dict(val_loss=0.69)], 2, 2e-5)
        _warn_of_loss([], 2, 2e-5)


def test_runs_of_one_example_are_named(gpts):
    assert "cannot be compared on their held-out text" in refused("compare", "a", "b", cwd=gpts)


@pytest.fixture(scope="module")
def gpts(tmp_path_factory):
    home = tmp_path_factory.mktemp("gpts")
    (home / "text.txt").write_text("\n\n".join(f"The cat {word} home." for word in ("went", "ran", "came", "is", "was", "sat")))
    for name in "ab":
        call("pretrain", "--model", "gpt", "--dataset", "text.txt", *quick("--length", 8, "--out", name), cwd=home)
    return home


def test_texts_named_after_splits_are_warned_of(tmp_path):
    from minibert.data.documents import load_documents
    for name in ("train", "validation"): (tmp_path / f"{name}.txt").write_text("One.\n\nTwo.\n\nThree.\n\nFour.\n")
    with pytest.warns(UserWarning, match="holds train, validation as texts, which are read as one"): load_documents(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_documents(tmp_path / "train.txt")


def described(folder, more="", start="---", rows="a good film,1\na bad film,0\n" * 10, **files):
    folder.mkdir()
    for name, text in files.items() or {"a": "text,label\n" + rows}.items(): (folder / f"{name}.csv").write_text(text)
    (folder / "README.md").write_text(f"{start}\nconfigs:\n- config_name: default\n  data_files: a.csv\n{more}---\n", encoding="utf-8")
    return folder


FEATURES = "dataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': neg\n          '1': pos\n"


@pytest.mark.parametrize("more,start,said", [
    ("  nrows: 4\n", "---", "says nrows: 4, and nothing here reads that"),
    ("  names: [text, label]\n  header: null\n", "---", "and nothing here reads that"),
    ("  sep: ';;'\n", "---", "separates columns by ';;': give one character"),
    ("", "\ufeff---", "its first line is not --- alone"),
    ("", "--- ", "its first line is not --- alone"),
    (FEATURES.replace("label\n", "mood\n"), "---", "names no column mood"),
])
def test_what_a_description_says_is_read_or_refused(tmp_path, more, start, said):
    from minibert.data.tables import load_table
    with pytest.raises(ValueError, match=said): load_table(described(tmp_path / "d", more, start))


def test_a_described_csv_is_read_as_it_stands(tmp_path):
    from minibert.data.labels import read_examples
    found = read_examples(described(tmp_path / "d", FEATURES, rows="None,1\nNA,0\nnull,1\na film,0\n" * 4))
    assert found.names == ("neg", "pos") and found.texts[:3] == ("None", "NA", "null") and found.labels.tolist() == [1, 0, 1, 0] * 4
    words = read_examples(described(tmp_path / "e", FEATURES, rows="a good film,pos\na bad film,neg\n" * 4))
    assert words.names == ("neg", "pos") and words.labels.tolist() == [1, 0] * 4


def test_shards_with_other_orders_of_labels_are_refused(tmp_path):
    import datasets
    from minibert.data.labels import read_examples
    rows = dict(text=["one", "two"] * 4, label=[0, 1] * 4)
    for kind in ("arrow", "parquet"): (tmp_path / kind).mkdir()
    for k, names in enumerate((["neg", "pos"], ["pos", "neg"])):
        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        table = datasets.Dataset.from_dict(rows, features=features)
        table.save_to_disk(tmp_path / f"saved{k}")
        shutil.copy(next((tmp_path / f"saved{k}").glob("*.arrow")), tmp_path / f"arrow/train-{k}.arrow")
        table.to_parquet(tmp_path / f"parquet/{k}.parquet")
    assert read_examples(tmp_path / "saved0").names == ("neg", "pos")  # as `save_to_disk` left it
    (tmp_path / "parquet/README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: '*.parquet'\n---\n")
    for kind in ("arrow", "parquet"):
        with pytest.raises(ValueError, match="the order of their labels, in different ways"): read_examples(tmp_path / kind)


@pytest.mark.parametrize("value,said", [(2**63 + 1, "cannot tell it from its neighbours"), ([1], "classes are words or whole numbers")])
def test_labels_that_lose_digits_are_refused(tmp_path, value, said):
    from minibert.data.labels import read_examples
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(dict(text=f"number {k}", label=value if k % 2 else 2**64 - 1 if value == 2**63 + 1 else [0])) + "\n" for k in range(8)))
    with pytest.raises(ValueError, match=said): read_examples(tmp_path / "a.jsonl")


def test_a_single_line_between_equals_signs_is_no_title():
    from minibert.data.documents import group_rows
    rows = [row for k in range(30) for row in (f"Line {k}.", "")]
    assert len(list(group_rows(rows, whole=False))) == 30
    assert len(list(group_rows([*rows[:20], " = 12 = ", "", *rows[20:]], whole=False))) == 31
    titled = [row for k in range(30) for row in ("", f" = Title {k} = ", "", f"Line {k}.")]
    assert len(list(group_rows(titled, whole=False))) == 30


def test_advice_for_a_single_table_can_be_followed(tmp_path, run):
    write_rows(tmp_path / "t.csv")
    shutil.copytree(run, tmp_path / "base")
    said = refused("finetune", "base", "--dataset", "t.csv", "--validation-split", "test", cwd=tmp_path)
    assert "t.csv has no split test: leave --validation-split out" in said
    (tmp_path / "s.csv").write_text("text,label\n" + "".join(f"film {k},{k % 3 - 1}\n" for k in range(60)))
    assert "--label-names, where -1 is one" in refused("finetune", "base", "--dataset", "s.csv", cwd=tmp_path)
    (tmp_path / "e.csv").write_text("sep=,\ntext,label\na film,1\n")
    assert "which Excel alone reads: take it out" in refused("finetune", "base", "--dataset", "e.csv", cwd=tmp_path)


def edited(run, folder, change):
    "A copy of a run with other weights or sizes, and without its sums."
    from safetensors.torch import load_file, save_file
    shutil.copytree(run, folder)
    for name in ("SHA256SUMS", "run.yaml", ".run.yaml"): (folder / name).unlink(missing_ok=True)
    state, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    change(state, config)
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors", metadata=dict(format="pt"))
    (folder / "config.json").write_text(json.dumps(config))


def test_a_start_from_half_precision_trains_in_float32(run, tmp_path):
    import torch
    from safetensors.torch import load_file
    def halve(state, config): state.update({name: value.bfloat16() for name, value in state.items()})
    edited(run, tmp_path / "half", halve)
    call("pretrain", "--start", "half", "--steps", 2, "--batch-size", 4, "--length", 32, "--out", "new", "--precision", "float32", cwd=tmp_path)
    assert {value.dtype for value in load_file(tmp_path / "new/model.safetensors").values()} == {torch.float32}


def test_what_cannot_go_together_is_refused_before_a_folder_is_made(run, tmp_path):
    import torch
    (tmp_path / "pairs.csv").write_text("text,more,label\n" + "".join(f"a film {k},of {k},{k % 2}\n" for k in range(40)))
    def one_type(state, config):
        for name in state: state[name] = state[name][:1] if name.endswith("token_type_embeddings.weight") else state[name]
        config["type_vocab_size"] = 1
    edited(run, tmp_path / "one", one_type)
    for words in ((), ("--frozen",)):
        said = refused("finetune", "one", "--dataset", "pairs.csv", "--text-pair-column", "more", "--out", "new", *words, cwd=tmp_path)
        assert "reads one text at a time" in said and not (tmp_path / "new").exists()
    def no_number(state, config): state.update({name: torch.full_like(value, float("nan")) for name, value in state.items() if value.is_floating_point()})
    edited(run, tmp_path / "nan", no_number)
    said = refused("finetune", "nan", "--dataset", "pairs.csv", "--text-column", "more", "--out", "n", cwd=tmp_path)
    assert "holds NaN or infinite values" in said and not (tmp_path / "n").exists()
    assert "holds NaN or infinite values" in refused("pretrain", "--start", "nan", *quick("--length", 32)[:-4], "--out", "n", cwd=tmp_path)
    assert not (tmp_path / "n").exists()


def test_a_classifier_is_asked_as_it_was_measured(run, tmp_path):
    def nothing(state, config): pass
    edited(run, tmp_path / "short", nothing)
    path = tmp_path / "short/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(model_max_length=10)))
    write_rows(tmp_path / "t.csv")
    assert "reads 10 tokens at most" in refused("finetune", "short", "--dataset", "t.csv", "--length", 12, "--out", "no", cwd=tmp_path)
    call("finetune", "short", "--dataset", "t.csv", "--frozen", "--out", "new", cwd=tmp_path)
    assert json.loads((tmp_path / "new/options.json").read_text())["length"] == 10


def test_a_loss_that_no_perplexity_can_show_is_named(gpts):
    def huge(state, config): state.update({name: value * 1e6 if name.endswith("ln_f.weight") else value for name, value in state.items()})
    edited(gpts / "a", gpts / "huge", huge)
    said = refused("evaluate", "huge", "--dataset", "text.txt", cwd=gpts)
    assert "which is no figure" in said and "math range" not in said


def test_a_full_disk_at_the_first_file_leaves_no_folder(run, tmp_path, monkeypatch):
    import errno
    import minibert.runs.finetune as module
    write_rows(tmp_path / "t.csv")
    shutil.copytree(run, tmp_path / "base")
    def full(path, data): raise OSError(errno.ENOSPC, "No space left on device", str(path))
    monkeypatch.setattr(module, "write_whole", full)
    said = refused("finetune", "base", "--dataset", "t.csv", "--out", "k", cwd=tmp_path)
    assert "make room on that disk" in said and "--resume" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "t.csv"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_among_the_runs_is_named(run, tmp_path):
    shutil.copytree(run, tmp_path / "runs/1")
    for name in ("SHA256SUMS", "summary.json"): (tmp_path / "runs/1" / name).unlink()
    os.mkfifo(tmp_path / "runs/1/summary.json")
    assert "summary.json is a pipe or a device" in call("runs", cwd=tmp_path)[0]


def test_damaged_files_of_a_corpus_are_named(tmp_path):
    from zlib import crc32
    import numpy as np
    from minibert.data.corpus import Corpus
    from minibert.tokenizer import WordPieceTokenizer
    texts = [["the cat sat", "the dog ran"], ["a dog sat", "a cat ran"]]
    tokenizer = WordPieceTokenizer.train([line for text in texts for line in text], vocab_size=100)
    for name, change, said in (
            ("ids", lambda values: values.astype(float), "ids.npy holds no row of whole numbers"),
            ("ids", lambda values: values[:, None], "ids.npy holds no row of whole numbers"),
            ("sentence_starts", lambda values: values[::-1].copy(), "sentence_starts.npy is not in order")):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        Corpus.build(texts, tokenizer, tmp_path / "c")
        values = change(np.load(tmp_path / f"c/{name}.npy"))
        np.save(tmp_path / f"c/{name}.npy", values)
        info = json.loads((tmp_path / "c/corpus.json").read_text())
        info["files"][name] |= dict(crc32=crc32(values))
        (tmp_path / "c/corpus.json").write_text(json.dumps(info))
        with pytest.raises(ValueError, match=said): Corpus.open(tmp_path / "c", tokenizer)
    (tmp_path / "c/corpus.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="corpus.json is no whole JSON object"): Corpus.open(tmp_path / "c", tokenizer)


def test_what_a_model_has_learned_is_held_against_its_sum(run, tmp_path):
    call("pretrain", "--start", run, "--objectives", "mlm", "--steps", 2, "--batch-size", 4, "--length", 32, "--out", "new", cwd=tmp_path)
    path = tmp_path / "new/learned.json"
    call("next-sentence", "new", "a", "b", cwd=tmp_path)
    path.write_text(json.dumps(dict(objectives="")))
    assert "learned.json is not the file that was written" in refused("next-sentence", "new", "a", "b", cwd=tmp_path)
    path.unlink()
    assert "learned.json is gone" in refused("next-sentence", "new", "a", "b", cwd=tmp_path)


@pytest.mark.parametrize("value", ["NaN", "1" + "0" * 400, "Infinity"])
def test_a_loss_that_is_no_number_is_named_before_anything_is_trained(tmp_path, value):
    from minibert.train.checkpoints import read_metrics
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 2.0, "mlm_loss": 1.0}}\n{{"step": 2, "loss": 1.0, "mlm_loss": {value}}}\n')
    with pytest.raises(ValueError, match="line 2, mlm_loss is no number"): read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": {value}, "loss": 2.0}}\n' * 2)
    with pytest.raises(ValueError, match="line 1, step is no number"): read_metrics(tmp_path)


@pytest.mark.parametrize("change", [
    lambda kept: {"abc": kept["0.0.step"]}, lambda kept: {}, lambda kept: kept | {"7.0.step": kept["0.0.step"]},
    lambda kept: kept | {"0.0.exp_avg": kept["0.0.exp_avg"][:1]}, lambda kept: {name: value for name, value in kept.items() if name != "0.0.exp_avg"}])
def test_what_an_optimizer_cannot_remember_is_refused(change):
    import torch
    from minibert.train.checkpoints import optimizer_tensors, restore_optimizers_
    model = torch.nn.Linear(3, 4)
    made = lambda: [torch.optim.AdamW(model.parameters())]
    one = made()
    model(torch.ones(1, 3)).sum().backward()
    one[0].step()
    restore_optimizers_(made(), optimizer_tensors(one))
    with pytest.raises(ValueError, match="of another model or optimizer"): restore_optimizers_(made(), change(optimizer_tensors(one)))


def test_floats_of_eight_bits_are_refused(run, tmp_path):
    import torch
    def smaller(state, config): state.update({name: value.to(torch.float8_e4m3fn) for name, value in state.items()})
    edited(run, tmp_path / "small", smaller)
    assert "save the model with floats of 16 bits or more" in refused("fill-mask", "small", "a [MASK]", cwd=tmp_path)


def test_the_error_of_an_import_is_told_as_it_is(monkeypatch):
    import builtins
    from minibert.measure.bags import word_counters
    there = builtins.__import__
    def fails(name, *rest):
        if name.startswith("sklearn"): raise ImportError("libgomp.so: failed to map segment from shared object")
        return there(name, *rest)
    monkeypatch.setattr(builtins, "__import__", fails)
    with pytest.raises(ImportError, match="failed to map segment") as told: word_counters()
    from minibert.core.errors import in_words
    assert "There isn't enough memory" in in_words(told.value)


def test_memory_that_is_gone_ends_in_a_sentence(monkeypatch, capfd):
    import minibert.cli.main as cli
    def gone(*_): raise MemoryError
    monkeypatch.setattr(cli, "_sentence", gone)
    assert cli.main(["fill-mask", "none", "a [MASK]"]) == 2
    assert "There isn't enough memory" in capfd.readouterr().err


def test_runs_stand_by_number_and_by_name(run, tmp_path):
    for name in ("10", "9", "zoo", "bird", "ant"): shutil.copytree(run, tmp_path / "runs" / name)
    from minibert.runs.overview import list_runs
    assert [Path(found["run"]).name for found in list_runs(tmp_path / "runs")] == ["9", "10", "ant", "bird", "zoo"]


LONG = "1" + "0" * 5000  # more digits than Python reads


def test_a_number_of_too_many_digits_is_named_with_its_file(tmp_path):
    from minibert.core.files import read_json
    (tmp_path / "a.json").write_text(f'{{"a": {LONG}}}')
    for once in (False, True):
        with pytest.raises(ValueError, match="a.json is no whole JSON object"): read_json(tmp_path / "a.json", once=once)


def test_an_array_that_is_none_is_named(tmp_path):
    import numpy as np
    from minibert.data.corpus import Corpus
    from minibert.tokenizer import WordPieceTokenizer
    texts = [["the cat sat"], ["the dog ran"]]
    tokenizer = WordPieceTokenizer.train([line for text in texts for line in text], vocab_size=100)
    Corpus.build(texts, tokenizer, tmp_path / "c")
    path = tmp_path / "c/ids.npy"
    whole = path.read_bytes()
    np.savez(tmp_path / "other.npz", ids=np.arange(3))
    for data in ((tmp_path / "other.npz").read_bytes(), b"PK\x03\x04 cut", whole.replace(b"'shape': (", b"'shape': (" + LONG[:30].encode() + b",", 1)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="The corpus in .* is damaged"): Corpus.open(tmp_path / "c", tokenizer)
    if hasattr(os, "mkfifo"):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(ValueError, match="ids.npy is a pipe or a device"): Corpus.open(tmp_path / "c", tokenizer)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs devices")
def test_a_device_has_no_sum(tmp_path):
    from minibert.core.sums import sum_of
    (tmp_path / "a").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is a pipe or a device"): sum_of(tmp_path / "a")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    "A run whose last checkpoint is not the only one, and whose model was not saved."
    home = tmp_path_factory.mktemp("stopped")
    call("pretrain", *quick("--steps", 6, "--checkpoint-steps", 2, "--out", "r"), cwd=home)
    for name in ("model.safetensors", "summary.json"): (home / "r" / name).unlink()
    return home / "r"


@pytest.mark.parametrize("cut", [True, False])
def test_a_newest_checkpoint_without_its_config_is_passed_over(stopped, tmp_path, cut):
    shutil.copytree(stopped, tmp_path / "r")
    newest = max((tmp_path / "r/checkpoints").iterdir()) / "config.json"
    newest.write_text("{cut") if cut else newest.unlink()
    with pytest.warns(UserWarning, match="The one before it is used"): call("pretrain", "--resume", "r", cwd=tmp_path)
    assert (tmp_path / "r/summary.json").is_file()


@pytest.mark.parametrize("key", ['"configs"', "configs ", "'configs'"])
def test_a_description_is_read_as_yaml(tmp_path, key):
    from minibert.data.tables import load_table
    (tmp_path / "d").mkdir()
    for name in ("aa", "bb"): (tmp_path / f"d/{name}.csv").write_text(f"text,label\n{name},1\n")
    (tmp_path / "d/README.md").write_text(f"---\n{key}:\n- config_name: default\n  data_files:\n  - split: train\n    path: aa.csv\n  - split: validation\n    path: bb.csv\n---\n")
    assert {split: list(rows) for split, rows in load_table(tmp_path / "d").items()} == {
        "train": [dict(text="aa", label="1")], "validation": [dict(text="bb", label="1")]}


def test_the_mark_of_a_description_is_heard(tmp_path):
    from minibert.data.tables import load_table
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.tsv").write_text("text,label\na\tb,1\n")
    (tmp_path / "d/README.md").write_text("---\nconfigs:\n- config_name: default\n  sep: ','\n  data_files: a.tsv\n---\n")
    assert list(load_table(tmp_path / "d")["train"]) == [dict(text="a\tb", label="1")]


def test_a_table_called_state_is_a_table(tmp_path):
    from minibert.data.labels import read_examples
    for name in ("state", "city"): (tmp_path / f"{name}.json").write_text("".join(json.dumps(dict(text=f"{name} {k}", label=k % 2)) + "\n" for k in range(4)))
    assert len(read_examples(tmp_path)) == 8
    import datasets
    rows = dict(text=["one", "two"] * 4, label=[0, 1] * 4)
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    kept = datasets.load_from_disk(tmp_path / "saved").map(lambda row: dict(more=1))
    assert list((tmp_path / "saved").glob("cache-*.arrow")) and len(kept) == 8
    assert len(read_examples(tmp_path / "saved")) == 8


@pytest.mark.parametrize("value,said", [(20.0, None), (0.5, "model_max_length is 0.5: give a whole number of 5 or more"), (2, "model_max_length is 2"), (int(1e30), None), ("x", "model_max_length is 'x'")])
def test_the_longest_text_is_a_whole_number(run, tmp_path, value, said):
    from minibert.tokenizer import WordPieceTokenizer
    edited(run, tmp_path / "a", lambda state, config: None)
    path = tmp_path / "a/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(model_max_length=value)))
    if said is None: assert repr(WordPieceTokenizer.from_pretrained(tmp_path / "a").max_length) == ("20" if value == 20 else "512")
    else: assert said in refused("fill-mask", "a", "a [MASK]", cwd=tmp_path)


def test_a_run_from_a_far_future_is_listed(run, tmp_path, monkeypatch):
    from types import SimpleNamespace
    shutil.copytree(run, tmp_path / "runs/1")
    there = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: SimpleNamespace(st_mtime=5e11, st_mode=there(self, **how).st_mode))
    from minibert.runs.overview import describe
    assert describe(tmp_path / "runs/1")["state"] == "finished"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_an_import_is_not_interrupted(tmp_path):
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(0.1)\nwhole = True\n")
    (tmp_path / "main.py").write_text("import signal, sys\nfrom minibert.cli.entry import stop\nfor number in (signal.SIGINT, signal.SIGALRM): signal.signal(number, stop)\n"
                                      "try:\n    import slow, time\n    time.sleep(5)\nexcept KeyboardInterrupt: print(sys.modules['slow'].whole)\n")
    told = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, env=os.environ | dict(PYTHONPATH=str(Path(__file__).parents[1])))
    assert told.stdout == "True\n", told.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_a_stop_at_any_moment_ends_with_130(tmp_path):
    for k in range(24):
        with start("pretrain", *quick("--steps", 2000, "--out", f"r{k}"), cwd=tmp_path) as process:
            time.sleep(0.2 + 0.09 * k)
            process.send_signal(signal.SIGINT if k % 2 else signal.SIGTERM)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 130, (k, err)


def padded(run, folder):
    "A copy of a run whose tables have 64 rows more than its tokenizer has pieces."
    def widen(state, config):
        import torch
        tables = [name for name in state if state[name].shape[:1] == (config["vocab_size"],)]
        for name in tables: state[name] = torch.cat([state[name], state[name].new_full((64, *state[name].shape[1:]), 3.0 if name == tables[-1] and state[name].ndim == 1 else 0.1)])
        config["vocab_size"] += 64
    edited(run, folder, widen)


@pytest.fixture(scope="module")
def padded_t5(tmp_path_factory):
    home = tmp_path_factory.mktemp("padded")
    call("pretrain", "--model", "t5", *quick("--out", "a"), cwd=home)
    padded(home / "a", home / "b")
    return home


def test_ids_without_a_piece_are_never_said(run, gpts, tmp_path):
    for folder, name in ((run, "bert"), (gpts / "a", "gpt")): padded(folder, tmp_path / name)
    found = json.loads(call("fill-mask", "bert", "the [MASK] sat", "--k", 3, "--json", cwd=tmp_path)[0])
    assert len(found["masks"][0]) == 3
    call("generate", "gpt", "The cat", "--tokens", 20, "--temperature", 5, cwd=tmp_path)


def test_an_edited_run_is_not_compared(gpts, tmp_path):
    for name in "ab": shutil.copytree(gpts / name, tmp_path / name)
    path = tmp_path / "a/run.yaml"
    path.write_text(path.read_text().replace("length: 8", "length: 4"))
    for words in (("compare", "a", "b"), ("evaluate", "a", "--dataset", gpts / "text.txt")):
        assert "--length was 8 and is 4" in refused(*words, cwd=tmp_path)


def test_a_gpt_is_not_asked_for_a_mask(gpts):
    assert "has learned no [MASK]" in refused("generate", "a", "the [MASK] was red", cwd=gpts)


def test_what_is_said_of_half_a_run_and_of_tables_from_elsewhere(run, tmp_path):
    (tmp_path / "half").mkdir()
    for name in ("model.safetensors", "config.json", "SHA256SUMS", "run.yaml"): shutil.copy(run / name, tmp_path / "half")
    assert "--dataset" not in refused("evaluate", "half", cwd=tmp_path)
    (tmp_path / "r.csv").write_text('"text","label"\n' + "".join(f'"{k}","a film {k}","{k % 2}"\n' for k in range(1, 41)))
    assert "row.names = FALSE in R" in refused("finetune", run, "--dataset", "r.csv", cwd=tmp_path)
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"film {k},{'yes' if k % 2 else 'no'}\n" for k in range(40)))
    assert "or name its own with --label-names" in refused("finetune", run, "--dataset", "t.csv", "--label-names", "a", "b", "c", cwd=tmp_path)


def test_a_record_of_sums_that_cannot_be_read_is_no_empty_one(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    path = tmp_path / "a/SHA256SUMS"
    path.write_bytes(path.read_text().encode("utf-16"))
    assert "SHA256SUMS is no UTF-8 text" in refused("fill-mask", "a", "a [MASK]", cwd=tmp_path)
    path.unlink()
    path.symlink_to("nowhere")
    assert "SHA256SUMS is no file" in refused("fill-mask", "a", "a [MASK]", cwd=tmp_path)


def test_a_lost_file_of_the_tokenizer_is_named(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    for name in ("tokenizer.json", "tokenizer_config.json"): (tmp_path / "a" / name).unlink()
    assert "a has lost tokenizer.json, tokenizer_config.json: copy it again" in refused("fill-mask", "a", "a [MASK]", cwd=tmp_path)


def test_a_vocabulary_with_capitals_has_no_bound():
    from types import SimpleNamespace
    from minibert.measure.baselines import words_whole
    from minibert.data.corpus import Corpus
    from minibert.data.stories import stories
    from minibert.tokenizer import WordPieceTokenizer
    told = stories(20)
    texts = [list(story.sentences) for story in told]
    lines = [line for text in texts for line in text]
    tokenizer = WordPieceTokenizer.train([*lines, *map(str.lower, lines)], vocab_size=2000, lowercase=False)
    sampler = SimpleNamespace(corpus=Corpus.build(texts, tokenizer), tokenizer=tokenizer)
    assert words_whole(sampler, told) is False


def test_what_a_stop_has_broken_is_no_mistake(monkeypatch, capsys):
    import minibert.cli.main as cli
    def handler(number, frame): raise KeyboardInterrupt
    handler.heard = [signal.SIGINT]
    before = signal.signal(signal.SIGINT, handler)
    try: assert cli.main(["fill-mask", "none", "a [MASK]"]) == 130
    finally: signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.strip() == "Stopped."


@pytest.mark.slow
@pytest.mark.parametrize("name,value", [("MINIBERT_BFLOAT16", "yes"), ("MPLBACKEND", "nosuch")])
def test_words_of_the_environment_are_seen_first(tmp_path, name, value):
    (tmp_path / "x.py").write_text("import sys; from minibert.cli.entry import start; sys.exit(start())")
    told = subprocess.run([sys.executable, "x.py", "pretrain", *quick("--out", "r")], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {name: value, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"})
    if name == "MPLBACKEND": assert told.returncode == 0, told.stderr
    else: assert told.returncode == 2 and told.stderr.startswith("minibert: MINIBERT_BFLOAT16 is 'yes'"), told.stderr


def test_a_run_that_lost_its_options_is_not_asked(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    (tmp_path / "a/run.yaml").unlink()
    assert "run.yaml is gone: copy the folder again" in refused("next-sentence", "a", "x", "y", cwd=tmp_path)


@pytest.mark.slow
def test_a_t5_with_a_padded_table_is_refused_before_it_is_trained(padded_t5):
    said = leaves_nothing("pretrain", "--start", "b", "--model", "t5", "--steps", 2, "--length", 32, "--out", "c", cwd=padded_t5)
    assert "give the model its own" in said


def test_a_description_of_aliases_is_refused(tmp_path):
    from minibert.data.tables import load_table
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]", *(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi")), "configs: *i"]
    (tmp_path / "README.md").write_text("---\n" + "\n".join(lines) + "\n---\n")
    (tmp_path / "a.csv").write_text("text,label\na,1\n")
    with pytest.raises(ValueError, match="has aliases of YAML"): load_table(tmp_path)


@pytest.mark.parametrize("about", [b"[1]", b'"a"', b'{"info": [1]}', b"{cut", b"\xff\xfe"])
def test_what_a_parquet_file_says_of_itself_may_be_anything(tmp_path, about):
    import pyarrow as arrow
    import pyarrow.parquet as parquet
    from minibert.data.labels import read_examples
    table = arrow.table(dict(text=["one", "two"] * 4, label=["a", "b"] * 4)).replace_schema_metadata({b"huggingface": about})
    parquet.write_table(table, tmp_path / "a.parquet")
    try: assert len(read_examples(tmp_path / "a.parquet")) == 8
    except ValueError as problem: assert "a.parquet" in str(problem)


def test_a_comma_without_quotes_is_still_named(tmp_path):
    from minibert.data.labels import read_examples
    (tmp_path / "t.csv").write_text("label,text\n1,The film is good, really\n")
    with pytest.raises(ValueError, match="Line 2 .* has 3 fields.* in double quotes, or, where each row begins"): read_examples(tmp_path / "t.csv")


def test_parts_that_are_missing_are_noticed(tmp_path):
    from minibert.data.labels import read_examples
    rows = "".join(json.dumps(dict(text=f"film {k}", label=k % 2)) + "\n" for k in range(8))
    for name in ("train-00000-of-00003", "train-00002-of-00003", "validation-00000-of-00001"): (tmp_path / f"{name}.jsonl").write_text(rows)
    with pytest.raises(ValueError, match="holds 2 of the 3 parts of train"): read_examples(tmp_path)
    (tmp_path / "train-00001-of-00003.jsonl").write_text(rows)
    assert len(read_examples(tmp_path)) == 24


def test_a_readme_between_two_rules_describes_nothing(tmp_path):
    from minibert.data.tables import load_table
    (tmp_path / "README.md").write_text("---\n*bold* words: [and so on\n---\nMore.\n")
    (tmp_path / "a.csv").write_text("text,label\na,1\n")
    assert [*load_table(tmp_path)] == ["train"]


def test_a_record_that_is_cut_is_named(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    path = tmp_path / "a/SHA256SUMS"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "SHA256SUMS is cut short" in refused("fill-mask", "a", "a [MASK]", cwd=tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + whole)
    (tmp_path / "a/config.json").write_text((tmp_path / "a/config.json").read_text() + " ")
    assert "config.json is not the file that was written" in refused("fill-mask", "a", "a [MASK]", cwd=tmp_path)


@pytest.mark.slow
def test_every_command_misses_the_options_of_a_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    (tmp_path / "a/run.yaml").unlink()
    for words in (("evaluate", "a"), ("compare", "a", "a"), ("inspect", "a", "x", "--out", "p")):
        said = refused(*words, cwd=tmp_path)
        assert "run.yaml is gone: copy the folder again" in said and "--dataset" not in said


@pytest.mark.parametrize("names", [("train-00000-of-00002-0a1b.jsonl",), ("a-00001-of-00002.txt",), ("README.md", "data/train-00000-of-00002.jsonl")])
def test_parts_are_missed_whatever_they_are(tmp_path, names):
    from minibert.data.documents import load_documents
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n---\n" if name == "README.md" else '{"text": "One."}\n' * 8)
    with pytest.raises(ValueError, match="holds 1 of the 2 parts"): list(load_documents(tmp_path))


def test_quoted_names_with_another_mark_are_named(tmp_path):
    from minibert.data.labels import read_examples
    (tmp_path / "t.csv").write_text('"text";"label"\n"a film";"good"\n')
    with pytest.raises(ValueError, match="separates columns by ';': separate them by ','"): read_examples(tmp_path / "t.csv")


@pytest.mark.slow
def test_names_of_any_kind_are_compared(run, tmp_path):
    for name in ("$a$b$", "ä" * 90, "_hidden"): shutil.copytree(run, tmp_path / name)
    for a, b in (("$a$b$", "ä" * 90), ("_hidden", "$a$b$")): call("compare", a, b, cwd=tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_what_no_start_can_train_is_refused_before_a_folder_is_made(run, tmp_path):
    def one_type(state, config):
        for name in state: state[name] = state[name][:1] if name.endswith("token_type_embeddings.weight") else state[name]
        config["type_vocab_size"] = 1
    edited(run, tmp_path / "one", one_type)
    edited(run, tmp_path / "new", lambda state, config: config.update(hidden_act="gelu_new"))
    for words, said in ((("one",), "pre-training gives it pairs"), (("new", "--backend", "numpy"), "hidden_act 'gelu'")):
        assert said in leaves_nothing("pretrain", "--start", *words, "--steps", 2, "--batch-size", 4, "--length", 32, "--out", "r", cwd=tmp_path)


@pytest.mark.slow
def test_a_model_that_is_computed_in_chunks_is_compared(run, tmp_path):
    edited(run, tmp_path / "a", lambda state, config: config.update(chunk_size_feed_forward=4))
    assert "agree" in call("parity", "a", cwd=tmp_path)[0]


def test_the_order_of_bytes_is_held_too(tmp_path):
    from minibert.data.corpus import Corpus
    from minibert.tokenizer import WordPieceTokenizer
    texts = [["the cat sat"], ["the dog ran"]]
    tokenizer = WordPieceTokenizer.train([line for text in texts for line in text], vocab_size=100)
    Corpus.build(texts, tokenizer, tmp_path / "c")
    path = tmp_path / "c/ids.npy"
    path.write_bytes(path.read_bytes().replace(b"'<u2'", b"'>u2'", 1))
    with pytest.raises(ValueError, match="ids.npy holds no row of whole numbers as they were written"): Corpus.open(tmp_path / "c", tokenizer)


def test_weights_that_are_no_numbers_write_nothing(gpts, tmp_path):
    import torch
    def no_number(state, config): state.update({name: torch.full_like(value, float("nan")) for name, value in state.items()})
    edited(gpts / "a", tmp_path / "nan", no_number)
    assert "holds NaN or infinite values" in refused("generate", "nan", "the cat", "--temperature", 0, cwd=tmp_path)


@pytest.mark.slow
def test_a_padded_t5_is_not_measured(padded_t5):
    assert "give the model its own" in refused("evaluate", "b", "--dataset", "stories", cwd=padded_t5)
