"""A throwaway model of another kind, through every door of the package; nothing outside this file knows of it."""
import copy
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from conftest import ROOT
from minibert.measure.predictions import Predictions
from minibert.train.checkpoints import list_checkpoints
from minibert.core.fields import Count, check_fields
from minibert.core.precision import evaluating
from minibert.core.seeds import seeded
from minibert.evaluation import evaluate
from minibert.hub.families import FAMILIES, Family
from minibert.train.optimizers import make_optimizers
from minibert.train.processes import any_process
from minibert.parity import assert_same
from minibert.train.recipe import TrainingConfig
from minibert.training import Callback, fit, forward_backward, resume, train_step
from minibert.weights import load_pretrained, save_pretrained

# --- the whole of it: a config, a forward, its losses, a table of names, and examples ---


@dataclass(frozen=True)
class BagConfig:
    vocab_size: Count = 20
    hidden_size: Count = 8
    model_type: str = "bag"

    def __post_init__(self): check_fields(self)
    @classmethod
    def from_dict(cls, values): return cls(values["vocab_size"], values["hidden_size"])
    def to_dict(self): return asdict(self)


class Bag(nn.Module):
    "The mean of the numbers so far guesses the next one, and that of all how many there are."

    def __init__(self, config, generator=None):
        super().__init__()
        self.config, V, D = config, config.vocab_size, config.hidden_size
        self.table, self.out, self.size = nn.Embedding(V, D), nn.Linear(D, V), nn.Linear(D, 6)
        for p in self.parameters(): nn.init.normal_(p, 0, 0.3, generator=generator)

    def counts(self, batch): return dict(clm=int((batch["ids"][:, 1:] > 0).sum()), size=len(batch["ids"]))

    def forward(self, ids):
        seen, real = self.table(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1, dtype=self.table.weight.dtype)[:, None], ids[:, 1:] > 0
        logits = self.out(seen[:, :-1])[real]
        losses = dict(clm=cross_entropy(logits, ids[:, 1:][real]), size=3 * cross_entropy(self.size(seen[:, -1]), real.sum(1)))
        return SimpleNamespace(losses=losses, loss=sum(losses.values()), logits=logits)


class Ladders:
    "Rows of two to six numbers that count up from one of 1 to 9."

    info = dict(rows="ladders")
    def batch(self, step, n):
        length = torch.randint(2, 7, (n, 1), generator=seeded(step, 6))
        return dict(ids=(torch.randint(1, 10, (n, 1), generator=seeded(step, 5)) + torch.arange(6)) * (torch.arange(6) < length))
    def figures(self, model, batches, batch_size):
        with evaluating(model): told = Predictions.joined([self.answers(model, k, batch_size) for k in range(batches)])
        return dict(clm_loss=(told.loss, told.row), clm_accuracy=(told.right, told.row))
    def answers(self, model, step, n):
        ids = self.batch(10**6 + step, n)["ids"]
        rows = torch.arange(step * n, (step + 1) * n)[:, None].expand(n, 5)
        return Predictions.of(model(ids).logits, ids[:, 1:][ids[:, 1:] > 0], rows[ids[:, 1:] > 0])
    def baselines(self, batches, batch_size): return dict(uniform_accuracy=1 / 20)


FAMILIES["bag", "BagForCausalLM"] = Family(BagConfig, Bag, "table transformer.wte\nout lm_head|transposed\nsize sizes")

# --- what it is put through ---

CONFIG = TrainingConfig(steps=60, batch_size=13, gradient_accumulation_steps=2, optimizer="adamw", learning_rate=0.1,
                        log_steps=5, checkpoint_steps=20, max_grad_norm=9.0)
VAL = Callback(measure=lambda model: dict(val_loss=evaluate(model, Ladders(), batches=2)["clm_loss"]))


