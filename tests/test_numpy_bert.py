"""BERT in NumPy equals minibert and Hugging Face: states, logits, losses, every gradient, the optimizer, the files."""
import json
import os
import subprocess
import sys
from configparser import ConfigParser
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from safetensors.numpy import save_file

from agreement import CHAPTERS
from conftest import ROOT
from minibert.config import BertConfig
from minibert.core.errors import UserError
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.heads import BertForPreTraining
from minibert.core.files import config_text
from minibert.numpy_bert import layers, model
from minibert.numpy_bert.layers import encode, forward
from minibert.numpy_bert.model import backward
from minibert.numpy_bert.parts import as_arrays, evaluate_numpy, memory_budget
from minibert.numpy_bert.training import adamw_, clip_, first_moments, pretrain_numpy, update_
from minibert.numpy_bert.weights import first_weights, from_state_dict, load_weights, parameter_shapes, save_weights
from minibert.pairs import PairSampler
from minibert.parity import assert_same, randomise_, reference_batch
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import pretrain
from minibert.training import Callback
from minibert.weights import from_hf, load_pretrained, name_table, save_pretrained, to_hf

NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SMALL = BertConfig(101, 24, 2, 4, 37, max_position_embeddings=20, **NO_DROPOUT)
seen = {}  # what was compared: the largest difference so far


@pytest.fixture(autouse=True, scope="module")
def report():
    "The largest difference of each kind, printed at the end (`pytest -s` shows it)."
    yield
    for kind, largest in sorted(seen.items()): print(f"\n{kind:32}{largest:.2e}", end="")


def same(kind, ours, theirs, tol, **more):
    seen[kind] = max(seen.get(kind, 0.0), assert_same(ours, theirs, name=kind, tol=tol, **more))


def arrays(batch): return {name: values.numpy() for name, values in batch.items()}


@st.composite
def cases(draw):
    "A config that NumPy computes, and a batch for it."
    heads, length = draw(st.integers(1, 4)), draw(st.integers(3, 17))
    config = BertConfig(
        vocab_size=draw(st.integers(12, 130)),
        hidden_size=max(heads * draw(st.sampled_from([3, 4, 5, 8, 11])), 4),
        num_hidden_layers=draw(st.integers(1, 4)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(5, 48)),
        max_position_embeddings=length + draw(st.integers(0, 9)),
        type_vocab_size=draw(st.integers(2, 3)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-7, 1e-5, 1e-3])),
        pad_token_id=draw(st.sampled_from([0, 0, 1, 7])),
        **NO_DROPOUT,
    )
    seed = draw(st.integers(0, 10_000))
    batch = reference_batch(config, draw(st.integers(1, 5)), length, seed)
    if draw(st.booleans()): batch["input_ids"][0, 0] = config.pad_token_id  # a real position that reads the padding's row
    return config, batch, seed


def check_three_ways(case):
    config, batch, seed = case
    theirs = hf.BertForPreTraining(hf.BertConfig(**asdict(config), attn_implementation="eager"))
    theirs = randomise_(theirs, seed).double().eval()
    ours = from_hf(theirs).eval()
    params, numbers = from_state_dict(theirs.state_dict(), config), arrays(batch)
    real = batch["attention_mask"]
    a, b = ours(**batch), theirs(**batch, output_hidden_states=True)
    seen = ours.bert(*(batch[name] for name in ("input_ids", "token_type_ids", "attention_mask"))).hidden_states
    states, _ = encode(params, config, numbers)
    out, cache = forward(params, config, numbers)
    chosen = batch["labels"] != -100
    for side, other, theirs_states in (("minibert", a, seen), ("Hugging Face", b, list(b.hidden_states))):
        same(f"states, {side}", states, theirs_states, 1e-12, mask=real)
        logits = other.prediction_logits if other is a else other.prediction_logits[chosen]
        same(f"MLM logits, {side}", out["prediction_logits"], logits, 1e-12)
        same(f"NSP logits, {side}", out["seq_relationship_logits"], other.seq_relationship_logits, 1e-12)
        same(f"loss, {side}", out["loss"], other.loss.item(), 1e-12)
    same("MLM loss, minibert", out["mlm_loss"], a.losses["mlm"].item(), 1e-12)
    same("NSP loss, minibert", out["nsp_loss"], a.losses["nsp"].item(), 1e-12)
    a.loss.backward(), b.loss.backward()
    names, grads = name_table(config), backward(cache)
    same("gradients, minibert", grads, {names[n]: p.grad for n, p in ours.named_parameters()}, 1e-10)
    same("gradients, Hugging Face", grads, {n: p.grad for n, p in theirs.named_parameters()}, 1e-10)


