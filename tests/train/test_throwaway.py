"""A throwaway model of another kind, through every door of the package; nothing outside this file knows of it."""
import copy
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from conftest import ROOT
from minibert.measure.predictions import Predictions
from minibert.core.errors import UserError
from minibert.train.callbacks import Measure
from minibert.train.checkpoints import list_checkpoints
from minibert.core.precision import evaluating
from minibert.core.seeds import seeded
from minibert.evaluation import evaluate
from minibert.hub.families import FAMILIES, Family
from minibert.train.optimizers import make_optimizers
from minibert.train.processes import any_process
from minibert.parity import assert_same
from minibert.core.fields import checked
from minibert.runs.plan import ModelOptions, Plan
from minibert.runs.tasks import TASKS, Task, writer_rows
from minibert.train.recipe import TrainingConfig
from minibert.train.gradients import Gradients
from minibert.train.trainer import resume, train_model
from minibert.training import Callback, Run, fit, train_step
from minibert.weights import load_pretrained, save_pretrained

# --- the whole of it: a config, a forward, its losses, a table of names, and examples ---


@dataclass(frozen=True)
class BagConfig:
    vocab_size: int = 20
    hidden_size: int = 8
    model_type: str = "bag"

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
VAL = Measure(lambda model: dict(val_loss=evaluate(model, Ladders(), batches=2)["clm_loss"]))


def fresh(**sizes): return Bag(BagConfig(**sizes), seeded(3)).double()
def same(a, b): return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_bare_loop_trains_it():
    heard = []
    bare = fit(fresh(), Ladders(), CONFIG, [Callback(after_step=lambda run: heard.append(run.line))])
    assert bare.step == len(heard) == CONFIG.steps and heard[-1]["clm_loss"] < 0.7 * heard[0]["clm_loss"]
    assert same(bare.model, fit(fresh(), Ladders(), CONFIG, gradient=Gradients()).model)


def test_its_losses_add_up_from_parts():
    whole, parts = (model := fresh()), copy.deepcopy(model)
    batch = Ladders().batch(0, 7)
    whole(**batch).loss.backward()
    found = Gradients(3)(parts, batch)
    assert list(found) == ["clm", "size"] and sum(found.values()).item() == pytest.approx(whole(**batch).loss.item(), rel=1e-12)
    for p, q in zip(whole.parameters(), parts.parameters()): assert_same(p.grad, q.grad, tol=1e-12)
    run = Run(whole, make_optimizers(whole, CONFIG), CONFIG)
    lines = [train_step(run, batch).line for _ in range(40)]
    assert lines[-1]["clm_loss"] < 0.7 * lines[0]["clm_loss"] and lines[-1]["size_loss"] < 0.7 * lines[0]["size_loss"]