def fresh(**sizes): return Bag(BagConfig(**sizes), seeded(3)).double()
def same(a, b): return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_its_losses_add_up_from_parts():
    whole, parts = (model := fresh()), copy.deepcopy(model)
    batch = Ladders().batch(0, 7)
    whole(**batch).loss.backward()
    found = forward_backward(parts, batch, replace(CONFIG, gradient_accumulation_steps=3))
    assert list(found) == ["loss", "clm_loss", "size_loss"] and found["loss"] == pytest.approx(whole(**batch).loss.item(), rel=1e-12)
    for p, q in zip(whole.parameters(), parts.parameters()): assert_same(p.grad, q.grad, tol=1e-12)
    optimizers = make_optimizers(whole, CONFIG)
    lines = [train_step(whole, optimizers, batch, step, CONFIG) for step in range(40)]
    assert lines[-1]["clm_loss"] < 0.7 * lines[0]["clm_loss"] and lines[-1]["size_loss"] < 0.7 * lines[0]["size_loss"]


def test_it_trains_is_cut_off_resumes_and_is_evaluated(tmp_path):
    whole, parts = fresh(), fresh()
    before = evaluate(whole, Ladders(), batches=4)
    lines = fit(whole, Ladders(), CONFIG, callbacks=[VAL], progress=False)
    def cut(history):
        if history[-1]["step"] == 45: raise RuntimeError("power cut")
    with pytest.raises(RuntimeError, match="power cut"):
        fit(parts, Ladders(), CONFIG, tmp_path, callbacks=[VAL, Callback(on_log=cut)], progress=False)
    again, history = resume(tmp_path, Ladders(), callbacks=[VAL], progress=False)
    assert history == lines and same(whole, again) and type(again) is Bag
    after = evaluate(again, Ladders(), batches=4)
    assert after["clm_loss_interval"][1] < before["clm_loss_interval"][0] and after["clm_accuracy"] > 5 * after["uniform_accuracy"]
    with pytest.raises(ValueError, match="goes on from its folder"): fit(fresh(), Ladders(), CONFIG, resume=True, progress=False)
    with pytest.raises(ValueError, match="model.hidden_size was 8 and is 9"):
        fit(fresh(hidden_size=9), Ladders(), CONFIG, tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match="head.house was None and is 'red'"):
        fit(fresh(), Ladders(), CONFIG, tmp_path, resume=True, about=dict(head=dict(house="red")), progress=False)


def test_it_is_saved_and_opened_under_their_names(tmp_path):
    from safetensors.torch import load_file
    model = fresh()
    save_pretrained(model, None, tmp_path / "bag")
    assert json.loads((tmp_path / "bag/config.json").read_text())["architectures"] == ["BagForCausalLM"]
    held = load_file(tmp_path / "bag/model.safetensors")
    assert held.keys() == {"transformer.wte.weight", "lm_head.weight", "lm_head.bias", "sizes.weight", "sizes.bias"}
    assert torch.equal(held["lm_head.weight"], model.out.weight.T)
    opened = load_pretrained(tmp_path / "bag")
    assert same(model, opened) and not opened.training and opened.config == model.config
    with pytest.raises(ValueError, match="no place"):
        from minibert.weights import from_hf
        from_hf(held | {"transformer.wpe.weight": torch.zeros(2, 3)}, model.config)


def test_a_model_without_a_family_is_refused_at_the_door(tmp_path):
    class Stranger(Bag): pass
    with pytest.raises(ValueError, match="No family writes a Stranger"):
        fit(Stranger(BagConfig()), Ladders(), CONFIG, tmp_path / "run", progress=False)
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.slow
def test_two_processes_train_resume_and_write_what_one_does(tmp_path):
    alone = fresh()
    lines = fit(alone, Ladders(), CONFIG, tmp_path / "one", callbacks=[VAL], progress=False)
    env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "test_throwaway", str(tmp_path / "two")]
    done = subprocess.run(launch, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    last = list_checkpoints(tmp_path / "two")[-1]
    assert_same(load_pretrained(last).state_dict(), alone.state_dict(), tol=1e-9)
    told = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told] == [line["step"] for line in lines]
    assert all(a["loss"] == pytest.approx(b["loss"], rel=1e-9) for a, b in zip(told, lines))


if __name__ == "__main__":  # one of two processes: train to the second checkpoint, stop, and go on
    class Half(Ladders):
        def batch(self, step, n):
            if step == 40: raise InterruptedError
            return super().batch(step, n)
    try: fit(fresh(), Half(), CONFIG, sys.argv[1], callbacks=[VAL], progress=False)
    except InterruptedError:
        any_process(False)  # the first may be writing its checkpoint still
        resume(sys.argv[1], Ladders(), callbacks=[VAL], progress=False)
