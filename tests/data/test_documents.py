"""Any text as documents: hostile inputs, local folders, the network that is not there."""
import errno
import json
import os
import random
import re
import socket

import pytest
from letters import told_text, write_hub

from minibert.data import documents as module
from minibert.data.documents import load_documents, split_sentences
from minibert.data.stories import stories


@pytest.fixture
def hub(tmp_path): return write_hub(tmp_path / "hub")


@pytest.mark.parametrize("text, count", [
    ("Mr. J. R. R. Tolkien came. He left.", 2), ("It cost $3.50. OK?", 2), ("Wait... what? No!", 2), ("", 0), (" \n ", 0), ("...", 1), (". . .", 1),
    ("He said \"Go.\" She went.", 2), ("The U.S. Army won. It did.", 2), ("At No. 5 he lived. No. He did not.", 3), ("a 4 @.@ 5 b . C d .", 2),
    ("“Why?” “Because.”", 2), ("Is it? it is.", 2), ("日本語。", 1), ("x" * 100_000, 1), ("A. " * 1000, 1), ("Word. " * 2000, 2000)])
def test_split_sentences(text, count):
    found = split_sentences(text)
    assert len(found) == count, found
    assert "".join("".join(found).split()) == "".join(text.split())


def test_nothing_but_white_space_is_lost_on_random_text():
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("aB. !?\"'”)…\n1") for _ in range(rng.randrange(60)))
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_sources(tmp_path):
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("\ufeffOne here. Two\nhere.\n\n\nThree. Four.", encoding="utf-8")
    (folder / "inner/b.txt").write_bytes("Fünf. Sechs.\r\n\r\nSieben. Acht.\r\n\r\nNeun. Zehn.".encode())
    held, kept = list(load_documents(folder, split="validation")), load_documents(folder)
    assert held == [["One here.", "Two here."], ["Three.", "Four."]]
    assert list(kept) == list(kept) == [["Fünf.", "Sechs."], ["Sieben.", "Acht."], ["Neun.", "Zehn."]]
    assert len(list(load_documents(folder, limit=1))) == 1
    assert [s for d in load_documents(limit=2) for s in d] == [s for t in stories(2) for s in t.sentences]


def test_a_table_in_the_hubs_layout(tmp_path):
    rows = [{"text": f"Row {k}. It is whole.", "other": k} for k in range(50)]
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    train, held = list(load_documents(tmp_path / "hub")), list(load_documents(tmp_path / "hub", split="validation"))
    assert len(train) == 46 and len(held) == 4 and train[0] == ["Row 2.", "It is whole."]
    with pytest.raises(ValueError, match="columns"): load_documents(tmp_path / "hub", text_column="body")


def test_bad_sources_get_one_sentence(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "latin.txt").write_bytes("Café.".encode("latin-1"))
    (tmp_path / "late.txt").write_bytes(b"word. Word.\n\n" * 100_000 + b"\xff")
    (tmp_path / "nothing").mkdir()
    for name, said in (("empty.txt", "empty"), ("latin.txt", "UTF-8"), ("nothing", "could not be loaded"), ("no/such/place", "There is no file or folder")):
        with pytest.raises(ValueError, match=said) as error: load_documents(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="UTF-8"): list(load_documents(tmp_path / "late.txt"))


@pytest.fixture
def online(monkeypatch):
    "The libraries believe in a network, whatever the environment says."
    import datasets
    from huggingface_hub import constants
    for config in (datasets.config, constants): monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    yield
    assert datasets.config.HF_HUB_OFFLINE is constants.HF_HUB_OFFLINE is False, "the settings are the user's"


@pytest.fixture
def unreachable(online, monkeypatch):
    from huggingface_hub import HfApi
    def unreachable(*_, **__): raise ConnectionError("no network")
    monkeypatch.setattr(HfApi, "dataset_info", unreachable)


def test_no_network_is_one_sentence_at_once(unreachable, capfd):
    with pytest.raises(ValueError, match="nobody/nothing, x could not be loaded .*the hub gave no answer") as error: load_documents("nobody/nothing", "x")
    assert "\n" not in str(error.value) and "Retry" not in capfd.readouterr().err


