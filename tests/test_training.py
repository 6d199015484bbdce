"""The loop against a plain one around Hugging Face's model; nothing lost, whatever happens."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from minibert.core.errors import UserError
from minibert.train.callbacks import Budget, Log, Measure, TensorBoard, is_logged
from minibert.train.checkpoints import (
    best_checkpoint, latest_checkpoint, list_checkpoints, only_run_in, open_checkpoint,
    read_state, save_checkpoint)
from minibert.config import BertConfig
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.core.progress import shown
from minibert.core.seeds import seeded
from minibert.heads import BertForPreTraining
from minibert.speed import FastBertForPreTraining
from minibert.train.optimizers import make_optimizers
from minibert.train.processes import own_device
from minibert.parity import assert_same
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.gradients import Gradients
from minibert.train.trainer import make_sampler, pretrain, resume, train_model
from minibert.training import Callback, Run, fit, train_step

CONFIG = TrainingConfig(steps=10, length=32, batch_size=4, log_steps=2, checkpoint_steps=3, optimizer="muon")


@pytest.fixture(scope="module")
def texts():
    documents = load_documents("stories", limit=60)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=500)
    return Corpus.build(documents, tokenizer), tokenizer


@pytest.fixture
def small(texts):
    return BertConfig(vocab_size=texts[1].vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=64, max_position_embeddings=64)


def fresh(config): return BertForPreTraining(config, seeded(0, 0, 2))


def fresh_fast(config): return FastBertForPreTraining(config, seeded(0, 0, 2))  # what the command trains and resume makes


def equal(a, b): return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values()))


def steps_against_hf(texts, steps, optimizer_seed=0):
    "The losses of `steps` of train_step and of a plain loop around HF's model, both in float64."
    import transformers as hf

    from minibert.weights import from_hf
    corpus, tokenizer = texts
    training = TrainingConfig(steps=steps, length=48, batch_size=8, learning_rate=1e-3)
    sampler = make_sampler(corpus, tokenizer, training)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = hf.BertForPreTraining(hf.BertConfig(
            vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation="eager")).double().train()
    ours = from_hf(theirs).train()
    no_decay = [p for n, p in theirs.named_parameters() if "LayerNorm" in n or n.endswith("bias")]
    decay = [p for n, p in theirs.named_parameters() if not ("LayerNorm" in n or n.endswith("bias"))]
    adamw = torch.optim.AdamW([dict(params=decay, weight_decay=0.01), dict(params=no_decay, weight_decay=0.0)],
                              lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
    warm = int(0.1 * steps)
    rate = torch.optim.lr_scheduler.LambdaLR(
        adamw, lambda n: (n + 1) / warm if n + 1 <= warm else (steps - n) / (steps - warm))
    optimizers = make_optimizers(ours, training)
    for step in range(steps):
        batch = sampler.batch(step, 8)
        loss = theirs(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        adamw.step(); rate.step(); adamw.zero_grad()
        yield train_step(Run(ours, optimizers, training, step), batch).line["loss"], loss.item()


def test_hundred_steps_take_the_same_path_as_hf(texts):
    differences = [abs(a - b) for a, b in steps_against_hf(texts, 100)]
    print(f"largest difference of the losses: {max(differences):.1e}")
    assert max(differences) < 1e-8


@pytest.mark.parametrize("objective", ["mlm", "nsp"])
def test_one_objective_alone_trains_and_resumes(texts, small, tmp_path, objective):
    config, kept = replace(CONFIG, gradient_accumulation_steps=2, checkpoint_steps=5), f"{objective}_loss"
    sampler = make_sampler(*texts, config, objectives=(objective,))
    lines = pretrain(model := fresh_fast(small), sampler, config, tmp_path, progress=False)
    assert all(line["loss"] == line[kept] for line in lines)
    assert {"mlm_loss", "nsp_loss"} & lines[0].keys() == {kept} and lines[-1]["loss"] < lines[0]["loss"] + 1
    for name in ("checkpoints/00000010",): shutil.rmtree(tmp_path / name)
    again, after = resume(tmp_path, sampler, progress=False)
    assert equal(model, again) and after == lines
    with pytest.raises(UserError, match="objectives was"): resume(tmp_path, make_sampler(*texts, CONFIG), CONFIG, progress=False)


def test_parts_without_a_predicted_token_count_as_nothing(texts, small):
    still = replace(small, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    whole, parts = fresh(still).double(), fresh_fast(still).double()
    batch = make_sampler(*texts, CONFIG).batch(0, 4)
    batch["labels"][1:] = -100
    whole(**batch).loss.backward()
    losses = Gradients(4)(parts, batch)
    assert all(math.isfinite(value) for value in losses.values())
    for p, q in zip(whole.parameters(), parts.parameters()): assert_same(p.grad, q.grad, tol=1e-12)


def test_a_request_for_slow_bfloat16_is_warned_of(texts, small, monkeypatch):
    sampler, config = make_sampler(*texts, CONFIG), replace(CONFIG, steps=1)
    monkeypatch.setenv("MINIBERT_BFLOAT16", "0")
    with pytest.warns(UserWarning, match="float32 trains faster here"):
        pretrain(fresh(small), sampler, replace(config, precision="bfloat16"), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pretrain(fresh(small), sampler, config, progress=False)


def test_the_loop_leaves_the_process_as_it_was(texts, small, monkeypatch):
    "glibc's settings and the signal handlers are the host's; the frozen part of a model is its owner's."
    def refuse(): raise AssertionError("the loop changed how this process keeps memory")
    monkeypatch.setattr("minibert.core.precision.keep_freed_memory", refuse)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    model, modes = fresh(small), []

    def freeze(run):
        if run.step == 1: model.bert.eval()
        modes.append((model.training, model.bert.training))
    def measure(model): return {"val_loss": model.eval().nsp_head.weight.sum().item()}
    pretrain(model, make_sampler(*texts, CONFIG), CONFIG, callbacks=[Measure(measure), Callback(after_step=freeze)], progress=False)
    assert set(modes) == {(True, False)}
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_a_copy_beside_the_checkpoints_stays(texts, small, tmp_path, number):
    sampler = make_sampler(*texts, CONFIG)
    straight = fresh_fast(small)
    lines = pretrain(straight, sampler, CONFIG, progress=False)

    def stop(run):
        if run.step == 4: signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt, match="Stopped after step 4: saved in"):
        pretrain(fresh_fast(small), sampler, CONFIG, tmp_path, callbacks=[Callback(after_step=stop)], progress=False)
    copy = tmp_path / "checkpoints/00000001-my-best"
    shutil.copytree(latest_checkpoint(tmp_path), copy)
    before = read_state(latest_checkpoint(tmp_path))["seconds"]
    model, again = resume(tmp_path, sampler, progress=False)
    assert equal(straight, model) and again == lines and copy.is_dir()
    assert list_checkpoints(tmp_path) == [tmp_path / "checkpoints" / name for name in ("00000009", "00000010")]
    assert read_state(latest_checkpoint(tmp_path))["seconds"] > before > 0


def test_without_a_terminal_each_line_of_metrics_is_a_line(texts, small, capsys):
    pretrain(fresh(small), make_sampler(*texts, CONFIG), CONFIG)
    said = capsys.readouterr().err
    lines = said.splitlines()
    assert "\r" not in said and len(lines) == len({line.split(":")[0] for line in lines}) > 1
    assert all(re.fullmatch(r"step \d+ of 10: mlm [\d.]+, nsp [\d.]+; [\d.e+]+ steps/s, done at (\w+ )?\d\d:\d\d", line) for line in lines[:-1])


def test_resume_is_bit_for_bit_after_damage(texts, small, tmp_path):
    "A run stopped at 6, its newest checkpoint spoiled: it goes on from the one before."
    sampler = make_sampler(*texts, CONFIG)
    straight = fresh_fast(small)
    lines = pretrain(straight, sampler, CONFIG, progress=False)

    def stop(run):
        if run.step == 8: raise RuntimeError("power cut")
    with pytest.raises(RuntimeError): pretrain(fresh_fast(small), sampler, CONFIG, tmp_path, callbacks=[Callback(after_step=stop)], progress=False)
    newest = latest_checkpoint(tmp_path)
    assert newest.name == "00000006"
    spoiled = newest / "optimizer.safetensors"
    spoiled.write_bytes(spoiled.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="00000006 is damaged"):
        model, again = resume(tmp_path, sampler, progress=False)
    assert equal(straight, model) and again == lines
    assert [json.loads(line) for line in open(tmp_path / "metrics.jsonl")] == lines


def test_half_written_line_of_metrics_is_dropped(texts, small, tmp_path):
    sampler = make_sampler(*texts, CONFIG)
    lines = pretrain(fresh(small), sampler, CONFIG, tmp_path, progress=False)
    with open(tmp_path / "metrics.jsonl", "a") as file: file.write('{"step": 11, "los')
    _, again = resume(tmp_path, sampler, progress=False)
    assert again == lines and (tmp_path / "metrics.jsonl").read_text().count("\n") == len(lines)


def test_only_whole_checkpoints_carry_the_name(texts, small, tmp_path, monkeypatch):
    "A full disk in the middle of writing leaves the checkpoint before it, whole."
    model, sampler = fresh(small), make_sampler(*texts, CONFIG)
    optimizers = make_optimizers(model, CONFIG)
    train_step(Run(model, optimizers, CONFIG), sampler.batch(0, 4))
    save_checkpoint(tmp_path, 1, model, optimizers, dict(measured={}))
    import minibert.train.checkpoints as checkpoints
    written = []

    def full(path, data):
        if written: raise OSError(28, "No space left on device", str(path))
        written.append(path)
    monkeypatch.setattr(checkpoints, "write_whole", full)
    with pytest.raises(OSError, match="No space left"): save_checkpoint(tmp_path, 2, model, optimizers, {})
    assert latest_checkpoint(tmp_path).name == "00000001"


def test_gradient_that_is_not_finite_stops_the_run(texts, small, tmp_path):
    model, sampler = fresh(small), make_sampler(*texts, CONFIG)
    with torch.no_grad(): model.nsp_head.weight[0, 0] = torch.inf
    before = {n: p.clone() for n, p in model.named_parameters()}
    with pytest.raises(UserError, match="Step 1 .*batch-of-step-1.safetensors"):
        pretrain(model, sampler, CONFIG, tmp_path, progress=False)
    assert (tmp_path / "batch-of-step-1.safetensors").exists()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


class Watch(Callback):
    "Gradients are there before the update; the weights have moved after it."

    def __init__(self): self.asked = 0

    def before_update(self, run):
        if not is_logged(run.step + 1, run.config): return
        self.weight = run.model.nsp_head.weight.detach().clone()
        self.gradient = run.model.nsp_head.weight.grad.norm().item()

    def after_step(self, run):
        if not is_logged(run.step, run.config): return
        self.asked += 1
        run.figures |= dict(gradient=self.gradient, moved=(run.model.nsp_head.weight - self.weight).norm().item())


def test_a_watcher_joins_the_lines_and_touches_nothing(texts, small, tmp_path):
    sampler, plain, watched, watch = make_sampler(*texts, CONFIG), fresh(small), fresh(small), Watch()
    lines = pretrain(plain, sampler, CONFIG, progress=False)
    seen = pretrain(watched, sampler, CONFIG, tmp_path, callbacks=[watch], progress=False)
    assert equal(plain, watched) and watch.asked == len(lines) == 6
    assert all(line["moved"] > 0 and 0 < line["gradient"] <= line["grad_norm"] for line in seen)
    assert [{k: v for k, v in line.items() if k not in ("moved", "gradient")} for line in seen] == lines
    assert [json.loads(line) for line in open(tmp_path / "metrics.jsonl")] == seen


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_bare_loop_and_the_whole_one_take_the_same_path(texts, small, optimizer):
    sampler, config = make_sampler(*texts, CONFIG), replace(CONFIG, optimizer=optimizer)
    bare = fit(fresh(small), sampler, config)
    whole, parts = (fit(fresh(small), sampler, config, [], by) for by in (Gradients(), Gradients(3)))
    assert equal(bare.model, whole.model) and bare.step == 10 and not equal(bare.model, parts.model)
    norms = []
    fit(fresh(small), sampler, replace(config, max_grad_norm=0.01),
        [Callback(before_update=lambda run: norms.append(nn.utils.get_total_norm([p.grad for p in run.model.parameters()])))])
    assert len(norms) == 10 and max(norms) < 0.0101


def test_callbacks_are_called_in_their_order_and_end_after_an_error(texts, small):
    def called(name):
        def note(when): return lambda run: heard.append((when, name, run.step))
        return Callback(**{when: note(when) for when in ("begin", "before_update", "after_step", "end")})
    def fall(run): raise InterruptedError
    heard, sampler = [], make_sampler(*texts, CONFIG)
    with pytest.raises(InterruptedError): fit(fresh(small), sampler, CONFIG, [called("a"), called("b"), Callback(after_step=fall)])
    assert heard == [("begin", "a", 0), ("begin", "b", 0), ("before_update", "a", 0), ("before_update", "b", 0),
                     ("after_step", "a", 1), ("after_step", "b", 1), ("end", "a", 1), ("end", "b", 1)]


class Clocked:
    "A sampler for which a step takes as long as we say."

    def __init__(self, sampler, seconds): self.sampler, self.info, self.seconds, self.now = sampler, sampler.info, seconds, 0.0

    def batch(self, step, n):
        self.now += self.seconds(step, self.now)
        return self.sampler.batch(step, n)


@pytest.mark.parametrize("seconds", [lambda step, now: 0.5, lambda step, now: 4.0 if step < 5 else 0.5,
                                     pytest.param(lambda step, now: 1.0 if now < 60 else 0.5, marks=pytest.mark.slow),
                                     pytest.param(lambda step, now: 3 * (now % 20 > 19) + 0.4, marks=pytest.mark.slow)],
                         ids=["even", "slow at first", "beside another until half time", "a slow one now and then"])
def test_minutes_hold(texts, small, monkeypatch, seconds):
    examples, config = Clocked(make_sampler(*texts, CONFIG), seconds), replace(CONFIG, optimizer="adamw", log_steps=1, checkpoint_steps=10**6)
    monkeypatch.setattr("time.monotonic", lambda: examples.now)
    run = fit(fresh(small), examples, config, [Budget(2), Log()])
    assert 0.94 * 120 < examples.now < 1.06 * 120 and run.step == run.config.steps
    rates = [line["learning_rate"] for line in run.history]
    top = rates.index(config.learning_rate)
    down = len(rates) - 1 - rates[::-1].index(config.learning_rate)
    assert rates[:top] == sorted(rates[:top]) and rates[down:] == sorted(rates[down:], reverse=True)
    assert set(rates[top:down]) == {config.learning_rate} and abs((run.step - down) / run.step - config.cooldown) < 0.03


def test_what_minutes_decided_is_exact_in_a_resume(texts, small, tmp_path, monkeypatch, capsys):
    def clock(): return Clocked(make_sampler(*texts, CONFIG), lambda step, now: 0.5)
    config = replace(CONFIG, checkpoint_steps=10, keep_checkpoints=99)
    def trained(examples, callbacks=(), **options):
        monkeypatch.setattr("time.monotonic", lambda: examples.now)
        return train_model(fresh(small), examples, config, tmp_path, callbacks=[Budget(0.25), *callbacks], progress=False, **options)
    straight = trained(clock())
    decided = [path for path in list_checkpoints(tmp_path) if read_state(path)["callbacks"]["Budget"]["steps"]]
    assert len(list_checkpoints(tmp_path)) > len(decided) > 1 and straight.step == read_state(decided[0])["steps"]
    for path in decided[1:]: shutil.rmtree(path)
    assert equal(trained(clock(), resume=True).model, straight.model)
    for path in list_checkpoints(tmp_path)[1:]: shutil.rmtree(path)
    assert not read_state(list_checkpoints(tmp_path)[0])["callbacks"]["Budget"]["steps"]
    with shown(): again = trained(clock(), resume=True)
    assert abs(again.step - straight.step) < 5 and "minutes that are left" in capsys.readouterr().err


def measure_by(losses):
    "A measure that gives these losses in turn, leaves the model in eval mode, and draws from the global generator."
    losses = iter(losses)
    def measure(model):
        model.eval()
        torch.rand(3)
        return {"val_loss": next(losses)}
    return measure


def but_for_time(checkpoint): return {name: value for name, value in read_state(checkpoint).items() if name != "seconds"}


def names(folder): return sorted(path.name for path in folder.glob("checkpoints/*"))


def test_best_checkpoint_stays_beside_the_last_ones(texts, small, tmp_path):
    sampler, config = make_sampler(*texts, CONFIG), replace(CONFIG, steps=14, checkpoint_steps=2)
    plain, measured = fresh(small), fresh(small)
    pretrain(plain, sampler, config, progress=False)
    losses = [5.0, 3.0, float("nan"), 4.0, 3.0, 6.0, 7.0]
    lines = pretrain(measured, sampler, config, tmp_path, callbacks=[Measure(measure_by(losses))], progress=False)
    assert equal(plain, measured)
    assert names(tmp_path) == ["00000004", "00000012", "00000014"]
    path = best_checkpoint(tmp_path)
    assert path.name == "00000004" and read_state(path)["measured"] == {"val_loss": 3.0}
    assert {line["step"]: line["val_loss"] for line in lines if line["step"] in (2, 4, 14)} == {2: 5.0, 4: 3.0, 14: 7.0}
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="00000004 is damaged"): assert best_checkpoint(tmp_path).name == "00000012"
    with pytest.raises(UserError, match="no whole checkpoint"): best_checkpoint(tmp_path / "no")


def test_resumed_run_measures_nothing_twice_and_keeps_the_best(texts, small, tmp_path):
    sampler, config = make_sampler(*texts, CONFIG), replace(CONFIG, log_steps=4)
    def steady(model): return {"val_loss": 1 + abs(model.eval().nsp_head.weight.sum().item())}
    lines = pretrain(straight := fresh_fast(small), sampler, config, tmp_path / "a", callbacks=[Measure(steady)], progress=False)
    assert [line["step"] for line in lines] == [1, 3, 4, 6, 8, 9, 10]
    calls = []

    def stopping(model):
        calls.append(steady(model))
        return calls[-1]

    def stop(run):
        if run.step == 8: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="Stopped after step 8"):
        pretrain(fresh_fast(small), sampler, config, tmp_path / "b", callbacks=[Measure(stopping), Callback(after_step=stop)], progress=False)
    state = read_state(latest_checkpoint(tmp_path / "b"))
    assert len(calls) == 2 and (state["step"], state["measured"]) == (8, {})
    model, again = resume(tmp_path / "b", sampler, callbacks=[Measure(stopping)], progress=False)
    assert equal(straight, model) and again == lines and len(calls) == 4
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    assert but_for_time(best_checkpoint(tmp_path / "a")) == but_for_time(best_checkpoint(tmp_path / "b"))


@pytest.mark.slow
def test_two_runs_in_one_folder_are_refused(tmp_path):
    with only_run_in(tmp_path):
        code = f"from minibert.train.checkpoints import only_run_in\nwith only_run_in({str(tmp_path)!r}): pass"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "Another process is training in" in done.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_resuming_something_else_is_refused_by_name(texts, small, tmp_path):
    sampler = make_sampler(*texts, CONFIG)
    pretrain(fresh(small), sampler, CONFIG, tmp_path, progress=False)
    with pytest.raises(UserError, match="training.seed was 0 and is 7"):
        resume(tmp_path, sampler, replace(CONFIG, seed=7), progress=False)
    other = Corpus.build(load_documents("stories", limit=50), texts[1])
    with pytest.raises(UserError, match=r"examples\.n_tokens was"):
        resume(tmp_path, make_sampler(other, texts[1], CONFIG), progress=False)
    with pytest.raises(FileExistsError):
        pretrain(fresh(small), sampler, CONFIG, tmp_path, progress=False)


def test_batch_does_not_depend_on_what_was_drawn_before(texts):
    one, two = make_sampler(*texts, CONFIG), make_sampler(*texts, CONFIG)
    for step in (5, 1, 3): one.batch(step, 4)
    a, b = one.batch(2, 4), two.batch(2, 4)
    assert all(torch.equal(a[name], b[name]) for name in a)


KILLED = """
import sys
from minibert.core.errors import UserError
from minibert.config import BertConfig
from minibert.core.seeds import seeded
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.heads import BertForPreTraining
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.trainer import make_sampler, pretrain, resume
from minibert.train.callbacks import Measure
documents = load_documents("stories", limit=60)
tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=500)
config = TrainingConfig(steps=60, length=32, batch_size=4, log_steps=2, checkpoint_steps=2, optimizer="muon")
sampler = make_sampler(Corpus.build(documents, tokenizer), tokenizer, config)
sizes = BertConfig(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=64, max_position_embeddings=64)
print("ready", flush=True)
look = [Measure(lambda model: {"val_loss": abs(model.nsp_head.weight.sum().item())})]
try: resume(sys.argv[1], sampler, callbacks=look, progress=False)
except UserError: pretrain(BertForPreTraining(sizes, seeded(0, 0, 2)), sampler, config, sys.argv[1], callbacks=look, progress=False)
print("done", flush=True)
"""


def killed_at_random(folder, kills, seed):
    "Run, kill with SIGKILL at random moments, go on, until it is done."
    generator = seeded(seed)
    for kill in range(kills + 1):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert process.stdout.readline() == "ready\n"
        if kill == kills:
            assert process.communicate()[0].endswith("done\n")
            return
        time.sleep(0.6 * torch.rand((), generator=generator).item())
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    killed_at_random(folder, 0, 0)
    return folder


def assert_equal_runs(a, b):
    assert (a / "metrics.jsonl").read_bytes() == (b / "metrics.jsonl").read_bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (a / "checkpoints/00000060" / name).read_bytes() == (b / "checkpoints/00000060" / name).read_bytes()
    assert names(a) == names(b) and but_for_time(best_checkpoint(a)) == but_for_time(best_checkpoint(b))


@pytest.mark.slow
def test_killed_three_times_nothing_is_lost(tmp_path, never_stopped):
    killed_at_random(tmp_path, 3, 1)
    assert_equal_runs(tmp_path, never_stopped)


@pytest.mark.slow
def test_killed_thirty_times_nothing_is_lost(tmp_path, never_stopped):
    killed_at_random(tmp_path, 30, 2)
    assert_equal_runs(tmp_path, never_stopped)


def test_tensorboard_shows_each_line_once_after_a_resume_too(texts, small, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    sampler, folder = make_sampler(*texts, CONFIG), tmp_path / "board"
    board = TensorBoard(folder)
    assert not folder.exists()

    def stop(run):
        if run.step == 8: raise RuntimeError("power cut")
    with pytest.raises(RuntimeError):
        pretrain(fresh(small), sampler, CONFIG, tmp_path / "run", callbacks=[board, Callback(after_step=stop)], progress=False)
    _, lines = resume(tmp_path / "run", sampler, callbacks=[TensorBoard(folder)], progress=False)
    board = EventAccumulator(str(folder)).Reload()
    assert set(board.Tags()["scalars"]) == lines[0].keys() - {"step"}
    for name in ("loss", "learning_rate"):
        shown = {event.step: event.value for event in board.Scalars(name)}
        assert shown == pytest.approx({line["step"]: line[name] for line in lines})
        assert len(board.Scalars(name)) == len(lines)


def test_missing_tensorboard_is_said_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"): TensorBoard(tmp_path)


def test_resume_keeps_the_precision_and_takes_a_device(texts, small, tmp_path):
    sampler = make_sampler(*texts, CONFIG)
    pretrain(fresh(small).double(), sampler, CONFIG, tmp_path, progress=False)
    model, _ = resume(tmp_path, sampler, device=own_device(), progress=False)
    assert {p.dtype for p in model.parameters()} == {torch.float64} and model.nsp_head.weight.device == own_device()


@pytest.mark.slow
def test_compiled_model_trains_alike_and_keeps_its_names(texts, small, tmp_path):
    sampler = make_sampler(*texts, CONFIG)
    plain, compiled = fresh(small), fresh(small)
    compiled.compile(backend="aot_eager", dynamic=True)  # no C++ compiler is asked for
    config = replace(CONFIG, optimizer="adamw")
    lines = pretrain(plain, sampler, config, progress=False)
    again = pretrain(compiled, sampler, config, tmp_path, progress=False)
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(lines, again)) < 1e-3
    assert latest_checkpoint(tmp_path).joinpath("model.safetensors").exists()
    assert fresh(small).load_state_dict(compiled.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_takes_the_same_path_as_the_cpu(texts, small, tmp_path):
    sampler, config = make_sampler(*texts, CONFIG), replace(CONFIG, optimizer="adamw")
    still = replace(small, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    lines = pretrain(fresh(still).double(), sampler, config, progress=False)
    again = pretrain(fresh(still).double().to(own_device()), sampler, config, tmp_path, progress=False)
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(lines, again)) < 1e-9
    resume(tmp_path, sampler, device=own_device(), progress=False)


def test_a_checkpoint_without_state_is_damaged(tmp_path):
    (tmp_path / "00000001").mkdir()
    with pytest.raises(ValueError, match="00000001 is damaged"): open_checkpoint(tmp_path / "00000001")


def test_losses_of_float64_stay_float64(texts, small):
    model, sampler = fresh(small).double(), make_sampler(*texts, CONFIG)
    config = replace(CONFIG, optimizer="adamw")
    metrics = train_step(Run(model, make_optimizers(model, config), config, 0), sampler.batch(0, 4)).line
    batch = sampler.batch(0, 4)
    again = fresh(small).double()
    with torch.random.fork_rng():
        torch.manual_seed(seeded(config.seed, 0, 1).initial_seed())
        assert_same(torch.tensor(metrics["loss"], dtype=torch.float64), again.train()(**batch).loss.detach(), tol=1e-12)
