"""Tagged words for a probe are whole, or their file is named."""
import pytest

from command import refused

WORD = "{}\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize("text", [WORD.format(1) + "\n", WORD.format(1) + WORD.format(2)[:8], WORD.format(1).replace("NOUN", "_") + "\n", "1\tcat\n"],
                         ids=["too small", "cut", "untagged", "short"])
def test_a_treebank_that_cannot_be_probed_is_named(run, tmp_path, text):
    for part in ("train", "dev"):
        (tmp_path / "ud").mkdir(exist_ok=True)
        (tmp_path / f"ud/x-{part}.conllu").write_text(text)
    assert "ud" in refused("probe", run, "--dataset", "ud", cwd=tmp_path)
