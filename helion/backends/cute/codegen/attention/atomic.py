"""The gradient of streamed rows that tiles add to memory: left operands that groups exchange, MMAs, and TMA reductions.

Each group computes 64 of the columns. Each of its warps has shared memory of its own for 16 rows, in two tiles of 32 columns
that TMA adds to memory.
"""

from __future__ import annotations

from ...plan.attention.backward import ATOMIC_COLUMNS, EXCHANGE_STAGES, AtomicSum, BackwardPlan
from ...plan.attention.records import Formula
from ...plan.records import WGMMA_ROWS
from ..setups import dsl
from .formula import arguments_of, computed

BOX = (16, 32)
"""Rows and columns of a TMA copy: those of a warp, and 128 bytes in fp32, the width of the swizzle."""
WARPS = 4
"""Copies along the 64 rows, of one warp each."""


def exchanged_gradient(plan: BackwardPlan, atomic: AtomicSum) -> int:
    """Return the gradient whose left operands the groups exchange."""
    return next(at for at, each in enumerate(plan.problem.gradients) if each.left == atomic.left)


def atomic_functions(plan: BackwardPlan) -> list[list[str]]:
    """Return the MMAs of a block's gradient, and its formula and stores."""
    atomic = plan.problem.atomic
    if atomic is None:
        return []
    finish = [_finish(atomic.finish)] if atomic.finish.instructions else []
    return [*_sum_mmas(plan, dsl(plan.problem.owned[0].dtype)), *finish, *_stores()]


def _finish(formula: Formula) -> list[str]:
    """Return the function that applies the formula to each element of an accumulator."""

    def name(value: int) -> str:
        if value < formula.starts:
            return "x0"
        return formula.sources[value - formula.starts].label if value < formula.computed else f"y{value}"

    lines = [f"def finish_sum({', '.join(['accumulator', *arguments_of(formula)])}):"]
    lines += [f"    for e in range({ATOMIC_COLUMNS // 2}):", "        x0 = accumulator[e]"]
    for value in range(formula.computed, formula.computed + len(formula.instructions)):
        lines.append(f"        y{value} = {computed(formula, value, name, ('0', '0'))}")
    return [*lines, f"        accumulator[e] = {name(formula.value)}"]


def _stores() -> list[list[str]]:
    """Return the stores of an accumulator to the warp's shared memory, in the 128-byte swizzle of TMA.

    A quarter of a warp's threads have the same columns of 8 rows, and so the same banks in pairs of rows. Threads of odd rows
    therefore store columns in another order, the second 16 of 32 first.
    """
    return [
        [
            "def sum_places(lane, group_warp, group):",
            "    row, odd = lane // 4, (lane // 4) & 1",
            "    first = ((4 * odd + lane % 4 // 2) ^ row) * 4 + lane % 2 * 2 + row * 32",
            f"    start = group * {WGMMA_ROWS * ATOMIC_COLUMNS} + group_warp * {BOX[0] * BOX[1]}",
            "    return [start + (first ^ (8 * column)) for column in range(4)]",
        ],
        [
            "def store_sum(accumulator, written, odd):",
            "    for half in range(2):",
            "        for column in range(2):",
            "            for row in range(2):",
            "                for i in range(2):",
            "                    one = accumulator[16 * half + 4 * column + 2 * row + i]",
            "                    other = accumulator[16 * half + 4 * column + 8 + 2 * row + i]",
            "                    written[column][i, row, half] = cutlass.select_(odd, other, one)",
            "                    written[column + 2][i, row, half] = cutlass.select_(odd, one, other)",
        ],
    ]


