"""Put each mistake into a copy of the package, run the checks against it, and say what refuses it first.

    python tests/mutants/runner.py [--out results/mutants.json] ["attention: no 1/sqrt(K)" or a part of it ...]

What all checks import is imported once; every mistake is then judged in a process of its own, forked from that one
on Linux (elsewhere a fork of a process that has imported PyTorch is not safe). The checkout is only read. First come the asserts of the module's own notebook, run from
top to bottom with the mistake in its exported cell, then the tests of the module. Chapters 10, 11, 21 and 22b train for
a while, so there the tests come first.
"""
import argparse
import gc
import importlib
import json
import math
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from mutants.bank import Mutant, patch, places, read_bank  # noqa: E402

TESTS = {  # what is asked when a notebook does not refuse: the quick tests of these files
    "core.precision": "core evaluation training",
    "core.fields": "core recipe",
    "core.files": "core",
    "core.errors": "core promises",
    "runs.plan": "recipe promises",
    "core.seeds": "core training steps",
    "train.recipe": "recipe training",
    "optimizers": "five_optimizers",
    "config": "config defaults",
    "hub.sizes": "new_layers descendants",
    "hub.cards": "cards",
    "hub.export": "export",
    "hub.files": "config weights training",
    "measure.health": "health",
    "perf.memory": "config",
    "hub.families": "models weights finetuning",
    "parity": "parity defaults",
    "text.cleaning": "tokenizer",
    "text.files": "tokenizer",
    "text.vocabulary": "tokenizer",
    "text.wordpiece": "tokenizer words",
    "text.foreign": "other_checkpoints",
    "embeddings": "models model",
    "nn.rotary": "attention models",
    "attention": "attention models model dropout",
    "nn.shortcuts": "models model loss attention dropout",
    "encoder": "models model attention",
    "model": "models model",
    "nn.block": "models model attention",
    "speed": "models model loss attention speed",
    "runs.asking": "weights",
    "heads": "models model loss weights",
    "weights": "models weights",
    "hub.compare": "weights other_checkpoints",
    "data.stories": "stories",
    "data.tables": "tables",
    "data.documents": "documents",
    "data.labels": "labels finetuning",
    "data.corpus": "corpus pairs",
    "masking": "masking pairs",
    "measure.baselines": "evaluation baselines",
    "measure.predictions": "evaluation",
    "data.pairs": "pairs pair_lengths",
    "pairs": "pairs pair_lengths",
    "train.optimizers": "optimizers training",
    "train.processes": "processes",
    "train.checkpoints": "training",
    "train.average": "objectives",
    "train.callbacks": "training processes steps",
    "train.gradients": "training processes steps",
    "training": "training processes steps",
    "evaluation": "evaluation",
    "data.windows": "gpt",
    "nn.sampling": "gpt",
    "gpt": "gpt",
    "data.spans": "t5 t5_runs other_checkpoints",
    "t5": "t5",
    "descendants": "descendants",
    "data.objectives": "objectives descendants",
    "data.curricula": "objectives",
    "data.rows": "descendants",
    "new_layers": "new_layers",
    "nn.packing": "new_layers",
    "nn.variants": "variants",
    "runs.descendants": "variant_runs",
    "show.page": "other_checkpoints",
    "nn.reader": "answer",
    "measure.answers": "answer",
    "data.questions": "answer",
    "tuning.answer": "answer",
    "tuning.tag": "tasks",
    "tuning.regress": "tasks",
    "tuning.summarize": "summarize",
    "tuning.predict": "predict",
    "tuning.finetune": "tasks",
    "runs.overview": "overview",
    "course.cells": "course",
    "course.recorded": "course",
    "course.adopt": "course",
    "course.edition": "course",
}
WARM = """numpy torch torch._dynamo safetensors.torch tokenizers tqdm matplotlib.pyplot pytest hypothesis filelock
    IPython.core.interactiveshell transformers transformers.models.bert.modeling_bert
    transformers.models.roformer.modeling_roformer datasets huggingface_hub""".split()
QUIET = dict(OMP_NUM_THREADS="1", MPLBACKEND="Agg", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
             TOKENIZERS_PARALLELISM="false", PYTHONDONTWRITEBYTECODE="1")
LIMIT = 600  # seconds for one mistake
GAP = re.compile(r"(?:a difference of|Greatest absolute difference:|^assert) (\d[-+.\de]*|nan|inf)(?= at|,| <=? 1e-| \()")


# --- one mistake ---


