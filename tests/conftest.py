"""What every test shares: one thread, no network, no writing outside its folder."""
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parent.parent


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
