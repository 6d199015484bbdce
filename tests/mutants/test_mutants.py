"""The checks are checked: every mistake of the bank in tests/mutants is refused, and what is no mistake is not."""
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from conftest import ROOT
from mutants.bank import Mutant, patch, read_bank
from mutants.runner import TESTS, cells

BANK = read_bank()
LEARNERS = {  # what learners get wrong, as people report it: how it is called in the bank
    "ignore_index=0 shared by both heads": "heads: ignore_index=0 for both heads",
    "loss over all positions": "heads: loss over all positions",
    "a scalar loss times the mask": "heads: a scalar loss times the mask",
    "80/10/10 of all tokens": "masking: 80/10/10 of all tokens",
    "0.1 instead of half of the rest": "masking: a tenth of the rest instead of half",
    "NSP labels flipped": "pairs: NSP labels flipped",
    "negatives that are positives": "data.pairs: negatives that are positives",
    "a blank line after each sentence": "data.documents: a document for each line",
    "eps 1e-5": "encoder: eps 1e-5",
    "tanh GELU": "encoder: tanh GELU for the exact one",
    "unbiased variance": "embeddings: unbiased variance",
    "padded queries masked with -inf": "model: padded queries masked with -inf",
    "Q and K swapped": "attention: Q and K swapped",
    "softmax over the wrong axis": "attention: softmax over the queries",
    "no 1/sqrt(K)": "attention: no 1/sqrt(K)",
    "1/sqrt(D)": "attention: 1/sqrt(D)",
    "mask after the softmax": "attention: mask after the softmax",
    "heads merged without the transpose": "attention: heads merged without the transpose",
    "pre-norm for post-norm": "encoder: pre-norm",
    "an unknown piece instead of an unknown word": "text.wordpiece: an unknown piece instead of an unknown word",
    "the padding row lost by initialisation": "model: padding row lost by initialisation",
    "eval() forgotten": "weights: eval() forgotten",
    "decay on LayerNorm and biases": "train.optimizers: decay on LayerNorms and biases",
    "L2 instead of decoupled decay": "train.optimizers: L2 instead of decoupled decay",
    "the concatenation truncated": "text.wordpiece: the last [SEP] cut off",
    "token type 1 on the first [SEP]": "text.wordpiece: token type 1 on the first [SEP]",
    "every piece labelled in a tagging task": "measure.baselines: every piece labelled",
    "probs drawn after dropout": "attention: probs drawn after dropout",
}
FEW = ["attention: mask after the softmax", "heads: ignore_index=0", "parity: NaN passes"]
SLIPS = {"SyntaxError", "IndentationError", "NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"}


def judged(out: Path, *words: str) -> dict[str, dict]:
    "What the runner says of some mistakes: module and name -> verdict."
    command = [sys.executable, str(ROOT / "tests" / "mutants" / "runner.py"), "--out", str(out), *words]
    subprocess.run(command)  # its report goes to the screen as it comes, with `pytest -s`
    report = json.loads(out.read_text(encoding="utf8"))
    return {f"{verdict['module']}: {verdict['name']}": verdict for verdict in report["verdicts"]}


def test_bank_is_large_and_names_every_mistake_once():
    names = [str(mutant) for mutant in BANK]
    assert len(BANK) >= 60 and max(Counter(names).values()) == 1
    assert {mutant.module for mutant in BANK} == set(TESTS)
    for name in " ".join(TESTS.values()).split(): assert len([*(ROOT / "tests").rglob(f"test_{name}.py")]) == 1, name
    assert set(LEARNERS.values()) <= set(names) and len(LEARNERS) == 28
    assert all(mutant.who.startswith("Whoever ") and mutant.who.endswith(".") for mutant in BANK)


@cache  # of a notebook's cells, a mistake changes one
def compiles(source):
    try: compile(source, source[:40], "exec")
    except SyntaxError: compile(TransformerManager().transform_cell(source), source[:40], "exec")  # it has a %magic


def test_places_are_still_there():
    "In the module and in the notebook's exported cell, each exactly once; and what comes out is Python."
    for mutant in BANK:
        source = (ROOT / "minibert" / f"{mutant.module.replace('.', '/')}.py").read_text(encoding="utf8")
        compile(patch(source, mutant), str(mutant), "exec")
        for source in cells(mutant): compiles(source)


def test_place_that_is_gone_is_said():
    gone = Mutant("attention", "gone", "Nobody.", "there is no such line", "")
    with pytest.raises(ValueError, match="occurs 0 times.*mend tests/mutants/attention.md"): patch("x = 1\n", gone)
    with pytest.raises(ValueError, match="occurs 2 times"): patch("x = 1\nx = 1\n", Mutant("a", "b", "c", "x = 1", "x = 2"))


def test_few_mistakes_are_refused_and_what_is_none_passes(tmp_path):
    verdicts = judged(tmp_path / "few.json", *FEW, "parity: control")
    outcomes = {name: verdict["outcome"] for name, verdict in verdicts.items()}
    assert outcomes.pop("parity: control, nothing") == outcomes.pop("parity: control, a comment") == "survived"
    assert len(outcomes) == len(FEW) and set(outcomes.values()) == {"refused"}


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_every_mistake_is_refused():
    out = Path(os.environ.get("MUTANTS_REPORT", ROOT / "results" / "mutants.json")).resolve()
    out.unlink(missing_ok=True)
    verdicts = judged(out)
    assert len(verdicts) == len(BANK)
    survivors = {name: v.get("said", "") for name, v in verdicts.items() if v["outcome"] != "refused"}
    assert not survivors, "A survivor is a bug in the checks: mend the check, not the bank."
    slips = {name: v["said"] for name, v in verdicts.items() if v["kind"] in SLIPS}
    assert not slips, "These fail for another reason than their mistake: mend the patch."


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_comment_is_no_mistake(tmp_path):
    "The whole machinery on a change that changes nothing, in every module: all checks pass."
    verdicts = judged(tmp_path / "controls.json", "control, a comment")
    assert len(verdicts) == len(TESTS)
    assert {name: v.get("said", "") for name, v in verdicts.items() if v["outcome"] != "survived"} == {}
