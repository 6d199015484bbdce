"""A third round of tries: heads that nobody has trained, runs that are not finished, folders that two want, files of two models in one folder, memory that is not there."""
import json
import os
import shutil
import signal
import subprocess
import time

import pytest
import yaml
from command import COMMAND, QUICK, call, leaves_nothing, quick, start

ROWS = [(who, n) for n in range(20) for who in ("anna", "tom")]


@pytest.fixture(scope="module")
def home(run, tmp_path_factory):
    "A folder with a run, a table, a frozen classifier, a run that learned one objective alone, and one that a model was started in and not finished."
    from minibert.train.recipe import STARTED, PretrainOptions
    from minibert.runs.runs import begin
    home = tmp_path_factory.mktemp("third")
    (home / "run").symlink_to(run)
    (home / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n},{who}\n" for who, n in ROWS))
    call("finetune", "run", "--dataset", "who.csv", "--frozen", "--length", 12, "--out", "tuned", cwd=home)
    for only in "mlm", "nsp":
        shutil.copytree(run, home / only)
        options = yaml.safe_load((run / "run.yaml").read_text()) | dict(objectives=only)
        (home / only / "run.yaml").write_text(yaml.safe_dump(options))
        (home / only / ".run.yaml").unlink(missing_ok=True)
    begin(PretrainOptions(**STARTED, start=str(run), steps=4, batch_size=4, length=32, out=str(home / "begun")))
    return home


def pictures(folder): return {path.stem for path in folder.glob("*.png")}


# --- heads that nobody has trained ---


@pytest.mark.parametrize("which,said", [("nsp", "nobody has trained its MLM head"), ("tuned", "Its labels: ")])
def test_no_page_has_guesses_of_an_untrained_head(home, tmp_path, which, said):
    call("inspect", home / which, "anna [MASK] a ball", "--out", tmp_path / "page")
    assert {"heads", "layer-0", "rollout"} <= pictures(tmp_path / "page")
    assert not [name for name in pictures(tmp_path / "page") if name.startswith("lens")]
    assert said in (tmp_path / "page/index.html").read_text(encoding="utf8")


def test_a_page_of_a_classifier_reads_what_it_has_learned(home):
    assert "leave out --pair" in leaves_nothing("inspect", "tuned", "anna ran", "--pair", "tom ran", "--out", "new", cwd=home)


def test_a_page_with_a_trained_head_has_its_guesses(home, tmp_path):
    call("inspect", home / "mlm", "anna [MASK] a ball", "--out", tmp_path / "page")
    assert "lens-2" in pictures(tmp_path / "page")


FROZEN = ("--dataset", "who.csv", "--frozen", "--pooling", "cls", "--length", 12)


def test_no_random_pooler_is_frozen(run, home, tmp_path):
    from safetensors.torch import load_file, save_file
    bare = home / "bare"
    shutil.copytree(run, bare)
    for name in "run.yaml", ".run.yaml", "SHA256SUMS": (bare / name).unlink()
    weights = {name: value for name, value in load_file(run / "model.safetensors").items() if "pooler" not in name}
    save_file(weights, bare / "model.safetensors", {"format": "pt"})
    for which in "mlm", "bare":
        told = leaves_nothing("finetune", which, *FROZEN, "--out", "new", cwd=home)
        assert "has no trained pooler" in told and "give --pooling mean" in told and "leave out --frozen" in told
    call("finetune", "run", *FROZEN, "--out", tmp_path / "new", cwd=home)  # it has learned from pairs
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "new"))
    assert theirs["bert.pooler.dense.weight"].equal(ours["bert.pooler.dense.weight"])


def test_an_untrained_pooler_is_trained_where_nothing_is_frozen(home, tmp_path):
    call("finetune", "mlm", "--dataset", "who.csv", "--pooling", "cls", "--length", 12, "--epochs", 1, "--out", tmp_path / "new", cwd=home)


def test_a_classifier_is_not_compared_part_by_part(home):
    told = leaves_nothing("parity", "tuned", "--out", "new", cwd=home)
    assert "tuned is a classifier" in told and "it was made from" in told and "mask" not in told


# --- runs that are not finished ---


@pytest.mark.parametrize("words", ["fill-mask begun [MASK]", "next-sentence begun a b", "evaluate begun", "evaluate begun --dataset stories", "generate begun a",
                                   "classify begun a", "inspect begun a --out new", "parity begun", "probe begun", "compare run begun",
                                   "finetune begun --dataset who.csv", "pretrain --start begun --length 32 --out new"])
def test_a_model_that_was_only_started_from_another_is_not_asked(home, words):
    assert "begun is a run that isn't finished: go on with minibert pretrain --resume begun" in leaves_nothing(*words.split(), cwd=home)


