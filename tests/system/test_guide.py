"""The six lines of shell of the guide "My text, my task", run as they stand there but for the steps."""
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from command import FILMS, call
from minibert.data.stories import stories

GUIDE = Path(__file__).resolve().parents[2] / "nbs/guides/my_text.ipynb"


@pytest.mark.filterwarnings("ignore")
def test_the_guide_s_six_lines_of_shell_run(tmp_path):
    cells = json.loads(GUIDE.read_text(encoding="utf8"))["cells"]
    lines = re.findall(r"^minibert .*", "".join(line for cell in cells for line in cell["source"]), re.M)
    assert len(lines) == 6
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("\n\n".join("\n".join(story.sentences) for story in stories(200)))
    (tmp_path / "rows.csv").write_text(FILMS)
    (tmp_path / "new.csv").write_text(FILMS)
    for line in lines: call(*shlex.split(line.replace("--steps 2000", "--steps 3"))[1:], cwd=tmp_path)
    count = len(FILMS.splitlines()) - 1
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == count + 1
    assert len(np.load(tmp_path / "vectors.npy")) == count
    assert (tmp_path / "library/onnx/model.onnx").exists() and (tmp_path / "mine/README.md").exists()
