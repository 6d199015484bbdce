"""The race: turns, workers that fail, exact tricks over drawn shapes, the product of the other library."""
import importlib.util
import inspect
import json
import multiprocessing
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from minibert.config import BertConfig
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.core.seeds import seeded
from minibert.train.optimizers import make_optimizers
from minibert.nn.shortcuts import fast_attend
from minibert.parity import assert_same
from minibert.train.recipe import TrainingConfig
from minibert.speed import FastBertForPreTraining, synthetic_batch, useful_flops
from minibert.perf.products import fast_products
from minibert.perf.profiling import profile_loop
from minibert.perf.bench import (
    Peer, bench, bench_table, draw_bench, list_peers, take_turns, write_bench)
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import make_sampler, pretrain, resume
from minibert.training import Callback, Run, train_step

SMALL = BertConfig(101, 24, 2, 4, 37, max_position_embeddings=40)
onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


def gradients(model, batch, weights):
    loss = model(**batch).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(weights))]



def test_a_batch_is_a_function_of_its_seed():
    one, same, other = (synthetic_batch(SMALL, seed, 8, 20) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["input_ids"], other["input_ids"])


def test_a_batch_is_like_a_samplers():
    batch = synthetic_batch(SMALL, 0, 400, 40)
    real, asked = batch["attention_mask"].bool(), batch["labels"] != -100
    assert asked.any(1).all() and not asked[:, 0].any() and not (asked & ~real).any()
    assert (batch["input_ids"][~real] == SMALL.pad_token_id).all() and not batch["token_type_ids"][~real].any()
    short = (real.sum(1) < 40).double().mean().item()
    assert abs(short - 0.1) < 5 * (0.09 / 400) ** 0.5
    assert 0.12 < asked.sum() / real.sum() < 0.18


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("asked", [1, 4])
def test_useful_work_is_what_pytorch_counts(rows, asked, monkeypatch):
    "No padding, each row asked equally often: then nothing that is computed is useless."
    monkeypatch.setenv("MINIBERT_BFLOAT16", "1")  # the way of attention into which PyTorch's counter sees
    config = replace(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = synthetic_batch(config, 0, rows, 16) | dict(attention_mask=torch.ones(rows, 16).long())
    batch["labels"] = batch["input_ids"].where((torch.arange(16) > 2) & (torch.arange(16) < 3 + asked), -100)
    model = FastBertForPreTraining(config).train()
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", torch.bfloat16): loss = model(**batch).loss
        loss.backward()
    assert counter.get_total_flops() == useful_flops(config, batch)["total"]


@onednn
@pytest.mark.parametrize("shape", [(5, 64), (2, 9, 64), (2, 3, 4, 64), (0, 64)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_the_same_to_rounding(shape, bias):
    dice = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*s, generator=dice) for s in (shape, (80, 64), (80,)))
    g = torch.randn(*shape[:-1], 80, generator=dice)

    def run(kind):
        parts = [t.to(kind).requires_grad_() for t in ((x, w, b) if bias else (x, w))]
        y = F.linear(*parts)
        return [t.float() for t in (y.detach(), *torch.autograd.grad(y, parts, g.to(kind))) if t.numel()]

    exact = run(torch.float64)
    with fast_products(): assert_same(run(torch.float32), exact, tol=1e-4)


@onednn
def test_products_touch_nothing_else(monkeypatch):
    "Other types, small weights and autocast pass through; so does everything after the block."
    x, w, used, to_mkldnn = torch.randn(7, 64), torch.randn(80, 64), [], torch.Tensor.to_mkldnn
    monkeypatch.setattr(torch.Tensor, "to_mkldnn", lambda x, *more: used.append(x.dtype) or to_mkldnn(x, *more))
    with fast_products():
        F.linear(x, w)
        F.linear(x, weight=w, bias=None)
        assert len(used) == 2
        F.linear(x.double(), w.double())
        F.linear(x, w[:4])
        F.linear(x[0], w)
        with torch.autocast("cpu", torch.bfloat16): F.linear(x, w)
    F.linear(x, w)
    assert used == [torch.float32] * 2


@onednn
@pytest.mark.parametrize("strange", ["transposed", "every second row", "expanded gradient"])
def test_products_of_any_layout(strange):
    dice = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*s, generator=dice) for s in ((18, 64), (80, 64)))
    if strange == "transposed": x, w = x.t().contiguous().t(), w.t().contiguous().t()
    if strange == "every second row": x = x[::2]

    def run(kind):
        parts = [t.to(kind).requires_grad_() for t in (x, w)]
        y = F.linear(*parts)
        g = torch.ones((), dtype=kind).expand_as(y) if strange == "expanded gradient" else y.detach()
        return [t.float() for t in (y.detach(), *torch.autograd.grad(y, parts, g))]

    exact = run(torch.float64)
    with fast_products(): assert_same(run(torch.float32), exact, tol=1e-3)


