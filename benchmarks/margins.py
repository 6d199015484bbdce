"""How far is every assert about a trained model from failing, over seeds, threads and precisions?

    python benchmarks/margins.py nbs/10_training.ipynb nbs/reference/measure/observer.ipynb --out minibert/measured/margins.json

Each notebook runs from top to bottom in a fresh process under every setting. All generators of the package get other
seeds, PyTorch gets one thread or two, and configs that name no precision get float32 or bfloat16. An assert that fails
is counted and the notebook goes on, so one run shows them all. Printed are the asserts whose values differ from setting
to setting, the closest first: how often each failed, and for every comparison in it the range of the values that were
compared and the smallest distance to the bound, as a share of the bound. `!` marks a failure.
"""
from __future__ import annotations

import argparse
import ast
import contextlib
import io
import itertools
import json
import math
import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).resolve().parent.parent
SIGN = {ast.Lt: 1, ast.LtE: 1, ast.Gt: -1, ast.GtE: -1}


class Comparisons(ast.NodeTransformer):
    "Wraps both sides of every < and > inside one assert, those in generators too."

    def __init__(self, key: str): self.key, self.count = key, 0

    def visit_Compare(self, node):
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if len(node.ops) == 1 and type(node.ops[0]) in SIGN:
            name = f"{self.key} #{self.count}"
            self.count += 1
            pair = ast.Tuple([ast.Constant(name), ast.Constant(SIGN[type(node.ops[0])]), *sides], ast.Load())
            call = ast.Call(ast.Name("__seen__", ast.Load()), pair.elts, [])
            strict = type(node.ops[0]).__name__
            return ast.Call(ast.Name("__compare__", ast.Load()), [ast.Constant(strict), call], [])
        return node


class Asserts(ast.NodeTransformer):
    "Every assert becomes a call that notes whether it held, and never stops the notebook."

    def __init__(self, cell: str): self.cell = cell

    def visit_Assert(self, node):
        key = f"{self.cell} {ast.unparse(node.test)[:150]}"
        test = Comparisons(key).visit(node.test)
        verdict = ast.Lambda(ast.arguments([], [], None, [], [], None, []), test)
        return ast.Expr(ast.Call(ast.Name("__held__", ast.Load()), [ast.Constant(key), verdict], []))


class Handle:
    "Stands in for what `display(..., display_id=True)` returns."

    def update(self, *_, **__): pass


def number(value) -> float | None:
    try: return float(value)
    except (TypeError, ValueError, RuntimeError): return None


def run_notebook(path: Path, seed: int, threads: int, precision: str) -> dict:
    "The verdict on every assert, and the values of every comparison in it."
    import matplotlib
    matplotlib.use("Agg")
    import IPython.display
    import torch
    IPython.display.display = lambda *_, **__: Handle()
    torch.set_num_threads(threads)
    import minibert.core.seeds as core
    plain = core.seeded
    core.seeded = lambda first, *more: plain(first + 7919 * seed, *more)  # before anybody imports it
    from minibert.train.recipe import TrainingConfig
    names = list(TrainingConfig.__dataclass_fields__)
    defaults = list(TrainingConfig.__init__.__defaults__)
    defaults[names.index("precision")] = precision
    TrainingConfig.__init__.__defaults__ = tuple(defaults)

    held, seen, errors = {}, {}, []

    def note(key, sign, left, right):
        a, b = number(left), number(right)
        if a is not None and b is not None: seen.setdefault(key, []).append((sign * (b - a), a, b))
        return left, right

    compare = {"Lt": lambda a, b: a < b, "LtE": lambda a, b: a <= b, "Gt": lambda a, b: a > b, "GtE": lambda a, b: a >= b}

    def verdict(key, test):
        try: good = bool(test())
        except Exception as problem: good, _ = False, errors.append(f"{key}: {type(problem).__name__}: {problem}"[:300])
        held.setdefault(key, []).append(good)

    space = dict(__name__="__main__", __seen__=note, __held__=verdict, display=lambda *a, **k: Handle(), get_ipython=lambda: None,
                 __compare__=lambda kind, sides: compare[kind](*sides))
    outside, inside = sys.modules["__main__"], ModuleType("__main__")  # annotations are looked up there
    vars(inside).update(space)
    sys.modules["__main__"], space = inside, vars(inside)
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    for cell in cells:
        source = TransformerManager().transform_cell("".join(cell["source"]))  # a %pip line
        if cell["cell_type"] != "code" or source.startswith(("#| hub", "#| slow", "#| eval: false")): continue
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                tree = ast.fix_missing_locations(Asserts(cell["id"]).visit(ast.parse(source)))
                exec(compile(tree, f"<{cell['id']}>", "exec", annotations.compiler_flag, True), space)
            except Exception as problem:
                errors.append(f"{cell['id']}: {''.join(traceback.format_exception_only(problem)).strip()}"[:400])
    sys.modules["__main__"] = outside
    return dict(held={k: all(v) for k, v in held.items()}, errors=errors,
                seen={k: min(v, key=lambda row: (not math.isnan(row[0]), row[0])) for k, v in seen.items()})


