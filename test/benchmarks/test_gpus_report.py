"""The section about two GPUs: cells of both, the time of one backend, and the highest ratios."""

from __future__ import annotations

from pathlib import Path

from benchmarks import gpus_report as report
from benchmarks.seeds import Row


def _row(kernel: str, heuristic: str, **medians: float) -> Row:
    times = {name: {"median": us, "low": us, "high": us} for name, us in medians.items()}
    return Row(
        suite="matmul",
        kernel=kernel,
        case="64 by 64",
        dtype="float32",
        heuristic=heuristic,
        configs={},
        bytes=1,
        flops=1,
        times=times,
        errors={},
        failures={},
    )


def test_cells_of_both_gpus_are_compared_for_one_backend(tmp_path: Path) -> None:
    lines = [f"matmul\t{name}\t64 by 64\tfloat32\t9.0\t{us}" for name, us in (("a", 6.0), ("b", 10.0), ("c", 1.0))]
    head = "# on an H100; torch 2.11, 2026-11-28; by a script\nsuite\tkernel\tcase\tdtype\tbefore\tafter"
    (tmp_path / report.FILE).write_text("\n".join((head, *lines)) + "\n")
    rows = [
        _row("a", "TritonMatmulHeuristic", seed=4.0, default=3.0),
        _row("b", "TritonMatmulHeuristic", seed=5.0),
        _row("c", "CuteMatmulHeuristic", seed=1.0, triton=5.0),
        _row("d", "TritonMatmulHeuristic", seed=1.0),
    ]
    pairs = report.read(tmp_path, rows)
    assert [(pair.key[1], pair.one, pair.other, pair.date) for pair in pairs] == [
        ("a", 6.0, 3.0, "2026-11-28"),
        ("b", 10.0, 5.0, "2026-11-28"),
    ]
    page = [*report.sections(pairs)]
    assert "| all | 2 | 2.00 | 2.00 | 2.00 |" in page and page[0] == "## Two GPUs: H100 SXM and H200"
    assert "| matmul | b | 64 by 64 | float32 | 10.0 | 5.00 | 2.00 |" in page


def test_there_is_no_section_without_cells_of_both(tmp_path: Path) -> None:
    assert report.read(tmp_path, [_row("a", "TritonMatmulHeuristic", seed=4.0)]) == []
    assert [*report.sections([])] == []