def test_the_package_calls_no_private_operator():
    source = Path(inspect.getsourcefile(fast_products)).read_text(encoding="utf8")
    assert not re.search(r"torch\.(ops\.|_[a-z])", source)


@onednn
def test_a_run_with_these_products_resumes_bit_for_bit(tmp_path):
    documents = load_documents("stories", limit=60)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=400)
    config = replace(SMALL, vocab_size=tokenizer.vocab_size, hidden_size=64, intermediate_size=128)
    loop = TrainingConfig(steps=4, length=24, batch_size=4, checkpoint_steps=2, log_steps=1)
    sampler, models = make_sampler(Corpus.build(documents, tokenizer), tokenizer, loop), []
    def stop(run):
        if run.step == 3: raise RuntimeError("power cut")
    with fast_products():
        models.append(FastBertForPreTraining(config, seeded(0)))
        lines = pretrain(models[0], sampler, loop, progress=False)
        with pytest.raises(RuntimeError):
            pretrain(FastBertForPreTraining(config, seeded(0)), sampler, loop, tmp_path, callbacks=[Callback(after_step=stop)], progress=False)
        model, again = resume(tmp_path, sampler, progress=False)
    assert again == lines
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), model.parameters()))
    plain = FastBertForPreTraining(config, seeded(0))
    others = pretrain(plain, sampler, loop, progress=False)
    assert all(abs(a["loss"] - b["loss"]) < 1e-4 for a, b in zip(others, lines))
    assert not all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters()))  # the block did act


def test_frozen_inputs_get_no_gradient():
    x, w = torch.randn(7, 64), torch.randn(80, 64, requires_grad=True)
    with fast_products(): F.linear(x, w, None).sum().backward()
    assert x.grad is None and w.grad.shape == w.shape


def test_tricks_are_added_one_by_one():
    names = "plain logits rows equal dropout bfloat16 muon".split()
    peers = list_peers()
    for above, below in zip(names, names[1:]):
        a, b = vars(peers[above]), vars(peers[below])
        changed = {field for field in a if a[field] != b[field]} - {"label"}
        assert len(changed) == 1, (above, below, changed)
    assert replace(peers["onednn"], label="", fast_products=False) == replace(peers["equal"], label="")


@pytest.mark.slow
def test_peers_take_turns():
    times, peaks, passes = take_turns({name: list_peers()[name] for name in ("plain", "equal")}, SMALL, rounds=2, shape=(2, 12))
    for name in times: assert all(min(both) > 0 and sum(both) < second and len(both) == 2 for both, second in zip(passes[name], times[name], strict=True))
    assert [len(values) for values in times.values()] == [2, 2] and times.keys() == peaks.keys()
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_worker_that_fails_is_named():
    broken = dict(good=list_peers()["rows"], bad=Peer("bad", dropout=1.5))
    with pytest.raises(RuntimeError, match="'bad' stopped: ValueError: .*dropout"): take_turns(broken, SMALL, shape=(2, 12))
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_named():
    with pytest.raises(RuntimeError, match="'killed' stopped: its process ended"):
        take_turns(dict(killed=Peer("killed", kind="killed")), SMALL, shape=(2, 12), prepare=_die)


def _die(*_): os._exit(9)


def whole_steps(config, batch):
    "Training steps, as `profile_loop` wants them."
    model, training = FastBertForPreTraining(config).train(), TrainingConfig(optimizer="muon")
    optimizers = make_optimizers(model, training)
    while True: yield train_step(Run(model, optimizers, training, 0), batch).line


def test_profile_finds_the_parts():
    config = replace(SMALL, hidden_dropout_prob=0.0)
    parts = profile_loop(whole_steps(config, synthetic_batch(config, 0, 2, 12)), repeats=2)
    assert {"update", "products", "GELU", "LayerNorm", "loss"} <= parts.keys()
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


def repeated(work):
    "Steps that do one thing again and again."
    while True: yield work()


def test_layer_norms_backward_is_no_update():
    norm, x = torch.nn.LayerNorm(64), torch.randn(512, 64)
    parts = profile_loop(repeated(lambda: norm(x).square().mean().backward()), repeats=2)
    assert "LayerNorm" in parts and "update" not in parts


def test_clipping_is_update():
    weight = torch.nn.Parameter(torch.ones(9, 9))
    weight.grad = torch.ones(9, 9)
    parts = profile_loop(repeated(lambda: torch.nn.utils.clip_grad_norm_([weight], 1.0)), repeats=2)
    assert "update" in parts and "LayerNorm" not in parts