def in_a_process(path: Path, setting: tuple) -> dict:
    seed, threads, precision = setting
    env = os.environ | dict(OMP_NUM_THREADS=str(threads), MINIBERT_BFLOAT16=str(int(precision == "bfloat16")), MPLBACKEND="Agg",
                            HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    words = [sys.executable, __file__, "--one", str(path), json.dumps(setting)]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode: return dict(held={}, seen={}, errors=[done.stderr[-600:]])
    return json.loads(done.stdout.splitlines()[-1])


def table(path: Path, runs: dict[tuple, dict]) -> list[dict]:
    "One row an assert that differs from setting to setting, the closest to its bound first."
    rows = []
    for key in dict.fromkeys(k for run in runs.values() for k in run["held"]):
        verdicts = {s: run["held"].get(key) for s, run in runs.items()}
        compared = []
        for name in dict.fromkeys(k for run in runs.values() for k in run["seen"] if k.startswith(key + " #")):
            values = [run["seen"][name] for run in runs.values() if name in run["seen"]]
            if len({tuple(value) for value in values}) < 2: continue
            gap, a, b = min(values)
            scale = max(abs(a), abs(b)) or 1.0
            compared.append(dict(gap=gap, share=gap / scale, left=[min(v[1] for v in values), max(v[1] for v in values)],
                                 right=[min(v[2] for v in values), max(v[2] for v in values)]))
        failed = [str(s) for s, good in verdicts.items() if not good]
        if compared or failed:
            rows.append(dict(notebook=path.stem, test=key, failed=failed, compared=compared))
    return sorted(rows, key=lambda row: (not row["failed"], min([c["share"] for c in row["compared"]] or [0])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--jobs", type=int, default=1, help="settings at once")
    parser.add_argument("--out", type=Path, help="a JSON file for the table")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        result = run_notebook(Path(arguments.one[0]).resolve(), *json.loads(arguments.one[1]))
        return print("\n" + json.dumps(result))
    settings = list(itertools.product(arguments.seeds, arguments.threads, arguments.precisions))
    rows = []
    for path in arguments.notebooks:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = dict(zip(settings, pool.map(lambda s: in_a_process(path.resolve(), s), settings)))  # noqa: B023
        found = table(path, runs)
        rows += found
        print(f"\n{path.stem}: {len(settings)} settings, {len(found)} asserts that vary, "
              f"{sum(bool(row['failed']) for row in found)} that failed")
        for row in found:
            print(f"{'!' if row['failed'] else ' '} {row['test'][:150]}")
            for c in row["compared"]:
                print("      closest {:8.3g} ({:6.1%})   {:.4g} to {:.4g}  against  {:.4g} to {:.4g}".format(
                    c["gap"], c["share"], *c["left"], *c["right"]))
            if row["failed"]: print(f"      failed in {len(row['failed'])}: {' '.join(row['failed'][:6])}")
        for setting, run in runs.items():
            for error in run["errors"]: print(f"  error {setting}: {error}")
        sys.stdout.flush()
    if arguments.out:
        arguments.out.write_text(json.dumps(dict(settings=settings, rows=rows), indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