@pytest.mark.slow
def test_a_run_that_was_started_from_another_ends_with_its_own_weights(run, home, tmp_path):
    from safetensors.torch import load_file
    shutil.copytree(home / "begun", tmp_path / "begun")
    call("pretrain", "--resume", "begun", cwd=tmp_path)
    assert not (tmp_path / "begun/start").exists()
    a, b = (load_file(folder / "model.safetensors")["cls.predictions.bias"] for folder in (run, tmp_path / "begun"))
    assert 0 < (a - b).abs().max() < 0.1
    assert "%" in call("fill-mask", "begun", "a [MASK]", cwd=tmp_path)[0]


# --- a folder that two want ---


def test_the_second_of_two_is_refused_before_any_work(tmp_path, monkeypatch):
    from filelock import FileLock
    from minibert.runs import runs
    def prepare(*args): raise AssertionError("the text was read")
    monkeypatch.setattr(runs, "prepare", prepare)
    (tmp_path / "deep").mkdir()
    with FileLock(tmp_path / "deep/.new.lock"):
        told = leaves_nothing("pretrain", *QUICK, "--out", "deep/new", cwd=tmp_path)
    assert "deep/new is being made by another minibert: wait for it, or give a new folder with --out" in told


@pytest.mark.parametrize("out", ["new", "deep/deeper/new"])
def test_what_is_refused_gives_its_claim_up(tmp_path, out):
    call("pretrain", *quick("--vocab-size", 9, "--out", out), cwd=tmp_path, code=2)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_blocks_nobody(tmp_path):
    (tmp_path / ".new.making-out").mkdir()
    for left in ".new.lock", ".new.making-out/config.json": (tmp_path / left).write_text("{}")
    _, err = call("pretrain", *quick("--vocab-size", 9, "--out", "new"), cwd=tmp_path, code=2)
    assert "has no room" in err and not list(tmp_path.iterdir())


