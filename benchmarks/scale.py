"""What a second process brings: the same training step, taken in turn by one process and by two.

    python benchmarks/scale.py [ROUNDS]       30 rounds unless said otherwise; into minibert/measured/scale.json

The script starts itself with torchrun. In each round the first process takes a step alone, on one thread, while
the second waits; then both take a step of the same size together, on one thread each. So a busy minute slows
both. A step is drawn, computed and taken: the time of each part is that of the first process. Of each part the
file has the median and the quartiles over the rounds.
"""
import json
import os
import platform
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
RESULTS = Path(__file__).resolve().parents[1] / "minibert/measured"
SIZES, PAIRS, LENGTH, PIECES = ("tiny", "mini"), 64, 128, 8192


def middle(values):
    "The quartiles of some milliseconds."
    return [round(1000 * value, 2) for value in statistics.quantiles(values, n=4)]


def race(rounds):
    import torch
    import torch.distributed as dist

    from minibert import training
    from minibert.train import gradients, trainer
    from minibert.train import processes as parallel
    from minibert.config import BertConfig
    from minibert.speed import FastBertForPreTraining
    from minibert.core.seeds import seeded
    from minibert.data.corpus import Corpus
    from minibert.data.documents import load_documents
    from minibert.train.optimizers import make_optimizers
    from minibert.train.recipe import TrainingConfig
    from minibert.tokenizer import WordPieceTokenizer

    torch.set_num_threads(1)
    rank, _ = parallel.join_processes()
    documents = load_documents("stories", limit=1500)
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d), vocab_size=956)
    config = TrainingConfig(steps=10 ** 6, length=LENGTH, batch_size=PAIRS)
    sampler = trainer.make_sampler(Corpus.build(documents, tokenizer), tokenizer, config)
    plain, spent = gradients.add_up_, []

    def timed(tensors):
        dist.barrier()  # so that waiting for the other one is no part of it
        start = time.perf_counter()
        plain(tensors)
        spent.append(time.perf_counter() - start)

    def step(model, optimizers, number, together):
        with ExitStack() as stack:
            if together: stack.enter_context(patch.object(gradients, "add_up_", timed))
            else:
                for module in (gradients, parallel):
                    stack.enter_context(patch.object(module, "join_processes", lambda: (0, 1)))
            spent.clear()
            start = time.perf_counter()
            batch = sampler.batch(number, PAIRS)
            drawn = time.perf_counter()
            training.train_step(training.Run(model, optimizers, config, number), batch, gradients.Gradients())
            end = time.perf_counter()
        return dict(step=end - start, drawing=drawn - start, adding=sum(spent))

    found, load = [], os.getloadavg()
    for size in SIZES:
        model = FastBertForPreTraining(BertConfig.preset(size, vocab_size=PIECES), seeded(0, 0, 2)).train()
        optimizers = make_optimizers(model, config)
        times = {1: [], 2: []}
        for number in range(rounds + 3):  # three to warm up
            for world in (1, 2):
                dist.barrier()
                if world == 2 or rank == 0: times[world].append(step(model, optimizers, number, world == 2))
        if rank == 0:
            gradient = 4 * sum(p.numel() for p in model.parameters())
            case = dict(size=size, vocab_size=PIECES, pairs=PAIRS, length=LENGTH, gradient_bytes=gradient)
            for world, lines in times.items():
                case[str(world)] = {part: middle([line[part] for line in lines[3:]]) for part in lines[0]}
            case["times_as_fast"] = [round(value / 1000, 3) for value in middle(
                [a["step"] / b["step"] for a, b in zip(times[1][3:], times[2][3:])])]
            found.append(case)
    if rank == 0:
        about = dict(command="python benchmarks/scale.py", rounds=rounds, cores=os.cpu_count(), torch=torch.__version__,
                     machine=platform.machine(), load_average=[round(x, 1) for x in load],
                     note="milliseconds: lower quartile, median, upper quartile; one thread a process, gloo on one machine")
        (RESULTS / "scale.json").write_text(json.dumps(about | dict(cases=found), indent=1) + "\n")


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    if "RANK" in os.environ: race(rounds)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                                  __file__, str(rounds)])
