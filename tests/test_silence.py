"""What was wrong in silence, or lost: each is refused with a sentence, before any work, or kept."""
import json
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import QUICK, call, leaves_nothing, refused

from minibert.core.sums import SUMS, read_sums


@pytest.fixture(scope="module")
def files(tmp_path_factory, run):
    "A folder with what the refusals below are asked about."
    home = tmp_path_factory.mktemp("silence")
    (home / "run").symlink_to(run)
    (home / "here").mkdir()
    for name in ("there.json", "there.png", "chart.png", "here/note.txt"): (home / name).write_text("mine")
    (home / "gone").symlink_to(home / "nowhere")
    (home / "seven.yaml").write_text("steps: 7\n")
    (home / "twice.yaml").write_text("steps: 7\nseed: 1\nsteps: 9\n")
    (home / "spelt.yaml").write_text("batch-size: 7\nbatch_size: 9\n")
    (home / "full.yaml").write_text(call("pretrain", "--print-config")[0])
    (home / "who.csv").write_text("text,label\n" + "".join(f"{who} ran {n},{who}\n" for n in range(9) for who in ("anna", "tom")))
    return home


REFUSED = [  # words, what the sentence must name
    ("bench --out none/new.json", "none/new.json --out"),
    ("bench --out there.json", "there.json exists --out"),
    ("bench --out there.csv", "there.png exists --out"),
    ("bench --out new.png", "new.png .json --out"),
    ("bench --vocab-size 100", "--vocab-size 100 --size"),
    ("parity run --out here", "here exists --out"),
    ("parity run --out gone", "gone exists --out"),
    ("parity run --out there.json/new", "there.json/new --out"),
    ("probe run --out here", "here exists --out"),
    ("probe run --out there.json/new", "there.json/new --out"),
    ("pretrain --out gone", "gone exists --out"),
    ("inspect run anna --out gone", "gone"),
    ("pretrain --start run --size tiny", "size tiny run"),
    ("pretrain --start run --vocab-size 8192", "vocab-size 8192"),
    ("pretrain --start run --positions absolute", "positions absolute"),
    ("pretrain --start run --max-position-embeddings 32", "max-position-embeddings 32"),
    ("pretrain --start run --size mini --print-config", "size mini"),
    ("pretrain --size None", "size"),
    ("pretrain --config= --print-config", "empty"),
    ("pretrain --config seven.yaml --config full.yaml --print-config", "--config twice"),
    ("pretrain --config=seven.yaml --config seven.yaml --print-config", "--config twice"),
    ("pretrain --recipe fast --recipe bert --print-config", "--recipe twice"),
    ("pretrain --config twice.yaml --print-config", "twice.yaml steps twice"),
    ("pretrain --config spelt.yaml --print-config", "spelt.yaml batch_size twice"),
    ("pretrain --dataset= --print-config", "dataset is ''"),
    ("pretrain --start= --print-config", "start is ''"),
    ("pretrain --out= --print-config", "out is ''"),
    ("finetune run --dataset who.csv --out=", "out is ''"),
    ("probe run --dataset=", "dataset is ''"),
    ("probe run --out=", "out is ''"),
    ("bench --out=", "out is ''"),
    ("evaluate run --dataset=", "dataset is ''"),
    ("evaluate run --text-column words", "--text-column words --dataset"),
    ("pretrain --name wikitext --vocab-size 1000", "--name wikitext stories"),
    ("pretrain --text-column words --vocab-size 1000", "--text-column words stories"),
    ("pretrain --streaming --vocab-size 1000", "--streaming stories"),
    ("evaluate run --dataset stories --name wikitext", "--name wikitext stories"),
    ("finetune run --dataset who.csv --name mrpc", "--name mrpc who.csv"),
]


@pytest.mark.parametrize("words,said", REFUSED, ids=[words for words, _ in REFUSED])
def test_what_would_be_ignored_is_refused(files, words, said):
    told = leaves_nothing(*words.split(), cwd=files)
    assert all(part in told.replace("_", "-") or part in told for part in said.split(" ")), told


@pytest.mark.parametrize("words", [("fill-mask", "", "a [MASK]"), ("fill-mask", "run", " "), ("next-sentence", "run", "", "b"),
                                   ("classify", "run", ""), ("generate", "", "a"), ("inspect", "run", "", "--out", "new"),
                                   ("parity", ""), ("evaluate", ""), ("finetune", "", "--dataset", "who.csv")])
