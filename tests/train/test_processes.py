"""Many processes see what one would: equal losses, equal checkpoints, one that writes, and no hang whatever happens."""
import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minibert.train.callbacks import Measure
from minibert.train.checkpoints import best_checkpoint, latest_checkpoint, only_run_in
from minibert.config import BertConfig
from minibert.data.corpus import Corpus
from minibert.data.documents import load_documents
from minibert.core.seeds import seeded
from minibert.heads import BertForPreTraining
from minibert.train.optimizers import make_optimizers
from minibert.train.processes import add_up_, any_process, join_processes, split_batch
from minibert.train.recipe import TrainingConfig
from minibert.tokenizer import WordPieceTokenizer
from minibert.train.gradients import Gradients
from minibert.train.trainer import make_sampler, pretrain, resume
from minibert.training import Callback, Run, train_step

# an odd batch, in parts, with a gradient that is always too long, and both optimizers
CONFIG = TrainingConfig(steps=8, length=32, batch_size=13, gradient_accumulation_steps=2, max_grad_norm=0.3, optimizer="muon",
                        log_steps=2, checkpoint_steps=4)
FIFTY = replace(CONFIG, steps=50, log_steps=1, checkpoint_steps=1000)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]


def texts():
    documents = load_documents("stories", limit=60)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=500)
    return make_sampler(Corpus.build(documents, tokenizer), tokenizer, CONFIG)


