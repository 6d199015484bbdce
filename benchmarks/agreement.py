"""Record what PyTorch says in chapters 14 to 16, for a browser, where it's missing. Run by hand, from the root:

    python benchmarks/agreement.py [OUT]

OUT is minibert/measured/agreement.npz unless said otherwise.
"""
import json
import sys
from pathlib import Path

import numpy as np
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
CHAPTERS = "14_numpy_forward", "15_numpy_backward", "16_numpy_training"


def run_cells(chapter):
    "The cells of a chapter in this process, one after another; what they print is printed."
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    for cell in json.loads((ROOT / "nbs" / f"{chapter}.ipynb").read_text(encoding="utf8"))["cells"]:
        if cell["cell_type"] == "code": shell.run_cell("".join(cell["source"])).raise_error()


def main(out=ROOT / "minibert" / "measured" / "agreement.npz"):
    from minibert.numpy_bert import agreement
    records = {}

    def keep(name, ours, theirs, tol=0):
        records[name] = agreement.every_seventh(theirs())
        return 0.0

    agreement.assert_torch_agrees = keep
    for chapter in CHAPTERS: run_cells(chapter)
    np.savez(out, **records)


if __name__ == "__main__": main(*sys.argv[1:])
