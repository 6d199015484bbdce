"""A fourth round of clumsy tries: what a file may hold, flags that overrule it, texts that look like options, folders of odd names."""
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from command import call, leaves_nothing, refused

from minibert.cli.main import ask_more
from minibert.core.errors import typed
from minibert.hub.files import load_tensors

SAID = [  # words, a file o.yaml (or None), what the sentence says
    ("pretrain --config o.yaml --print-config", "resume: b", "o.yaml has 'resume', which is given by hand alone: leave it out, and give --resume on the command line."),
    ("finetune --config o.yaml", "resume: b", "o.yaml has 'resume', which is given by hand alone"),
    ("pretrain --config o.yaml", "print_config: true", "o.yaml has 'print_config', which is given by hand alone"),
    ("pretrain --config o.yaml --print-config", "config: a.yaml", "o.yaml has 'config', which is no option: leave it out."),
    ("pretrain --config o.yaml --print-config", "training: 3", "o.yaml has 'training', which is no option: leave it out."),
    ("pretrain --config o.yaml --print-config", 'out: "\\ud800"', "In o.yaml, out is '\\ud800', which holds half a letter"),
    ("finetune b --dataset d --config o.yaml", 'label_names: ["\\ud800", b]', "In o.yaml, label_names is ('\\ud800', 'b'), which holds half a letter"),
    ("finetune --run b --dataset d", None, "RUN is given without a flag: minibert finetune RUN, and the options behind."),
    ("runs --folder .", None, "FOLDER is given without a flag: minibert runs FOLDER"), ("parity --checkpoint b", None, "RUN is given without a flag"),
    ("next-sentence b --a x --b y", None, "is given without a flag: minibert next-sentence RUN A B"), ("inspect b --text a --out p", None, "TEXT is given without a flag"),
    *((f"generate b one --temperature 0 --{name}", None, f"--{name.split()[0]} does nothing beside --temperature 0: leave one of them out.")
      for name in ("top-k 5", "top-p 0.5", "seed 9", "samples 3")),
    ("generate b one --config o.yaml", "temperature: 0\ntop_k: 5", "In o.yaml, top_k does nothing beside temperature 0"),
    ("pretrain --recipe fast --model gpt", None, "A gpt has no mask_probability 0.3: leave the recipe fast out, or train another --model."),
    ("pretrain --recipe fast --model t5 --print-config", None, "leave the recipe fast out"), ("pretrain --model gpt --watch", None, "leave watch out"),
    ("pretrain --config o.yaml", "size: null", "minibert: size is None"), ("pretrain --config o.yaml", "start: b\nsize: mini", "minibert: size is mini, for a new model"),
    ("finetune b --dataset d --config o.yaml --epochs 2", "frozen: true", "--epochs does nothing beside frozen: leave one of them out."),
    ("finetune b --dataset d --label-names", None, "--label-names stands without its value"), ("finetune b --dataset d --label-names --epochs 2", None, "--label-names stands without"),
    ("finetune b --dataset d --label-names 'a ' a", None, "label_names is 'a ' 'a': give two or more different words,"),
    ("finetune b --dataset d --label-names ' ' b", None, "label_names is ' ' 'b': give two"), ("finetune b --dataset d --config o.yaml", "label_names: [' a', a]", "label_names"),
    ("next-sentence b '' x", None, "minibert: A is '': give a text"), ("next-sentence b x ''", None, "minibert: B is '': give a text"), ("fill-mask '' x", None, "minibert: RUN is ''"),
    ("fill-mask b '\udcff [MASK]'", None, "set a UTF-8 locale"), ("generate b '\udcff'", None, "set a UTF-8 locale"), ("classify b a --pair '\udcff'", None, "set a UTF-8 locale"),
    ("pretrain --learning-rate 0,001", None, "--learning-rate is '0,001': give a number"), ("finetune b --dataset d --lr 0,001", None, "--lr is '0,001'"),
    ("-v", None, "There is no -v: minibert --version prints the version."), ("version", None, "minibert --version prints"), ("pretrain --version", None, "minibert --version prints"),
]


@pytest.mark.parametrize("words,file,said", SAID, ids=range(len(SAID)))
def test_a_mistake_is_named_as_the_user_made_it(tmp_path, words, file, said):
    if file: (tmp_path / "o.yaml").write_text(file)
    assert said in (told := leaves_nothing(*shlex.split(words), cwd=tmp_path)), told