def _sum_mmas(plan: BackwardPlan, dtype: str) -> list[list[str]]:
    """Return the MMAs of one block. Both operands are in shared memory, with streamed rows and dimensions contiguous."""
    return [
        [
            "def sum_mma():",
            f"    return hopper.make_trivial_tiled_mma({dtype}, {dtype}, OperandMajorMode.MN, OperandMajorMode.MN,"
            f" cutlass.Float32, (1, 1, 1), (64, {ATOMIC_COLUMNS}))",
        ],
        [
            "def multiply_sum(accumulator, left, right, stage, group):",
            "    mma = sum_mma()",
            f"    for tile in range({plan.groups}):",
            f"        for step in range({WGMMA_ROWS // 16}):",
            "            mma.set(warpgroup.Field.ACCUMULATE, tile + step > 0)",
            f"            left_part = left[None, None, step, stage * {plan.groups} + tile]",
            f"            right_part = right[None, None, step, tile * {plan.groups} + group]",
            "            cute.gemm(mma, accumulator, left_part, right_part, accumulator)",
        ],
    ]


def atomic_registers(plan: BackwardPlan) -> list[str]:
    """Return the views of a consumer thread. The accumulator is that of the second product, of the same shape."""
    atomic = plan.problem.atomic
    if atomic is None:
        return []
    problem, groups = plan.problem, plan.groups
    dtype, at = dsl(problem.owned[0].dtype), exchanged_gradient(plan, atomic)
    tiles = f"(64, {plan.keys}, 64), {dtype}"
    modes = ", ".join(["None", "None", *("None" for _ in atomic.matrix.modes)])
    return [
        f"exchange = hopper.make_smem_layout_a(LayoutEnum.COL_MAJOR, {tiles}, {EXCHANGE_STAGES * groups})",
        f"transposed = hopper.make_smem_layout_b(LayoutEnum.COL_MAJOR, (64, {ATOMIC_COLUMNS}, 64), {dtype}, {groups * groups})",
        "sum_part = sum_mma().get_slice(0)",
        "sum_left = sum_mma().make_fragment_A(",
        "    sum_part.partition_A(cute.make_tensor(shared_exchange.iterator, exchange.outer))",
        ")",
        "sum_right = sum_mma().make_fragment_B(",
        f"    sum_part.partition_B(cute.make_tensor(shared_own_{atomic.right}.iterator, transposed.outer))",
        ")",
        "exchange_copy = cute.make_tiled_copy_C(",
        f"    cute.make_copy_atom(warp_level.StMatrix8x8x16bOp(False, 4), {dtype}), product_mma()",
        ")",
        "exchange_part = exchange_copy.get_slice(group_thread).partition_D(shared_exchange)",
        f"exchange_registers = exchange_copy.retile(left_{at})",
        "odd_row = (lane // 4) % 2 == 1",
        "unswizzled = cute.recast_ptr(shared_sum.iterator)",
        "written = [",
        "    cute.make_tensor(",
        "        unswizzled + cute.assume(place, divby=2), cute.make_layout((2, 2, 2), stride=(1, 256, 2048))",
        "    )",
        "    for place in sum_places(lane, group_warp, group)",
        "]",
        f"tiles_sum = cute.local_tile(tensor_sum, {BOX}, ({modes}))",
        "from_sum, to_sum = cpasync.tma_partition(",
        "    tma_sum, 0, cute.make_layout(1), cute.group_modes(shared_sum, 0, 2), cute.group_modes(tiles_sum, 0, 2)",
        ")",
        "exchanged = cutlass.Int32(0)",
        "former = cutlass.Int32(0)",
        *(["former_repeat = cutlass.Int32(0)"] if problem.is_repeated else []),
    ]


def exchange_layout(plan: BackwardPlan) -> str:
    """Return the layout of the left operands of all groups and stages, as the groups write them: owned by streamed rows."""
    dtype = dsl(plan.problem.owned[0].dtype)
    stages = EXCHANGE_STAGES * plan.groups
    return f"hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (64, {plan.keys}, {plan.keys}), {dtype}, {stages})"


def sum_layout(plan: BackwardPlan) -> str:
    """Return the layout of the sums of all warps, as TMA reads them: tiles by row, then by column, then by group."""
    copies = WARPS * (ATOMIC_COLUMNS // BOX[1]) * plan.groups
    return f"hopper.make_smem_layout_epi(cutlass.Float32, LayoutEnum.ROW_MAJOR, {BOX}, {copies})"
