"""What a person may hand to the command by mistake: each is refused in one sentence that names the option, or the file and the key."""
import json
import shutil

import pytest
import yaml
from command import call, leaves_nothing, quick, refused


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "who.csv"
    path.write_text("text,label\n" + "".join(f"{who} lost a ball {n}.,{who}\n" for n in range(40) for who in ("anna", "tom")))
    return path


@pytest.fixture(scope="module")
def tuned(run, table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "first"
    call("finetune", run, "--dataset", table, "--epochs", 1, "--length", 12, "--batch-size", 8, "--out", folder)
    return folder


def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "r")
    return tmp_path / "r"


def edited(path, **changes):
    "The file with other values, as if it had been written so: its folder keeps no checksums."
    path.with_name("SHA256SUMS").unlink(missing_ok=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def says(words, *parts, cwd):
    told = leaves_nothing(*words, cwd=cwd)
    assert all(part in told for part in parts) and "mistake in minibert" not in told, told


@pytest.mark.parametrize("words,said", [
    (("pretrain", "--length", 4), "pairs take 5 places at least"),
    (("pretrain", "--model", "gpt", "--length", 1), "windows take 2 places at least"),
    (("pretrain", "--batch-size", 10_000_000), "1,048,576"), (("bench", "--vocab-size", 3), "vocab_size is 3"),
    (("bench", "--length", 600), "length is 600"), (("bench", "--length", 2), "length is 2"),
    (("bench", "--threads", 10**6), "threads is 1000000"), (("bench", "--threads", -1), "threads is -1"),
    (("bench", "--out", ""), "out is ''"), (("pretrain", "--out", ""), "out is ''"), (("pretrain", "--dataset", ""), "dataset is ''"),
    (("pretrain", "--resume", ""), "resume is ''"), (("finetune", "--resume", " "), "resume is ' '"), (("evaluate", ""), "RUN is ''"),
    (("fill-mask", "", "a [MASK]"), "RUN is ''"), (("probe", ""), "RUN is ''"), (("parity", ""), "RUN is ''"),
    (("classify", "", "a"), "RUN is ''"), (("inspect", "x", "a", "--out", ""), "out is ''"),
    (("pretrain", "--dataset", "gone/text.TXT"), "There is no file or folder gone/text.TXT"),
    (("pretrain", "--dataset", "./gone"), "There is no file or folder ./gone"), (("pretrain", "--config", "."), "Is a directory"),
])
def test_options_that_cannot_be_are_refused_first(tmp_path, words, said):
    says(words, said, cwd=tmp_path)


@pytest.mark.parametrize("name,data,said", [
    ("gone.csv", None, "There is no file or folder gone.csv"), ("who.txt", "a", "who.txt is no table"), ("who.md", "a", "who.md is no table"),
    ("none.CSV", "text,label", "no row below"),
])
def test_a_table_that_is_none(run, tmp_path, name, data, said):
    if data is not None: (tmp_path / name).write_text(data)
    says(("finetune", run, "--dataset", name), said, cwd=tmp_path)


def test_a_table_in_capitals_is_a_table(table, tmp_path):
    from minibert.data.labels import read_examples
    shutil.copy(table, tmp_path / "WHO.CSV")
    assert len(read_examples(tmp_path / "WHO.CSV")) == 80


def test_a_folder_of_texts_and_tables_is_ambiguous(tmp_path):
    from minibert.data.documents import load_documents
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/a.txt").write_text("It is a text. It goes on.\n\n" * 9)
    assert len(list(load_documents(tmp_path / "mixed"))) == 7
    (tmp_path / "mixed/b.csv").write_text("text\nA row.\n")
    says(("pretrain", "--dataset", "mixed"), "b.csv", "a.txt", "one kind", cwd=tmp_path)


@pytest.mark.parametrize("line,said", [
    ("dataset: [a, b]", "dataset is ['a', 'b']"), ("name: {a: b}", "name is {'a': 'b'}"), ("steps: [1]", "steps is ['1']"),
    ("model: {}", "choose bert or gpt"), ("optimizer: yes", "optimizer is 'yes'"), ("steps: true", "steps is 'true'"),
    ("steps: 4\nsteps: 5", "gives 'steps' twice"), ("seed: 12:30", "seed is '12:30'"), ("- a", "holds no options"),
    ("[" * 5000, "holds no options"), ("dataset: ''", "dataset is ''"), ("a: &a [x]\nname: *a", "'a', which is no option"),
])
def test_a_config_file_means_what_is_written(tmp_path, line, said):
    (tmp_path / "o.yaml").write_text(line)
    says(("pretrain", "--config", "o.yaml", "--print-config"), "o.yaml", said, cwd=tmp_path)


def test_words_of_a_config_file_stay_words(tmp_path):
    (tmp_path / "o.yaml").write_text("out: yes\ndataset: films\nname: 2020-01-01\nstart: off\nwatch: on\nminutes: null\n")
    given = yaml.safe_load(call("pretrain", "--config", "o.yaml", "--print-config", cwd=tmp_path)[0])
    assert [given[key] for key in ("out", "name", "start", "watch", "minutes")] == ["yes", "2020-01-01", "off", True, None]


@pytest.mark.parametrize("words,said", [
    ("[yes, no]", ("yes", "no")), ("[2020-01-01, 1.0]", ("2020-01-01", "1.0")), ("[1, 2]", ("1", "2")),
    ("[[a], b]", None), ("[null, a]", None), ("{a: b}", None), ("anna", None),
])
def test_labels_in_a_config_file(tmp_path, words, said):
    from minibert.train.recipe import FinetuneConfig, read_options
    (tmp_path / "o.yaml").write_text(f"label_names: {words}\n")
    if said: assert read_options(tmp_path / "o.yaml", FinetuneConfig) == dict(label_names=said)
    else: says(("finetune", "x", "--dataset", "y", "--config", "o.yaml"), "o.yaml", "label_names is", cwd=tmp_path)


@pytest.mark.parametrize("name,changes,said", [
    ("config.json", dict(architectures=3), "architectures is 3"), ("config.json", dict(architectures="BertForPreTraining"), "architectures is"),
    ("config.json", dict(architectures=[3]), "architectures is [3]"), ("config.json", dict(model_type=["bert"]), "model_type is"),
    ("config.json", dict(vocab_size="9"), "vocab_size is '9'"), ("config.json", dict(num_hidden_layers=10**6), "1,000,000 layers"),
    ("config.json", dict(hidden_size=None), "hidden_size is None"), ("tokenizer.json", dict(model=3), "model is 3"),
    ("tokenizer.json", dict(normalizer=[]), "normalizer is []"), ("tokenizer.json", dict(pre_tokenizer=3), "pre_tokenizer is 3"),
    ("tokenizer.json", dict(added_tokens=3), "the token 3"), ("tokenizer.json", dict(added_tokens=[3]), "the token 3"),
    ("tokenizer.json", dict(model=dict(vocab=3)), "model.vocab is 3"), ("tokenizer.json", dict(model=dict(vocab=dict(a="b"))), "the id of a is 'b'"),
    ("tokenizer_config.json", dict(model_max_length="x"), "model_max_length is 'x'"),
    ("tokenizer_config.json", dict(tokenizer_class=3), "tokenizer_class is 3"),
    ("tokenizer_config.json", dict(do_lower_case="no"), "do_lower_case is 'no'"),
    ("tokenizer_config.json", dict(added_tokens_decoder=[3]), "the token 3"),
])
def test_a_wrong_type_in_a_model_s_files_is_named(run, tmp_path, name, changes, said):
    edited(copied(run, tmp_path) / name, **changes)
    says(("fill-mask", "r", "a [MASK]"), name, said, cwd=tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff{}", b"[" * 99_999], ids=["empty", "cut", "list", "binary", "deep"])
def test_a_damaged_small_file_is_named(run, tmp_path, name, data):
    (copied(run, tmp_path) / name).write_bytes(data)
    told = leaves_nothing("fill-mask", "r", "a [MASK]", cwd=tmp_path)
    assert f"r/{name} is " in told and "copy or download it again" in told and "line 1" not in told


@pytest.mark.parametrize("changes,said", [
    (dict(step="4"), "step is '4'"), (dict(step=None), "step is None"), (dict(step=99), "step is 99"), (dict(seconds="x"), "seconds is 'x'"),
    (dict(sha256=[]), "sha256 is []"), (dict(about=[]), "about is []"), (dict(about=dict(training=[])), "training is []"),
    (dict(measured=[]), "measured is []"),
])
def test_a_wrong_type_in_state_json_is_named(run, tmp_path, changes, said):
    edited(copied(run, tmp_path) / "checkpoints/00000004/state.json", **changes)
    says(("pretrain", "--resume", "r"), "checkpoints/00000004", "state.json", said, cwd=tmp_path)


@pytest.mark.parametrize("line", ["3", "[]", "{}", '{"step": "1"}', '{"step": null}', '{"step": 1, "mlm_loss": "x"}'])
def test_a_wrong_line_of_metrics_is_named(run, tmp_path, line):
    path = copied(run, tmp_path) / "metrics.jsonl"
    path.write_text(f"{line}\n{path.read_text()}")
    told = refused_in_the_end("pretrain", "--resume", "r", cwd=tmp_path)
    assert "r/metrics.jsonl, line 1, " in told and ("mlm_loss" if "mlm" in line else "step") in told


def refused_in_the_end(*words, cwd):
    out, err = call(*words, cwd=cwd, code=2)
    assert "Traceback" not in err and "mistake in minibert" not in err, err
    return err.splitlines()[-1]


@pytest.mark.parametrize("changes,said", [
    (dict(epochs="x"), "epochs is 'x'"), (dict(label_names=3), "label_names is 3"), (dict(run=[3]), "run is [3]"), (dict(dataset=[]), "dataset is []"),
    (dict(length="x"), "length is 'x'"), (dict(more=1), "'more'"),
])
def test_a_wrong_type_in_options_json_is_named(tuned, tmp_path, changes, said):
    edited(copied(tuned, tmp_path) / "options.json", **changes)
    told = leaves_nothing("finetune", "--resume", "r", cwd=tmp_path)
    assert said in told and ("options.json" in told or "--run was" in told), told


@pytest.mark.parametrize("name", ["run", "length", "label_names"])
def test_options_json_without_a_key_is_named(tuned, tmp_path, name):
    path = copied(tuned, tmp_path) / "options.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != name}))
    says(("finetune", "--resume", "r"), f"options.json lacks {name}", cwd=tmp_path)


@pytest.mark.parametrize("name", ["length", "model", "dataset", "steps"])
def test_run_yaml_without_a_line_is_named_before_any_work(run, tmp_path, name):
    path = copied(run, tmp_path) / "run.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(f"{name}:")))
    for words in (("evaluate", "r"), ("pretrain", "--resume", "r")): says(words, f"run.yaml lacks {name}", cwd=tmp_path)


@pytest.mark.parametrize("line,said", [("model: gpt", "describes a BertForPreTraining"), ("length: 48", "reads 32"), ("length: x", "length is 'x'")])
def test_run_yaml_that_does_not_fit_its_model_is_named(run, tmp_path, line, said):
    path, name = copied(run, tmp_path) / "run.yaml", line.partition(":")[0]
    kept = [old for old in path.read_text().splitlines() if not old.startswith(f"{name}:")]
    path.write_text("\n".join([*kept, line]))
    path.with_name(".run.yaml").unlink()  # else the change itself is named
    says(("evaluate", "r"), "r/run.yaml", said, cwd=tmp_path)


@pytest.mark.parametrize("changes,said", [
    (dict(id2label=3), "id2label is 3"), (dict(id2label=dict(x="a", y="b")), "keys x, y"), (dict(id2label={"0": "a", "2": "b"}), "keys 0, 2"),
    (dict(id2label={"0": 3, "1": 4}), "labels is"),
])
def test_wrong_labels_of_a_classifier_are_named(tuned, tmp_path, changes, said):
    edited(copied(tuned, tmp_path) / "config.json", **changes)
    says(("classify", "r", "a"), "config.json", said, cwd=tmp_path)


@pytest.mark.parametrize("words", [("evaluate", "r"), ("fill-mask", "r", "a [MASK]"), ("classify", "r", "a"), ("next-sentence", "r", "a", "b"),
                                   ("inspect", "r", "a", "--out", "new"), ("probe", "r"), ("generate", "r", "a"), ("parity", "r"),
                                   ("finetune", "r", "--dataset", "x.csv"), ("pretrain", "--start", "r", "--out", "new")])
def test_a_run_that_is_not_finished_says_how_it_goes_on(run, tmp_path, words):
    (copied(run, tmp_path) / "model.safetensors").unlink()
    says(words, "isn't finished", "minibert pretrain --resume r", cwd=tmp_path)


def test_a_classifier_that_is_not_finished_says_so_too(tuned, tmp_path):
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json"): (copied(tuned, tmp_path) if name[0] == "m" else tmp_path / "r").joinpath(name).unlink()
    for words in (("classify", "r", "a"), ("probe", "r")): says(words, "minibert finetune --resume r", cwd=tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_without_its_metrics(run, tmp_path):
    (copied(run, tmp_path) / "metrics.jsonl").unlink()
    call("pretrain", "--resume", "r", cwd=tmp_path)
    assert (tmp_path / "r/model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_a_moved_classifier_goes_on_where_it_is(tuned, tmp_path):
    moved = copied(tuned, tmp_path)
    shutil.rmtree(moved / "checkpoints")
    (moved / "checkpoints").mkdir()
    (moved / "metrics.jsonl").unlink()
    options = json.loads((moved / "options.json").read_text())
    edited(moved / "options.json", out=str(tmp_path / "gone"))
    call("finetune", "--resume", "r", cwd=tmp_path)
    assert not (tmp_path / "gone").exists() and any((moved / "checkpoints").iterdir()) and options["run"]


@pytest.mark.slow
def test_a_training_that_diverges_says_where(tmp_path):
    told = refused_in_the_end("pretrain", *quick("--steps", 12, "--log-steps", 1, "--optimizer", "adamw", "--lr", 50, "--out", "new"), cwd=tmp_path)
    assert "diverged at step" in told and "lower learning rate" in told and not (tmp_path / "new/summary.json").exists()


def test_a_yaml_bomb_is_no_bomb(tmp_path):
    nested = "".join(f", &{b} [{', '.join(9 * ['*' + a])}]" for a, b in zip("abcdefgh", "bcdefghi"))
    (tmp_path / "o.yaml").write_text(f"name: [&a [x, x]{nested}]\n")
    told = leaves_nothing("pretrain", "--config", "o.yaml", cwd=tmp_path)
    assert "name is [" in told and len(told) < 400


def test_what_is_not_foreseen_is_one_line_too(run, tmp_path, monkeypatch):
    from minibert.cli import main as cli
    def fails(options): raise TypeError("a\nb")
    monkeypatch.setitem(cli.FUNCTIONS, cli.Evaluate, fails)
    assert "a mistake in minibert (TypeError: a b)" in refused("evaluate", run)
    monkeypatch.setenv("MINIBERT_DEBUG", "1")
    assert "Traceback" in call("evaluate", run, code=2)[1]
