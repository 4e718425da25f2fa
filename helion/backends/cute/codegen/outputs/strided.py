"""Stores of outputs by threads where TMA cannot take them: rows of any pitch, picked lines, and additions to memory."""

from __future__ import annotations

import re

from ...plan.dtypes import DTYPES, itemsize
from ...plan.epilogue import EpilogueOutput
from ...plan.records import WARP_ROWS, WARP_THREADS, WGMMA_ROWS, GemmPlan
from ...plan.shared import stores_lines
from ...roles.grammar import Role
from ..epilogue import column_number, fragment, row_number, strided_place, suffixed
from ..numbers import batched, last, of_team


def store_lines(plan: GemmPlan, output: EpilogueOutput, role: Role) -> list[str]:
    """Return the stores of a strided output by rows of the warp, which it gathers in shared memory."""
    width, values = plan.epilogue_n // (2 if output.pairs else 1), fragment(plan).values
    held, warp = f"{output.label}_rows", f"{of_team(plan, role, plan.consumer_warps)}store_warp"
    row, column = fragment(plan).row_of, fragment(plan).column_offset
    if width >= WARP_THREADS:
        at, along = f"i // {width // WARP_THREADS}", f"i % {width // WARP_THREADS} * {WARP_THREADS} + lane"
    else:
        at, along = f"i * {WARP_THREADS // width} + lane // {width}", f"lane % {width}"
    atom = "" if plan.row_atoms == 1 else f" + ({at}) // {WARP_ROWS} * {WGMMA_ROWS * plan.warpgroups - WARP_ROWS}"
    kept = f"{held}[{warp}, lane // 4 + ({row}) * 8, lane % 4 * 2 + {column}] = {suffixed(plan, 'rounded', output)}[i]"
    first, end = "first_column - lane % 4 * 2", last(plan, "n")
    if output.pairs:
        values, kept = values // 2, _of_pair(kept.replace(f"lane % 4 * 2 + {column}", f"lane % 4 + ({column}) // 2"))
        first, end = f"({first}) // 2", str(output.pairs - 1)
    return [
        f"for i in cutlass.range_constexpr({values}):",
        f"    {kept}",
        "cute.arch.sync_warp()",
        f"for i in cutlass.range_constexpr({WARP_ROWS * plan.row_atoms * width // WARP_THREADS}):",
        f"    line = first_row - lane // 4 + ({at}){atom}",
        f"    element = {first} + ({along})",
        f"    if line <= {last(plan, 'm')} and element <= {end}:",
        f"        {output.label}[line, element{batched(plan, output.label)}] = {held}[{warp}, {at}, {along}]",
        "cute.arch.sync_warp()",
    ]


def store_strided(plan: GemmPlan, output: EpilogueOutput, role: Role) -> list[str]:
    """Return the stores of the values of a strided output that are inside its bounds, or their additions."""
    if stores_lines(plan, output):
        return store_lines(plan, output, role)
    row, column = row_number(plan, fragment(plan).row_of), column_number(plan)
    end = last(plan, "m") if plan.problem.groups is None else "group_end - 1"
    inside, found = f"{row} <= {end}", list[str]()
    place = strided_place(plan, output.label, clamped=False, pairs=output.pairs)
    if output.lines is not None:
        line = f"{output.label}_lines[{fragment(plan).row_of}]"
        inside += f" and {line} >= 0 and {line} < {output.picked}"
        place = place.replace(row, line, 1)
        found += _read_lines(plan, output)
    value = f"{suffixed(plan, 'rounded', output)}[i]"
    stored = [f"{output.label}[{place}] = {value}"]
    if output.adds:
        element = f"to_element = {output.label}.iterator + cute.crd2idx(({place}), {output.label}.layout)"
        dtype = f"cutlass.{DTYPES[output.dtype].dsl}"
        stored = [element, f'cute.arch.red(to_element, {value}, op="add", dtype={dtype}, sem="relaxed", scope="gpu")']
    adds_pairs = output.adds and itemsize(output.dtype) == 2 and output.column_pitch == 1
    if adds_pairs:
        words = f"{suffixed(plan, 'rounded', output)}_pairs"
        found.append(f"{words} = cute.recast_tensor({suffixed(plan, 'rounded', output)}, cutlass.Uint32)")
        stored = [element, *_add_pair(output.dtype, f"{words}[i // 2]", column, last(plan, "n"))]
    body = [f"if {inside} and {column} <= {last(plan, 'n')}:", *(f"    {line}" for line in stored)]
    values = fragment(plan).values
    if output.pairs or adds_pairs:
        values, body = values // 2, [*map(_of_pair, body)]
    return [*found, f"for i in cutlass.range_constexpr({values}):", *(f"    {line}" for line in body)]