def drawn(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                    suppress_health_check=list(HealthCheck))


@drawn(10)
@given(cases())
def test_three_ways(case): check_three_ways(case)


@pytest.mark.slow
@drawn(50)
@given(cases())
def test_three_ways_wide(case): check_three_ways(case)


@pytest.mark.parametrize("name", ["linear_backward", "layer_norm_backward", "softmax_backward", "gelu_backward"])
def test_a_wrong_gradient_is_refused(name, monkeypatch):
    right = getattr(model, name)

    def wrong(grad, cache):
        back = right(grad, cache)
        return (back[0] * 1.001, back[1]) if isinstance(back, tuple) else back * 1.001

    monkeypatch.setattr(model, name, wrong)
    with pytest.raises(AssertionError): check_three_ways((SMALL, reference_batch(SMALL), 0))


def test_a_wrong_layer_is_refused(monkeypatch):
    right = layers.softmax
    monkeypatch.setattr(layers, "softmax", lambda scores: right(scores * 0.999))
    with pytest.raises(AssertionError): check_three_ways((SMALL, reference_batch(SMALL), 0))


def test_without_next_sentence_labels():
    batch = reference_batch(SMALL)
    del batch["next_sentence_label"]
    ours = randomise_(BertForPreTraining(SMALL)).double()
    ours(**batch).loss.backward()
    params = from_state_dict(to_hf(ours), SMALL)
    out, cache = forward(params, SMALL, arrays(batch))
    grads, names = backward(cache), name_table(SMALL)
    theirs = {names[n]: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    same("gradients, MLM alone", grads, theirs, 1e-10)
    kept = params["bert.pooler.dense.weight"].copy()
    update_(params, SMALL, first_moments(params), arrays(batch), 50, TrainingConfig(steps=100))
    assert np.array_equal(params["bert.pooler.dense.weight"], kept)


def test_float32_stays_float32():
    params, batch = first_weights(SMALL), arrays(reference_batch(SMALL))
    moments = first_moments(params)
    out, cache = forward(params, SMALL, batch)
    grads = backward(cache)
    update_(params, SMALL, moments, batch, 0, TrainingConfig(steps=10))

    def every(part):
        if isinstance(part, np.ndarray) and part.dtype.kind == "f": yield part.dtype
        if isinstance(part, dict): part = list(part.values())
        if isinstance(part, (list, tuple)):
            for one in part: yield from every(one)

    assert set(every([params, moments, out, cache, grads])) == {np.dtype(np.float32)}


def test_no_torch_is_loaded():
    code = "import sys, minibert.numpy_bert.training; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "matplotlib", "datasets"} & set(loaded)


# --- files ---


def test_numpy_writes_and_three_read(tmp_path):
    params = from_state_dict(to_hf(randomise_(BertForPreTraining(SMALL))), SMALL)
    save_weights(params, SMALL, tmp_path / "new" / "model")
    back, config = load_weights(tmp_path / "new" / "model")
    assert config == SMALL and back.keys() == params.keys()
    assert all(np.array_equal(back[n], params[n]) and back[n].dtype == np.float32 for n in params)
    assert_same({n: t for n, t in to_hf(load_pretrained(tmp_path / "new" / "model")).items() if n in params}, params, tol=0)
    theirs, info = hf.BertForPreTraining.from_pretrained(tmp_path / "new" / "model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert_same(dict(theirs.named_parameters()), params, tol=0)


@pytest.mark.parametrize("who", ["minibert", "transformers"])
def test_numpy_reads_what_others_write(tmp_path, who):
    theirs = randomise_(hf.BertForPreTraining(hf.BertConfig(**asdict(SMALL))))
    if who == "minibert": save_pretrained(from_hf(theirs), None, tmp_path)
    else: theirs.save_pretrained(tmp_path)
    params, config = load_weights(tmp_path)
    assert config == SMALL
    assert_same(params, dict(theirs.named_parameters()), tol=0)


def test_weights_are_copies():
    ours = BertForPreTraining(SMALL)
    params = from_state_dict(to_hf(ours), SMALL)
    for value in params.values(): value += 1
    assert_same({n: p - 1 for n, p in params.items()}, {n: t for n, t in to_hf(ours).items() if n in params}, tol=1e-6)


def bad_weights():
    params = first_weights(SMALL)
    name = "bert.pooler.dense.weight"
    yield name, {n: p for n, p in params.items() if n != name}, SMALL
    yield "layer.9", params | {"bert.encoder.layer.9.output.dense.bias": params["bert.pooler.dense.bias"]}, SMALL
    yield "decoder.bias", params | {"cls.predictions.decoder.bias": params["cls.predictions.bias"] + 1}, SMALL
    yield "word_embeddings", params, replace(SMALL, vocab_size=99)
    yield "relu", params, replace(SMALL, hidden_act="relu")
    yield "roformer", params, replace(SMALL, model_type="roformer")


@pytest.mark.parametrize("words, state, config", bad_weights())
def test_bad_weights_get_a_sentence(words, state, config):
    with pytest.raises(UserError, match=words): from_state_dict(state, config)


def test_bad_files_get_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"): load_weights(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(config_text(SMALL.to_dict()))
    with pytest.raises(FileNotFoundError, match="model.safetensors"): load_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="model.safetensors"): load_weights(tmp_path)
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError): load_weights(tmp_path)
    save_pretrained(BertForPreTraining(SMALL).bfloat16(), None, tmp_path)
    with pytest.raises(UserError, match="model.safetensors"): load_weights(tmp_path)


