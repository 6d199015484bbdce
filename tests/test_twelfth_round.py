"""What the twelfth round of tries has found: files that nobody compared with their sums, advice that led nowhere, and a few riddles."""
import json
import os
import shutil
import signal
import warnings
from dataclasses import asdict

import numpy as np
import pytest

from command import call, quick, refused, start

from minibert.train.recipe import FinetuneConfig
from minibert.core.sums import drop_sums, keep_sums

WORD = "{}\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_\n"


def edit(path, old, new):
    text = path.read_text(encoding="utf8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf8")


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    home = tmp_path_factory.mktemp("gpt")
    call("pretrain", "--model", "gpt", *quick("--out", "g"), cwd=home)
    return home / "g"


@pytest.mark.parametrize("line", [2, 3, 5])
@pytest.mark.parametrize("words", [("finetune", "copy", "--dataset", "t.csv"), ("pretrain", "--dataset", "t.csv")])
def test_the_line_of_a_fault_in_a_table(copy, line, words):
    rows = [f"film {k},good\n" for k in range(2, 9)]
    rows.insert(line - 2, '"he said \\"hi\\"",good\n')
    (copy.parent / "t.csv").write_text("text,label\n" + "".join(rows))
    assert f"begins on line {line} " in refused(*words, cwd=copy.parent)


@pytest.mark.parametrize("words", [("pretrain",), ("finetune", "copy", "--dataset", "t.csv")])
def test_the_root_exists(copy, words):
    (copy.parent / "t.csv").write_text("text,label\n" + "a film,good\nno film,bad\n" * 20)
    assert "/ exists: give a new folder" in refused(*words, "--out", "/", cwd=copy.parent)


def test_runs_believes_no_edited_file(copy, tmp_path):
    listed = lambda: json.loads(call("runs", tmp_path, "--json")[0])["runs"]
    assert all("damaged" not in run for run in listed())
    edit(copy / "run.yaml", "steps: 4", "steps: 400")
    run, = listed()
    assert "--steps was 4 and is 400" in run["damaged"]
    edit(copy / "run.yaml", "steps: 400", "steps: 4")
    state = next(copy.glob("checkpoints/*/state.json"))
    edit(state, '"seconds": ', '"seconds": 1')
    assert "state.json is not the file that was written" in listed()[0]["damaged"]
    shutil.rmtree(copy)
    begun_finetuning(tmp_path)
    assert "damaged" not in listed()[0]
    edit(tmp_path / "c/options.json", "t.csv", "other.csv")
    assert "options.json is not the file that was written" in listed()[0]["damaged"]


def begun_finetuning(home):
    "The folder of a fine-tuning that was stopped before its first checkpoint."
    (home / "c").mkdir()
    (home / "t.csv").touch()
    (home / "base").mkdir(exist_ok=True)
    options = asdict(FinetuneConfig(run=str(home / "base"), dataset=str(home / "t.csv"), out=str(home / "c")))
    (home / "c/options.json").write_text(json.dumps(options))
    keep_sums(home / "c", "options.json")
    (home / "base").rmdir()


def test_an_edited_record_is_no_lost_data_set(tmp_path):
    begun_finetuning(tmp_path)
    edit(tmp_path / "c/options.json", "t.csv", "other.csv")
    assert "options.json is not the file that was written" in refused("finetune", "--resume", "c", cwd=tmp_path)


