"""The page of the examples."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helion import exc, ops
from helion._testing import EXAMPLES_DIR, import_path

ROOT = Path(__file__).resolve().parents[2]
gallery = import_path(ROOT / "scripts" / "gallery.py")
pictures = import_path(ROOT / "scripts" / "pictures.py")

SVG = "{http://www.w3.org/2000/svg}"
SOURCE = '''"""Computes `a | b`,
in one line.

More of it.
"""

@helion.kernel()
def first(x): ...

@helion.kernel
def second(x): ...

def reference(x): ...
'''


def test_all_examples_are_on_the_page() -> None:
    files = {path.relative_to(EXAMPLES_DIR).as_posix() for path in EXAMPLES_DIR.rglob("*.py")} - {*gallery.HELPERS}
    page = gallery.page()
    assert files
    assert [name for name in sorted(files) if f"| `{name}` | " not in page] == []
    assert {path.parent.name for path in EXAMPLES_DIR.glob("*/*.py")} == {*gallery.FOLDERS} - {""}


def test_a_row_has_the_first_paragraph_and_the_mean_speed(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    rows = [
        {"kernel": "first", "times": {"seed": {"median": 2.0}, "compile": {"median": 4.0}}},
        {"kernel": "second", "times": {"seed": {"median": 1.0}, "compile": {"median": 8.0}}},
        {"kernel": "second", "times": {"seed": {"median": 1.0}}},
        {"kernel": "reference", "times": {"seed": {"median": 1.0}, "compile": {"median": 8.0}}},
    ]
    (tmp_path / "gpu-a.json").write_text(json.dumps({"rows": rows[:2]}))
    (tmp_path / "gpu-b.json").write_text(json.dumps({"rows": rows[2:]}))
    known = gallery.measured(tmp_path, "gpu")
    assert known == {"first": [pytest.approx(2)], "second": [pytest.approx(8)], "reference": [pytest.approx(8)]}
    assert gallery.lines(tmp_path, known) == [r"| `one.py` | Computes `a \| b`, in one line. | 4.00 (2) |  |"]
    assert "![Tiles of one.py](gallery/one.svg)" in gallery.lines(tmp_path, known, ["one.py"])[0]


def test_an_operator_is_compared_with_the_faster_one() -> None:
    row = {"name": "softmax", "shape": "8x4", "forward": {"helion": 2.0, "compile": 3.0, "eager": 5.0}}
    assert gallery.operator_lines([row]) == ["| `softmax` | 8x4 | 2.0 | 1.50 |  |  |  |  |"]
    few = {**row, "host": {"helion": 4.0, "compile": 9.0, "eager": 3.0}}
    assert gallery.operator_lines([few]) == ["| `softmax` | 8x4 | 2.0 | 1.50 |  |  | 4.0 | 0.75 |"]
    assert "| norm, relu | 72.2 | 38.9 | 1.85 |" in gallery.page()
    assert "| layer 1 4096 32 8 128 14336 4096 | 363.6 | 284.1 | 1.28 |" in gallery.page()
    assert "| `softmax` | 8192x4096 | " in gallery.page()


def _public_examples() -> list[list[str]]:
    """Return the cells of the table of the public repository's examples."""
    text = (ROOT / "docs" / "guide" / "from-helion.md").read_text()
    section = text.split("## Examples of the public repository\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in section.splitlines() if line.startswith("| `")]


def test_what_the_table_of_public_examples_names_is_here() -> None:
    rows = _public_examples()
    assert len(rows) >= 15 and all(len(row) == 4 for row in rows)
    for _, unchanged, imports, here in rows:
        for name in re.findall(r"`([\w.]+)`", imports):
            module, _, last = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                assert getattr(importlib.import_module(module), last) is not None
        for name in re.findall(r"`exc\.(\w+)`", unchanged):
            assert hasattr(exc, name)
        counterparts = re.findall(r"`([^`]+)`", here)
        assert counterparts
        for name in counterparts:
            op = name.removeprefix("helion.ops.")
            assert hasattr(ops, op) if op != name else (ROOT / "examples" / name).is_file(), name


def test_first_calls_of_operators() -> None:
    row = {"caches": "empty", "processes": 16, "seconds": 21.03, "calls_s": {"a": 1.0, "b": 2.0}}
    later = {"caches": "filled", "processes": 1, "sum_s": 2.34, "calls_s": {"a": 2.0, "b": 0.34}}
    text = gallery.first_calls([row, later])
    assert "First calls of 2 operators take 21 s" in text and "2.3 s for all, and 2.0 s" in text


def test_a_picture_has_the_tensors_and_the_tiles_of_the_default_config() -> None:
    bound = pictures.largest_case(EXAMPLES_DIR / "bmm.py")
    a, b, out = (op for op in bound.facts.memory_ops)
    block_b, block_m, _, block_k = bound.default_config()["block_sizes"]
    block_m = min(block_m, bound.facts.axes[1].extent)  # the part of the tile within the tensor
    parsed = ElementTree.fromstring(pictures.picture(bound))
    parts = parsed.findall(f"{SVG}g")
    assert [part.find(f"{SVG}text").text for part in parts] == [a.name, b.name, out.name]
    assert [part.findall(f"{SVG}rect")[-1].get("class") for part in parts] == ["load", "load", "store"]
    assert f"tile {block_b} × {block_m} × {block_k};" in parts[0].find(f"{SVG}title").text
    tensor, walked, tile = parts[0].findall(f"{SVG}rect")
    assert walked.get("class") == "load walked"
    share = float(tile.get("width")) / float(tensor.get("width"))
    assert share == pytest.approx(min(1, block_k / a.extents[-1]), abs=0.01)


def test_pictures_of_examples_without_cases() -> None:
    assert pictures.largest_case(EXAMPLES_DIR / "attention_variants" / "comparison.py") is None
    bound = pictures.largest_case(EXAMPLES_DIR / "distributed" / "matmul_all_reduce.py")
    assert bound.kernel.name == "matmul_all_reduce"
    names = [op.name for op in bound.facts.memory_ops]
    assert {"x", "w", "out"} <= {*names} and all(f">{name}<" in pictures.picture(bound) for name in ("x", "w", "out"))