HAND = [  # what a file says, what is given by hand, what comes of it
    ("minutes: 5", "--steps 7", dict(steps=7, minutes=None)), ("steps: 5\nminutes: 5", "--steps 7", dict(steps=7, minutes=None)), ("steps: 9", "--minutes 7", dict(minutes=7.0)),
    ("schedule: trapezoid\ncooldown: 0.4", "--schedule linear", dict(schedule="linear")), ("whole_words: yes", "--objectives nsp", dict(objectives="nsp")),
    ("positions: rotary\nwhole_words: yes\nmask_probability: 0.3", "--model gpt", dict(model="gpt", positions="absolute", whole_words=False, objectives="clm")),
    ("model: gpt\nobjectives: clm", "--model bert", dict(objectives="mlm,nsp")), ("objectives: mlm", "--model t5", dict(objectives="span")),
    ("positions: rotary", "--model bert", dict(positions="rotary")), ("dataset: >\n  rooms.txt\n", "", dict(dataset="rooms.txt")),
    ("out: |\n  runs/mine\n", "", dict(out="runs/mine")), ("out: 'a '", "", dict(out="a ")),
]


@pytest.mark.parametrize("file,words,wanted", HAND, ids=range(len(HAND)))
def test_what_is_given_by_hand_wins_in_silence(tmp_path, file, words, wanted):
    (tmp_path / "o.yaml").write_text(file)
    out, err = call("pretrain", "--config", "o.yaml", *words.split(), "--print-config", cwd=tmp_path)
    assert wanted.items() <= yaml.safe_load(out).items() and not err


def test_printed_options_are_only_those_of_the_run(tmp_path):
    out, _ = call("pretrain", "--model", "gpt", "--steps", 3, "--json", "--quiet", "--print-config")
    assert not json.loads(out).keys() & {"print_config", "json", "quiet", "resume", "config", "recipe"}
    (tmp_path / "a.json").write_text(out)
    text, _ = call("pretrain", "--config", "a.json", "--print-config", cwd=tmp_path)
    assert yaml.safe_load(text) == json.loads(out)


@pytest.mark.parametrize("words,text,pair", [
    ("classify r None --pair None", "None", "None"), ("classify r a", "a", None), ("classify r a --pair=--json", "a", "--json"), ("classify r --pair x -- -h", "-h", "x"),
    ("classify r -- --help", "--help", None), ("classify r -- --json", "--json", None), ("inspect r a --out p --pair None", "a", "None"), ("classify r --quiet -- --quiet", "--quiet", None),
])
def test_a_text_may_look_like_an_option(tmp_path, words, text, pair, monkeypatch):
    from minibert.cli.options import parse
    (tmp_path / "o.yaml").write_text("json: yes\nquiet: yes\n")
    for file in ([], ["--config", str(tmp_path / "o.yaml")]):
        options = parse([*file, *words.split()])
        assert (options.text, options.pair) == (text, pair) and options.json == bool(file)


FOLDERS = [("-new", "./-new"), ("a\nb", "$'a\\x0ab'"), ("\udcff", "$'\\xff'"), ("it's\tb\\", "$'it\\x27s\\x09b\\x5c'"), ("my run", "'my run'"), ("r/1", "r/1")]


@pytest.mark.parametrize("folder,words", FOLDERS, ids=range(len(FOLDERS)))
def test_a_command_to_copy_names_the_folder_as_a_shell_reads_it(folder, words):
    assert typed(folder) == words and f" {words} " in ask_more({"mlm_loss": 1}, "bert", folder) and f" {words} " in ask_more({}, "gpt", folder)


@pytest.mark.skipif(os.name == "nt", reason="such a name is no bytes there")
def test_a_folder_whose_name_is_no_utf8_is_as_good_as_another(run, tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff")
    try: shutil.copytree(run, odd)
    except OSError: pytest.skip("this file system has no such names")
    assert "%" in call("fill-mask", odd.name, "a [MASK]", cwd=tmp_path)[0]
    found = [*odd.rglob("optimizer.safetensors")]
    for file in found: assert load_tensors(file).keys() == load_tensors(Path(run) / file.relative_to(odd)).keys()
    assert found
    (odd / "model.safetensors").write_bytes(b"no tensors")
    assert "is damaged or cut short" in refused("fill-mask", odd.name, "a [MASK]", cwd=tmp_path)
