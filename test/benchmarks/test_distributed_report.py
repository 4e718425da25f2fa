"""The section of docs/performance.md about several GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import distributed_report as report


def timed(case: str, what: str, times: dict[str, float], ranks: int = 2, **more: Any) -> list[dict[str, Any]]:
    return [
        {"case": case, "what": what, "variant": variant, "us": us, "ranks": ranks, **more}
        for variant, us in times.items()
    ]


ROWS = [
    {"case": "start", "device": "Test 100", "torch": "2.11", "triton": "3.6", "ranks": 2},
    *timed("link", "64 MB to the peer", {"copy engine": 2**26 / 400e3}),
    *timed("all_reduce", "512 KB", {"one shot": 6.0, "two shots": 7.0, "nccl": 10.0, "torch one_shot_all_reduce": 9.0}),
    *timed("all_reduce", "512 KB", {"one shot": 7.0, "nccl": 10.0}, graph=True),
    *timed("all_reduce", "8192 KB", {"one shot": 51.0, "nccl": 50.0, "one shot, 2048 in 8 warps": 40.0}),
    *timed("rms_norm", "32 rows", {"default": 5.0, "8 warps": 4.0, "nccl + one kernel": 10.0}),
    *timed(
        "matmul_all_reduce",
        "4096 x 8 x 8192",
        {"tiles": 210.0, "overlapped": 180.0, "cublas + nccl": 300.0, "cublas alone": 100.0},
    ),
    *timed("matmul_reduce_scatter", "4096 x 8 x 8192", {"tiles": 120.0, "cublas + nccl": 110.0, "cublas alone": 100.0}),
    *timed(
        "all_gather_matmul", "2 x 4096 rows, 8192 x 8192", {"overlapped": 100.0, "torch": 98.0, "nccl + cublas": 101.0}
    ),
    *timed(
        "experts", "4096 x 4096", {"dispatch": 84.0, "dispatch, nccl": 99.0, "combine": 91.0, "combine, nccl": 99.0}
    ),
    {"case": "stress", "what": "10000 calls", "right": True, "ranks": 2},
]


def held(case: str, *, graph: bool = False) -> list[tuple[str, float, bool]]:
    found = [cell for cell in report.cells(ROWS) if cell.case == case and cell.graph == graph]
    return [(of, round(ratio, 3), ratio <= most) for cell in found for of, ratio, most in report.goals(cell, 400.0)]


def test_goals_are_held_against_the_default_config() -> None:
    assert held("all_reduce") == [("nccl", 0.6, True), ("nccl", 1.02, False)]
    assert held("all_reduce", graph=True) == [("nccl", 0.7, False)]
    assert held("rms_norm") == [("nccl", 0.5, True)]
    assert held("experts") == [("85 us", 0.988, True), ("90 us", 1.011, False)]
    assert held("all_gather_matmul") == [("nccl", 0.99, True), ("torch", 1.02, True)]


def test_the_bound_of_a_product_is_its_time_or_that_of_the_link() -> None:
    sent = 4096 * 8192 * 2 / 400e3
    assert held("matmul_all_reduce") == [("nccl", 0.6, True), ("bound", round(180 / sent, 3), True)]
    assert held("matmul_reduce_scatter") == [("nccl", 1.091, False), ("bound", 1.2, False)]
    cell = next(cell for cell in report.cells(ROWS) if cell.case == "matmul_all_reduce")
    assert not any(of == "bound" for of, _, _ in report.goals(cell, None))


def test_a_kernel_is_held_against_the_product_of_its_own_run() -> None:
    first = timed("matmul_reduce_scatter", "64 x 8 x 64", {"overlapped": 110.0, "tiles": 130.0, "cublas alone": 100.0})
    slow = timed("matmul_reduce_scatter", "64 x 8 x 64", {"tiles": 126.0, "cublas alone": 120.0}, date="2026-01-02")
    again = timed("matmul_reduce_scatter", "64 x 8 x 64", {"overlapped": 118.0}, date="2026-01-03")
    for rows, ratio in (([*first, *slow], 1.05), ([*first, *slow[1:]], 1.1), ([*first, *slow[1:], *again], 118 / 120)):
        (cell,) = report.cells(rows)
        ((of, found, _),) = report.goals(cell, 400.0)
        assert (of, found) == ("bound", pytest.approx(ratio))


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_wrong_or_fails_is_named(wrong: bool, tmp_path: Path) -> None:
    more = [{"case": "ipc", "what": "all-reduce", "right": False, "ranks": 2}] if wrong else []
    more += (
        [{"case": "experts", "what": "4096", "variant": "x", "us": None, "error": "RuntimeError: no", "ranks": 2}]
        if wrong
        else []
    )
    text = "\n".join(json.dumps(row) for row in [*ROWS, *more])
    (tmp_path / f"two-gpus{report.SUFFIX}.jsonl").write_text(text)
    page = "\n".join(report.sections(report.read(tmp_path)))
    assert "## Several GPUs: 2 Test 100" in page and "400 GB/s" in page
    assert "| rms_norm | 32 rows | 5.0 | default | 4.0 | 10.0 | - | 0.50 of nccl |" in page
    assert "| all_reduce | 8192 KB | 51.0 | one shot | 40.0 | 50.0 | - | 1.02 of nccl (missed) |" in page
    assert ("Wrong: ipc: all-reduce." in page, "- experts, 4096, x: RuntimeError: no" in page) == (wrong, wrong)
    assert f"{1 + wrong} checks, {int(wrong)} wrong. Of 12 goals 7 are met." in page


def test_each_number_of_ranks_has_a_section_and_a_bound() -> None:
    product = {"tiles": 120.0, "cublas alone": 10.0}
    link = timed("link", "64 MB to the peer", {"copy engine": 2**26 / 400e3}, ranks=4)
    rows = [*ROWS, *link, *timed("matmul_reduce_scatter", "4096 x 8 x 8192", product, ranks=4)]
    rows += timed("experts", "4096 x 4096", {"combine": 95.0, "combine, nccl": 190.0}, ranks=4)
    rows += timed("pieces", "512 rows, 8 x 8", {"product": 2.25, "messages": 4.0}, ranks=4)
    page = "\n".join(report.sections({"test": rows}))
    assert page.index("## Several GPUs: 2 Test 100") < page.index("## Several GPUs: 4 test")
    sent = 4096 * 8192 * 2 * 3 / 4 / 400e3
    assert f"| matmul_reduce_scatter | 4096 x 8 x 8192 | 120.0 | tiles | - | - | - | {120 / sent:.2f} of bound" in page
    assert "| experts | 4096 x 4096, combine | 95.0 | combine | - | 190.0 | - | 0.50 of nccl |" in page
    assert "- 512 rows, 8 x 8: product 2.2, messages 4.0" in page


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert report.sections(report.read(tmp_path)) == []
