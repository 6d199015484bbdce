"""Checkpoints that transformers saved, with a tokenizer of their own: what they can do here, and what is refused."""
import json
import shutil

import pytest
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from command import as_json, call, leaves_nothing, quick
from minibert.t5 import T5Config

TEXT = "\n\n".join(f"The room has {n} doors. Its walls are grey." for n in range(600))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    "A GPT-2 as transformers saves it, with a tokenizer of bytes."
    home = tmp_path_factory.mktemp("elsewhere")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    config = hf.GPT2Config(vocab_size=inner.get_vocab_size(), n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    hf.GPT2LMHeadModel(config).save_pretrained(home / "gpt2")
    inner.save(str(home / "gpt2/tokenizer.json"))
    (home / "who.csv").write_text("text,label\n" + "anna ran,a\ntom ran,b\n" * 20)
    (home / "rooms.txt").write_text(TEXT)
    return home


@pytest.mark.parametrize("words", [
    "finetune gpt2 --dataset who.csv", "fill-mask gpt2 [MASK]", "next-sentence gpt2 a b", "classify gpt2 a", "probe gpt2", "evaluate gpt2",
    "inspect gpt2 a --pair b --out new", "pretrain --start gpt2 --length 32 --out new", "compare gpt2 gpt2"])
def test_what_it_cannot_do_is_refused(gpt2, words): leaves_nothing(*words.split(), cwd=gpt2)


def test_what_it_can_do(gpt2, tmp_path):
    assert len(as_json("generate", "gpt2", "the room", "--tokens", 6, "--samples", 2, cwd=gpt2)["texts"]) == 2
    assert as_json("parity", "gpt2", cwd=gpt2)["same"] is True
    call("inspect", "gpt2", "the room has", "--out", tmp_path / "page", cwd=gpt2)
    assert as_json("evaluate", "gpt2", "--dataset", "rooms.txt", cwd=gpt2)["bits_per_byte"] > 0


def changed(folder, to, **changes):
    "A copy of a checkpoint with other values in its config."
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*run.yaml"))
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | changes))
    return to


@pytest.mark.slow
def test_ways_of_computing_the_same_are_the_same(gpt, run, tmp_path):
    "Products in another order, a feed-forward in chunks."
    for folder, change in ((gpt, dict(reorder_and_upcast_attn=True)), (run, dict(chunk_size_feed_forward=4))):
        assert as_json("parity", changed(folder, tmp_path / folder.name, **change))["same"] is True


def test_a_t5_begins_with_its_padding_where_its_config_names_no_start():
    assert T5Config.from_dict(dict(vocab_size=99, pad_token_id=7)).decoder_start_token_id == 7


@pytest.mark.slow
def test_a_plain_t5_is_compared_and_not_measured_by_gaps(tmp_path):
    "Its words for gaps are not those of our own."
    call("pretrain", "--model", "t5", *quick("--steps", 1), "--out", tmp_path / "own")
    pieces = len((tmp_path / "own/vocab.txt").read_text(encoding="utf8").splitlines())
    hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=pieces + 100, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)).save_pretrained(tmp_path / "plain")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(tmp_path / "own" / name, tmp_path / "plain")
    assert as_json("parity", tmp_path / "plain")["same"] is True
