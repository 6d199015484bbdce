"""What every module asks of core: seeds, whole files, one door for errors."""
import errno
import os

import pytest
import torch

from minibert.core.errors import UserError, explain
from minibert.core.files import atomic_dir, check_free, read_json, write_whole
from minibert.core.seeds import seeded


def test_seeded_is_a_function_of_its_key():
    seeds = {seeded(a, b).initial_seed() for a in range(40) for b in range(40)}
    assert len(seeds) == 1600 and all(0 <= s < 2**63 for s in seeds)
    assert seeded(3, 4).initial_seed() == seeded(3, 4).initial_seed()
    state = torch.get_rng_state()
    seeded(1)
    assert torch.equal(state, torch.get_rng_state())
    for bad in ((), (-1,), (2, -3)):
        with pytest.raises(ValueError, match="whole numbers"): seeded(*bad)


@pytest.mark.parametrize("problem, code", [
    (UserError("no"), 2), (ValueError("no"), 3), (RuntimeError("no"), 3), (MemoryError(), 3), (FileNotFoundError(errno.ENOENT, "gone", "a.txt"), 2),
    (FloatingPointError("no"), 3), (ModuleNotFoundError("No module named 'x'", name="x"), 2), (ModuleNotFoundError("No module named 'minibert.x'", name="minibert.x"), 3)])
def test_the_door_knows_whose_mistake_it_is(problem, code):
    sentence, found = explain(problem)
    assert found == code and "\n" not in sentence
    assert ("unexpected " + type(problem).__name__ in sentence) == (code == 3)
    if isinstance(problem, FileNotFoundError): assert sentence == "a.txt: gone"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path, synced = tmp_path / "a.json", []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_whole(path, "{}")
    assert read_json(path) == {} and len(synced) == 2  # the file, and the folder that has its name
    def full(*names): raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError) as problem: write_whole(path, "[]")
    assert problem.value.filename == str(path) and path.read_text() == "{}" and len(list(tmp_path.iterdir())) == 1


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    with atomic_dir(tmp_path / "a") as folder: (folder / "b").write_text("c")
    with pytest.raises(KeyboardInterrupt), atomic_dir(tmp_path / "d"): raise KeyboardInterrupt
    with pytest.raises(UserError, match="a exists"), atomic_dir(tmp_path / "a"): pass
    with pytest.raises(UserError, match="e exists"), atomic_dir(tmp_path / "e"): (tmp_path / "e").mkdir()  # somebody was faster
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "e"] and check_free(tmp_path / "f") == tmp_path / "f"