def _add_pair(dtype: str, pair: str, column: str, end: str) -> list[str]:
    """Return the addition of two neighbors in 16 bits to ``to_element``, the first of which is at a ``column`` up to the ``end``.

    The memory adds pairs at multiples of 4 bytes. It has no additions of one number: those are loops that compare and swap
    (measurement ``added_pairs``). So between such multiples, each of both is added as one of a pair, next to a negative zero,
    which changes nothing. A number at an end of the line is added alone, since its partner is another line's.
    """
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    add = f"red.relaxed.gpu.global.add.noftz.{kind}"
    lines = (
        "{ .reg .pred odd, second, both, left, right, one;",
        ".reg .b32 at, pair; .reg .b16 low, high;",
        "cvt.u32.u64 at, {$r0}; and.b32 at, at, 2; setp.ne.b32 odd, at, 0;",
        "setp.lt.s32 second, {$r2}, {$r3};",
        "not.pred one, odd; and.pred both, one, second;",
        f"@both {add}x2 [{{$r0}}], {{$r1}};",
        "mov.b32 {low, high}, {$r1};",
        "setp.gt.s32 left, {$r2}, 0; and.pred left, left, odd;",
        "shl.b32 pair, {$r1}, 16; or.b32 pair, pair, 0x8000;",
        f"@left {add}x2 [{{$r0}}+-2], pair;",
        "or.pred one, both, left; not.pred one, one;",
        f"@one {add} [{{$r0}}], low;",
        "add.s32 at, {$r2}, 1; setp.lt.s32 right, at, {$r3}; and.pred right, right, odd;",
        "shr.u32 pair, {$r1}, 16; or.b32 pair, pair, 0x80000000;",
        f"@right {add}x2 [{{$r0}}+2], pair;",
        "not.pred one, right; and.pred one, one, odd; and.pred one, one, second;",
        f"@one {add} [{{$r0}}+2], high; }}",
    )
    return [
        "cute.arch.inline_ptx(",
        *(f'    "{line} "' for line in lines[:-1]),
        f'    "{lines[-1]}",',
        f"    read_only_args=[to_element.toint(), {pair}, cutlass.Int32({column}), cutlass.Int32({end})],",
        ")",
    ]


def _of_pair(text: str) -> str:
    """Return the code of element ``i`` as that of the first element of pair ``i``."""
    return re.sub(r"\bi\b", "(i * 2)", text)


def numbers_name(output: EpilogueOutput) -> str:
    """Return the kernel's tensor of the numbers of an output's picked lines."""
    return f"{output.label}_numbers"


def _read_lines(plan: GemmPlan, output: EpilogueOutput) -> list[str]:
    """Return the loads of the numbers of the lines of a thread's rows."""
    rows = fragment(plan).rows
    return [
        f"{output.label}_lines = cute.make_rmem_tensor({rows}, cutlass.Int32)",
        f"for i in cutlass.range_constexpr({rows}):",
        f"    number = {numbers_name(output)}[cutlass.min({row_number(plan)}, {last(plan, 'm')})]",
        f"    {output.label}_lines[i] = number.to(cutlass.Int32)",
    ]
