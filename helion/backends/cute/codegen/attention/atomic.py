"""The gradient of streamed rows that tiles add to memory: left operands that groups exchange, MMAs, and TMA reductions.

Each group computes 64 of the columns. Each of its warps has shared memory of its own for 16 rows, in two tiles of 32 columns
that TMA adds to memory. Where there are 64 columns in all, MMAs compute the gradient transposed, so that groups can share its
rows: each computes half of them, and a warp 16 of the columns.
"""

from __future__ import annotations

from ...plan.attention.backward import EXCHANGE_STAGES, VECTOR_STEP, BackwardPlan
from ...plan.attention.gradients import ATOMIC_COLUMNS, AtomicSum
from ...plan.attention.numbers import text_of
from ...plan.attention.operands import Source
from ...plan.attention.records import Formula
from ...plan.records import WGMMA_ROWS
from ..setups import dsl
from . import spans
from .formula import arguments_of, computed

BOX = (16, 32)
"""Rows and columns of a TMA copy: those of a warp, and 128 bytes in fp32, the width of the swizzle."""
TURNED_COLUMNS = 16
"""Columns of a TMA copy of a transposed gradient: those of a warp."""
WARPS = 4
"""Warps of a group."""


def box(plan: BackwardPlan) -> tuple[int, int]:
    """Return the rows and columns of a TMA copy."""
    return (shared_keys(plan), TURNED_COLUMNS) if plan.turned else BOX


def sum_name(plan: BackwardPlan) -> str:
    """Return the name of the accumulator, which has registers of that of the second product."""
    return "sum_rows" if plan.turned else "product_1"


def shared_keys(plan: BackwardPlan) -> int:
    """Return the streamed rows of a block whose gradient a group computes transposed."""
    return plan.keys // plan.groups


def exchanged_gradient(plan: BackwardPlan) -> int:
    """Return the gradient whose left operands the groups exchange."""
    atomic = plan.problem.atomic
    assert atomic is not None
    return next(at for at, each in enumerate(plan.problem.gradients) if each.left == atomic.left)


def atomic_functions(plan: BackwardPlan) -> list[list[str]]:
    """Return the MMAs of a block's gradient, and its formula and stores."""
    atomic = plan.problem.atomic
    if atomic is None:
        return []
    elements = (shared_keys(plan) if plan.turned else ATOMIC_COLUMNS) // 2
    finish = [_finish(atomic.finish, elements)] if atomic.finish.instructions else []
    dtype = dsl(plan.problem.owned[0].dtype)
    if plan.turned:
        return [*_turned_mmas(plan, dtype), *finish, *_turned_stores(plan)]
    return [*_sum_mmas(plan, dtype), *finish, *_stores()]


def _finish(formula: Formula, elements: int) -> list[str]:
    """Return the function that applies the formula to each element of an accumulator."""

    def name(value: int) -> str:
        if value < formula.starts:
            return "x0"
        return formula.sources[value - formula.starts].label if value < formula.computed else f"y{value}"

    lines = [f"def finish_sum({', '.join(['accumulator', *arguments_of(formula)])}):"]
    lines += [f"    for e in range({elements}):", "        x0 = accumulator[e]"]
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


def _turned_mmas(plan: BackwardPlan, dtype: str) -> list[list[str]]:
    """Return the same transposed: owned rows by dimensions are operand A, left operands B. Both are read along owned rows."""
    keys = shared_keys(plan)
    return [
        [
            "def sum_mma():",
            f"    return hopper.make_trivial_tiled_mma({dtype}, {dtype}, OperandMajorMode.MN, OperandMajorMode.MN,"
            f" cutlass.Float32, (1, 1, 1), (64, {keys}))",
        ],
        [
            "def multiply_sum(accumulator, left, right, stage, group):",
            "    mma = sum_mma()",
            f"    for tile in range({plan.groups}):",
            f"        for step in range({WGMMA_ROWS // 16}):",
            "            mma.set(warpgroup.Field.ACCUMULATE, tile + step > 0)",
            f"            right_part = right[None, None, step, (stage * {plan.groups} + tile) * {plan.groups} + group]",
            "            cute.gemm(mma, accumulator, left[None, None, step, tile], right_part, accumulator)",
        ],
    ]