# --- training ---


@pytest.fixture(scope="module")
def told():
    "A corpus, its tokenizer, and a config for them."
    documents = load_documents("stories", limit=200)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=500)
    config = replace(SMALL, vocab_size=tokenizer.vocab_size, max_position_embeddings=32)
    return Corpus.build(documents, tokenizer), tokenizer, config


RUN = TrainingConfig(steps=25, batch_size=12, length=32, log_steps=4, learning_rate=2e-3)


@pytest.mark.parametrize("parts, tol", [(1, 1e-10), (5, 1e-10)])
def test_same_run_as_minibert(told, tmp_path, parts, tol):
    (corpus, tokenizer, config), run = told, replace(RUN, gradient_accumulation_steps=parts)
    twin = BertForPreTraining(config, torch.Generator().manual_seed(3)).double()
    params = from_state_dict(to_hf(twin), config)
    theirs = pretrain(twin, PairSampler(corpus, tokenizer, 32, seed=0), run, progress=False)
    params, ours = pretrain_numpy(config, PairSampler(corpus, tokenizer, 32, seed=0), run, tmp_path, params=params)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [1, 4, 8, 12, 16, 20, 24, 25]
    for a, b in zip(ours, theirs):
        assert a.keys() == b.keys()
        same(f"metrics of a run, {parts} parts", a, {n: float(v) if n != "step" else v for n, v in b.items()}, tol)
    same(f"weights after a run, {parts} parts", params, {n: t for n, t in to_hf(twin).items() if n in params}, tol)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == ours
    opened = load_pretrained(tmp_path)
    assert_same({n: t for n, t in to_hf(opened).items() if n in params}, params, tol=0)
    assert WordPieceTokenizer.from_pretrained(tmp_path).vocab == tokenizer.vocab
    assert hf.BertTokenizerFast.from_pretrained(tmp_path).get_vocab() == tokenizer.vocab


def test_a_run_is_a_function_of_its_seed(told):
    corpus, tokenizer, config = told
    runs = [pretrain_numpy(config, PairSampler(corpus, tokenizer, 32, seed=0), replace(RUN, seed=seed, steps=4))[0] for seed in (0, 0, 1)]
    name = "bert.pooler.dense.weight"
    assert np.array_equal(runs[0][name], runs[1][name]) and not np.array_equal(runs[0][name], runs[2][name])
    assert runs[0][name].dtype == np.float32


def test_interrupted_runs_keep_their_weights(told, tmp_path):
    corpus, tokenizer, config = told

    def stop(run):
        if len(run.history) == 3: raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain_numpy(config, PairSampler(corpus, tokenizer, 32, seed=0), RUN, tmp_path, callbacks=[Callback(after_step=stop)])
    params, _ = load_weights(tmp_path)
    assert params.keys() == parameter_shapes(config).keys()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    with pytest.raises(FileExistsError, match="run already"):
        pretrain_numpy(config, PairSampler(corpus, tokenizer, 32, seed=0), RUN, tmp_path)


@pytest.mark.parametrize("words, config, training", [
    ("dropout", dict(hidden_dropout_prob=0.1), {}),
    ("dropout", dict(attention_probs_dropout_prob=0.1), {}),
    ("gelu", dict(hidden_act="relu"), {}),
    ("muon", {}, dict(optimizer="muon")),
    ("bfloat16", {}, dict(precision="bfloat16")),
    ("33", {}, dict(length=33)),
])
def test_bad_runs_get_a_sentence(told, words, config, training):
    corpus, tokenizer, good = told
    with pytest.raises(UserError, match=words):
        pretrain_numpy(replace(good, **config), PairSampler(corpus, tokenizer, 32), replace(RUN, **training))