def fresh(sampler, dropout=0.0):
    sizes = BertConfig(vocab_size=sampler.tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2,
                       num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
                       hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return BertForPreTraining(sizes, seeded(0, 0, 2)).double()


VAL = Measure(lambda model: {"val_loss": abs(model.nsp_head.weight.sum().item())})


def losses(lines): return [line["loss"] for line in lines]


def apart(a, b): return max(abs(x - y) for x, y in zip(a, b, strict=True))


# --- what the two processes do: this file is their program as well ---


class Interrupted:
    "A sampler that presses Ctrl-C in one process, while it draws the batch of a step."

    def __init__(self, sampler, rank): self.sampler, self.info, self.rank = sampler, sampler.info, rank

    def batch(self, step, size):
        if step == 5 and self.rank == 1: signal.raise_signal(signal.SIGINT)
        return self.sampler.batch(step, size)


def said(run, *args, **options):
    try: run(*args, **options)
    except BaseException as problem: return f"{type(problem).__name__}: {problem}"


def first_logits(model, sampler):
    "What this process computes in a step of a batch whose two halves are the same pairs."
    seen, config = [], replace(CONFIG, batch_size=12, gradient_accumulation_steps=1)
    model.train().nsp_head.register_forward_hook(lambda module, given, logits: seen.append(logits.tolist()))
    batch = {name: torch.cat([values, values]) for name, values in sampler.batch(0, 6).items()}
    train_step(Run(model, make_optimizers(model, config), config), batch, Gradients())
    return seen


def everything(out):
    "Every scenario in one start; each process tells what it met."
    (rank, world), sampler = join_processes(), texts()
    model, calls = fresh(sampler), []
    if rank == 1: torch.nn.init.ones_(model.nsp_head.weight)  # only the first one's weights count
    lines = pretrain(model, sampler, CONFIG, out / "straight", progress=False,
                     callbacks=[VAL, Callback(after_step=lambda run: calls.append(run.step))])
    told = dict(rank=rank, world=world, losses=losses(lines), calls=calls,
                weights=sum(p.sum().item() for p in model.parameters()))
    told["stopped"] = said(pretrain, fresh(sampler), Interrupted(sampler, rank), CONFIG, out / "stopped", callbacks=[VAL])
    told["resumed"] = losses(resume(out / "by_one", sampler, callbacks=[VAL], progress=False)[1])
    model = fresh(sampler)
    if rank == 1: model.nsp_head.register_forward_hook(lambda module, given, logits: logits * torch.nan)
    told["no_number"] = said(pretrain, model, sampler, CONFIG, out / "no_number", progress=False)
    told["many_parts"] = losses(pretrain(fresh(sampler), sampler, replace(CONFIG, gradient_accumulation_steps=8), progress=False))
    told["noisy"] = [losses(pretrain(fresh(sampler, 0.3), sampler, CONFIG, progress=False)) for _ in range(2)]
    told["twins"] = {rate: first_logits(fresh(sampler, rate), sampler) for rate in (0.0, 0.3)}
    group = weakref.ref(torch.distributed.group.WORLD)
    torch.distributed.destroy_process_group()
    atexit.unregister(torch.distributed.destroy_process_group)
    told["group_left"] = group() is not None
    (out / f"told-{rank}.json").write_text(json.dumps(told))


def fifty(out):
    lines = pretrain(fresh(sampler := texts()), sampler, FIFTY, progress=False)
    if join_processes()[0] == 0: out.write_text(json.dumps(losses(lines)))


def for_long(out, dies=False):
    if join_processes()[0] == 1 and dies: threading.Timer(5, lambda: os._exit(7)).start()
    config = replace(CONFIG, steps=100_000, checkpoint_steps=100_000)
    pretrain(fresh(sampler := texts()), sampler, config, out, progress=False)


def dying(out): for_long(out, dies=True)


if __name__ == "__main__": globals()[sys.argv[1]](Path(sys.argv[2]))


# --- the tests (those that start two processes are for Linux and macOS) ---


def start(launcher, scenario, out):
    "Start two processes with this scenario."
    return subprocess.Popen([*launcher, __file__, scenario, str(out)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True)


def ended(process, seconds=300):
    "What it said, once it has ended; it and those that it started end in any case."
    try: return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # the launcher then ends its own
        raise AssertionError(f"still running after {seconds} s: {process.communicate(timeout=60)[0]}") from None


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


@pytest.fixture(scope="module")
def sampler(): return texts()


@pytest.fixture(scope="module")
def by_one(sampler, tmp_path_factory):
    "One process: a run that goes through, and the same, stopped in the middle."
    folder = tmp_path_factory.mktemp("one")
    model = fresh(sampler)
    lines = pretrain(model, sampler, CONFIG, folder / "straight", callbacks=[VAL], progress=False)

    def stop(run):
        if run.step == 6: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        pretrain(fresh(sampler), sampler, CONFIG, folder / "by_one", callbacks=[VAL, Callback(after_step=stop)], progress=False)
    return folder, model, lines


@pytest.fixture(scope="module")
def by_two(tmp_path_factory, by_one):
    "Two processes: every scenario of the script, in one start."
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(by_one[0] / "by_one", folder / "by_one")
    process = start(TORCHRUN, "everything", folder)
    shown = ended(process)
    assert process.returncode == 0, shown
    return folder, [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)], shown


@pytest.mark.posix
def test_two_processes_have_the_losses_of_one(by_one, by_two):
    _, model, lines = by_one
    told = by_two[1]
    for rank in (0, 1):
        assert (told[rank]["rank"], told[rank]["world"]) == (rank, 2)
    assert apart(told[0]["losses"], losses(lines)) < 1e-9
    assert told[0]["weights"] == told[1]["weights"]
    assert abs(told[0]["weights"] - sum(p.sum().item() for p in model.parameters())) < 1e-8
    assert all(line["grad_norm"] > CONFIG.max_grad_norm for line in lines)


@pytest.mark.posix
def test_checkpoint_and_metrics_of_two_are_those_of_one(by_one, by_two):
    for name in ("00000004", "00000008"):
        one, two = (latest_or(folder / "straight", name) for folder in (by_one[0], by_two[0]))
        assert one.keys() == two.keys() and apart_tensors(one, two) < 1e-9
    one, two = ([json.loads(line) for line in open(folder / "straight/metrics.jsonl", encoding="utf8")] for folder in (by_one[0], by_two[0]))
    assert [line.keys() for line in one] == [line.keys() for line in two]
    assert apart([line["val_loss"] for line in one if "val_loss" in line],
                 [line["val_loss"] for line in two if "val_loss" in line]) < 1e-9
    assert best_checkpoint(by_one[0] / "straight").name == best_checkpoint(by_two[0] / "straight").name


def latest_or(folder, name):
    from safetensors.torch import load_file
    return load_file(folder / "checkpoints" / name / "model.safetensors") | load_file(
        folder / "checkpoints" / name / "optimizer.safetensors")


def apart_tensors(a, b): return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


@pytest.mark.posix
def test_only_the_first_process_writes_logs_and_shows(by_two):
    folder, told, shown = by_two
    assert told[0]["calls"] == [1, 2, 3, 4, 5, 6, 7, 8] and told[1]["calls"] == []
    for name in ("straight", "stopped", "by_one"):
        steps = [json.loads(line)["step"] for line in open(folder / name / "metrics.jsonl", encoding="utf8")]
        assert steps == sorted(set(steps))
        assert not list((folder / name).rglob(".*.tmp")) and not list(folder.glob(f"{name}/checkpoints/.*"))
    assert shown.count("step 1 of 8: ") == 1  # by one process


@pytest.mark.posix
def test_ctrl_c_in_any_process_stops_all_at_one_step(sampler, by_one, by_two):
    "Stopped with two, it is resumed with one."
    folder, told, _ = by_two
    assert told[0]["stopped"] == told[1]["stopped"]
    assert told[0]["stopped"].startswith("KeyboardInterrupt: Stopped after step 6: saved in")
    assert latest_checkpoint(folder / "stopped").name == "00000006"
    model, lines = resume(folder / "stopped", sampler, callbacks=[VAL], progress=False)
    assert apart(losses(lines), losses(by_one[2])) < 1e-9


@pytest.mark.posix
def test_stopped_with_one_resumed_with_two(by_one, by_two):
    for told in by_two[1]: assert apart(told["resumed"], losses(by_one[2])) < 1e-9
    assert latest_checkpoint(by_two[0] / "by_one").name == "00000008"


@pytest.mark.posix
def test_loss_that_is_no_number_in_one_process_stops_all(by_two):
    folder, told, _ = by_two
    assert all(t["no_number"].startswith("UserError: Step 1 has a loss of nan") for t in told)
    assert [path.name for path in (folder / "no_number").glob("batch*")] == ["batch-of-step-1.safetensors"]
    assert "is kept in" in told[0]["no_number"] and "is kept in" not in told[1]["no_number"]


@pytest.mark.posix
def test_more_parts_than_rows_are_as_many_as_there_are_rows(by_one, by_two):
    for told in by_two[1]: assert apart(told["many_parts"], losses(by_one[2])) < 1e-9


@pytest.mark.posix
def test_dropout_with_two_is_repeatable_and_another_one_in_each(sampler, by_two):
    told = by_two[1]
    assert told[0]["noisy"] == told[1]["noisy"] and told[0]["noisy"][0] == told[0]["noisy"][1]
    one, other = (told[rank]["twins"] for rank in (0, 1))  # the same pairs, so that only dropout can differ
    assert one["0.0"] == other["0.0"] and one["0.3"] != other["0.3"]
    alone = losses(pretrain(fresh(sampler, 0.3), sampler, CONFIG, progress=False))
    assert 1e-3 < apart(alone, told[0]["noisy"][0])
    assert seeded(3, 5, 1).initial_seed() == seeded(3, 5, 1, 0).initial_seed() != seeded(3, 5, 1, 1).initial_seed()


@pytest.mark.posix
def test_nothing_keeps_the_group_and_its_threads_past_the_end(by_two):
    assert not any(told["group_left"] for told in by_two[1])


@pytest.mark.slow
def test_one_process_is_alone_and_pays_nothing():
    code = ("import sys, minibert.train.trainer, minibert.train.processes as p; assert p.join_processes() == (0, 1); "
            "assert not p.dist.is_initialized() and 'accelerate' not in sys.modules and 'tensorboard' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    numbers = torch.arange(3.0)
    add_up_([numbers])
    assert numbers.tolist() == [0, 1, 2] and any_process(True) and not any_process(False)


def test_shares_cover_the_batch_once(sampler):
    batch = sampler.batch(0, 13)
    parts = list(split_batch(batch, 2 * 3))
    rows = torch.cat([part["input_ids"] for rank in (0, 1) for part in parts[rank::2]])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, batch["input_ids"].tolist()))
    model = fresh(sampler)
    whole = Gradients()(model, batch)
    gradient = model.nsp_head.weight.grad.clone()
    model.zero_grad()
    again = Gradients(13)(model, batch)
    assert all(abs(whole[name] - again[name]) < 1e-12 for name in whole)
    assert (gradient - model.nsp_head.weight.grad).abs().max() < 1e-12


