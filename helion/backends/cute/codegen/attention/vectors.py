"""Reads of sources of one number for each query and key: by TMA, or 16 bytes at a time.

TMA loads tiles of a bias to shared memory, from where matrix loads bring them to the registers of their scores. Other sources
are loaded from global memory. A thread has two scores of each eight keys. The four lanes of a row load eight elements of 16 bits each, and exchange pairs of
them. Elements of 32 bits, and those of rows that are not aligned so well, are loaded in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.attention.numbers import is_known
from ...plan.attention.operands import PAIR, VECTOR, RandomNumbers, Source, Table
from ...plan.attention.records import AttentionPlan, Formula
from ..setups import dsl
from .formula import head_axes

COLUMNS = 4
"""Columns of a block, of eight keys each, whose elements the lanes of a row load in one access each."""
DTYPES = ("bfloat16", "float16", "float32")


def width_of(plan: AttentionPlan, source: Source | Table | RandomNumbers) -> int:
    """Return the elements of an access of a source: those of two scores, or ``VECTOR``, or 1 if rows are not aligned to these."""
    problem = plan.problem
    moved = problem.spans_keys or problem.key_range is not None or plan.takes_quads
    if not isinstance(source, Source) or isinstance(source, RandomNumbers) or moved:
        return 1
    if source.kind != "exact" or source.dtype not in DTYPES:
        return 1
    steps = (problem.keys, source.pitches[0], source.offset, *(mode.stride for mode in source.modes))
    if source.pitches[1] != 1 or not all(map(is_known, steps)):
        return 1
    exchanged = source.dtype != "float32" and plan.keys % (VECTOR * COLUMNS) == 0
    widths = (VECTOR, PAIR) if exchanged else (PAIR,)
    return next((each for each in widths if all(step % each == 0 for step in steps)), 1)


def vector_functions(plan: AttentionPlan, formula: Formula) -> list[list[str]]:
    """Return the functions that load a row's elements of some columns, of sources that take them."""
    widths = [(source, width_of(plan, source)) for source in formula.sources if source is not plan.bias]
    return [_function(source, width) for source, width in widths if width > 1 and isinstance(source, Source)]


def loads(plan: AttentionPlan, source: Source, axes: Sequence[str]) -> list[str]:
    """Return the lines before the elements of a column. Those past the end, which are not used, are the last ones."""
    problem, width = plan.problem, width_of(plan, source)
    query = f"cutlass.min(first_query + 8 * row, {problem.queries - 1})"
    own = "" if width == PAIR else f" + lane % 4 * {VECTOR - PAIR}"
    key = f"cutlass.min(first_key{own} + 8 * column, {problem.keys - width})"
    heads = "".join(f", {mode.at.text(tuple(axes))}" for mode in source.modes)
    row = f"vectors_of_{source.label}(vector_{source.label}, lane, {query}, {key}{heads})"
    line = f"{source.label}_rows = [{row} for row in range(2)]"
    return [line] if width == PAIR else [f"if column % {COLUMNS} == 0:", f"    {line}"]


def element(plan: AttentionPlan, source: Source) -> str:
    """Return the element of a score, in fp32."""
    at = "i" if width_of(plan, source) == PAIR else f"2 * (column % {COLUMNS}) + i"
    return f"{source.label}_rows[row][{at}].to(cutlass.Float32)"


def _function(source: Source, width: int) -> list[str]:
    """Return the function of a row's elements of a lane: pairs of columns, each of four from another lane."""
    lines = [
        f"def vectors_of_{source.label}(vector, lane, *place):",
        f"    part = cute.make_rmem_tensor({width}, {dsl(source.dtype)})",
        "    at = cute.crd2idx(place, vector.layout)",
        f"    loaded = cute.make_tensor(vector.iterator + cute.assume(at, divby={width}), cute.make_layout({width}))",
        "    cute.autovec_copy(loaded, part)",
    ]
    if width == VECTOR:
        lines += [
            "    words = cute.recast_tensor(part, cutlass.Int32)",
            "    for width in (1, 2):",
            "        odd = (lane & width) != 0",
            "        for at in range(0, 4, 2) if width == 1 else range(2):",
            "            low, high = words[at], words[at + width]",
            "            taken = cute.arch.shuffle_sync_bfly(cutlass.select_(odd, low, high), offset=width)",
            "            words[at] = cutlass.select_(odd, taken, low)",
            "            words[at + width] = cutlass.select_(odd, high, taken)",
        ]
    return [*lines, "    return part"]


# Bias in shared memory ---------------------------------------------------------------------------------------------------


def partition(plan: AttentionPlan) -> list[str]:
    """Return the partition of the bias for its TMA loads, in the role that loads it."""
    if plan.bias is None:
        return []
    modes = ", ".join(["None"] * (2 + len(plan.bias.modes)))
    return [
        f"tiles_bias = cute.local_tile(tensor_bias, ({plan.group_rows}, {plan.keys}), ({modes}))",
        "to_bias, from_bias = cpasync.tma_partition(",
        "    tma_bias, 0, cute.make_layout(1), cute.group_modes(shared_bias, 0, 2), cute.group_modes(tiles_bias, 0, 2)",
        ")",
    ]


def load(plan: AttentionPlan, cursor: str) -> list[str]:
    """Return the loads of the bias of a tile's queries and the block's keys, one for each group of queries."""
    assert plan.bias is not None
    places = [mode.at.text(head_axes(plan.problem)) for mode in plan.bias.modes]
    source = ", ".join(["None", f"tile_m * {plan.groups} + part", "block", *places])
    return [
        f"for part in cutlass.range_constexpr({plan.groups}):",
        f"    cute.copy(tma_bias, from_bias[{source}], to_bias[None, {cursor}.index * {plan.groups} + part],"
        f" tma_bar_ptr=bias.producer_get_barrier({cursor}))",
    ]


def registers(plan: AttentionPlan) -> list[str]:
    """Return the registers of a block's bias, in the order of the scores, and the copy to them."""
    if plan.bias is None:
        return []
    dtype = dsl(plan.bias.dtype)
    return [
        f"bias_copy = cute.make_tiled_copy_C(cute.make_copy_atom(warp_level.LdMatrix8x8x16bOp(False, 4), {dtype}), mma_of_scores)",
        "bias_part = bias_copy.get_slice(group_thread).partition_S(shared_bias)",
        f"bias_values = cute.make_rmem_tensor(scores.shape, {dtype})",
        "bias_registers = bias_copy.retile(bias_values)",
    ]


def element_of_bias(bias: Source) -> str:
    """Return the bias of a score, in fp32: a pair of bfloat16 takes a shift and a mask."""
    if bias.dtype != "bfloat16":
        return "bias_values[4 * column + 2 * row + i].to(cutlass.Float32)"
    widened = '"and.b32 {$w0}, {$r0}, 0xffff0000;" if i else "shl.b32 {$w0}, {$r0}, 16;"'
    word = "cute.recast_tensor(bias_values, cutlass.Int32)[2 * column + row]"
    return f"cute.arch.inline_ptx({widened}, write_only_types=[cutlass.Float32], read_only_args=[{word}])"


def read_bias(plan: AttentionPlan, cursor: str) -> list[str]:
    """Return the copy of the group's bias from a stage."""
    stage = f"{cursor}.index * {plan.groups} + group"
    return [f"cute.copy(bias_copy, bias_part[None, None, None, {stage}], bias_registers)"]