def test_no_update_without_a_finite_gradient():
    params, batch = first_weights(SMALL), arrays(reference_batch(SMALL))
    params["bert.pooler.dense.weight"][:] = np.nan
    kept = {n: p.copy() for n, p in params.items()}
    with pytest.raises(FloatingPointError, match="Step 1"):
        update_(params, SMALL, first_moments(params), batch, 0, TrainingConfig(steps=5))
    assert all(np.array_equal(params[n], kept[n], equal_nan=True) for n in params)


@drawn(20)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.01, 0.3]), st.sampled_from([1e-8, 1e-6]))
def test_adamw_and_clipping_equal_torch(seed, decay, eps):
    dice = np.random.default_rng(seed)
    mine = {"matrix": dice.standard_normal((5, 7)), "bias": dice.standard_normal(7)}
    theirs = {n: torch.nn.Parameter(torch.from_numpy(p.copy())) for n, p in mine.items()}
    groups = [dict(params=[theirs["matrix"]], weight_decay=decay), dict(params=[theirs["bias"]], weight_decay=0.0)]
    optimizer, moments = torch.optim.AdamW(groups, lr=1e-2, eps=eps), first_moments(mine)
    for step in range(1, 101):
        grads = {n: dice.exponential() * 0.2 * dice.standard_normal(p.shape) for n, p in mine.items()}
        for n, p in theirs.items(): p.grad = torch.from_numpy(grads[n].copy())
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0).item()
        same("gradient norm", clip_(grads, 1.0), norm, 1e-12)
        optimizer.step()
        adamw_(mine, grads, moments, step, 1e-2, decay, eps=eps)
    same("AdamW, 100 steps", mine, {n: p.data for n, p in theirs.items()}, 1e-12)


def test_evaluation(told):
    corpus, tokenizer, config = told
    counts = np.bincount(np.asarray(corpus.ids), minlength=tokenizer.vocab_size)
    sampler = PairSampler(corpus, tokenizer, 32, seed=2)
    found = evaluate_numpy(first_weights(config), config, sampler, counts, batches=2)
    assert abs(found["mlm_loss"] - np.log(tokenizer.vocab_size)) < 0.1
    assert found["unigram_loss"] < found["mlm_loss"] and 0 < found["unigram_accuracy"] < 0.3
    labels = np.concatenate([b["labels"][b["labels"] != -100] for b in (as_arrays(sampler.batch(n, 32)) for n in range(2))])
    assert found["unigram_accuracy"] == (labels == counts.argmax()).mean()


def test_memory_budget_counts_the_parameters():
    budget = memory_budget(SMALL, 2, 8, 3)
    assert budget["weights"] == 4 * sum(p.size for p in first_weights(SMALL).values())
    assert list(budget) == ["weights", "gradients", "moments", "activations"]


# --- without PyTorch, as in a browser ---

PYODIDE = {"numpy", "scipy", "matplotlib", "safetensors", "pydantic", "annotated-types", "pyyaml", "rich", "tqdm", "filelock", "pyarrow", "setuptools"}
BROWSER = """
import sys, threading
for name in {missing} | {{"minibert.weights"}}: sys.modules[name] = None
from agreement import run_cells
def start(thread): raise RuntimeError("can't start new thread")
threading.Thread.start = start
run_cells({chapter!r})
from minibert.checks import check
from minibert.checks.c14 import RMS_NORM
assert check("14.1", RMS_NORM.reference)
"""


@pytest.mark.parametrize("chapter", [*CHAPTERS[:2], pytest.param(CHAPTERS[2], marks=pytest.mark.slow)])
def test_a_chapter_runs_where_torch_is_missing(chapter, tmp_path):
    "With what Pyodide has of the package's requirements (its 314.0 was looked at), and no thread."
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf8")
    wanted = {Requirement(line).name for name, lines in parser["DEFAULT"].items() if name.endswith("requirements") for line in lines.split()}
    missing = {name.replace("-", "_") for name in wanted - PYODIDE} | {"sklearn"}
    assert {"torch", "transformers", "tokenizers", "nbdev"} <= missing
    paths = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "benchmarks"))
    env = os.environ | {"PYTHONPATH": paths, "MINIBERT_PROGRESS": str(tmp_path / "progress.jsonl"), "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", BROWSER.format(missing=missing, chapter=chapter)], cwd=tmp_path, env=env, capture_output=True, text=True, encoding="utf8")
    assert not done.returncode, done.stdout + done.stderr