def copy_project(folder: Path, mutant: Mutant) -> None:
    "Package, notebook and tests in `folder`, with the mistake in the module and in the notebook's exported cell."
    ignore = shutil.ignore_patterns("__pycache__", "mutants")
    for name in ("minibert", "tests"): shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("pytest.ini", "settings.ini"): shutil.copy(ROOT / name, folder)
    module = folder / "minibert" / f"{mutant.module.replace('.', '/')}.py"
    broken = patch(module.read_text(encoding="utf8"), mutant)
    compile(broken, str(module), "exec")
    module.write_text(broken, encoding="utf8")
    if mutant.module.startswith("course."):  # it copies the chapters
        shutil.copytree(ROOT / "nbs", folder / "nbs", ignore=shutil.ignore_patterns("proofs", "answers", ".ipynb_checkpoints"))
        shutil.copy(ROOT / "setup.py", folder)
    (folder / notebook(mutant).parent.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")  # chapters read its results
    (folder / "tmp").mkdir()


def notebook(mutant: Mutant) -> Path:
    "The notebook that its module is exported from."
    name = mutant.module
    places = f"[0-9][0-9]_{name}.ipynb", f"[0-9][0-9][a-z]_{name}.ipynb", f"reference/{name.replace('.', '/')}.ipynb"
    book, = [path for place in places for path in (ROOT / "nbs").glob(place)]
    return book


def cells(mutant: Mutant) -> list[str]:
    "The code cells of the module's notebook, with the mistake in the exported one."
    book = notebook(mutant)
    parts = json.loads(book.read_text(encoding="utf8"))["cells"]
    code = ["".join(part["source"]) for part in parts if part["cell_type"] == "code"]
    where = [k for k, source in enumerate(code) if source.startswith("#| export") and places(source, mutant)]
    if len(where) != 1:
        raise ValueError(f"{mutant}: its place is in {len(where)} exported cells of {book.name}: export the module anew.")
    code[where[0]] = patch(code[where[0]], mutant)
    return code


def run_notebook(mutant: Mutant) -> dict | None:
    "Run the notebook as a kernel does; the cell that fails, or None."
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    shell = InteractiveShell.instance(config=Config(HistoryManager=dict(enabled=False)))
    shell.showtraceback = shell.showsyntaxerror = lambda *args, **options: traceback.print_exc()
    for k, source in enumerate(cells(mutant), 1):
        if re.search(r"^#\| *(hub|slow|eval: *false)", source, re.M): continue
        result = shell.run_cell(source, silent=True)
        if (error := result.error_before_exec or result.error_in_exec) is None: continue
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
        said = source.splitlines()[lines[-1] - 1].strip() if lines else ""
        return refusal(f"notebook, cell {k}", said, type(error).__name__, str(error))
    return None


def run_tests(mutant: Mutant) -> dict | None:
    "Run the module's tests; the one that fails, or None."
    import pytest
    failed = []

    class Note:
        def pytest_exception_interact(self, node, call):
            failed.append(refusal(node.nodeid, "", call.excinfo.typename, str(call.excinfo.value)))

    names = {f"test_{name}.py" for name in TESTS[mutant.module].split()}
    files = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if path.name in names]
    pytest.main(["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-c", "pytest.ini", *files],
                plugins=[Note()])
    return failed[0] if failed else None


def refusal(check: str, line: str, kind: str, said: str) -> dict:
    gap = GAP.search(said)
    gap = float(gap[1]) if gap and math.isfinite(float(gap[1])) else None
    return dict(check=check, line=line, kind=kind, said=" ".join(said.split())[:300], difference=gap)


def judge(mutant: Mutant, folder: Path) -> None:
    "Run in a process of its own: what refuses the mistake goes to verdict.json."
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2): os.dup2(log, stream)
    os.environ |= QUIET | dict(PYTHONPATH=str(folder), TMPDIR=str(folder / "tmp"))
    tempfile.tempdir = None
    sys.path.insert(0, str(folder))
    import minibert
    assert Path(minibert.__file__).is_relative_to(folder), f"{minibert.__file__} is not the mutant's"
    checks = [(run_notebook, folder / notebook(mutant).parent.relative_to(ROOT)), (run_tests, folder)]
    if mutant.module in ("training", "evaluation", "t5", "descendants", "new_layers"): checks.reverse()
    for check, place in checks:
        os.chdir(place)
        if found := check(mutant): break
    (folder / "verdict.json").write_text(json.dumps(found or {}), encoding="utf8")


# --- all of them ---


def start(mutant: Mutant, context, home: str):
    folder = Path(tempfile.mkdtemp(dir=home)).resolve()
    copy_project(folder, mutant)
    process = context.Process(target=judge, args=(mutant, folder), name="MainProcess")
    process.start()
    return process, mutant, folder, time.monotonic()


