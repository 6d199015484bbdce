"""The tool that makes a release: what stands in its way, and what it writes. (Building and trying takes minutes and a network.)"""
import importlib.util
import shutil
import subprocess

import pytest

from conftest import ROOT

spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)


def git(folder, *words): subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    "A clean checkout of the files that say the version, whose changelog has something to release."
    for name in ("settings.ini", "CITATION.cff"): shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- A new thing.\n\n## 0.0.9, 2025-01-01\n\n- An old thing.\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "a")
    return tmp_path


def test_what_stands_in_the_way_of_a_release(checkout):
    assert release.obstacle(checkout, "99.1.0") == ""
    assert "no version" in release.obstacle(checkout, "")
    assert "comes before" in release.obstacle(checkout, "0.0.1")
    git(checkout, "tag", "v99.0.0")
    assert "a tag v99.0.0" in release.obstacle(checkout, "99.0.0")
    (checkout / "new").touch()
    assert "git status" in release.obstacle(checkout, "99.1.0")


def test_a_version_is_written_where_it_stands(checkout, monkeypatch):
    monkeypatch.setattr(release, "call", lambda *words, cwd: None)  # nbdev_export, which writes the package's own
    release.write_version(checkout, "99.1.0")
    changed = subprocess.run(["git", "diff", "-U0"], cwd=checkout, capture_output=True, text=True).stdout.splitlines()
    today = release.date.today().isoformat()
    added = [line[1:] for line in changed if line.startswith("+") and line[1:2] not in ("+", "")]
    assert added == [f"## 99.1.0, {today}", "version: 99.1.0", "version = 99.1.0"]
    git(checkout, "commit", "-qam", "b")
    assert "nothing under Unreleased" in release.obstacle(checkout, "99.2.0")
