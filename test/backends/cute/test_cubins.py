"""Real binaries of every plan: what stands in them, against the plan and against what was counted before.

`cubins.json` has the counts with the versions they were made by; ``python test/backends/cute/cubins.py`` makes it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from backends.cute import cubins, export, gemms

from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.dtypes import itemsize
from helion.backends.cute.plan.epilogue import ARITY, Epilogue, EpilogueOperand, EpilogueOutput, Instruction, constant
from helion.backends.cute.plan.passes import passes, reads_matrices
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.reductions import exchanges
from helion.backends.cute.plan.shared import shared_bytes
from helion.backends.cute.toolchain.offline import compile_text

PLANS = gemms.all_plans()
KEPT = cubins.read()
WGMMA, UMMA = ("HGMMA", "QGMMA"), ("UTCHMMA", "UTCQMMA")


def matrix_instructions(plan: GemmPlan) -> int:
    """One per step of a K tile; wgmma's first K tile of a tile stands in front of the loop, if there is one."""
    if plan.unit == "tcgen05":
        return plan.mma_steps
    peeled = plan.k_tiles > plan.parts and (not plan.promote or plan.promote_k_tiles > 1)
    return plan.mma_steps * plan.row_atoms * (2 if peeled else 1)  # teams share the code


def boxes(plan: GemmPlan) -> int:
    """TMA loads of one K tile: one per 128 bytes along the contiguous dimension of an operand. CTAs that share an
    operand split the other dimension."""
    problem = plan.problem
    lines = (
        plan.tile[2] if problem.a_major == "k" else plan.cta_tile[0],
        plan.tile[2] if problem.b_major == "k" else plan.tile[1] // plan.ctas_per_mma,
    )
    a, b = (line * plan.operand_bytes // 128 for line in lines)
    walks = sum(reads_matrices(plan, walk) for walk in passes(plan))
    return a + plan.products * b + walks * lines_of(plan, problem.epilogue.of_kind("exact"))


def lines_of(plan: GemmPlan, matrices: Sequence[EpilogueOperand | EpilogueOutput]) -> int:
    """TMA copies of a sub-tile: one per 128 bytes along M of matrices that are contiguous there, one of each other."""
    return sum(plan.cta_tile[0] * itemsize(each.dtype) // 128 if each.turned else 1 for each in matrices)


def check(plan: GemmPlan, row: dict[str, Any]) -> None:
    opcodes = row["opcodes"]
    assert row["stack_bytes"] == 0
    assert not {"LDL", "STL"} & set(opcodes)
    assert sum(opcodes.get(opcode, 0) for opcode in (*WGMMA, *UMMA)) == matrix_instructions(plan)
    assert opcodes["UTMALDG"] == boxes(plan)
    matrices = lines_of(plan, plan.problem.outputs_of("exact"))
    one_tile = plan.problem.n <= plan.tile[1] and plan.cluster[1] == 1
    stored = -(-plan.problem.n // plan.epilogue_n) if one_tile else plan.subtiles
    rolled = plan.unit == "tcgen05" and not plan.totals
    assert opcodes.get("UTMASTG", 0) == matrices * (1 if rolled else stored)
    read = plan.subtiles if plan.totals else plan.products * len(passes(plan))
    assert opcodes.get("LDTM", 0) == (read if plan.unit == "tcgen05" else 0)
    assert opcodes.get("UTCBAR", 0) == (2 if plan.unit == "tcgen05" else 0)
    assert row["shared_bytes"] == shared_bytes(plan)
    if plan.unit == "wgmma":
        assert row["registers"] <= 168 or plan.consumer_warps * plan.teams == 4
    if plan.splits > 1:
        assert opcodes["STAS"] == plan.tile[1] // 2 * plan.row_atoms // 4
    if counts(plan).rows:
        sent = sum(map(len, exchanges(plan))) * words_to_peers(plan)
        # One may stand in both branches of who says how many bytes will come.
        assert sent <= opcodes["STAS"] <= sent + len(exchanges(plan))
        assert opcodes.get("SHFL", 0) == (2 * lane_steps(plan) if plan.paired else 0)


def words_to_peers(plan: GemmPlan) -> int:
    """Stores of one reduction by one thread: of lanes that share two rows each serves every fourth CTA, and a thread that
    has a row of its own all of them."""
    return plan.row_atoms * -(-plan.cluster[1] // 4) if plan.paired else plan.cluster[1]


def lane_steps(plan: GemmPlan) -> int:
    """Shuffles of one reduction and one side of an exchange: two of each row of the thread."""
    return 2 * 2 * plan.row_atoms * sum(map(len, exchanges(plan)))


@pytest.mark.parametrize("name", PLANS)
def test_kept_counts_are_those_of_the_plan(name: str) -> None:
    check(PLANS[name], KEPT["plans"][name])


def test_no_counts_are_kept_of_plans_that_are_gone() -> None:
    assert set(KEPT["plans"]) == set(PLANS)


def test_everything_that_is_exported_has_a_plan() -> None:
    assert len(export.exported_plans()) > len(gemms.ON_HOPPER)


# Bounds for a B200 and an H100; an existing generator needs 24 UTMALDG, 8 UTCQMMA, 1552 instructions plain, 1744 scaled.
@pytest.mark.parametrize(
    ("name", "stages", "instructions", "registers"),
    [
        ("sm_100/fp8_pair", 8, 870, 96),
        ("sm_100/fp8_pair_scales", 8, 1070, 96),
        ("sm_100/bf16_pair", 6, 970, 96),
        ("sm_90/bf16", 4, 970, 168),
        # A kernel written by hand for each of these has 1120, 1128, 1136 and 792, and 96 registers of the last.
        ("sm_90/rows_rms_norm", 4, 1070, 168),
        ("sm_90/rows_rms_norm_2048", 4, 1070, 168),
        ("sm_90/rows_rms_norm_4096", 4, 1070, 168),
        ("sm_90/rows_rms_norm_two_per_sm", 3, 760, 96),
        ("sm_90/rows_softmax", 4, 2870, 168),
        ("sm_100/rows_rms_norm", 4, 770, 96),
        ("sm_100/rows_rms_norm_4096", 4, 770, 96),
        ("sm_100/rows_rms_norm_pair", 6, 870, 96),
    ],
)
def test_kernels_stay_small(name: str, stages: int, instructions: int, registers: int) -> None:
    row = KEPT["plans"][name]
    assert PLANS[name].ab_stages == stages
    executed = sum(count for opcode, count in row["opcodes"].items() if opcode != "NOP")  # which is padding
    assert executed <= instructions
    assert row["registers"] <= registers
    assert row["opcodes"]["UTMALDG"] == 2


@pytest.mark.parametrize(
    "name",
    [
        "sm_90/bf16",
        "sm_90/bf16_multicast_b",
        "sm_90/fp16_relu",
        "sm_90/bf16_bias_gelu_tanh",
        "sm_90/bf16_splits",
        "sm_90/bf16_swiglu",
        "sm_90/fp8",
        "sm_90/rows_rms_norm",
        "sm_90/rows_rms_norm_4096",
        "sm_90/rows_softmax",
    ],
)
def test_the_main_loop_of_wgmma_is_short(name: str) -> None:
    """One wait, four products, one release; what is more than this takes issue slots from the other warpgroup. Where sums
    leave the matrix unit the loop has all K tiles between, and an addition for each sum."""
    plan, row = PLANS[name], KEPT["plans"][name]
    k_tiles, added = (plan.promote_k_tiles, row["opcodes"]["FADD"]) if plan.promote else (1, 0)
    assert added == (plan.sum_columns // 2 * plan.row_atoms if plan.promote else 0)
    assert 0 < row["mainloop"] - added <= 45 * k_tiles


# A few are compiled in every run, more of each kind to prove it; ``cubins.py`` compiles all.
@pytest.mark.parametrize(
    "name",
    [
        "sm_90/fp8_blockwise",
        "sm_100/fp8_blockwise_columns_odd",
        pytest.param("sm_90/bf16_residual", marks=pytest.mark.prove),
        pytest.param("sm_100/bf16_residual", marks=pytest.mark.prove),
        pytest.param("sm_90/bf16_odd", marks=pytest.mark.prove),
        pytest.param("sm_90/fp8_scales", marks=pytest.mark.prove),
        pytest.param("sm_90/rows_argmax_odd", marks=pytest.mark.prove),
        pytest.param("sm_90/rows_softmax", marks=pytest.mark.prove),
        pytest.param("sm_100/fp8_pair_scales", marks=pytest.mark.prove),
        pytest.param("sm_100/rows_layer_norm_pair", marks=pytest.mark.prove),
    ],
)
def test_binaries_are_as_counted(name: str) -> None:
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    row = cubins.measure(PLANS[name])
    check(PLANS[name], row)
    assert row["misplaced_barriers"] == []
    if cubins.versions() == KEPT["versions"]:
        assert row == KEPT["plans"][name]


def test_comparisons_pass_nan_on() -> None:
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    plan = PLANS["sm_90/fp16_relu"]
    ptx = compile_text(build(plan), plan).ptx
    assert "max.NaN.f32" in ptx
    assert "max.f32" not in ptx


def compile_operations(ops: Sequence[str]) -> None:
    """Compile an epilogue that applies operations one after the other, each to the result of the one before."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    chain = tuple(Instruction(op, (value, constant(0.5), constant(2.0))[: ARITY[op]]) for value, op in enumerate(ops))
    plan = plan_gemm(gemms.product(epilogue=Epilogue(instructions=chain)), Choice(tile=(64, 64, 64)), gemms.HOPPER)
    assert compile_text(build(plan), plan).cubin


def test_all_operations_compile() -> None:
    compile_operations(tuple(ARITY))


@pytest.mark.prove
@pytest.mark.parametrize("op", ARITY)
def test_every_operation_compiles(op: str) -> None:
    compile_operations((op,))
