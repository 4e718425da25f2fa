"""The section about kernels that no rule was fitted to: the last row of each kernel, and the goals."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks import unfitted_report as report
from benchmarks.seeds import RESULTS


def _line(name: str, default: float, compile: float, **others: str) -> str:
    times = {"default": default, "compile": compile}
    row = {"name": name, "what": f"{report.UNFITTED}, with graphs", "device": "G", "microseconds": times}
    return json.dumps({**row, **others})


def test_the_last_row_of_each_kernel_counts(tmp_path: Path) -> None:
    variants = json.dumps({"name": "add", "device": "G", "microseconds": {"default": 1.0, "compile": 9.0}})
    lines = [
        _line("slow", 10, 5, why="copies"),
        _line("fast", 1, 9),
        _line("slow", 10, 8),
        _line("even", 2, 2),
        variants,
    ]
    (tmp_path / f"g{report.SUFFIX}.jsonl").write_text("\n".join(lines) + "\n")
    found = report.read(tmp_path)
    assert math.isclose(report.mean([*found["G"].values()]), (0.8 * 3 * 1) ** (1 / 3))
    page = [*report.sections(found)]
    assert "| slow | 10.0 | 8.00 | 0.80 | copies |" in page and "| even | 2.00 | 2.00 | 1.00 |  |" in page
    assert any("1 of them are below 0.9" in line for line in page)
    assert not [*report.sections({})]


def test_every_slow_default_has_a_reason() -> None:
    for kernels in report.read(RESULTS).values():
        assert len(kernels) > 40
        assert [row["name"] for row in kernels.values() if report.ratio(row) < report.SLOW and not row["why"]] == []
