"""Keys split among CTAs: partials in global memory, and their combination by the last CTA to arrive."""

from __future__ import annotations

from ...plan.attention.records import COLUMNS_AT_ONCE, ROWS_OF_WARP, AttentionPlan
from ...plan.attention.umma import UmmaPlan
from ...plan.records import WARPGROUP_THREADS
from ...plan.workspace import MAX_COUNTERS
from .formula import head_axes
from .softmax import NEGATIVE_INFINITY

QUAD = 4
"""Consecutive numbers of a partial that a thread stores and loads at once, 16 bytes."""


def tensors(plan: AttentionPlan) -> list[tuple[str, str, str]]:
    """Return (name, annotation, expression of the host) of the workspace's tensors.

    A partial has numbers of each thread: on tcgen05 those of all threads follow one another, else ``QUAD`` of one thread do.
    """
    values, parts = plan.partial_values, plan.pieces * plan.consumer_groups
    shape, strides = (
        f"({WARPGROUP_THREADS}, {values}, {parts})",
        f"(1, {WARPGROUP_THREADS}, {WARPGROUP_THREADS * values})",
    )
    if not isinstance(plan, UmmaPlan):
        shape = f"({QUAD}, {WARPGROUP_THREADS}, {values // QUAD}, {parts})"
        strides = f"(1, {QUAD}, {QUAD * WARPGROUP_THREADS}, {WARPGROUP_THREADS * values})"
    counters = f"cute.make_tensor(cute.recast_ptr(workspace, dtype=cutlass.Int32), cute.make_layout({MAX_COUNTERS}))"
    partials = f"cute.make_tensor(workspace + {MAX_COUNTERS}, cute.make_layout({shape}, stride={strides}))"
    output = [("columns_of_output", "cute.Tensor", "matrix_o")] if plan.combining > 1 else []
    return [("counters", "cute.Tensor", counters), ("partials", "cute.Tensor", partials), *output]


def part_of_keys(plan: AttentionPlan) -> list[str]:
    """Return the definitions of a part's blocks, after those of the tile. A part without blocks visits one, whose keys are
    all masked."""
    lines = [
        f"split = work % {plan.splits}",
        "first_block, blocks = begin, end - begin",
        f"begin = first_block + blocks * split // {plan.splits}",
        f"end = first_block + blocks * (split + 1) // {plan.splits}",
    ]
    if plan.is_limited:
        lines += [f"limit = cutlass.min(limit, end * {plan.keys})", "end = cutlass.max(end, begin + 1)"]
    return lines


def place(plan: AttentionPlan, part: str) -> str:
    """Return the index of a part's partial of the group."""
    return f"(work // {plan.splits} * {plan.splits} + {part}) * {plan.consumer_groups} + group"


def put(plan: AttentionPlan) -> list[str]:
    """Store the partial: maxima and sums of a thread's rows, then the accumulator of each. Rows past the last query are left
    out."""
    quads = plan.output_columns // 4 // QUAD
    return [
        f"own_part = {place(plan, 'split')}",
        f"quad = cute.make_rmem_tensor({QUAD}, cutlass.Float32)",
        f"if first_query < {plan.problem.queries}:",
        "    for row in cutlass.range_constexpr(2):",
        "        quad[row], quad[2 + row] = highest[row], total[row]",
        f"    cute.autovec_copy(quad, partials[None, group_thread, {2 * quads}, own_part])",
        "for row in cutlass.range_constexpr(2):",
        f"    if first_query + 8 * row < {plan.problem.queries}:",
        f"        for e in cutlass.range_constexpr({quads}):",
        f"            for i in cutlass.range_constexpr({QUAD}):",
        f"                quad[i] = {_ELEMENT}",
        f"            cute.autovec_copy(quad, partials[None, group_thread, {quads} * row + e, own_part])",
    ]


_ELEMENT = "output[(2 * e + i // 2) * 4 + 2 * row + i % 2]"
"""Element ``i`` of quad ``e`` of a row."""


def _counter(plan: AttentionPlan) -> str:
    return f"work // {plan.splits} * {plan.consumer_groups} + group"


def count(plan: AttentionPlan) -> list[str]:
    """Increment the counter of the tile; the fences around it order memory accesses."""
    return [
        "if lane == 0:",
        f"    counted = cute.arch.atomic_add(counters.iterator + ({_counter(plan)}), cutlass.Int32(1),"
        ' sem="relaxed", scope="gpu")',
        "    shared_counts[group] = counted",
    ]


def reset(plan: AttentionPlan) -> list[str]:
    return ["if lane == 0:", f"    counters[{_counter(plan)}] = cutlass.Int32(0)"]


def factor_of(plan: AttentionPlan, part: str, highest: str) -> str:
    """Return the factor that makes a partial relative to the largest maximum, in place of that of the part."""
    exponent = f"({part} - {highest}) * {plan.problem.unit * plan.problem.scale!r}"
    seen = f"{part} == {NEGATIVE_INFINITY}, cutlass.Float32(0.0)"
    return f"cutlass.Float32(cutlass.select_({seen}, exp2({exponent})))"


def combined_columns(plan: AttentionPlan) -> int:
    """Return the columns of the partials that a thread combines."""
    return plan.output_columns // plan.combining if plan.combining > 1 else plan.spread_columns or plan.output_columns


