"""The model card of a run: its figures are those of the run's files, and its commands work."""
import contextlib
import io
import json
import re
import shlex
import shutil

import pytest
import yaml

from command import FILMS, call, inside

pytestmark = pytest.mark.filterwarnings("ignore")


def read(folder):
    "The YAML, and the rest."
    _, front, text = (folder / "README.md").read_text(encoding="utf8").split("---\n", 2)
    return yaml.safe_load(front), text


def block(text, kind): return re.findall(f"```{kind}\n(.*?)\n```", text, re.DOTALL)


def rows(text): return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def says(folder, code):
    "What lines of Python print in a folder."
    out = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(out): exec(code, {})
    return out.getvalue()


def test_figures_of_a_run_are_those_of_its_summary(run):
    front, text = read(run)
    assert front == dict(library_name="minibert", language="en")
    summary, table = json.loads((run / "summary.json").read_text()), rows(text)
    shown = {name.replace(" ", "_"): (value, ends) for name, value, ends in table[2:]}
    assert shown.keys() == {name for name, value in summary.items() if isinstance(value, (int, float))} - {"train_seconds"}
    for name, (value, ends) in shown.items():
        assert float(value.replace(",", "")) == pytest.approx(summary[name], rel=1e-3)
        assert [float(end) for end in ends.split(" to ") if end] == pytest.approx(summary.get(f"{name}_interval", []), rel=1e-3)


def test_a_run_is_asked_and_made_again_as_its_card_says(run, monkeypatch):
    _, text = read(run)
    shell, again = block(text, "sh")
    assert shell.startswith("minibert fill-mask . ")
    first = call("fill-mask", ".", shlex.split(shell)[3], cwd=run)[0].split()[0]
    python, = block(text, "python")
    assert len(python.splitlines()) == 3 and repr(first) in says(run, python)
    call(*again.split()[1:], "--quiet", cwd=run)
    assert (run / "again/model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    shutil.rmtree(run / "again")


def test_a_classifier_has_a_card_too(classifier):
    front, text = read(classifier)
    figures, table = json.loads((classifier / "figures.json").read_text()), rows(text)
    assert front == dict(library_name="minibert") and str(classifier.parent) not in text
    by_source = {row[0]: row[1:] for row in table[2:]}
    for source, own in (("bert", "this model"), ("bag_of_words", "bag of words"), ("majority", "commonest label")):
        if source in figures:
            assert by_source[own][0] == f"{figures[source]['accuracy']:.1%}"
            assert by_source[own][1] == " to ".join(f"{end:.1%}" for end in figures[source]["interval"])
    assert len(table) >= 4 and json.loads(says(classifier, block(text, "python")[0]).replace("'", '"'))[0]["label"] in ("good", "bad")
    assert block(text, "sh")[0] == 'minibert classify . "a text"'


def test_a_gpt_writes_as_its_card_says(gpt):
    python, = block(read(gpt)[1], "python")
    assert says(gpt, python).strip()


@pytest.mark.slow
def test_a_classifier_of_pairs_is_made_again(first_run, tmp_path):
    (tmp_path / "pairs.csv").write_text(FILMS.replace("text,label", "text,more,label").replace("film,", "film,it is,"))
    call("finetune", first_run, "--dataset", "pairs.csv", "--text-pair-column", "more", "--epochs", 1, "--measures", 1, "--length", 16, "--out", "c", cwd=tmp_path)
    _, text = read(tmp_path / "c")
    shell, again = block(text, "sh")
    assert shell == 'minibert classify . "a text" --pair "another"' and "label" in says(tmp_path / "c", block(text, "python")[0])
    call(*again.split()[1:], cwd=tmp_path / "c")
    assert (tmp_path / "c/again/model.safetensors").read_bytes() == (tmp_path / "c/model.safetensors").read_bytes()
