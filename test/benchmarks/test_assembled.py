"""The order of leaders by assembled code: counts of a binary, the kept rows, and their scores."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import assembled
from benchmarks.assembled import KEPT, SAMPLES, START, Counts, Depth, Table
from benchmarks.cells import pointwise_cells
from helion.backends.assembly import read

LISTING = """
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/                   LDG.E R8, desc[UR4][R2.64+0x10] ;
        /*0020*/                   FADD R9, R6, R6 ;
.L_x_0:
        /*0030*/                   LDG.E.U8 R10, desc[UR4][R12.64] ;
        /*0040*/                   FADD R9, R9, R8 ;
        /*0050*/                   FADD R9, R9, R10 ;
        /*0060*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0070*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0080*/                   MUFU.EX2 R9, R9 ;
        /*0090*/                   SHFL.BFLY PT, R9, R9, 0x1, 0x1f ;
        /*00a0*/              @!P0 BRA `(.L_x_0) ;
        /*00b0*/                   STS.64 [R1], R8 ;
        /*00c0*/                   STG.E.64 desc[UR4][R2.64], R8 ;
        /*00d0*/                   EXIT ;
        /*00e0*/                   NOP ;
"""


def test_counts_of_a_listing() -> None:
    outside, inside = assembled.depths_of(read(LISTING))
    assert outside == Depth(
        issue=6,
        simple=0,
        special=0,
        waves=4 + 1 + 2,
        shared_waves=2,
        local_bytes=0,
        barriers=0,
        shuffles=0,
        shared=1,
        bytes=32 * (16 + 4 + 8),
        operations=0,
    )
    assert (inside.issue, inside.special, inside.barriers, inside.shuffles, inside.waves) == (8, 1, 1, 1, 1)
    assert (inside.bytes, inside.operations) == (32, 2 * 64 * 128 * 16 // 4)


def test_waits_for_loads() -> None:
    # the sum of R6 waits for the first two loads at once, and each step for its own load
    assert assembled.rounds_of(read(LISTING)) == (1, 1)


def test_counts_survive_their_text() -> None:
    counts = Counts(
        registers=64,
        spill_bytes=0,
        shared_bytes=1024,
        warps=4,
        depths=assembled.depths_of(read(LISTING)),
        rounds=(1, 1),
    )
    assert Counts.parsed(counts.text) == counts


def test_a_compiled_cell() -> None:
    cell = next(each for each in pointwise_cells() if each.kernel == "exp" and each.dtype == "float32")
    config = cell.function.bind(cell.args, target="h200").default_config()
    (counts,) = assembled.compiled(cell, config, "h200")
    assert counts.spill_bytes == 0 and counts.warps == config["num_warps"]
    assert sum(each.special for each in counts.depths) > 0
    # whole tiles, each read and written once
    numel = math.prod(config["block_sizes"])
    assert counts.warps * sum(each.bytes for each in counts.depths) == 2 * 4 * numel


def test_kept_rows_and_their_scores() -> None:
    text = KEPT.read_text()
    rows = list(assembled.read(text))
    assert [row.text for row in rows] == text.splitlines()
    assert {row.sample for row in rows} == set(SAMPLES)
    chosen = [row for row in rows if row.timed.kernel in ("softmax", "rms_norm", "matmul_softmax")]
    table = Table(assembled.predicted(chosen))
    scores = table.log_times(START)
    assert np.isfinite(scores).all() and (scores != table.log_predicted).any()
    unread = [not one.is_read for one in table.rows]
    assert any(unread), "a kernel before the product adds a launch"
    ratios = scores - table.log_predicted
    for number in range(len(table.cells)):
        mine = table.cell == number
        left = mine & np.array(unread)
        if left.any():
            known = mine & ~left
            assert ratios[left] == pytest.approx(ratios[known].mean() if known.any() else 0.0)
    assert any(
        "default / best" in line for line in assembled.of_defaults(table, {"by prediction": table.log_predicted})
    )
    assert list(assembled.lines(table, {"by code": scores}))