def test_an_empty_word_names_nothing(files, words):
    "An empty name of a run would be the folder that one stands in."
    assert "''" in (told := leaves_nothing(*words, cwd=files)) or "' '" in told


def given(*words, cwd=None): return yaml.safe_load(call("pretrain", *words, "--print-config", cwd=cwd)[0])


def test_a_bundle_by_hand_is_stronger_than_a_file(files):
    from minibert.train.recipe import BACKENDS, RECIPES
    for recipe, bundle in RECIPES.items():
        told = given("--config", "full.yaml", "--recipe", recipe, cwd=files)
        assert bundle.items() <= told.items()
    assert BACKENDS["numpy"].items() <= given("--config", "full.yaml", "--backend", "numpy", cwd=files).items()
    told = given("--config", "full.yaml", "--recipe", "fast", "--length", 40, cwd=files)
    assert (told["length"], told["positions"]) == (40, "rotary")
    (files / "named.yaml").write_text("recipe: bert\nlength: 64\n")
    told = given("--config", "named.yaml", cwd=files)
    assert (told["length"], told["dropout"]) == (64, 0.1)
    told = given("--config", "named.yaml", "--recipe", "own", cwd=files)  # the file's recipe is not asked for
    assert (told["length"], told["dropout"]) == (64, 0.0)
    started = given("--config", "full.yaml", "--start", "run", cwd=files)
    assert started["size"] is started["vocab_size"] is started["positions"] is started["max_position_embeddings"] is None


@pytest.mark.slow
def test_a_model_that_is_started_from_keeps_its_sizes(run, tmp_path):
    call("pretrain", "--steps", 1, "--batch-size", 4, "--length", 32, "--start", run, "--out", "new", cwd=tmp_path)
    options = yaml.safe_load((tmp_path / "new/run.yaml").read_text())
    assert [options[name] for name in ("size", "vocab_size", "positions", "max_position_embeddings")] == [None] * 4
    assert (tmp_path / "new/vocab.txt").read_bytes() == (run / "vocab.txt").read_bytes()
    call("pretrain", "--config", "new/run.yaml", "--out", "again", cwd=tmp_path)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_run_whose_number_is_taken_meanwhile_takes_the_next(tmp_path, monkeypatch):
    "Another run is told `--out runs/1` while this one, which has the number 1, prepares its texts."
    from minibert.runs import runs
    from minibert.train.recipe import PretrainOptions
    prepare, options = runs.prepare, PretrainOptions(steps=2, batch_size=4, length=32, vocab_size=1000)
    def slowly(options, folder):
        told = prepare(options, folder)
        (tmp_path / "runs/1").mkdir()
        (tmp_path / "runs/1/theirs").write_text("kept")
        return told
    monkeypatch.setattr(runs, "prepare", slowly)
    monkeypatch.chdir(tmp_path)
    run, _ = runs.begin(options)
    assert run.folder == Path("runs/2") and run.options.out == "runs/2" and not list(tmp_path.glob("runs/.*"))
    assert [path.name for path in (tmp_path / "runs/1").iterdir()] == ["theirs"]
    with pytest.raises(FileExistsError, match="runs/1 exists"): runs.begin(replace(options, out="runs/1"))
    assert not list(tmp_path.glob("runs/.*"))


def copy(folder, to):
    shutil.copytree(folder, to, symlinks=True)
    return to


