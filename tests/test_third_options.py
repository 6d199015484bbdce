"""A third round of clumsy tries: options given twice or without effect, numbers that mean nothing, names without end or with line ends, texts that are cut."""
import json

import pytest
import yaml
from command import QUICK, call, leaves_nothing, quick, refused

from minibert.train.recipe import PretrainOptions, as_yaml


@pytest.mark.parametrize("words,flag", [
    ("pretrain --steps 5 --steps 9", "--steps"), ("pretrain --steps=5 --steps 9", "--steps"), ("pretrain --seed 1 --seed=1", "--seed"),
    ("pretrain --lr 1 --learning-rate=2", "--learning-rate"), ("finetune b --dataset d --lr 1 --lr 2", "--learning-rate"),
    ("pretrain --watch --no-watch", "--watch"), ("pretrain --whole-words --whole-words", "--whole-words"), ("runs --json --json", "--json"),
    ("pretrain --batch-size 3 --batch_size 4", "--batch-size"), ("finetune b --dataset d --label-names x y --label-names z", "--label-names"),
    ("fill-mask r a --k 1 --k 2", "--k"), ("next-sentence r a b --quiet --quiet", "--quiet"), ("generate r a --seed 1 --seed 2", "--seed"),
    ("evaluate r --dataset x --dataset y", "--dataset"), ("parity r --out x --out y", "--out"), ("classify r a --pair b --pair c", "--pair"),
    ("inspect r a --out x --out x", "--out"), ("probe r --seeds 1 --seeds 2", "--seeds"), ("bench --rounds 1 --rounds 2", "--rounds"),
    ("compare a b --out x --out y", "--out"), ("--config a.yaml pretrain --config b.yaml", "--config"), ("pretrain --model gpt --model t5", "--model"),
])
def test_an_option_is_given_once(tmp_path, words, flag):
    told = leaves_nothing(*words.split(), cwd=tmp_path)
    assert told == f"minibert: {flag} is given twice: give one.", told


def test_what_stands_behind_the_dashes_is_no_option(run):
    assert "%" in call("fill-mask", "--k", 1, "--", run, "a [MASK]")[0]
    assert "no option where it stands" in refused("fill-mask", "--k", 1, "--", run, "a [MASK]", "--k")


IDLE = [  # words, what the sentence says
    ("pretrain --optimizer adamw --muon-learning-rate 0.02", "--muon-learning-rate belongs to --optimizer muon, and --optimizer is adamw"),
    ("pretrain --recipe bert --muon-learning-rate 0.1", "--muon-learning-rate belongs to --optimizer muon"),
    ("pretrain --backend numpy --muon-learning-rate 0.1", "--muon-learning-rate belongs to --optimizer muon"),
    ("pretrain --cooldown 0.2", "--cooldown belongs to --schedule trapezoid, and --schedule is linear: leave it out, or choose trapezoid."),
    ("pretrain --model gpt --cooldown 0.2", "--cooldown belongs to --schedule trapezoid"),
    ("pretrain --model t5 --optimizer adamw --muon-learning-rate 1", "--muon-learning-rate belongs to --optimizer muon"),
    ("pretrain --steps 9 --minutes 1", "--steps does nothing beside --minutes: leave one of them out."),
    ("pretrain --backend numpy --checkpoint-steps 9", "--checkpoint-steps belongs to --backend torch, and --backend is numpy"),
    ("pretrain --backend numpy --checkpoint-minutes 9", "--checkpoint-minutes"), ("pretrain --backend numpy --keep-checkpoints 9", "--keep-checkpoints"),
    ("pretrain --objectives nsp --mask-probability 0.2", "--mask-probability belongs to --objectives mlm, and --objectives is nsp"),
    ("pretrain --objectives nsp --whole-words", "--whole-words belongs to --objectives mlm"),
    ("pretrain --model gpt --mask-probability 0.2", "--mask-probability belongs to --model bert, and --model is gpt"),
    ("pretrain --model t5 --short-probability 0.1", "--short-probability belongs to --model bert"),
    ("pretrain --model t5 --positions absolute", "--positions belongs to --model bert"),
    *((f"finetune b --dataset d --frozen --{name}", f"--{name.split()[0]} does nothing beside --frozen: leave one of them out.") for name in
      ("epochs 3", "batch-size 32", "gradient-accumulation-steps 1", "learning-rate 1e-4", "dropout 0.1", "precision float32", "measures 5")),
]