def finish(process, mutant: Mutant, folder: Path, began: float) -> dict:
    "What became of it: refused by what and when, or survived, or no verdict at all."
    if process.is_alive(): process.kill()
    process.join()
    verdict = dict(module=mutant.module, name=mutant.name, who=mutant.who, seconds=round(time.monotonic() - began, 1))
    file, log = folder / "verdict.json", folder / "log.txt"
    if file.exists():
        found = json.loads(file.read_text(encoding="utf8"))
        verdict |= dict(outcome="refused" if found else "survived") | found
    else:
        said = log.read_text(encoding="utf8", errors="replace")[-1500:] if log.exists() else ""
        verdict |= dict(outcome="broken", said=f"no verdict within {LIMIT} s, or a crash: {said}")
    shutil.rmtree(folder, ignore_errors=True)
    return verdict


def judge_all(mutants: list[Mutant], workers: int = 2):
    "The verdicts, as they come."
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting, running = list(mutants), []
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as home:
        while waiting or running:
            while waiting and len(running) < workers: running.append(start(waiting.pop(0), context, home))
            wait([job[0].sentinel for job in running], timeout=5)
            for job in [job for job in running if not job[0].is_alive() or time.monotonic() - job[3] > LIMIT]:
                running.remove(job)
                yield finish(*job)


def line(verdict: dict) -> str:
    "A row of the report: what became of it, in how many seconds, with what difference, by which check."
    gap = verdict.get("difference")
    by = ": ".join(filter(None, (verdict.get("check"), verdict.get("line") or verdict.get("said"))))
    return (f"{verdict['outcome']:9}{verdict['seconds']:6.1f} s {'' if gap is None else f'{gap:.1e}':>8}  "
            f"{verdict['module']}: {verdict['name']}  [{by[:110]}]")


def summary(report: dict) -> str:
    "The report by module, as a markdown table."
    rows = ["| module | mistakes | refused by its chapter | by its tests | median seconds | smallest difference |",
            "| --- | --- | --- | --- | --- | --- |"]
    for name in (*TESTS, ""):  # the last row is all of them
        verdicts = [verdict for verdict in report["verdicts"] if name in ("", verdict["module"])]
        if not verdicts: continue
        chapter = sum(verdict.get("check", "").startswith("notebook") for verdict in verdicts)
        tests = sum(verdict.get("check", "").startswith("tests") for verdict in verdicts)
        gaps = [gap for verdict in verdicts if (gap := verdict.get("difference"))]
        seconds = statistics.median(verdict["seconds"] for verdict in verdicts)
        rows.append(f"| {name or 'all'} | {len(verdicts)} | {chapter} | {tests} | {seconds:.1f} "
                    f"| {f'{min(gaps):.1e}' if gaps else ''} |")
    return "\n".join(rows)


def controls() -> list[Mutant]:
    "What is no mistake: for each module no change, and a comment."
    who, first = "Nobody.", "from __future__ import annotations"
    changes = {"control, nothing": first, "control, a comment": f"{first}  # so that all annotations are strings"}
    return [Mutant(module, name, who, first, put) for module in TESTS for name, put in changes.items()]


def warm_up() -> None:
    "Import once what every check imports, but nothing of minibert."
    os.environ |= QUIET
    for name in WARM: importlib.import_module(name)
    assert "minibert" not in sys.modules
    gc.freeze()


def main() -> int:
    reader = argparse.ArgumentParser(description="Which check refuses which mistake?")
    reader.add_argument("names", nargs="*", help="parts of `module: name`, as `heads: eps` or `control`; or the bank")
    reader.add_argument("--out", type=Path, help="a file for the report, JSON")
    reader.add_argument("--workers", type=int, default=2)
    args = reader.parse_args()
    mutants = [m for m in read_bank() if not args.names or any(name in str(m) for name in args.names)]
    mutants += [m for m in controls() if any(name in str(m) and "control" in name for name in args.names)]
    began = time.monotonic()
    warm_up()
    verdicts = []
    for verdict in judge_all(mutants, args.workers):
        verdicts.append(verdict)
        print(line(verdict), flush=True)
    report = dict(seconds=round(time.monotonic() - began), verdicts=verdicts)
    refused = sum(verdict["outcome"] == "refused" for verdict in verdicts)
    print("", summary(report), "", f"{refused} of {len(verdicts)} refused in {report['seconds']} s", sep="\n")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")
    return refused < len(verdicts)


if __name__ == "__main__": sys.exit(main())