def until(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
def test_two_processes_want_one_folder(tmp_path):
    words = ("pretrain", *QUICK, "--out", "new")
    first = start(*words, cwd=tmp_path)
    until(tmp_path / ".new.making-out", first)
    first.send_signal(signal.SIGSTOP)  # it takes its time
    second = start(*words, cwd=tmp_path)
    _, err = second.communicate()
    assert second.returncode == 2 and "is being made by another" in err and "Learning" not in err, err
    first.kill()
    first.communicate()
    assert (tmp_path / ".new.making-out").exists()
    third = start(*words, cwd=tmp_path)
    assert third.wait() == 0 and [path.name for path in tmp_path.iterdir()] == ["new"], third.communicate()


# --- two vocabularies ---


@pytest.mark.parametrize("change,said", [
    (lambda lines: lines[:40] + [lines[41], lines[40]] + lines[42:], "the piece 40 is"), (lambda lines: lines[:-1], "is nothing in one"),
    (lambda lines: [*lines, "quux"], "'quux' in one and nothing in the other"), (lambda lines: [line.upper() for line in lines], "'A' in one and 'a'"),
])
def test_two_vocabularies_in_a_folder_without_a_record(run, tmp_path, change, said):
    shutil.copytree(run, tmp_path / "r")
    (tmp_path / "r/SHA256SUMS").unlink()
    path = tmp_path / "r/vocab.txt"
    path.write_text("\n".join(change(path.read_text(encoding="utf8").split("\n")[:-1])) + "\n", encoding="utf8")
    for words in ("fill-mask r [MASK]", "evaluate r", "inspect r a --out new", "pretrain --start r --length 32 --out new"):
        told = leaves_nothing(*words.split(), cwd=tmp_path)
        assert "r/vocab.txt and r/tokenizer.json are two vocabularies" in told and said in told, told
    (tmp_path / "r/vocab.txt").unlink()
    call("fill-mask", "r", "[MASK]", cwd=tmp_path)


def test_a_vocabulary_beside_another_kind_of_tokenizer(run, elsewhere, tmp_path):
    shutil.copytree(elsewhere / "gpt2", tmp_path / "g")
    shutil.copy(run / "vocab.txt", tmp_path / "g")
    assert "g/vocab.txt and g/tokenizer.json are two vocabularies" in leaves_nothing("generate", "g", "anna", cwd=tmp_path)


# --- memory that is not there ---


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_a_run_without_memory_goes_on_when_there_is_some(run, tmp_path, command):
    (tmp_path / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n} {'and ran ' * 40},{who}\n" for n in range(4000) for who in ("anna", "tom")))
    words = {"pretrain": ("pretrain", *quick("--steps", 1, "--batch-size", 6000)),
             "finetune": ("finetune", run, "--dataset", "who.csv", "--epochs", 1, "--batch-size", 8000, "--length", 32)}[command]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    import resource
    set_limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (5 << 29, 5 << 29))  # noqa: E731
    told = subprocess.run([*COMMAND, *map(str, words), "--out", "new"], cwd=tmp_path, env=env, text=True, capture_output=True, preexec_fn=set_limit)
    said = told.stderr.splitlines()[-1]
    assert told.returncode == 2 and said.startswith("minibert: There isn't enough memory") and "begin anew with a smaller --batch-size" in said, told.stderr
    assert f"or free some, then go on with minibert {command} --resume new." in said
    assert "isn't finished" in leaves_nothing("fill-mask", "new", "[MASK]", cwd=tmp_path)
    call(command, "--resume", "new", cwd=tmp_path)
    call(*words, "--out", "whole", cwd=tmp_path)
    assert (tmp_path / "new/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_model_that_finds_no_memory_before_its_first_step_says_how_it_goes_on(tmp_path, monkeypatch):
    from minibert.runs import runs
    def fresh_model(run): raise MemoryError
    monkeypatch.setattr(runs, "fresh_model", fresh_model)
    _, err = call("pretrain", *QUICK, "--out", "new", cwd=tmp_path, code=2)
    assert "enough memory" in err and "then go on with minibert pretrain --resume new" in err


@pytest.mark.parametrize("problem", [
    MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("unable to mmap 9 bytes: Cannot allocate memory (12)")], ids=repr)
def test_weights_that_memory_is_too_small_for_are_not_called_damaged(run, monkeypatch, problem):
    from minibert.hub import files
    def load(path): raise problem
    monkeypatch.setattr(files, "load_tensors", load)
    _, err = call("fill-mask", run, "a [MASK]", code=2)
    assert "enough memory" in err and "damaged" not in err


# --- checkpoints from elsewhere ---


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    "A GPT-2 and a T5 as transformers saves them, each with a tokenizer.json of its own."
    import transformers as hf
    from test_other_checkpoints import OLD_GPT2, OLD_T5, bpe, randomise_, unigram
    home = tmp_path_factory.mktemp("elsewhere")
    for name, model, tokenizer in (("gpt2", hf.GPT2LMHeadModel(hf.GPT2Config(**OLD_GPT2)), bpe()),
                                   ("t5", hf.T5ForConditionalGeneration(hf.T5Config(**OLD_T5)), unigram()[0])):
        randomise_(model, 1).save_pretrained(home / name)
        tokenizer.save(str(home / name / "tokenizer.json"))
    (home / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n},{who}\n" for who, n in ROWS))
    (home / "rooms.txt").write_text("\n\n".join(f"The room has {n} doors. Its walls are grey." for n in range(60)))
    return home


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("words,said", [
    ("finetune NAME --dataset who.csv", "has no BERT inside"), ("finetune NAME --dataset who.csv --frozen", "has no BERT inside"),
    ("fill-mask NAME [MASK]", "neither fills masks nor knows next sentences"), ("next-sentence NAME a b", "neither fills masks nor knows next sentences"),
    ("classify NAME a", "Make a classifier of a BERT with minibert finetune"), ("probe NAME", "has no BERT inside"),
    ("evaluate NAME", "a text that --dataset names"), ("inspect NAME a --pair b --out new", "leave out --pair"),
    ("pretrain --start NAME --length 32 --out new", "and --model is bert"), ("compare NAME NAME", "not the folder of a run"),
])
def test_what_a_checkpoint_from_elsewhere_cannot_do_is_one_sentence(elsewhere, name, words, said):
    told = leaves_nothing(*(name if word == "NAME" else word for word in words.split()), cwd=elsewhere)
    assert said in told and "WordPiece" not in told and told.count(". ") < 3, told


@pytest.mark.parametrize("words", ["evaluate t5 --dataset rooms.txt", "pretrain --model t5 --start t5 --dataset rooms.txt --length 32 --out new"])
def test_gaps_are_cut_for_our_own_t5_alone(elsewhere, words):
    assert "brings its own tokenizer: ask it by minibert generate" in leaves_nothing(*words.split(), cwd=elsewhere)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_what_a_checkpoint_from_elsewhere_can_do(elsewhere, tmp_path, name):
    words = ("generate", elsewhere / name, "anna lost her [MASK]", "--tokens", 6)
    out, _ = call(*words, "--samples", 2)
    assert out.startswith("anna lost her") and out.count("\n") >= 2
    assert json.loads(call(*words, "--samples", 2, "--json")[0])["texts"] == out.removesuffix("\n").split("\n") or "\\x" in out
    assert "agree" in call("parity", elsewhere / name)[0]
    call("inspect", elsewhere / name, "anna lost her ball", "--out", tmp_path / "page")
    assert {"heads", "rollout"} <= pictures(tmp_path / "page")
    if name == "gpt2": assert json.loads(call("evaluate", elsewhere / name, "--dataset", elsewhere / "rooms.txt")[0])["bits_per_byte"] > 0


@pytest.mark.parametrize("which,instead", [("run", "minibert fill-mask"), ("tuned", "minibert classify")])
def test_who_writes_no_texts_is_asked_otherwise(home, which, instead):
    told = leaves_nothing("generate", which, "anna", cwd=home)
    assert "doesn't write texts" in told and instead in told