def test_it_trains_is_cut_off_resumes_and_is_evaluated(tmp_path):
    whole, parts = fresh(), fresh()
    before = evaluate(whole, Ladders(), batches=4)
    lines = train_model(whole, Ladders(), CONFIG, callbacks=[VAL], progress=False).history
    def cut(run):
        if run.step == 45: raise RuntimeError("power cut")
    with pytest.raises(RuntimeError, match="power cut"):
        train_model(parts, Ladders(), CONFIG, tmp_path, callbacks=[VAL, Callback(after_step=cut)], progress=False)
    again, history = resume(tmp_path, Ladders(), callbacks=[VAL], progress=False)
    assert history == lines and same(whole, again) and type(again) is Bag
    after = evaluate(again, Ladders(), batches=4)
    assert after["clm_loss_interval"][1] < before["clm_loss_interval"][0] and after["clm_accuracy"] > 5 * after["uniform_accuracy"]
    with pytest.raises(UserError, match="give resume the examples"): resume(tmp_path, progress=False)
    with pytest.raises(UserError, match="model.hidden_size was 8 and is 9"):
        train_model(fresh(hidden_size=9), Ladders(), CONFIG, tmp_path, resume=True, progress=False)
    with pytest.raises(UserError, match="head.house was None and is 'red'"):
        train_model(fresh(), Ladders(), CONFIG, tmp_path, resume=True, about=dict(head=dict(house="red")), progress=False)


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
    class Stranger(nn.Embedding): config = BagConfig()
    with pytest.raises(LookupError, match="Stranger"):
        train_model(Stranger(2, 2), Ladders(), CONFIG, tmp_path / "run", progress=False)
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.slow
def test_two_processes_train_resume_and_write_what_one_does(tmp_path):
    alone = fresh()
    lines = train_model(alone, Ladders(), CONFIG, tmp_path / "one", callbacks=[VAL], progress=False).history
    env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(map(str, (ROOT, ROOT / 'tests', ROOT / 'tests/train'))))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "test_throwaway", str(tmp_path / "two")]
    done = subprocess.run(launch, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    last = list_checkpoints(tmp_path / "two")[-1]
    assert_same(load_pretrained(last).state_dict(), alone.state_dict(), tol=1e-9)
    told = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told] == [line["step"] for line in lines]
    assert all(a["loss"] == pytest.approx(b["loss"], rel=1e-9) for a, b in zip(told, lines))


# --- the same as a --model of the command: a task, and one entry ---


class Steps(Ladders):
    "Ladders of words: the tokens of a corpus, six at a time."

    objectives = "clm", "size"
    def __init__(self, corpus): self.ids, self.info = torch.as_tensor(corpus.ids[:10**4].astype("int64")), corpus.info
    def batch(self, step, n): return dict(ids=self.ids[torch.randint(len(self.ids) - 6, (n, 1), generator=seeded(step)) + torch.arange(6)])


@checked
class BagModel(ModelOptions):
    model: str = "bag"  # what it is


@checked
class BagPlan(Plan):
    model: BagModel = BagModel()


class BagTask(Task):
    architectures, unit, layers = ("BagForCausalLM",), "ladders", ()
    plan = BagPlan
    objectives, main = {"clm": ("next number", "unigram")}, {"clm_loss": None}
    def config(self, plan, vocab_size): return BagConfig(vocab_size)
    def examples(self, plan, corpus, tokenizer): return Steps(corpus)
    def figures(self, model, run, batches=2): return evaluate(model, self.held_out(run.plan, run.val, run.tokenizer), batches=batches)
    def rows(self, summary): return writer_rows(summary, "clm", "next number")


def test_a_new_model_is_its_module_and_one_entry(tmp_path, monkeypatch):
    from command import QUICK, call
    monkeypatch.setitem(TASKS, "bag", BagTask())
    out, _ = call("pretrain", "--model", "bag", *QUICK, "--optimizer", "adamw", cwd=tmp_path)
    assert "next number, loss" in out and "Saved in runs/1" in out
    assert json.loads((tmp_path / "runs/1/config.json").read_text())["model_type"] == "bag"
    assert "next number" in call("evaluate", "runs/1", cwd=tmp_path)[0]
    found, = json.loads(call("runs", "--json", cwd=tmp_path)[0])["runs"]
    assert found["model"] == "bag" and found["figure"] == "clm_loss" and found["state"] == "finished"
    assert "units" in call("pretrain", "--model", "bag", "--units", "words", cwd=tmp_path, code=2)[1]


if __name__ == "__main__":  # one of two processes: train to the second checkpoint, stop, and go on
    class Half(Ladders):
        def batch(self, step, n):
            if step == 40: raise InterruptedError
            return super().batch(step, n)
    try: train_model(fresh(), Half(), CONFIG, sys.argv[1], callbacks=[VAL], progress=False)
    except InterruptedError:
        any_process(False)  # the first may be writing its checkpoint still
        resume(sys.argv[1], Ladders(), callbacks=[VAL], progress=False)
