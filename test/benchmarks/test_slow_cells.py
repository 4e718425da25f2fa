"""The section about timed cells that are slow: which ones, and their reasons."""

from __future__ import annotations

from pathlib import Path

from benchmarks import report, seeds, slow_cells
from benchmarks.cells import timed_cells


def _row(kernel: str, suite: str = "unseen", **times: float) -> seeds.Row:
    return seeds.Row(
        suite=suite,
        kernel=kernel,
        case="8 by 8",
        dtype="float32",
        heuristic="",
        configs={},
        bytes=0,
        flops=0,
        times={name: {"median": us} for name, us in times.items()},
        errors={},
        failures={},
    )


def test_cells_below_the_bound_have_a_line_with_their_reason(tmp_path: Path) -> None:
    (tmp_path / slow_cells.FILE).write_text(
        "suite\tkernel\tcase\tdtype\treason\nunseen\tslow\t8 by 8\tfloat32\tcopies\n"
    )
    rows = [
        _row("slow", seed=10, compile=5),
        _row("chosen", seed=10, default=5, compile=5),
        _row("other", seed=10, compile=8),
        _row("slow", suite="matmul", seed=10, compile=5),
        _row("alone", seed=10),
    ]
    lines = [*slow_cells.section(rows, tmp_path)]
    assert lines[-3:-1] == [
        "| slow | 8 by 8 | float32 | 0.50 | copies |",
        "| other | 8 by 8 | float32 | 0.80 | not known |",
    ]
    assert not [*slow_cells.section(rows[1:2], tmp_path)]


def test_reasons_are_of_timed_cells() -> None:
    known = {(c.suite, c.kernel, c.case, c.dtype) for c in timed_cells()}
    assert slow_cells.reasons(report.RESULTS).keys() <= known