def _turned_stores(plan: BackwardPlan) -> list[list[str]]:
    """Return the stores of a transposed accumulator to the warp's shared memory, in the 64-byte swizzle of TMA.

    Two streamed rows are 128 bytes, and two threads of four would meet in the same half of them. Threads of odd number
    therefore store the second row of each pair first.
    """
    size = shared_keys(plan) * TURNED_COLUMNS
    return [
        [
            "def sum_places(lane, group_warp, group):",
            "    column, pair = lane // 4, lane % 4",
            f"    start = (group * {WARPS} + group_warp) * {size} + 32 * pair + column % 4",
            "    chunks = [((column // 4) ^ pair ^ (2 * half)) * 4 for half in range(2)]",
            "    return [start + chunk + 16 * ((pair & 1) ^ second) for chunk in chunks for second in range(2)]",
        ],
        [
            "def store_sum(accumulator, written, odd):",
            f"    for row in range({shared_keys(plan) // 8}):",
            "        for half in range(2):",
            "            one, other = accumulator[4 * row + 2 * half], accumulator[4 * row + 2 * half + 1]",
            "            written[2 * half][row] = cutlass.select_(odd, other, one)",
            "            written[2 * half + 1][row] = cutlass.select_(odd, one, other)",
        ],
    ]


def atomic_registers(plan: BackwardPlan) -> list[str]:
    """Return the views of a consumer thread."""
    atomic = plan.problem.atomic
    if atomic is None:
        return []
    return [
        *(_turned_views(plan, atomic) if plan.turned else _views(plan, atomic)),
        *([] if plan.problem.spans_keys else stored_sums(plan, atomic)),
        "exchanged = cutlass.Int32(0)",
        "former = cutlass.Int32(0)",
        *(["former_repeat = cutlass.Int32(0)"] if plan.problem.is_repeated else []),
    ]


def stored_sums(plan: BackwardPlan, atomic: AtomicSum, first_row: str = "") -> list[str]:
    """Return the partition of the gradient in memory, of a span of rows from ``first_row`` on."""
    return spans.stored("sum", "shared_sum", box(plan), "None", len(atomic.matrix.modes), first_row)


def staged_view(plan: BackwardPlan, source: Source, moved: str = "") -> str:
    """Return the line of the numbers of a thread's columns in shared memory, by pair, column and stage."""
    layout = f"cute.make_layout((2, 4, {plan.keys // 8}, {plan.stages}), stride=(1, 2, 8, {plan.vector_pitch}))"
    return f"staged_{source.label} = cute.make_tensor(shared_{source.label}.iterator{moved}, {layout})"


def spanned_sums(plan: BackwardPlan) -> list[str]:
    """Return the same for the streamed rows of a tile, which are counted back from the end of its span."""
    atomic = plan.problem.atomic
    if atomic is None or not plan.problem.spans_keys:
        return []
    end = spans.end_of(plan, atomic.matrix, f"{spans.plus_origin(plan)}limit")
    sources = [source for each in plan.staged.values() for source in each] if plan.moves_vectors else []
    return [
        f"end_of_sum = {end}",
        *stored_sums(plan, atomic, spans.first_row("limit")),
        *(staged_view(plan, source, f" + origin % {VECTOR_STEP}") for source in sources),
    ]


def clear_rows(plan: BackwardPlan) -> list[str]:
    """Return the stores of zeros over those of a warp's rows that have no streamed rows."""
    atomic, loaded = plan.problem.atomic, spans.row_names(plan)
    assert atomic is not None
    begin = "row_begins[row]" if "row_begins" in loaded else "cutlass.Int32(0)"
    end = "row_ends[row]" if "row_ends" in loaded else text_of(plan.problem.keys)
    place = "group_warp * 16 + lane // 4 + 8 * row, at * 4 + lane % 4, group"
    return [
        "for row in cutlass.range_constexpr(2):",
        f"    if {end} <= {begin}:",
        f"        for at in cutlass.range({plan.problem.owned[atomic.right].columns // 4}, unroll=1):",
        f"            shared_own_{atomic.right}[{place}] = {dsl(plan.problem.owned[0].dtype)}(0.0)",
    ]