@pytest.mark.parametrize("words,said", IDLE, ids=[words for words, _ in IDLE])
def test_an_option_that_does_nothing_says_what_it_belongs_to(tmp_path, words, said):
    for more in ("", " --print-config") if words.startswith("pretrain") else ("",):
        assert said in (told := leaves_nothing(*(words + more).split(), cwd=tmp_path)), told


@pytest.mark.parametrize("words", [
    "--schedule trapezoid --cooldown 0.3", "--recipe bert", "--recipe fast", "--backend numpy", "--model gpt --objectives clm", "--model t5",
    "--model gpt --no-watch --backend torch", "--minutes 3", "--objectives nsp,mlm --mask-probability 0.3 --whole-words", "--optimizer muon --muon-learning-rate 1",
])
def test_what_it_belongs_to_makes_it_right_and_a_record_is_read_again(tmp_path, words):
    text, _ = call("pretrain", *words.split(), "--print-config")
    (tmp_path / "printed.yaml").write_text(text)
    assert call("pretrain", "--config", "printed.yaml", "--print-config", cwd=tmp_path)[0] == text
    (tmp_path / "some.yaml").write_text("\n".join(text.splitlines()[:-2]))  # no longer all of them, but each a default or in use
    assert call("pretrain", "--config", "some.yaml", "--print-config", cwd=tmp_path)[0] == text


def test_a_record_of_one_choice_serves_another(tmp_path):
    "`run.yaml` has every option: it says what was, not what is asked for."
    (tmp_path / "run.yaml").write_text(as_yaml(PretrainOptions(muon_learning_rate=0.1, schedule="trapezoid", cooldown=0.4, steps=7)))
    told, _ = call("pretrain", "--config", "run.yaml", "--optimizer", "adamw", "--schedule", "linear", "--minutes", 2, "--print-config", cwd=tmp_path)
    (tmp_path / "again.yaml").write_text(told)
    assert call("pretrain", "--config", "again.yaml", "--print-config", cwd=tmp_path)[0] == told
    assert yaml.safe_load(told)["cooldown"] == 0.4


@pytest.mark.parametrize("command,text,said", [
    ("pretrain", "optimizer: adamw\nmuon_learning_rate: 0.5\n", "muon_learning_rate belongs to optimizer muon, and optimizer is adamw"),
    ("pretrain", "recipe: bert\nmuon_learning_rate: 0.5\n", "muon_learning_rate belongs to optimizer muon"),
    ("pretrain", "cooldown: 0.5\n", "cooldown belongs to schedule trapezoid"), ("pretrain", "steps: 5\nminutes: 5\n", "steps does nothing beside minutes"),
    ("pretrain", "model: gpt\nmask_probability: 0.5\n", "mask_probability belongs to model bert, and model is gpt"),
    ("finetune", "frozen: true\nepochs: 9\n", "epochs does nothing beside frozen"),
])
def test_a_line_that_does_nothing_is_named_with_its_file(tmp_path, command, text, said):
    (tmp_path / "o.yaml").write_text(text)
    told = leaves_nothing(command, "--config", "o.yaml", *["b", "--dataset", "d"] * (command == "finetune"), cwd=tmp_path)
    assert told.startswith(f"minibert: In o.yaml, {said}"), told


@pytest.mark.parametrize("words,said", [
    ("--mask-probability 0", "mask_probability is 0.0: give a share above 0, to 1, or the objectives nsp"), ("--mask-probability -0.0", "above 0"),
    ("--mask-probability 1.01", "to 1"), ("--weight-decay 1e300", "weight_decay is 1e+300: give a number from 0 to 10"), ("--weight-decay -1", "from 0 to 10"),
    ("--muon-learning-rate 1e300", "give a number above 0, to 1,000"), ("--minutes 1e300", "give a number above 0, to 10,000,000"),
    ("--processes 100000", "give a whole number from 0 to 1,024"), (f"--steps {'9' * 400}", "give a number of 9,007,199,254,740,992 at most"),
    (f"--seed {'9' * 400}", "9,007,199,254,740,992 at most"), (f"--vocab-size {'9' * 400}", "9,007,199,254,740,992 at most"),
])
def test_a_number_that_cannot_be_meant_is_refused_with_its_range(tmp_path, words, said):
    told = leaves_nothing("pretrain", *words.split(), cwd=tmp_path)
    assert said in told and "learning rate" not in told
    name, value = words.removeprefix("--").split()
    name = name.replace("-", "_")
    (tmp_path / "o.yaml").write_text(f"{name}: {value}\n")
    assert "In o.yaml, " in leaves_nothing("pretrain", "--config", "o.yaml", "--print-config", cwd=tmp_path)


