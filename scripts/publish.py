"""Put the built documentation next to that of other versions, with a list that its pages show as a menu.

    python scripts/publish.py FOLDER [--site build/site]

The site goes to FOLDER/VERSION and replaces what is there. ``versions.js`` lists all versions of the folder with their
pages, the newest first; ``index.html`` leads to the newest. It needs no server: the folder may be opened from disk.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NUMBER = re.compile(r"\d+(\.\d+)*")


def current() -> str:
    """Return the version of pyproject.toml."""
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    return str(version)


def versions(folder: Path) -> list[str]:
    """Return the versions in a folder, the newest first."""
    found = [path.name for path in folder.iterdir() if path.is_dir() and _NUMBER.match(path.name)]
    return sorted(found, key=_order, reverse=True)


def _order(version: str) -> tuple[list[int], bool, str]:
    """Return a key that sorts versions: 1.10 after 1.9, and 1.0rc1 before 1.0."""
    number = _NUMBER.match(version)
    assert number is not None, version
    rest = version[number.end() :]
    return [int(part) for part in number[0].split(".")], not rest, rest


def publish(site: Path, folder: Path, version: str) -> list[str]:
    """Copy a site to its place in a folder, and write the list of versions; return that list."""
    if not (site / "index.html").is_file():
        raise SystemExit(f"{site} has no index.html; run `make docs` first")
    target = folder / version
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(site, target)
    names = versions(folder)
    listed = [
        {
            "version": name,
            "pages": sorted(path.relative_to(folder / name).as_posix() for path in (folder / name).rglob("*.html")),
        }
        for name in names
    ]
    (folder / "versions.js").write_text(f"window.helionVersions = {json.dumps(listed)}\n")
    (folder / "index.html").write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>helion</title>'
        f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html"></head>'
        f'<body><a href="{names[0]}/index.html">helion {names[0]}</a></body></html>\n'
    )
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", metavar="FOLDER")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(*publish(options.site, options.folder, current()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
