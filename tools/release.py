"""Make a release of a clean checkout, on this machine alone: nothing is pushed or uploaded.

    python tools/release.py VERSION [--check]

The changelog's section "Unreleased" gets the version and today's date. The version goes into settings.ini, CITATION.cff and the
package. Then the source archive and the wheel are built into dist/, the wheel is installed into a fresh environment with the
libraries of the package index, and there a BERT trains for a few steps. If all of that works, it is committed and tagged, as v0.2.0.
If not, every file is as before. `--check` only says whether a release could begin. `make release` runs that, the tests and this.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from configparser import ConfigParser
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
TORCH = os.environ.get("TORCH", "").split()  # PyTorch's CPU build, as the Makefile names it: without it Linux gets 5.9 GB


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def call(*words, cwd: Path) -> str:
    "Run a command: its output, on one line here and whole where it fails."
    print("  ", *(Path(str(word)).name for word in words), flush=True)
    done = subprocess.run([str(word) for word in words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode: sys.exit(done.stdout + f"\nNo release: the command above ended with {done.returncode}.")
    return done.stdout


def moved(changelog: str, version: str, day: str) -> str:
    "The changelog with what is unreleased under the version."
    return changelog.replace("## Unreleased\n", f"## Unreleased\n\n## {version}, {day}\n", 1)


def obstacle(folder: Path, version: str) -> str:
    "Why there can be no release now, or an empty text."
    try: new = Version(version)
    except InvalidVersion: return f"{version!r} is no version: make release VERSION=0.2.0"
    settings = ConfigParser(delimiters=["="], interpolation=None)
    settings.read(folder / "settings.ini", encoding="utf8")
    changelog = (folder / "CHANGELOG.md").read_text(encoding="utf8")
    if new < Version(old := settings["DEFAULT"]["version"]): return f"{version} comes before {old}, which is the version now."
    if git(folder, "tag", "--list", f"v{version}"): return f"There is a tag v{version} already."
    if git(folder, "status", "--porcelain"): return "Something isn't committed: see git status."
    if not re.search(r"## Unreleased\n\n- ", changelog): return "CHANGELOG.md has nothing under Unreleased."
    return ""


def write_version(folder: Path, version: str) -> None:
    "Into the four files that have it."
    for name, pattern, now in (("settings.ini", r"(?m)^version = .+$", f"version = {version}"),
                               ("CITATION.cff", r"(?m)^version: .+$", f"version: {version}")):
        text = (folder / name).read_text(encoding="utf8")
        (folder / name).write_text(re.sub(pattern, now, text), encoding="utf8", newline="\n")
    path = folder / "CHANGELOG.md"
    path.write_text(moved(path.read_text(encoding="utf8"), version, date.today().isoformat()), encoding="utf8", newline="\n")
    call(Path(sys.executable).with_name("nbdev_export"), cwd=folder)


def build_and_try(folder: Path, version: str) -> None:
    "Both archives in dist/, the wheel made from the other one, and a run with what is installed from it."
    shutil.rmtree(folder / "dist", ignore_errors=True)
    call(sys.executable, "-m", "build", cwd=folder)
    wheel, = (folder / "dist").glob("*.whl")
    with tempfile.TemporaryDirectory() as home:
        venv.create(Path(home) / "env", with_pip=True)
        tools = Path(home) / "env" / ("Scripts" if os.name == "nt" else "bin")
        call(tools / "python", "-m", "pip", "install", "-q", wheel, "-c", folder / "constraints.txt", *(f"--extra-index-url={url}" for url in TORCH), cwd=home)
        said = call(tools / "minibert", "--version", cwd=home)
        if said.split() != ["minibert", version]: sys.exit(f"No release: the wheel says {said}.")
        call(tools / "minibert", "pretrain", "--steps", "4", "--batch-size", "4", "--length", "32", "--vocab-size", "1000", cwd=home)


def main(version: str = "", *words: str) -> None:
    if why := obstacle(ROOT, version): sys.exit(f"No release: {why}")
    if "--check" in words: return
    try:
        write_version(ROOT, version)
        build_and_try(ROOT, version)
    except BaseException:
        git(ROOT, "restore", ".")
        shutil.rmtree(ROOT / "dist", ignore_errors=True)  # so that nobody uploads it
        raise
    git(ROOT, "commit", "-am", f"Release {version}")
    git(ROOT, "tag", "-a", f"v{version}", "-m", f"minibert {version}")
    print(f"{version} is committed and tagged, and dist/ holds what to upload. git push --follow-tags publishes the commit and the tag.")


if __name__ == "__main__": main(*sys.argv[1:])