def test_a_share_near_nothing_still_hides_a_token_of_each_text():
    from minibert.data.corpus import Corpus
    from minibert.data.documents import load_documents
    from minibert.pairs import PairSampler
    from minibert.tokenizer import WordPieceTokenizer
    documents = load_documents("stories", limit=20)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=200)
    for share, least, most in ((5e-324, 1, 1), (1.0, 13, 13)):
        batch = PairSampler(Corpus.build(documents, tokenizer), tokenizer, 16, short=0, probability=share).batch(0, 8)
        hidden = (batch["labels"] >= 0).sum(1)
        assert least <= hidden.min() <= hidden.max() <= most


@pytest.mark.parametrize("words,said", [
    ("--tyro-nonsense", "--tyro-nonsense stands before the command"), ("pretrain --tyro-nonsense", "pretrain has no option --tyro-nonsense"),
    ("--tyro-write-completion bash", "takes SHELL FILE, the first one of bash, zsh, fish"), ("--tyro-write-completion nosh f", "takes SHELL FILE"),
    ("--tyro-write-completion bash f f", "takes SHELL FILE"), ("--tyro-print-completion", "takes SHELL"), ("--tyro-print-completion nosh", "takes SHELL"),
    ("pretrain --tyro-print-completion nosh", "has no option --tyro-print-completion"), ("--tyro-write-completion=bash f", "stands before the command"),
    ("--tyro-write-completion bash none/f", "There is no folder none: make it"),
])
def test_what_tyro_itself_rejects_is_a_sentence_too(tmp_path, words, said):
    told = leaves_nothing(*words.split(), cwd=tmp_path)
    assert told.startswith("minibert: ") and said in told and "──" not in told and "mistake in minibert" not in told, told


LONG = "x" * 5000


@pytest.mark.parametrize("words", [
    ("pretrain", "--dataset", LONG + ".txt"), ("pretrain", "--config", LONG), ("pretrain", "--resume", "/".join(["y" * 200] * 30)), ("evaluate", LONG),
    ("pretrain", "--out", LONG), ("finetune", LONG, "--dataset", "d"), ("pretrain", "--steps", LONG), ("pretrain", "--size", LONG), ("fill-mask", "r", "a", *["b"] * 5000),
    ("pretrain", "--objectives", "a " * 5000), ("pretrain", LONG), (LONG,), ("pretrain", f"--{LONG}"), (f"--{LONG}",), ("runs", LONG),
])
def test_a_name_without_end_loses_its_middle(tmp_path, words):
    _, err = call(*words, cwd=tmp_path, code=2)
    lines = err.splitlines()
    assert " ... " in lines[-1] or "--steps" in words, lines[-1]  # Python's own message has no more than 200 letters
    assert lines[-1].endswith(".") and all(len(line) < 820 for line in lines) and len(lines) <= 2 and not list(tmp_path.iterdir())


ODD = "odd\n\x1b[2J\u2028\x9bname"


@pytest.fixture(scope="module")
def odd(run, tmp_path_factory):
    "A folder where the table, a label and the run's folder have control characters in their names; what was said of them."
    home = tmp_path_factory.mktemp("odd")
    rows = [("text", "label"), *((f"{who} ran {n}", f"{who}{ODD}") for n in range(9) for who in ("anna", "tom"))]
    (home / f"{ODD}.csv").write_text("".join(f'"{a}","{b}"\n' for a, b in rows), encoding="utf8")
    return home, call("finetune", run, "--dataset", f"{ODD}.csv", "--frozen", "--out", ODD, cwd=home)


def clean(text): return not {*text} & {*ODD} - {*"odd[2Jname\n"}


def test_a_control_code_in_a_name_splits_no_line(run, odd):
    home, (out, err) = odd
    assert clean(out + err) and err.splitlines()[0].startswith("Reading odd\\n\\x1b[2J\\u2028\\u009bname.csv ..."), err
    assert "Saved in odd\\n" in out and all(line.endswith((" ...", ".")) for line in err.splitlines()), err
    out, err = call("classify", ODD, "anna ran", cwd=home)
    assert out.count("\n") == 1 and clean(out) and "annaodd\\n" in out and not err
    assert json.loads(call("classify", ODD, "anna ran", "--json", cwd=home)[0])["labels"].keys() == {f"{who}{ODD}" for who in ("anna", "tom")}
    told = refused("pretrain", "--dataset", f"{ODD}.txt", cwd=home)
    assert clean(told) and told.count("\n") == 1
    told = refused("classify", f"{ODD}/none", "a", cwd=home)
    assert clean(told) and told.count("\n") == 1