def test_without_a_network_what_was_loaded_before_is_found(tmp_path, unreachable, monkeypatch):
    import datasets
    import pyarrow as pa
    (place := tmp_path / "nobody___nothing/default/0.0.0/0").mkdir(parents=True)  # as the library keeps what it loaded
    splits = datasets.SplitDict(dataset_name="nothing")
    for split, n in (("train", 30), ("validation", 5)):
        table = pa.table({"text": [row for [row] in told_text(n)]})
        with pa.ipc.new_stream(str(place / f"nothing-{split}.arrow"), table.schema) as file: file.write_table(table)
        splits.add(datasets.SplitInfo(split, num_examples=n))
    datasets.DatasetInfo(config_name="default", version="0.0.0", splits=splits).write_to_directory(place)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    for split, n in (("train", 30), ("validation", 5)):
        for streaming in (False, True):
            found = list(load_documents("nobody/nothing", split=split, streaming=streaming))
            assert found == [split_sentences(row) for [row] in told_text(n)]
    with pytest.raises(ValueError, match="nobody/nothing, other could not be loaded"): load_documents("nobody/nothing", "other")


def test_what_the_hub_says_is_passed_on(online, monkeypatch):
    import datasets
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError
    def missing(*_, **__): raise RepositoryNotFoundError("404", response=httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co")))
    def load(*_, **__): raise datasets.exceptions.DatasetNotFoundError("it doesn't exist on the Hub")
    monkeypatch.setattr(HfApi, "dataset_info", missing)
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(ValueError, match="DatasetNotFoundError: it doesn't exist"): load_documents("nobody/nothing")


def test_what_cannot_be_a_name_on_the_hub_is_a_path_that_is_not_there(online, tmp_path):
    with pytest.raises(ValueError, match="There is no file or folder"): load_documents(tmp_path / "nowhere/at/all")


def test_a_local_path_never_asks_the_network(online, monkeypatch, hub):
    def refuse(*asked, **_): raise AssertionError(f"the network was asked for {asked}")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    expected, one = list(load_documents(hub)), hub / "data/train-00000-of-00003.parquet"
    for streaming in (False, True):
        assert list(load_documents(hub, streaming=streaming)) == expected
        assert list(load_documents(one, split="train", streaming=streaming)) == [d for k, d in enumerate(expected[:100]) if k % 40 >= 2]


def test_a_folder_called_as_a_kind_of_table_is_a_folder(monkeypatch, hub):
    hub.rename(hub.parent / "csv")
    monkeypatch.chdir(hub.parent)
    assert len(list(load_documents("csv"))) == 300


def test_wikitext(shared_data):
    found = list(load_documents(shared_data / "wikitext", "wikitext-2-v1", split="validation"))
    assert len(found) == 60
    assert not [s for d in found for s in d if s.startswith("= =")]


def test_what_the_rule_of_titles_is_worth(shared_data, monkeypatch):
    "The two numbers that the reference `documents` names."
    rows = list(module.load_table(shared_data / "wikitext", "wikitext-2-v1")["train"]["text"])
    assert len(list(module.group_rows(rows, True))) == 601
    monkeypatch.setattr(module, "is_title", lambda row, before: re.match(r"\s*= [^=].* =\s*$", row))
    assert len(list(module.group_rows(rows, True))) == 617


def test_a_source_that_cannot_be_read_says_so(tmp_path, monkeypatch, hub):
    import datasets
    def refuse(*_, **__):
        try: raise PermissionError(errno.EACCES, "Permission denied", "train.parquet")
        except PermissionError as error: raise RuntimeError("An error occurred while generating the dataset") from error
    with monkeypatch.context() as patched:
        patched.setattr(datasets, "load_dataset", refuse)
        with pytest.raises(PermissionError, match="Permission denied"): load_documents(hub)
    rows = load_documents(hub, streaming=True)
    monkeypatch.setattr(datasets.IterableDataset, "iter", refuse)
    with pytest.raises(PermissionError, match="Permission denied"): list(rows)


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "t.txt").write_text("One. Two.\n\n" * 4)
    assert len(list(load_documents(tmp_path / "texts"))) == 6
    real = os.scandir
    def scandir(path):
        if str(path).endswith("b"): raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="Permission denied"): load_documents(tmp_path / "texts")


def test_a_stream_without_a_validation_split_holds_some_out(hub):
    (hub / "data/validation-00000-of-00001.parquet").unlink()
    ours, theirs = (list(load_documents(hub, split=split, streaming=True)) for split in ("train", "validation"))
    assert len(ours) == 284 and len(theirs) == 16 and theirs == list(load_documents(hub, split="validation"))


def test_a_sample_is_bounded_and_reads_no_further():
    seen = []
    def watched():
        for k in range(1000):
            seen.append(k)
            yield [f"Document {k} is here. It ends."]
    texts = module.Documents(watched, "watched", cut=module.cut_sentences)
    sample = list(module.sample_sentences(texts, characters=100, every=10))
    assert sample[::2] == [f"Document {k} is here." for k in (0, 10, 20, 30)] and len(seen) <= 31
    assert list(module.sample_sentences([["a", "b"], ["c"]])) == ["a", "b", "c"]
