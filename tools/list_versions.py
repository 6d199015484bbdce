"""List the site's versions for its menu, and lead from the root to the newest release.

    python tools/list_versions.py FOLDER BASE

The folder, which is served at BASE, holds one for each version: main, v0.1.0 and so on. Without a release, the root leads to main.
"""
import json
import re
import sys
from pathlib import Path


def main(folder: Path, base: str) -> None:
    versions = sorted((path.name for path in folder.iterdir() if (path / "index.html").exists()),
                      key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)
    rows = [dict(name=name, version=name, url=f"{base}/{name}/", preferred=name == versions[0]) for name in versions]
    (folder / "versions.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")
    (folder / "index.html").write_text(f'<!doctype html><title>minibert</title><meta http-equiv="refresh" content="0; url={versions[0]}/">'
                                       f'<a href="{versions[0]}/">minibert</a>\n', encoding="utf8")
    (folder / ".nojekyll").touch()  # or GitHub leaves out what begins with _


if __name__ == "__main__": main(Path(sys.argv[1]), sys.argv[2])