@pytest.mark.slow
def test_a_run_in_such_a_folder_keeps_its_lines(tmp_path):
    out, err = call("pretrain", *quick("--steps", 1, "--out", ODD), cwd=tmp_path)
    assert clean(out + err) and err.count("\n") == len(err.splitlines()) and "Training in odd\\n" in err and "Saved in odd\\n" in out
    (tmp_path / "runs").mkdir()
    (tmp_path / ODD).rename(tmp_path / "runs" / ODD)
    out, _ = call("runs", cwd=tmp_path)
    assert clean(out) and out.count("\n") == 2 and "odd\\n" in out
    assert [found["run"] for found in json.loads(call("runs", "--json", cwd=tmp_path)[0])["runs"]] == [f"runs/{ODD}"]


def test_a_length_beyond_the_model_is_refused_and_cut_texts_are_counted(run, odd, tmp_path):
    table = "".join(f"{who} ran {'on ' * (40 * (n > 3))}{n},{who}\n" for n in range(10) for who in ("anna", "tom"))
    (tmp_path / "w.csv").write_text("text,label\n" + table)
    told = leaves_nothing("finetune", run, "--dataset", "w.csv", "--length", 33, cwd=tmp_path)
    assert "length is 33" in told and "reads 32 tokens at most: give --length 32 or less" in told
    assert "length is 128" in leaves_nothing("finetune", run, "--dataset", "w.csv", "--length", 128, "--frozen", cwd=tmp_path)
    _, err = call("finetune", run, "--dataset", "w.csv", "--frozen", "--out", "tuned", cwd=tmp_path)
    assert err.splitlines()[-1] == "12 of 20 texts are cut to 32 tokens ..." and json.loads((tmp_path / "tuned/options.json").read_text())["length"] == 32
    call("finetune", "--resume", "tuned", cwd=tmp_path)
    with pytest.warns(UserWarning, match="The text was cut to 32 tokens"): call("classify", "tuned", "anna ran " * 40, cwd=tmp_path)
    options = json.loads((tmp_path / "tuned/options.json").read_text())
    (tmp_path / "o.json").write_text(json.dumps({name: value for name, value in options.items() if name not in ("run", "out")}))
    assert "exists" in refused("finetune", run, "--config", "o.json", "--out", "tuned", cwd=tmp_path)  # a record: read again, and no more


@pytest.mark.parametrize("name,text,said", [
    ("o.json", '{"seed": 1, "seed": 1}', "o.json gives 'seed' twice: leave one of them out."), ("o.yaml", "seed: 1\nseed: 1", "o.yaml gives 'seed' twice: leave one of them out."),
    ("o.yaml", "batch-size: 1\nbatch_size: 1", "o.yaml gives 'batch_size' twice: leave one of them out."),
    ("o.json", '{"batch-size": 1, "batch_size": 1}', "o.json gives 'batch_size' twice: leave one of them out."),
    ("o.yaml", "~: 1", "In o.yaml, the name None is no word"), ("o.yaml", "[a]: 1", "In o.yaml, the name ['a'] is no word"),
])
def test_a_name_that_stands_twice_is_one_sentence_in_each_format(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    assert said in (told := leaves_nothing("pretrain", "--config", name, "--print-config", cwd=tmp_path)), told


@pytest.mark.parametrize("objectives", ["clm", "span", "mlm,clm", "", "mlm,mlm"])
def test_objectives_of_another_model_name_it(tmp_path, objectives):
    told = leaves_nothing("pretrain", f"--objectives={objectives}", "--print-config", cwd=tmp_path)
    assert repr(objectives) in told and "clm is what --model gpt learns, and span --model t5" in told


@pytest.mark.slow
def test_a_warning_about_a_cut_text_is_one_line_of_a_process(run, tmp_path):
    from command import start
    (tmp_path / "w.csv").write_text("text,label\n" + "".join(f"{who} ran {n},{who}\n" for n in range(10) for who in ("anna", "tom")))
    call("finetune", run, "--dataset", "w.csv", "--frozen", "--out", "tuned", cwd=tmp_path)
    out, err = start("classify", "tuned", "anna ran " * 40, cwd=tmp_path).communicate()
    assert out.count("%") == 2 and err == "minibert: The text was cut to 32 tokens, the most that this model reads: ask about shorter texts.\n"
    assert QUICK[5] == "32"
