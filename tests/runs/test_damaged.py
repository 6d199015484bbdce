"""A run whose own text is damaged names it, and nothing is unpickled."""
import json
import pickle

import numpy as np
import pytest

from command import as_json, refused


def flipped(path):
    ids = np.load(path)
    ids[7] = 500 if ids[7] != 500 else 501
    np.save(path, ids)


class Harm:
    "What runs code when it is unpickled."
    def __reduce__(self): return (exec, ("raise SystemExit('code was run')",))


@pytest.mark.parametrize("name,harm", [
    ("corpus.json", lambda path: path.write_text("[")), ("corpus.json", lambda path: path.write_text("{}")), ("corpus.json", lambda path: path.unlink()),
    ("ids.npy", lambda path: path.write_bytes(b"")), ("ids.npy", lambda path: path.write_bytes(path.read_bytes()[:-8])), ("ids.npy", flipped),
    ("document_starts.npy", lambda path: path.write_bytes(bytes(200))),
    ("document_starts.npy", lambda path: np.save(path, np.array([Harm()], dtype=object))),
    ("sentence_starts.npy", lambda path: np.save(path, np.load(path)[::-1])),
    ("ids.npy", lambda path: path.write_bytes(pickle.dumps(Harm()))),
], ids=["cut json", "empty json", "no json", "empty", "cut", "flipped", "zeros", "objects", "backwards", "pickle"])
def test_a_damaged_text_is_named(copy, name, harm):
    harm(copy / "val" / name)
    assert "val" in refused("evaluate", copy)


def test_the_figures_of_a_run_are_json(copy):
    def refuse(word): raise AssertionError(word)
    json.loads((copy / "summary.json").read_text(), parse_constant=refuse)
    found = as_json("evaluate", copy)
    shares = {name: value for name, value in found.items() if name.endswith("accuracy_interval")}
    assert shares and all(0 <= low <= found[name.removesuffix("_interval")] <= high <= 1 for name, (low, high) in shares.items())
