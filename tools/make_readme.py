"""Write README.md from nbs/index.ipynb, and nbs/appendix/README.md from the first lines of the appendix' notebooks.

    python tools/make_readme.py [FOLDER]

Links in the index are relative to nbs, where it stands; in README.md they are relative to the project.
"""
import json
import re
import sys
from pathlib import Path

from nbconvert import MarkdownExporter

SUBJECTS = {
    "The ground": "core sums show diagrams recipe",
    "Text": "text tokenizer_files vocabulary rows tokenizer_proofs other_tokenizers tables documents stories corpus labels labelled bags",
    "Models": "config_files memory inputs embeddings_proofs rotary attention_parts parts encoder_proofs model_proofs losses asking heads_proofs "
              "families files weights_proofs parity_parts classifier_parts classifiers compare compared",
    "Examples": "masking_proofs pairs_parts pairs_proofs windows prompts spans gaps writing side_by_side",
    "Training": "optimizers parallel checkpoints train_state callbacks progress training_proofs finetuning_proofs going_on",
    "By hand": "numpy_weights numpy_proofs numpy_flow numpy_parts numpy_training_proofs",
    "Measuring": "evaluable evaluation_proofs baselines answers inside_proofs head_scores vectors observer page pictured bench profiling products "
                 "speed_proofs plateau probe_vectors probe_figures roles probing_proofs",
    "Runs": "runs kinds report finetune_runs probe_runs course overview manual options cli entry",
    "Exercises": "exercises checks",
}


def readme(folder: Path) -> str:
    "The index as Markdown, its links made relative to the project."
    text, _ = MarkdownExporter().from_filename(str(folder / "nbs" / "index.ipynb"))
    def moved(match):
        path = match[1]
        return f"]({path[3:]})" if path.startswith("../") else f"](nbs/{path})"
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", moved, text).rstrip("\n") + "\n"


def first_lines(path: Path) -> str:
    "What a notebook says of itself under its title."
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        for line in "".join(cell["source"]).splitlines():
            if line.startswith("> "): return line[2:]
    raise ValueError(f"{path.name} says nothing of itself: begin it with a title and a line '> ...'.")


def appendix(folder: Path) -> str:
    "The notebooks of the appendix by subject; those that SUBJECTS does not name come last."
    there = {path.stem: path for path in sorted((folder / "nbs" / "appendix").glob("*.ipynb"))}
    listed = [name for names in SUBJECTS.values() for name in names.split()]
    subjects = SUBJECTS | {"More": " ".join(name for name in there if name not in listed)}
    lines = ["# The appendix", "", "Reference notebooks: what makes the package complete, and what the chapters leave out. No learner needs to "
             "read them first.", ""]
    for subject, names in subjects.items():
        rows = [f"| [{name.replace('_', ' ')}]({name}.ipynb) | {first_lines(there[name])} |" for name in names.split() if name in there]
        if rows: lines += [f"## {subject}", "", "| notebook | what it holds |", "| --- | --- |", *rows, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def main(folder: Path) -> None:
    (folder / "README.md").write_text(readme(folder), encoding="utf8")
    (folder / "nbs" / "appendix" / "README.md").write_text(appendix(folder), encoding="utf8")


if __name__ == "__main__": main(Path(*sys.argv[1:2]) if sys.argv[1:] else Path(__file__).resolve().parent.parent)
