"""A head that nobody has trained gives no answer: not to a question, not on a page, not to a classifier on top of it."""
import json
import shutil

import pytest

from command import FILMS, QUICK, STARTED, as_json, call, leaves_nothing, refused

FROZEN = "--frozen", "--pooling", "cls", "--length", 12


@pytest.fixture(scope="module")
def pairs_run(tmp_path_factory):
    "A run that has learned to tell pairs alone."
    folder = tmp_path_factory.mktemp("pairs") / "pairs"
    call("pretrain", *QUICK, "--objectives", "nsp", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    path = tmp_path_factory.mktemp("films") / "films.csv"
    path.write_text(FILMS)
    return path


def test_an_objective_that_was_not_learned_is_not_asked(masked_run, pairs_run):
    call("fill-mask", masked_run, "a [MASK]")
    call("next-sentence", pairs_run, "a", "b")
    for words, objective in ((("next-sentence", masked_run, "a", "b"), "nsp"), (("fill-mask", pairs_run, "a [MASK]"), "mlm")):
        assert objective in refused(*words)


@pytest.mark.slow
def test_what_a_start_has_not_learned_its_runs_have_not(masked_run, tmp_path):
    call("pretrain", "--start", masked_run, *STARTED, "--objectives", "mlm", "--out", "b", cwd=tmp_path)
    assert "nsp" in refused("next-sentence", "b", "x", "y", cwd=tmp_path)
    call("fill-mask", "b", "a [MASK]", cwd=tmp_path)
    call("pretrain", "--start", "b", *STARTED, "--objectives", "nsp", "--out", "c", cwd=tmp_path)
    for words in (("next-sentence", "c", "x", "y"), ("fill-mask", "c", "a [MASK]")): call(*words, cwd=tmp_path)


def test_a_gpt_is_not_asked_for_a_mask_nor_a_bert_for_texts(run, gpt):
    assert "[MASK]" in refused("generate", gpt, "the [MASK] was red")
    assert "BertForPreTraining" in refused("generate", run, "anna")


def test_an_evaluation_measures_what_was_learned(masked_run):
    found = as_json("evaluate", masked_run)
    assert "mlm_loss" in found and not [name for name in found if name.startswith("nsp")]


@pytest.mark.parametrize("words", [("fill-mask", "RUN", "a [MASK]"), ("next-sentence", "RUN", "a", "b"), ("evaluate", "RUN"),
                                   ("evaluate", "RUN", "--dataset", "stories"), ("generate", "RUN", "a"), ("parity", "RUN")])
def test_a_classifier_is_asked_for_classes_alone(classifier, words):
    assert "lassif" in refused(*(classifier if word == "RUN" else word for word in words))


@pytest.mark.parametrize("words", [("fill-mask", "RUN", "a [MASK]"), ("classify", "RUN", "a"), ("evaluate", "RUN"), ("inspect", "RUN", "a", "--out", "new"),
                                   ("finetune", "RUN", "--dataset", "films.csv"), ("pretrain", "--start", "RUN", "--out", "new")])
def test_a_run_that_is_not_finished_is_not_asked(copy, words):
    for name in ("model.safetensors", "summary.json"): (copy / name).unlink()
    (copy.parent / "films.csv").write_text(FILMS)
    assert copy.name in leaves_nothing(*(copy.name if word == "RUN" else word for word in words), cwd=copy.parent)


@pytest.mark.slow
def test_a_page_has_no_guesses_of_an_untrained_head(masked_run, pairs_run, classifier, tmp_path):
    for name, folder in (("a", masked_run), ("b", pairs_run), ("c", classifier)):
        call("inspect", folder, "anna [MASK] a ball", "--out", tmp_path / name)
        pictures = {path.stem for path in (tmp_path / name).glob("*.png")}
        assert {"heads", "layer-0", "rollout"} <= pictures
        assert bool([each for each in pictures if each.startswith("lens")]) == (folder == masked_run)


def test_no_random_pooler_is_frozen(run, masked_run, films, tmp_path):
    from safetensors.torch import load_file
    words = ("--dataset", films, *FROZEN, "--out", tmp_path / "new")
    assert "pooler" in leaves_nothing("finetune", masked_run, *words, cwd=tmp_path)
    call("finetune", run, *words, cwd=tmp_path)  # it has learned from pairs
    one, other = (load_file(folder / "model.safetensors")["bert.pooler.dense.weight"] for folder in (run, tmp_path / "new"))
    assert one.equal(other)


def test_an_untrained_pooler_is_trained_where_nothing_is_frozen(masked_run, films, tmp_path):
    call("finetune", masked_run, "--dataset", films, "--pooling", "cls", "--length", 12, "--epochs", 1, "--measures", 1, "--out", tmp_path / "new")
    assert (tmp_path / "new/model.safetensors").exists()


@pytest.mark.slow
def test_heads_that_transformers_did_not_save_are_not_asked(run, tmp_path):
    import transformers as hf
    for to, kind in (("bare", hf.BertModel), ("masked", hf.BertForMaskedLM), ("tagger", hf.BertForTokenClassification)):
        kind.from_pretrained(run).save_pretrained(tmp_path / to)
        for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"): shutil.copy(run / name, tmp_path / to)
    for to in ("bare", "tagger"):
        for words in (("fill-mask", to, "a [MASK]"), ("next-sentence", to, "a", "b"), ("evaluate", to, "--dataset", "stories")):
            refused(*words, cwd=tmp_path)
    with pytest.warns(UserWarning):  # its other head starts fresh
        assert call("fill-mask", "masked", "a [MASK]", cwd=tmp_path)[0] == call("fill-mask", run, "a [MASK]")[0]
        found = as_json("evaluate", "masked", "--dataset", "stories", cwd=tmp_path)
    assert "mlm_accuracy" in found and not [name for name in found if name.startswith("nsp")]


def test_ids_without_a_piece_are_never_said(run, gpt, tmp_path):
    "A table of words may have more rows than its tokenizer has pieces, as many checkpoints have."
    import torch
    from safetensors.torch import load_file, save_file
    for name, folder in (("bert", run), ("gpt", gpt)):
        wide = shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("*run.yaml"))
        weights, config = load_file(wide / "model.safetensors"), json.loads((wide / "config.json").read_text())
        for key, value in weights.items():
            if value.shape[:1] == (config["vocab_size"],):  # the rows without a piece score highest
                weights[key] = torch.cat([value, value.new_full((64, *value.shape[1:]), 3.0 if value.ndim == 1 else 0.1)])
        save_file(weights, wide / "model.safetensors", {"format": "pt"})
        (wide / "config.json").write_text(json.dumps(config | dict(vocab_size=config["vocab_size"] + 64)))
    assert len(as_json("fill-mask", "bert", "the [MASK] sat", "--k", 3, cwd=tmp_path)["masks"][0]) == 3
    assert as_json("generate", "gpt", "The cat", "--tokens", 20, "--temperature", 5, cwd=tmp_path)["texts"]
