"""Measured times are rows of a data file, which docstrings and comments cite."""

from __future__ import annotations

import ast
import csv
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "results" / "measurements.tsv"
SOURCES = sorted((ROOT / "helion").rglob("*.py"))
#: A measured time or rate in prose, or the date of one.
TIME = re.compile(r"\b\d[\d.]* ?(?:us|µs|TFLOP/s|TB/s)\b|\b20\d\d-\d\d-\d\d\b")
#: Citations: ``measurement `name``` or ``measurements `one` and `other```.
CITED = re.compile(r"measurements?\s+(?:#:\s*)?(``\w+``(?:\s+and\s+``\w+``)*)")


def prose(text: str) -> Iterator[str]:
    """Yield the docstrings and comments of a source text, comments of adjacent lines together."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    comments = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    yield "\n".join(token.string for token in comments)


def cited(text: str) -> set[str]:
    """Return the measurements that the prose of a source text cites."""
    if not CITED.search(text):
        return set()
    return {name for each in prose(text) for found in CITED.findall(each) for name in re.findall(r"``(\w+)``", found)}


def timed(text: str) -> list[str]:
    """Return the measured times in the prose of a source text."""
    return [found for each in prose(text) for found in TIME.findall(each)] if TIME.search(text) else []


def test_every_measurement_is_cited_and_has_its_origin() -> None:
    with TABLE.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    names = [row["name"] for row in rows]
    assert names == sorted(set(names))
    assert all(row["device"] and row["cells"] and row["result"] for row in rows)
    assert all(not row["date"] or re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"]) for row in rows)
    found = {name for path in SOURCES for name in cited(path.read_text())}
    assert found == set(names)


def test_prose_has_no_measured_times() -> None:
    found = {str(path.relative_to(ROOT)): times for path in SOURCES if (times := timed(path.read_text()))}
    assert not found


@pytest.mark.parametrize(
    ("text", "times", "names"),
    [
        ('"""Runs. It takes 12.5 us."""', 1, set()),
        ("x = 1  #: Fast: 700 TFLOP/s (measurement ``fast``).", 1, {"fast"}),
        ("#: Slow (measurement\n#: ``slow``).\nx = 1", 0, {"slow"}),
        ('"""Both (measurements ``one`` and ``other``)."""\nx = f"{1} us"', 0, {"one", "other"}),
    ],
)
def test_planted_times_are_reported(text: str, times: int, names: set[str]) -> None:
    assert (len(timed(text)), cited(text)) == (times, names)