def test_a_locale_without_our_letters_damages_no_run(copy, tmp_path, monkeypatch):
    copy.rename(tmp_path / "中文")
    for name, value in dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0").items(): monkeypatch.setenv(name, value)
    for name in ("run.yaml", ".run.yaml"):
        options = (tmp_path / "中文" / name).read_text(encoding="utf8")
        lines = ["out: 中文\n" if line.startswith("out:") else line for line in options.splitlines(keepends=True)]
        (tmp_path / "中文" / name).write_text("".join(lines), encoding="utf8")
    process = start("runs", ".", "--json", cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0 and json.loads(out)["runs"][0]["state"] == "finished", (out, err)


def test_half_a_letter_is_none(tmp_path):
    (tmp_path / "o.yaml").write_text('out: "a\\ud800b"\n')
    assert "half a letter" in refused("pretrain", "--config", "o.yaml", cwd=tmp_path)


def test_parity_of_a_gpt_that_reorders_its_products(gpt, tmp_path):
    copied = shutil.copytree(gpt, tmp_path / "g")
    values = json.loads((copied / "config.json").read_text()) | dict(reorder_and_upcast_attn=True)
    (copied / "config.json").write_text(json.dumps(values))
    drop_sums(copied, "config.json")
    assert json.loads(call("parity", copied, "--json")[0])["same"]


def test_a_damaged_text_of_a_run(copy):
    "It is noticed by every command that reads it, and nobody is sent to build a corpus in a folder."
    ids = np.load(copy / "val/ids.npy")
    ids[7] = 500 if ids[7] != 500 else 501
    np.save(copy / "val/ids.npy", ids)
    said = refused("evaluate", copy)
    assert "val is damaged" in said and "begin a new run" in said and "build a corpus there" not in said
    call("inspect", copy, "a cat .", "--out", copy / "page")
    page = (copy / "page/index.html").read_text(encoding="utf8")
    assert "heads have no scores" in page and "val is damaged" in page and not (copy / "page/specialties.png").exists()


def test_a_notice_that_is_made_an_error_is_no_mistake_of_ours(copy):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        said = refused("fill-mask", copy, "☃ ☃ [MASK]")
    assert "unknown to the vocabulary" in said and "PYTHONWARNINGS makes an error of this notice" in said and "mistake" not in said


def test_conllu_with_a_mark_in_front_and_cut_short(copy, tmp_path):
    from minibert.measure.probe_runs import read_conllu
    path = tmp_path / "x.conllu"
    path.write_text(WORD.format(1) + WORD.format(2) + "\n", encoding="utf-8-sig")
    assert read_conllu(path).tags == [["NOUN", "NOUN"]]
    for end in (8, 12):  # before the tag's end, and in it
        path.write_text(WORD.format(1) + WORD.format(2)[:end])
        with pytest.raises(ValueError, match="'cat' lacks some of the ten columns, so it may be cut short"): read_conllu(path)
    path.write_text(WORD.format(1).replace("NOUN", "_") + "\n")
    with pytest.raises(ValueError, match="The word 'cat' of .* has no upos: give a file that is tagged throughout.$"): read_conllu(path)


def test_compare_reads_the_curves_first_and_its_advice_works(copy, run, monkeypatch):
    monkeypatch.setattr("minibert.weights.load_pretrained", lambda *_, **__: pytest.fail("asked before the lines were read"))
    path = copy / "metrics.jsonl"
    drop_sums(copy, path.name)
    whole = path.read_text()
    path.write_text(whole + '{"step": 9, "loss": NaN}\n')
    said = refused("compare", run, copy, cwd=copy.parent)
    assert "loss is no number: mend the line, or delete it" in said
    path.write_text("")
    assert "has no whole line, so there is no curve to draw" in refused("compare", run, copy, cwd=copy.parent)
    path.write_text(whole + '{"step": 9, "loss": 1.0, "gradient/all": "much"}\n')
    assert "gradient/all is no number" in refused("compare", run, copy, cwd=copy.parent)
    path.write_text(whole)
    monkeypatch.undo()
    call("compare", run, copy, cwd=copy.parent)


def test_weights_that_are_named_and_lost_are_missed(copy, tmp_path):
    import torch
    call("pretrain", *quick("--positions", "rotary", "--out", "r"), cwd=tmp_path)
    (tmp_path / "r/next_sentence.safetensors").unlink()
    for words in (("evaluate", "r"), ("next-sentence", "r", "a cat .", "a dog ."), ("inspect", "r", "a cat .", "--out", "p")):
        assert "r has lost next_sentence.safetensors: copy it again" in refused(*words, cwd=tmp_path)
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    assert "has lost model.safetensors" in refused("fill-mask", copy, "a [MASK] .")


def test_a_tokenizer_of_bytes_is_held_against_its_sums(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from minibert.text.foreign import FileTokenizer, open_tokenizer
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.train_from_iterator(["Tom ran."] * 9, trainers.BpeTrainer(special_tokens=["<|endoftext|>"], show_progress=False))
    FileTokenizer(inner, "<|endoftext|>").save_pretrained(tmp_path)
    keep_sums(tmp_path, *(path.name for path in tmp_path.iterdir()))
    assert open_tokenizer(tmp_path).tokenize("Tom")
    edit(tmp_path / "tokenizer.json", '"Tom"', '"mTo"')
    with pytest.raises(ValueError, match="tokenizer.json is not the file that was written"): open_tokenizer(tmp_path)
    edit(tmp_path / "tokenizer.json", '"mTo"', '"Tom"')
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="has lost tokenizer_config.json"): open_tokenizer(tmp_path)


def test_a_long_watch_is_no_damage(tmp_path):
    from minibert.train.checkpoints import read_metrics
    line = json.dumps(dict(step=1, loss=1.0, note="x" * 1_000_000)) + "\n"
    (tmp_path / "metrics.jsonl").write_text(line * 70)
    assert len(read_metrics(tmp_path)) == 70


def test_a_file_that_a_checkpoint_lacks_is_named(copy):
    from minibert.train.checkpoints import latest_checkpoint
    for path in copy.glob("checkpoints/*/optimizer.safetensors"): path.unlink()
    with pytest.raises(FileNotFoundError, match="is damaged: optimizer.safetensors cannot be read"): latest_checkpoint(copy)


def test_a_text_with_a_few_nuls_and_one_in_utf16(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"A cat ran.\n\nA dog\0 sat.\n" * 9)
    said = refused("pretrain", "--dataset", "a.txt", cwd=tmp_path)
    assert "a.txt holds NUL characters" in said and "UTF-8" not in said
    (tmp_path / "b.txt").write_text("A cat ran.\n\nA dog sat.\n" * 9, encoding="utf-16-le")
    assert "b.txt isn't UTF-8 text" in refused("pretrain", "--dataset", "b.txt", cwd=tmp_path)


@pytest.mark.parametrize("full", ["b.json", "b.png"])
def test_where_bench_cannot_write_it_has_told_its_figures(tmp_path, monkeypatch, full):
    "And it keeps neither file, so that the same command can be given again."
    from minibert.perf import bench
    from minibert.show import plots as show
    result = dict(settings=dict(transformers=True), cases=[])
    def write(path, data):
        if str(path).endswith(full): raise OSError(28, "No space left on device", str(path))
        path = tmp_path / path
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    monkeypatch.setattr(bench, "bench", lambda *cases, **settings: result)
    monkeypatch.setattr(bench, "draw_bench", lambda result: show.plt.figure())
    for module in (bench, show): monkeypatch.setattr(module, "write_whole", write)
    out, err = call("bench", "--out", "b.json", cwd=tmp_path, code=2)
    assert "how many times as fast" in out and f"{full} could not be read or written (No space left on device)" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows masks no signals")
def test_what_stops_us_is_not_heard_by_those_who_begin():
    from minibert.core.errors import deaf_children, stop_signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with deaf_children(): assert signal.pthread_sigmask(signal.SIG_BLOCK, []) >= {*stop_signals()} >= {signal.SIGINT, signal.SIGTERM}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