def test_a_loss_of_its_own_is_loss():
    "What happens inside an autograd function that is named a loss belongs to the loss, backward too."
    class OwnLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x * x * x).sum()

        @staticmethod
        def backward(ctx, up): return 3 * ctx.saved_tensors[0] ** 2 * up

    x = torch.randn(1000, 1000, requires_grad=True)
    parts = profile_loop(repeated(lambda: OwnLoss.apply(x).backward()), repeats=2)
    assert parts["loss"] > 0.8 * sum(parts.values()), parts


def names_raced(monkeypatch, answer, size="tiny"):
    "The peers that `bench` lets race, and its file's word about the machine, where the switch says so."
    monkeypatch.setenv("MINIBERT_BFLOAT16", answer)
    raced = {}

    def no_race(peers, *_, **__):
        raced.update(peers)
        return {name: [1.0, 1.0, 1.0] for name in peers}, dict.fromkeys(peers, 1.0), {name: [[0.3, 0.6]] for name in peers}

    scope = bench.__globals__
    monkeypatch.setitem(scope, "take_turns", no_race)
    monkeypatch.setitem(scope, "_profiles", lambda *_: {})
    result = bench(((size, 300),), rounds=1, batch_size=2, length=16, threads=1)
    return raced, result["machine"]["fast_bfloat16"]


def test_without_fast_bfloat16_the_default_is_raced_in_float32(monkeypatch):
    able, told = names_raced(monkeypatch, "1")
    assert told is True and able["muon"].precision == able["bfloat16"].precision == "bfloat16"
    unable, told = names_raced(monkeypatch, "0")
    assert told is False and able.keys() - unable.keys() == {"bfloat16", "gemm bfloat16"}
    assert {peer.precision for peer in unable.values()} == {"float32"} and unable["muon"].optimizer == "muon"


def test_small_is_raced_everywhere(monkeypatch):
    for answer in "01": assert names_raced(monkeypatch, answer, "small")[0].keys() == {"equal", "dropout", "onednn", "gemm", "gemm onednn"}


def test_rows_of_the_picture_compare_as_their_milliseconds_do():
    measured = json.loads((Path(__file__).resolve().parents[1] / "minibert/measured/speed.json").read_text())
    picture = draw_bench(measured).axes[0].images[0].get_array()
    cases = [case["peers"] for case in measured["cases"] if "hf" in case["peers"]]
    names = [name for name, peer in cases[0].items() if peer["kind"] in ("own", "trainer")]
    for column, peers in enumerate(cases):
        quickest_first = sorted(names, key=lambda name: peers[name]["median_ms"])
        assert [names[k] for k in (-picture[:, column]).argsort()] == quickest_first


def test_speed_loads_no_reference_library():
    code = "import sys, minibert.speed, minibert.perf.bench; assert not {'transformers', 'matplotlib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rounds_below_one_are_refused():
    with pytest.raises(ValueError, match="rounds is 0"): bench(rounds=0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="the other peers need transformers")
def test_bench_from_end_to_end(tmp_path):
    result = bench((("tiny", 300),), rounds=3, minutes=0.1, batch_size=2, length=16, threads=1)
    write_bench(result, tmp_path / "speed.json")
    case, = result["cases"]
    assert {"hf", "trainer", "plain", "equal", "gemm", "batches"} <= case["peers"].keys()
    for peer in case["peers"].values():
        assert peer["median_ms"] > 0 and peer["rounds"] == 3
        if peer["kind"] not in ("gemm", "batches"): assert peer["to hf"][0] <= peer["to hf"][1] <= peer["to hf"][2]
    assert case["peers"]["hf"]["to hf"] == [1, 1, 1]
    assert (tmp_path / "speed.json").exists() and (tmp_path / "speed.png").stat().st_size > 2000
    assert "Hugging Face, Trainer" in bench_table(result)
    picture = draw_bench(result)
    assert picture.axes[0].get_yticklabels()[0].get_text() == "Hugging Face, Trainer"
    for name in ("hf", "trainer"): del case["peers"][name]
    assert "own, plain form" in draw_bench(result).get_suptitle()


def test_a_query_that_sees_nothing_keeps_finite_gradients_in_bfloat16():
    q, k, v = (torch.randn(1, 2, 5, 8, generator=seeded(1, n)).bfloat16().requires_grad_() for n in range(3))
    mask = torch.zeros(1, 1, 5, 5)
    mask[..., 3, :] = torch.finfo(mask.dtype).min  # -inf, once it is rounded
    out = fast_attend(q, k, v, mask)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v)) and torch.allclose(out[:, :, 3], v.mean(2), atol=0.02)
