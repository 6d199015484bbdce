"""What every test shares: no network, the same drawn examples in every run, and what a system cannot do is skipped."""
import inspect
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as for a job in the background, and all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def copy_checkout(folder: Path) -> None:
    "The checkout in another folder, without what was made in it."
    made = shutil.ignore_patterns(".venv", ".git", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=lambda place, names: {*made(place, names)} | ({"runs"} if Path(place) == ROOT else set()))


def wheel_environment(folder: Path) -> tuple[Path, Path]:
    "A wheel of the checkout, and the Python of an environment in which it stands beside the libraries that are installed here."
    def call(*words): return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()
    copy_checkout(folder / "source")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder / "source")
    wheel, = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    site, ours = (call(p, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))") for p in (python, sys.executable))
    (Path(site) / "libraries.pth").write_text(ours + "\n", encoding="utf8")
    return wheel, python


# Loaded before any test module is read, so that their own @settings start from it.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")


def pytest_collection_modifyitems(items):
    "On Windows no signal stops another process so that it can save, and torchrun is not tried: those tests are skipped."
    if os.name != "nt": return
    skip = pytest.mark.skip(reason="needs the signals or the launcher of Linux and macOS")
    for item in items:
        if item.get_closest_marker("posix") or "send_signal(" in inspect.getsource(item.function): item.add_marker(skip)


@pytest.fixture(scope="session")
def root() -> Path:
    "The repository."
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    "Real data beside the repository; tests that want them are skipped where they are not."
    folder = ROOT.parent / "shared" / "data"
    if not folder.exists():
        pytest.skip("needs the real data beside the repository, in ../shared/data")
    return folder


@pytest.fixture(scope="session")
def first_run(tmp_path_factory):
    "The folder of a run of four steps, of which each module gets a copy."
    from command import QUICK, call
    folder = tmp_path_factory.mktemp("first")
    call("pretrain", *QUICK, cwd=folder)
    return folder / "runs" / "1"


@pytest.fixture(scope="session")
def gpt(tmp_path_factory):
    "The folder of a GPT of four steps: tests that change it copy it first."
    from command import call, quick
    folder = tmp_path_factory.mktemp("gpt") / "gpt"
    call("pretrain", "--model", "gpt", *quick(), "--out", folder)
    return folder


@pytest.fixture(scope="session")
def masked_run(tmp_path_factory):
    "The folder of a run that has learned to fill masks alone: nobody changes it."
    from command import QUICK, call
    folder = tmp_path_factory.mktemp("masked") / "masked"
    call("pretrain", *QUICK, "--objectives", "mlm", "--out", folder)
    return folder


@pytest.fixture(scope="session")
def classifier(first_run, tmp_path_factory):
    "The folder of a classifier of that run: tests that change it copy it first."
    from command import FILMS, call
    home = tmp_path_factory.mktemp("films")
    (home / "films.csv").write_text(FILMS)
    call("finetune", first_run, "--dataset", "films.csv", "--epochs", 1, "--measures", 1, "--length", 16, "--out", "c", cwd=home)
    return home / "c"


@pytest.fixture(scope="module")
def run(first_run, tmp_path_factory):
    "The folder of a run of four steps, which is the module's own."
    return Path(shutil.copytree(first_run, tmp_path_factory.mktemp("cli") / "runs" / "1"))


@pytest.fixture
def copy(run, tmp_path):
    "A copy of it that is the test's own."
    return shutil.copytree(run, tmp_path / "copy")