def first_column(plan: AttentionPlan) -> str:
    """Return the first column that a CTA combines at once with others."""
    of_group = f"group * {plan.output_columns} + " if plan.problem.latent else ""
    return f"{of_group}split * {combined_columns(plan)}"


def wait(plan: AttentionPlan) -> list[str]:
    """Wait for the partials of all parts. Each CTA that combines counts once more, and the last of them resets the counter."""
    counter, parts = _counter(plan), plan.splits
    return [
        f"if (lane == 0) & (split < {plan.combining}):",
        "    cute.arch.inline_ptx(",
        f'        "{{ .reg .pred p; .reg .s32 n; again: ld.relaxed.gpu.global.s32 n, [{{$r0}}]; setp.lt.s32 p, n, {parts};"',
        '        " @p bra again; mov.s32 {$w0}, n; }",',
        "        write_only_types=[cutlass.Int32],",
        f"        read_only_args=[(counters.iterator + ({counter})).toint()],",
        "    )",
        f"    left = cute.arch.atomic_add(counters.iterator + ({counter}), cutlass.Int32(1),"
        ' sem="relaxed", scope="gpu")',
        f"    if left == {parts + plan.combining - 1}:",
        f"        counters[{counter}] = cutlass.Int32(0)",
    ]


def store(plan: AttentionPlan) -> list[str]:
    """Store the combined columns of a thread's rows."""
    problem = plan.problem
    modes = "".join(f", {mode.at.text(head_axes(problem))}" for mode in problem.matrix.matrix.modes)
    column = f"{first_column(plan)} + lane % 4 * 2 + 8 * e + i"
    return [
        "for row in cutlass.range_constexpr(2):",
        f"    if first_query + 8 * row < {problem.queries}:",
        f"        for e in cutlass.range_constexpr({combined_columns(plan) // 8}):",
        "            for i in cutlass.range_constexpr(2):",
        f"                columns_of_output[first_query + 8 * row, {column}{modes}] = rounded_output[4 * e + 2 * row + i]",
    ]


def query_of(plan: AttentionPlan) -> str:
    """Return the first query of a thread whose partials are combined: of the first warp, if all warps combine its rows."""
    return f"first_query - {ROWS_OF_WARP} * group_warp" if plan.spread_columns else "first_query"


def combine(plan: AttentionPlan) -> list[str]:
    """Combine partials relative to the largest maximum, in the order of the keys, so that all launches agree.

    If all queries are those of one warp, each of the four combines a quarter of their columns.
    """
    columns = combined_columns(plan)
    quads, all_quads = columns // 4 // QUAD, plan.output_columns // 4 // QUAD
    together = MOST_LOADED * 4 // columns
    if (
        plan.problem.latent and plan.combining == 1 and plan.splits <= together
    ):  # without a loop, all loads are in flight, and the accumulator spills
        together = 1
    source, first = ("lane", f"{quads} * group_warp + ") if plan.spread_columns else ("group_thread", "")
    first = f"{quads} * split + " if plan.combining > 1 else first
    return [
        "output.fill(0.0)",
        "for row in cutlass.range_constexpr(2):",
        f"    highest[row] = {NEGATIVE_INFINITY}",
        "    total[row] = cutlass.Float32(0.0)",
        f"    if {query_of(plan)} + 8 * row < {plan.problem.queries}:",
        f"        for part in {_parts(plan, MOST_LOADED // QUAD)}:",
        f"            cute.autovec_copy(partials[None, {source}, {2 * all_quads}, {place(plan, 'part')}], quad)",
        "            highest[row] = cute.arch.fmax(highest[row], quad[row])",
        f"        for part in {_parts(plan, together)}:",
        f"            place_of_part = {place(plan, 'part')}",
        f"            cute.autovec_copy(partials[None, {source}, {2 * all_quads}, place_of_part], quad)",
        f"            factor = {factor_of(plan, 'quad[row]', 'highest[row]')}",
        "            total[row] = total[row] + factor * quad[2 + row]",
        f"            for e in cutlass.range_constexpr({quads}):",
        f"                cute.autovec_copy(partials[None, {source}, {first}{all_quads} * row + e, place_of_part], quad)",
        f"                for i in cutlass.range_constexpr({QUAD}):",
        f"                    {_ELEMENT} = {_ELEMENT} + factor * quad[i]",
    ]


def _parts(plan: AttentionPlan, together: int) -> str:
    """Return the range of parts, of which the loads of ``together`` are in flight: registers limit these."""
    return f"cutlass.range({plan.splits}, unroll={max(1, min(plan.splits, together))})"


def write(plan: AttentionPlan) -> list[str]:
    """Store the rounded output to shared memory; a warp that combined a part of the columns stores those."""
    if not plan.spread_columns:
        return ["cute.copy(stage_copy, stage_registers, stage_part[None, None, None, group])"]
    at_once = plan.spread_columns // COLUMNS_AT_ONCE
    return [
        "rows_part = stage_copy.get_slice(lane).partition_D(shared_o)",
        f"for e in cutlass.range_constexpr({at_once}):",
        f"    columns_part = rows_part[(None, {at_once} * group_warp + e), None, None, group]",
        "    cute.copy(stage_copy, stage_registers[(None, e), None, None], columns_part)",
    ]


MOST_LOADED = 128
"""Registers of loads in flight."""
