"""The section about the axes that found configs change, and those that carry their gains."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import axes_report as report


def _line(found: dict[str, int], **times: float) -> str:
    configs = {"default": {"num_warps": 4}, "tuned": found}
    return json.dumps({"device": "G", "configs": configs, "microseconds": times})


def test_an_axis_carries_what_is_lost_without_it(tmp_path: Path) -> None:
    lines = [
        _line({"num_warps": 8, "num_stages": 2}, default=10, tuned=5, **{"-num_warps": 9, "-num_stages": 5}),
        _line({"num_warps": 2}, default=6, tuned=5),
        _line({"num_warps": 1}, default=5, tuned=5),
    ]
    (tmp_path / f"g{report.SUFFIX}.jsonl").write_text("\n".join(lines) + "\n")
    page = [*report.sections(report.read(tmp_path))]
    assert page[0] == "## Axes that searches gain by, G" and page[2].startswith("Of 2 configs")
    assert "| num_warps | 2 | 2 | 1.47 | 1.80 |" in page and "| num_stages | 1 | 0 |  | 1.00 |" in page
    assert not [*report.sections({})]
