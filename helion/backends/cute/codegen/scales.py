"""Scales of blocks of K: loads into registers, and accumulation of a block's partial sums times its scales."""

from __future__ import annotations

import dataclasses
import re

from ..plan.counts import block_count
from ..plan.dtypes import DTYPES
from ..plan.records import WARP_THREADS, WGMMA_ROWS, GemmPlan
from ..plan.scales import Scale, Side
from ..roles.overlapped import Turn
from .epilogue import Fragment, converted, fragment
from .numbers import in_group
from .slices import sliced
from .writer import unrolled


def parameters(plan: GemmPlan) -> list[tuple[str, str, str]]:
    """Return the kernel's parameters: (name, annotation, the host's tensor of lines and blocks of K)."""
    found, scales = [], plan.problem.scales
    for scale in scales.factors if scales is not None else ():
        extent = plan.problem.m if scale.side == "row" else plan.problem.n
        blocks = -(-plan.problem.k // scales.k) if scales is not None and scales.micro else block_count(plan)
        layout = f"({-(-extent // scale.lines)}, {blocks}), stride=({scale.pitch}, {scale.k_pitch})"
        if scale.batch:
            shape, strides = (each.strip("()") for each in layout.split(", stride="))
            layout = f"({shape}, {plan.problem.batches}), stride=({strides}, {scale.batch})"
        found.append((scale.label, "cute.Tensor", f"cute.make_tensor({scale.label}, cute.make_layout({layout}))"))
    return found


def set_up(plan: GemmPlan) -> list[str]:
    """Define the registers of scales, and those of the totals where the accumulator is in tensor memory."""
    lines = []
    if plan.unit == "tcgen05":
        lines.append(f"total = cute.make_rmem_tensor({fragment(plan).values * plan.subtiles}, cutlass.Float32)")
    factors = []
    if row := plan.factor("row"):
        factors.append(f"row_factors = cute.make_rmem_tensor({_rows(plan).rows}, cutlass.Float32)")
        if _is_loaded_as_held(plan, row):
            factors.append(f"row_held = cute.make_rmem_tensor({_rows(plan).rows}, cutlass.{DTYPES[row.dtype].dsl})")
    if plan.factor("column"):
        factors.append(f"column_factors = cute.make_rmem_tensor({_columns(plan)}, cutlass.Float32)")
    turns: tuple[Turn, ...] = (0, 1) if plan.unit == "wgmma" and plan.accumulator_stages > 1 else (0,)
    return [*lines, *(of_turn(line, turn) for turn in turns for line in factors)]


def _rows(plan: GemmPlan) -> Fragment:
    """Return the layout of a thread's sums, for its rows. Those of warps with K tiles of their own are of 64 rows, whose
    scales the four threads with the same rows share."""
    places = fragment(plan)
    if not plan.sliced:
        return places
    first = f"own_rows * {WGMMA_ROWS} + lane % 4 * {sliced.BLOCK_ROWS} + lane // 4"
    return dataclasses.replace(places, rows=sliced.SCALES, first_row=first, row_offset=f"i * {sliced.LINES}")


def _columns(plan: GemmPlan) -> int:
    """Return the column scales per thread: with wgmma those of its columns.

    A thread with whole rows of tensor memory would need one per accumulator. There each lane of a warp has the scale of
    one column in 32.
    """
    if plan.one_column_factor:
        return 1
    return plan.tile[1] // 4 if plan.unit == "wgmma" else -(-plan.tile[1] // WARP_THREADS)


def load(plan: GemmPlan, rows: str, block: str, turn: Turn = 0) -> list[str]:
    """Load the scales of block number `block`; `rows` is the CTA's index among tiles along M."""
    lines = []
    if row := plan.factor("row"):
        places = _rows(plan)
        first = f"{rows} * {plan.cta_tile[0]} + {places.first_row} + {places.row_offset}"
        lines += [
            f"for i in cutlass.range_constexpr({places.rows}):",
            f"    {'row_held' if _is_loaded_as_held(plan, row) else 'row_factors'}[i] = {_factor(plan, row, first, block)}",
        ]
    column = plan.factor("column")
    if column and plan.one_column_factor:
        lines.append(f"column_factors[0] = {_factor(plan, column, f'tile_n * {plan.tile[1]}', block)}")
    elif column:
        of_thread = "lane % 4 * 2 + i // 2 * 8 + i % 2" if plan.unit == "wgmma" else f"i * {WARP_THREADS} + lane"
        place = f"tile_n * {plan.tile[1]} + {of_thread}"
        lines += [
            f"for i in cutlass.range_constexpr({_columns(plan)}):",
            f"    column_factors[i] = {_factor(plan, column, place, block)}",
        ]
    return [of_turn(line, turn) for line in lines]


def _factor(plan: GemmPlan, scale: Scale, line: str, block: str) -> str:
    """Return a scale; indices past the last line are clamped, because their results are not stored."""
    extent, tile = _extents(plan, scale.side)
    if not scale.pitch:
        line = "0"
    else:
        grouped = scale.side == "row" and plan.problem.groups is not None
        line = in_group(plan, line) if grouped else line
        line = f"cutlass.min({line}, {extent - 1})" if extent % tile or grouped else line
        line = f"({line}) // {scale.lines}" if scale.lines > 1 else line
    held = f"{scale.label}[{line}, {block}{', batch' if scale.batch else ''}]"
    return held if scale.side == "row" and _is_loaded_as_held(plan, scale) else f"{held}.to(cutlass.Float32)"


def _is_loaded_as_held(plan: GemmPlan, row: Scale) -> bool:
    """Return whether a scale of rows is converted where it is used: a conversion after the load would wait for it, and
    only the next K tile needs it."""
    return plan.converts and row.dtype != "float32"


def _extents(plan: GemmPlan, side: Side) -> tuple[int, int]:
    """Return the extent of D, and that of a step over it: of a cluster's tiles, times the lanes of a warp with a column
    each."""
    at = 0 if side == "row" else 1
    lanes = WARP_THREADS if side == "column" and plan.tile[1] % WARP_THREADS else 1
    return (plan.problem.m, plan.problem.n)[at], plan.tile[at] * plan.cluster_tiles[at] * lanes


def of_turn(text: str, turn: Turn) -> str:
    """Return code with the registers of the other one of two accumulators that take turns, and of its scales."""
    return re.sub(r"\b(sums|row_factors|row_held|column_factors)\b", r"other_\1", text) if turn else text


def promote(plan: GemmPlan, cursor: str | None, turn: Turn = 0) -> list[str]:
    """Add the partial sums of a block to the totals: as they are, rounded in pairs, or times the scales of the block.

    The scales of a row and of a tile of columns are multiplied first, so that each accumulator takes one instruction.
    """
    if plan.problem.rounded:
        values = plan.tile[1] // 2 * plan.row_atoms
        added = [f"    {of_turn(line, turn)}" for line in add_rounded("sums", "total", plan.problem.rounded)]
        return [f"for e in {unrolled(0, values, 2)}:", *added]
    if plan.problem.scales is None:
        return [f"total.store(total.load() + {of_turn('sums', turn)}.load())"]
    lines, row = [], plan.factor("row")
    if row and _is_loaded_as_held(plan, row):
        lines += [
            f"for i in cutlass.range_constexpr({fragment(plan).rows}):",
            "    row_factors[i] = row_held[i].to(cutlass.Float32)",
        ]
    if row and plan.one_column_factor:
        lines += [
            f"for i in cutlass.range_constexpr({fragment(plan).rows}):",
            "    row_factors[i] = row_factors[i] * column_factors[0]",
        ]
    if plan.unit == "wgmma":
        lines += _add(plan, "sums", "total[i]", plan.tile[1] // 2 * plan.row_atoms)
        return [of_turn(line, turn) for line in lines]
    values = fragment(plan).values
    drained = [
        f"cute.copy(sums_copy, sums_part[None, None, None, 0, subtile, {cursor}.index], values)",
        "cute.arch.fence_view_async_tmem_load()",
        *converted(plan, ["values"]),
        *_add(plan, "values", f"total[subtile * {values} + i]", values),
    ]
    return [*lines, f"for subtile in cutlass.range_constexpr({plan.subtiles}):", *(f"    {line}" for line in drained)]


_WIDENED = {
    "bfloat16": "cvt.rn.bf16x2.f32 p, {$r1}, {$r0}; shl.b32 {$w0}, p, 16; and.b32 {$w1}, p, 0xffff0000;",
    "float16": "cvt.rn.f16x2.f32 p, {$r1}, {$r0}; mov.b32 {low, high}, p; cvt.f32.f16 {$w0}, low; cvt.f32.f16 {$w1}, high;",
}
"""Instructions that round two numbers to a type and widen them again."""


def rounded_pair(one: str, other: str, dtype: str) -> list[str]:
    """Return the lines that round two numbers to ``dtype``, as ``low`` and ``high`` in fp32."""
    return [
        "low, high = cute.arch.inline_ptx(",
        f'    "{{ .reg .b32 p; .reg .b16 low, high; {_WIDENED[dtype]} }}",',
        "    write_only_types=[cutlass.Float32, cutlass.Float32],",
        f"    read_only_args=[{one}, {other}],",
        ")",
    ]


def add_rounded(terms: str, totals: str, dtype: str) -> list[str]:
    """Return the lines that round registers ``e`` and ``e + 1`` to ``dtype``, and add them to others."""
    return [
        *rounded_pair(f"{terms}[e]", f"{terms}[e + 1]", dtype),
        f"{totals}[e] = {totals}[e] + low",
        f"{totals}[e + 1] = {totals}[e + 1] + high",
    ]


def _add(plan: GemmPlan, sums: str, total: str, values: int) -> list[str]:
    """Accumulate this many values of a thread."""
    term, factor = f"{sums}[i]", "column_factors[0]"
    if plan.problem.operand_dtype == "int8" and plan.unit == "wgmma":
        term = f"{term}.to(cutlass.Float32)"
    if plan.factor("column") and not plan.one_column_factor:
        factor = _column(plan)
        term = f"{term} * {_row(plan)}" if plan.factor("row") else term
    elif plan.factor("row"):
        factor = _row(plan)
    return [
        f"for i in {unrolled(values) if plan.unit == 'wgmma' else f'cutlass.range_constexpr({values})'}:",
        f"    {total} = cute.math.fma({term}, {factor}, {total})",
    ]


def _column(plan: GemmPlan) -> str:
    """Return the scale of the column of value ``i``, from the lane that has it."""
    if plan.unit == "wgmma":
        return f"column_factors[i % {plan.tile[1] // 2} // 4 * 2 + i % 2]"
    whole = "i // 4 * 8" if plan.paired else "i"
    within = f" + i % 2 + {fragment(plan).first_column}" if plan.paired else ""
    first = f"(subtile * {plan.epilogue_n} + {whole})"
    return f"cute.arch.shuffle_sync(column_factors[{first} // {WARP_THREADS}], offset={first} % {WARP_THREADS}{within})"


def _row(plan: GemmPlan) -> str:
    """Return the scale of the row of value ``i``."""
    if not plan.paired:
        return "row_factors[0]"
    atom = plan.tile[1] // 2
    return "row_factors[i // 2 % 2]" if plan.row_atoms == 1 else f"row_factors[i // 2 % 2 + i // {atom} * 2]"