def _written(layout: str, aligned: int) -> list[str]:
    """Return the places of a thread's sums in shared memory."""
    return [
        "unswizzled = cute.recast_ptr(shared_sum.iterator)",
        "written = [",
        f"    cute.make_tensor(unswizzled + cute.assume(place, divby={aligned}), cute.make_layout({layout}))",
        "    for place in sum_places(lane, group_warp, group)",
        "]",
    ]


def _turned_views(plan: BackwardPlan, atomic: AtomicSum) -> list[str]:
    dtype, at, groups, keys = (
        dsl(plan.problem.owned[0].dtype),
        exchanged_gradient(plan),
        plan.groups,
        shared_keys(plan),
    )
    tiles = f"(64, {keys}, 64), {dtype}"
    return [
        f"exchange = hopper.make_smem_layout_b(LayoutEnum.COL_MAJOR, {tiles}, {EXCHANGE_STAGES * groups * groups})",
        f"transposed = hopper.make_smem_layout_a(LayoutEnum.COL_MAJOR, {tiles}, {groups})",
        "sum_part = sum_mma().get_slice(0)",
        "sum_left = sum_mma().make_fragment_A(",
        f"    sum_part.partition_A(cute.make_tensor(shared_own_{atomic.right}.iterator, transposed.outer))",
        ")",
        "sum_right = sum_mma().make_fragment_B(",
        "    sum_part.partition_B(cute.make_tensor(shared_exchange.iterator, exchange.outer))",
        ")",
        f"sum_shape = sum_mma().partition_shape_C((64, {keys}))",
        "sum_rows = cute.make_rmem_tensor(sum_shape, cutlass.Float32)",
        f"exchange_copy = cute.make_tiled_copy_C(cute.make_copy_atom(warp_level.StMatrix8x8x16bOp(False, 4), {dtype}), sum_mma())",
        "exchange_part = exchange_copy.get_slice(group_thread).partition_D(shared_exchange)",
        "exchange_registers = [",
        "    exchange_copy.retile(",
        f"        cute.make_tensor(left_{at}.iterator + part * {keys // 2}, cute.make_rmem_tensor(sum_shape, {dtype}).layout)",
        "    )",
        f"    for part in range({groups})",
        "]",
        "odd_pair = lane % 2 == 1",
        *_written(f"{keys // 8}, stride=128", 1),
    ]


def _views(plan: BackwardPlan, atomic: AtomicSum) -> list[str]:
    groups, dtype, at = plan.groups, dsl(plan.problem.owned[0].dtype), exchanged_gradient(plan)
    tiles = f"(64, {plan.keys}, 64), {dtype}"
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
        *_written("(2, 2, 2), stride=(1, 256, 2048)", 2),
    ]


def exchange_layout(plan: BackwardPlan) -> str:
    """Return the layout of the left operands of all groups and stages, as the groups write them: owned by streamed rows."""
    dtype = dsl(plan.problem.owned[0].dtype)
    stages = EXCHANGE_STAGES * plan.groups
    if plan.turned:
        tiles = f"(64, {shared_keys(plan)}, 64), {dtype}, {stages * plan.groups}"
        return f"cute.select(hopper.make_smem_layout_b(LayoutEnum.COL_MAJOR, {tiles}), mode=[1, 0, 2])"
    return f"hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (64, {plan.keys}, {plan.keys}), {dtype}, {stages})"


def sum_layout(plan: BackwardPlan) -> str:
    """Return the layout of the sums of all warps, as TMA reads them: tiles by row, then by column, then by group."""
    copies = WARPS * (1 if plan.turned else ATOMIC_COLUMNS // BOX[1]) * plan.groups
    return f"hopper.make_smem_layout_epi(cutlass.Float32, LayoutEnum.ROW_MAJOR, {box(plan)}, {copies})"
