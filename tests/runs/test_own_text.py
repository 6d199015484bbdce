"""A run on a text of one's own: how much of it is held out, what is said before the training, and what it is asked after."""
import re

import pytest

from command import QUICK, call
from minibert.data.corpus import Corpus
from minibert.runs.plan import read_values

TEXT = "\n".join(f"Heute sieht {name} ein {what} Haus am Wald und lacht {k} Mal." for k in range(60)
                 for name in ("Anna", "Karl") for what in ("altes", "neues"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    "A folder with a text in German, a sentence a line and no blank line."
    home = tmp_path_factory.mktemp("own")
    (home / "text.txt").write_text(TEXT, encoding="utf-8")
    return home


def share(folder):
    "The share of a run's tokens that is held out."
    counts = [Corpus.open(folder / part).n_tokens for part in ("corpus", "val")]
    return counts[1] / sum(counts)


@pytest.mark.parametrize("model", ["bert", "gpt", "t5", "roberta"])
def test_each_model_holds_out_the_share_and_asks_its_own_text(home, model):
    own = () if model == "t5" else ("--cased",)
    (home / f"{model}.yaml").write_text(f"dataset: text.txt\nvalidation-share: 0.25\nmodel: {model}\n")
    out, err = call("pretrain", "--config", f"{model}.yaml", *QUICK, *own, "--out", model, cwd=home)
    assert abs(share(home / model) - 0.25) < 0.05 and read_values(home / model / "run.yaml")["validation_share"] == 0.25
    assert re.search(r"[\d,]+ of [\d,]+ tokens are held out", err)
    hint = out.splitlines()[-1].lower()
    assert "heute" in hint and "red" not in hint and "morning" not in out
    if model != "gpt": assert "[mask]" in hint
    assert call("pretrain", "--resume", model, cwd=home)[0].split("Saved")[0] == out.split("Saved")[0]  # the same each time


def test_the_warning_of_a_small_part_comes_before_the_training(home):
    with pytest.warns(UserWarning, match="several times.*--validation-share") as heard:
        _, err = call("pretrain", "--dataset", "text.txt", *QUICK, "--out", "small", cwd=home)
    assert len(heard) == 1 and "Training in" not in err.split("held out")[0]


def test_a_finished_run_says_how_to_train_on(home):
    call("pretrain", *QUICK, "--out", "done", cwd=home)
    assert "--start done" in call("pretrain", "--resume", "done", cwd=home)[1]
