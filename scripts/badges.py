"""Badges of the README and the site, as SVG, from the package's metadata; and that of the checks, which CI replaces.

    python scripts/badges.py [--passed FILE.svg]

Without an option it writes ``docs/badges``. ``.ci/run`` ends with ``--passed build/site/badges/checks.svg``: the site that
it has built then says that all checks of this version passed.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "badges"
GRAY, BLUE, GREEN = "#777", "#1565c0", "#2e7d32"
#: Mean width of a character, and the space around a text, in pixels.
_CHARACTER, _SPACE = 6.6, 12


def badge(label: str, text: str, color: str = BLUE) -> str:
    """Draw a badge: a label on gray, and a text on a color."""
    left, right = (round(_CHARACTER * len(each)) + _SPACE for each in (label, text))
    label, text = html.escape(label), html.escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{label}: {text}">'
        f'<rect width="{left}" height="20" fill="#555"/><rect x="{left}" width="{right}" height="20" fill="{color}"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{label}</text><text x="{left + right / 2}" y="14">{text}</text></g></svg>\n'
    )


def facts() -> dict[str, tuple[str, str]]:
    """Return label and text of each badge, from pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text()

    def one(pattern: str) -> str:
        (found,) = re.findall(pattern, project, re.M)
        return str(found)

    pythons = re.findall(r"Python :: (3\.\d+)", project)
    oldest_torch = one(r'"torch>=(.*)"')
    oldest, before = re.findall(r'"triton>=3\.(\d+),<3\.(\d+)"', project)[0]
    return {
        "version": ("version", one(r'^version = "(.*)"$')),
        "python": ("Python", f"{pythons[0]} to {pythons[-1]}"),
        "torch": ("torch", f"{oldest_torch} or newer"),
        "triton": ("Triton", f"3.{oldest} to 3.{int(before) - 1}"),
        "license": ("license", one(r'^license = "(.*)"$')),
    }


def badges() -> dict[str, str]:
    """Return the SVG of each badge by the name of its file."""
    found = {f"{name}.svg": badge(*each) for name, each in facts().items()}
    return {**found, "checks.svg": badge("checks", "see .ci/run", GRAY)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passed", type=Path, metavar="FILE.svg", help="write the badge of checks that passed")
    options = parser.parse_args()
    if options.passed is not None:
        options.passed.parent.mkdir(parents=True, exist_ok=True)
        options.passed.write_text(badge("checks", f"{facts()['version'][1]} passed", GREEN))
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in badges().items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