def flip(path, place, bit=0):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_no_bit_of_the_weights_flips_unnoticed(run, tmp_path):
    twin = copy(run, tmp_path / "run")
    size = (twin / "model.safetensors").stat().st_size
    for n in range(4):
        place, bit = size - 1 - n * (size // 5), (7 * n) % 8
        flip(twin / "model.safetensors", place, bit)
        told = leaves_nothing("fill-mask", "run", "a [MASK]", cwd=tmp_path)
        assert "run/model.safetensors" in told and SUMS in told and "delete its line" in told, told
        flip(twin / "model.safetensors", place, bit)
    assert call("fill-mask", twin, "a [MASK]") == call("fill-mask", run, "a [MASK]")


@pytest.mark.parametrize("command", [("fill-mask", "run", "a [MASK]"), ("next-sentence", "run", "a", "b"), ("evaluate", "run"),
                                     ("inspect", "run", "a", "--out", "new"), ("parity", "run"), ("probe", "run"),
                                     ("pretrain", "--start", "run", "--length", "32"), ("finetune", "run", "--dataset", "who.csv")], ids=lambda c: c[0])
@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_every_command_compares_the_sums(run, files, tmp_path, name, command):
    twin = copy(run, tmp_path / "run")
    shutil.copy(files / "who.csv", tmp_path)
    if name == "vocab.txt":
        lines = (twin / name).read_text(encoding="utf8").split("\n")
        (twin / name).write_text("\n".join(lines[:40] + [lines[41], lines[40]] + lines[42:]), encoding="utf8")
    else: flip(twin / name, -100)
    assert f"run/{name}" in leaves_nothing(*command, cwd=tmp_path)


def test_a_cut_vocabulary_and_an_edited_config_are_named(run, tmp_path):
    for name, old, new in (("vocab.txt", "\nthe\n", "\n"), ("config.json", '"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-05'),
                           ("tokenizer_config.json", '"strip_accents": null', '"strip_accents": false')):
        twin = copy(run, tmp_path / name)
        text = (twin / name).read_text(encoding="utf8")
        assert text.count(old) == 1
        (twin / name).write_text(text.replace(old, new), encoding="utf8")
        assert f"/{name} is not the file that was written" in refused("fill-mask", twin, "a [MASK]")
        sums = (twin / SUMS).read_text().splitlines(keepends=True)
        (twin / SUMS).write_text("".join(line for line in sums if not line.endswith(f" {name}\n")))
        if name == "vocab.txt": assert f"{twin}/tokenizer.json are two vocabularies" in refused("fill-mask", twin, "a [MASK]")
        else: call("fill-mask", twin, "a [MASK]")  # on purpose


def test_the_record_is_sha256sums_own(run):
    from hashlib import sha256
    assert read_sums(run).keys() >= {"model.safetensors", "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    for name, told in read_sums(run).items(): assert sha256((run / name).read_bytes()).hexdigest() == told
    if shutil.which("sha256sum"):
        import subprocess
        assert subprocess.run(["sha256sum", "-c", SUMS], cwd=run, capture_output=True).returncode == 0


def test_what_transformers_saves_opens_as_before(run, tmp_path):
    import transformers as hf
    theirs = hf.BertForPreTraining.from_pretrained(run)
    theirs.save_pretrained(tmp_path / "fresh")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(run / name, tmp_path / "fresh")
    assert not (tmp_path / "fresh" / SUMS).exists()
    assert call("fill-mask", tmp_path / "fresh", "a [MASK]")[0] == call("fill-mask", run, "a [MASK]")[0]
    twin = copy(run, tmp_path / "twin")
    theirs.bert.pooler.dense.bias.data += 1
    theirs.save_pretrained(twin)
    told = refused("fill-mask", twin, "a [MASK]")
    assert "if you changed the file on purpose, delete its line there" in told
    (twin / SUMS).unlink()
    call("fill-mask", twin, "a [MASK]")


def test_what_is_saved_over_is_recorded_anew(run, tmp_path):
    from minibert.tokenizer import WordPieceTokenizer
    from minibert.weights import load_pretrained, save_pretrained
    twin = copy(run, tmp_path / "run")
    model, tokenizer = load_pretrained(twin), WordPieceTokenizer.from_pretrained(twin)
    model.nsp_head.bias.data += 1
    save_pretrained(model, None, twin)
    assert load_pretrained(twin).nsp_head.bias.data.equal(model.nsp_head.bias.data)
    WordPieceTokenizer([*tokenizer.pieces, "##quux"]).save_pretrained(twin)
    assert WordPieceTokenizer.from_pretrained(twin).pieces[-1] == "##quux"


@pytest.mark.parametrize("change", [dict(step=2), dict(seconds=1e9), "rate"])
def test_an_edited_state_is_not_gone_on_from(run, tmp_path, change):
    twin = copy(run, tmp_path / "run")
    path = twin / "checkpoints/00000004/state.json"
    state = json.loads(path.read_text())
    if change == "rate":
        change = dict(about=state["about"] | dict(training=state["about"]["training"] | dict(learning_rate=9.0)))
    path.write_text(json.dumps(state | change, indent=1))
    told = leaves_nothing("pretrain", "--resume", "run", cwd=tmp_path)
    assert "state.json is not the file that was written" in told and "holds no whole checkpoint" in told


def test_edited_options_of_fine_tuning_are_refused(run, files, tmp_path):
    words = ("finetune", run, "--dataset", files / "who.csv", "--frozen", "--length", 12)
    call(*words, "--out", "tuned", cwd=tmp_path)
    path = tmp_path / "tuned/options.json"
    path.write_text(path.read_text().replace('"share": 1.0', '"share": 0.5'))
    assert "options.json is not the file" in leaves_nothing("finetune", "--resume", "tuned", cwd=tmp_path)


@pytest.mark.slow
def test_an_edited_run_is_not_measured_as_if_it_were_whole(run, tmp_path):
    twin = copy(run, tmp_path / "run")
    path = twin / "run.yaml"
    path.write_text(path.read_text().replace("length: 32", "length: 16"))
    assert "--length was 32 and is 16" in leaves_nothing("evaluate", "run", cwd=tmp_path)
    path.write_text((run / "run.yaml").read_text())
    assert json.loads(call("evaluate", twin)[0]) == json.loads(call("evaluate", run)[0])


@pytest.mark.slow
def test_a_damaged_line_of_metrics_loses_no_others(run, tmp_path):
    twin = copy(run, tmp_path / "run")
    lines = (twin / "metrics.jsonl").read_text().splitlines(keepends=True)
    (twin / "metrics.jsonl").write_text("{damaged\n" + "".join(lines[1:]))
    assert "run/metrics.jsonl, line 1" in leaves_nothing("pretrain", "--resume", "run", cwd=tmp_path)
    (twin / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:9])  # cut short: the step is taken again
    shutil.rmtree(twin / "checkpoints")
    (twin / "checkpoints").mkdir()
    (twin / "model.safetensors").unlink()
    (twin / "summary.json").unlink()
    call("pretrain", "--resume", twin)


@pytest.mark.slow
def test_an_untrained_head_gives_no_answer(run, tmp_path):
    import transformers as hf
    hf.BertModel.from_pretrained(run).save_pretrained(tmp_path / "bare")
    hf.BertForMaskedLM.from_pretrained(run).save_pretrained(tmp_path / "masked")
    hf.BertForTokenClassification.from_pretrained(run).save_pretrained(tmp_path / "tagger")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        for to in ("bare", "masked", "tagger"): shutil.copy(run / name, tmp_path / to)
    for to in ("bare", "tagger"):
        assert "no trained head for mlm" in leaves_nothing("fill-mask", to, "a [MASK]", cwd=tmp_path)
        assert "no trained head for nsp" in leaves_nothing("next-sentence", to, "a", "b", cwd=tmp_path)
        assert "no trained head" in leaves_nothing("evaluate", to, "--dataset", "stories", cwd=tmp_path)
    with pytest.warns(UserWarning, match="starts fresh"):
        assert call("fill-mask", "masked", "a [MASK]", cwd=tmp_path)[0] == call("fill-mask", run, "a [MASK]")[0]
        told = json.loads(call("evaluate", "masked", "--dataset", "stories", cwd=tmp_path)[0])
    assert "mlm_accuracy" in told and not [name for name in told if name.startswith("nsp")]


@pytest.mark.parametrize("learned,words", [("mlm", ("next-sentence", "new", "a", "b")), ("nsp", ("fill-mask", "new", "a [MASK]"))])
@pytest.mark.slow
def test_an_objective_that_was_not_learned_is_not_asked(tmp_path, learned, words):
    call("pretrain", *QUICK, "--objectives", learned, "--out", "new", cwd=tmp_path)
    assert "no trained head" in leaves_nothing(*words, cwd=tmp_path)


def test_a_classifier_is_not_measured_as_a_pretrained_model(run, files, tmp_path):
    call("finetune", run, "--dataset", files / "who.csv", "--frozen", "--length", 12, "--out", "tuned", cwd=tmp_path)
    for words in (("evaluate", "tuned", "--dataset", "stories"), ("fill-mask", "tuned", "a [MASK]"), ("next-sentence", "tuned", "a", "b")):
        assert "lassifier" in leaves_nothing(*words, cwd=tmp_path)


def test_a_data_sets_configuration_reaches_it(run, tmp_path, monkeypatch):
    "It was replaced by the checkpoint's architecture where the checkpoint is no run."
    from minibert.runs import report
    asked, load = [], report.load_documents
    def note(source, name, *rest):
        asked.append(name)
        return load(source, None, *rest)
    monkeypatch.setattr(report, "load_documents", note)
    twin = copy(run, tmp_path / "plain")
    for name in ("run.yaml", ".run.yaml"): (twin / name).unlink()
    (tmp_path / "rooms.txt").write_text("\n\n".join(f"The room has {n} doors. Its walls are grey." for n in range(40)))
    call("evaluate", "plain", "--dataset", "rooms.txt", cwd=tmp_path)
    assert asked == [None]


def test_a_link_at_a_pictures_place_is_not_followed(tmp_path):
    from minibert.show.plots import show_curves, write_figure
    (tmp_path / "mine.txt").write_text("a letter")
    (tmp_path / "curves.png").symlink_to(tmp_path / "mine.txt")
    write_figure(show_curves({"loss": [3, 2, 1]}), tmp_path / "curves.png")
    assert (tmp_path / "mine.txt").read_text() == "a letter" and not (tmp_path / "curves.png").is_symlink()


@pytest.mark.slow
def test_a_run_follows_no_link_at_its_curves(run, tmp_path):
    twin = copy(run, tmp_path / "run")
    (tmp_path / "mine.txt").write_text("a letter")
    (twin / "curves.png").unlink()
    (twin / "curves.png").symlink_to(tmp_path / "mine.txt")
    call("pretrain", "--resume", twin)
    assert (tmp_path / "mine.txt").read_text() == "a letter" and (twin / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_labels_do_not_steer_the_terminal(run, tmp_path):
    rows = "".join(f"{who} ran {n},\x1b[2J{who}\u202e\n" for n in range(9) for who in ("anna", "tom"))
    (tmp_path / "who.csv").write_text("text,label\n" + rows, encoding="utf8")
    call("finetune", run, "--dataset", "who.csv", "--frozen", "--length", 12, "--out", "tuned", cwd=tmp_path)
    out, _ = call("classify", "tuned", "anna ran", cwd=tmp_path)
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b[2Janna\\u202e" in out
    told = refused("fill-mask", "\x1b[31mnone", "a [MASK]", cwd=tmp_path)
    assert "\x1b" not in told


def test_shares_keep_between_nothing_and_all():
    from minibert.measure.probe_figures import share_interval
    generator = np.random.default_rng(0)
    for _ in range(200):
        rows = np.sort(generator.integers(0, generator.integers(2, 9), generator.integers(4, 40)))
        if len(set(rows)) < 2: continue
        values = generator.random(len(rows)) < generator.choice([0.02, 0.5, 0.98])
        low, high = share_interval(values.astype(float), rows)
        assert 0 <= low <= values.mean() + 1e-12 and values.mean() - 1e-12 <= high <= 1 and low < high


@pytest.mark.slow
def test_held_out_shares_keep_between_nothing_and_all(run):
    told = json.loads(call("evaluate", run)[0])
    shares = {name: value for name, value in told.items() if name.endswith("accuracy_interval")}
    assert shares and all(0 <= low <= told[name.removesuffix("_interval")] <= high <= 1 for name, (low, high) in shares.items())


@pytest.mark.slow
def test_forty_two_bits_are_all_noticed(run, tmp_path):
    twin = copy(run, tmp_path / "run")
    path, generator = twin / "model.safetensors", np.random.default_rng(42)
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    for place, bit in zip(generator.integers(header, path.stat().st_size, 42), generator.integers(0, 8, 42)):
        flip(path, place, bit)
        assert "model.safetensors is not the file" in refused("fill-mask", twin, "a [MASK]")
        flip(path, place, bit)
    assert call("fill-mask", twin, "a [MASK]") == call("fill-mask", run, "a [MASK]")


@pytest.mark.slow
def test_many_runs_at_once_lose_nothing(tmp_path):
    from command import start
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda k: (p := start("pretrain", *QUICK, "--seed", k, cwd=tmp_path)).communicate() + (p.returncode,), range(4)))
    assert [code for *_, code in told] == [0] * 4, told
    assert sorted(os.listdir(tmp_path / "runs")) == ["1", "2", "3", "4"]
    seeds = {yaml.safe_load((tmp_path / f"runs/{k}/run.yaml").read_text())["seed"] for k in range(1, 5)}
    assert seeds == {0, 1, 2, 3} and math.isfinite(json.loads((tmp_path / "runs/4/summary.json").read_text())["mlm_loss"])