@pytest.mark.posix
@pytest.mark.slow
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_fifty_steps_with_two_are_those_of_one(tmp_path, sampler, launcher):
    if launcher is ACCELERATE: launcher = [*launcher, "--main_process_port", str(free_port())]
    process = start(launcher, "fifty", tmp_path / "losses.json")
    shown = ended(process)
    assert process.returncode == 0, shown
    alone = losses(pretrain(fresh(sampler), sampler, FIFTY, progress=False))
    difference = apart(json.loads((tmp_path / "losses.json").read_text()), alone)
    print(f"largest difference of the losses over 50 steps: {difference:.1e}")
    assert difference < 1e-9


@pytest.mark.posix
@pytest.mark.slow
def test_ctrl_c_on_the_launcher_saves_and_ends_all(tmp_path):
    process = start(TORCHRUN, "for_long", tmp_path / "run")
    while not (tmp_path / "run/metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    shown = ended(process, 120)
    step = int(latest_checkpoint(tmp_path / "run").name)
    assert process.returncode != 0 and f"Stopped after step {step}:" in shown
    with only_run_in(tmp_path / "run"): pass


@pytest.mark.posix
@pytest.mark.slow
def test_folder_in_use_ends_all_processes(tmp_path):
    with only_run_in(tmp_path / "run"):
        process = start(TORCHRUN, "for_long", tmp_path / "run")
        shown = ended(process, 120)
    assert process.returncode != 0 and "Another process is training in" in shown


@pytest.mark.posix
@pytest.mark.slow
def test_process_that_dies_ends_the_others(tmp_path):
    process = start(TORCHRUN, "dying", tmp_path / "run")
    assert ended(process, 120) and process.returncode != 0
    with only_run_in(tmp_path / "run"): pass
