"""Reads of sources of one number for each query and key, 16 bytes at a time.

A thread has two scores of each eight keys, of which 16 bits each are an access of a few lanes. Here the four lanes of a row
load eight keys each, and exchange pairs of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.attention.numbers import is_known
from ...plan.attention.operands import RandomNumbers, Source, Table
from ...plan.attention.records import AttentionPlan, Formula
from ..setups import dsl

VECTOR = 8
"""Elements of 16 bits in one access."""
COLUMNS = 4
"""Columns of a block, of eight keys each, whose elements the lanes of a row load in one access each."""
DTYPES = ("bfloat16", "float16")


def takes_vectors(plan: AttentionPlan, source: Source | Table | RandomNumbers) -> bool:
    """Return whether the lanes of a row load a source in vectors: keys are contiguous, and all rows of the tensor aligned."""
    problem = plan.problem
    moved = problem.spans_keys or problem.key_range is not None or plan.takes_quads
    if not isinstance(source, Source) or source.kind != "exact" or source.dtype not in DTYPES or moved:
        return False
    steps = (problem.keys, source.pitches[0], source.offset, *(mode.stride for mode in source.modes))
    aligned = all(is_known(each) and each % VECTOR == 0 for each in steps)
    return aligned and source.pitches[1] == 1 and plan.keys % (VECTOR * COLUMNS) == 0


def vector_functions(plan: AttentionPlan, formula: Formula) -> list[list[str]]:
    """Return the function that loads a row's elements of four columns, if a source takes it."""
    return [_function(source) for source in formula.sources if takes_vectors(plan, source)]


def loads(plan: AttentionPlan, source: Source, axes: Sequence[str]) -> list[str]:
    """Return the lines before the elements of a column. Those past the end, which are not used, are the last ones."""
    problem = plan.problem
    query = f"cutlass.min(first_query + 8 * row, {problem.queries - 1})"
    key = f"cutlass.min(first_key + lane % 4 * {VECTOR - 2} + 8 * column, {problem.keys - VECTOR})"
    heads = "".join(f", {mode.at.text(tuple(axes))}" for mode in source.modes)
    row = f"vectors_of_{source.label}(vector_{source.label}, lane, {query}, {key}{heads})"
    return [f"if column % {COLUMNS} == 0:", f"    {source.label}_rows = [{row} for row in range(2)]"]


def element(source: Source) -> str:
    """Return the element of a score, in fp32."""
    return f"{source.label}_rows[row][2 * (column % {COLUMNS}) + i].to(cutlass.Float32)"


def _function(source: Source) -> list[str]:
    """Return the function of a row's elements of a lane: pairs of four columns, each from another lane of four."""
    return [
        f"def vectors_of_{source.label}(vector, lane, *place):",
        f"    part = cute.make_rmem_tensor({VECTOR}, {dsl(source.dtype)})",
        "    at = cute.crd2idx(place, vector.layout)",
        f"    loaded = cute.make_tensor(vector.iterator + cute.assume(at, divby={VECTOR}), cute.make_layout({VECTOR}))",
        "    cute.autovec_copy(loaded, part)",
        "    words = cute.recast_tensor(part, cutlass.Int32)",
        "    for width in (1, 2):",
        "        odd = (lane & width) != 0",
        "        for at in range(0, 4, 2) if width == 1 else range(2):",
        "            low, high = words[at], words[at + width]",
        "            taken = cute.arch.shuffle_sync_bfly(cutlass.select_(odd, low, high), offset=width)",
        "            words[at] = cutlass.select_(odd, taken, low)",
        "            words[at + width] = cutlass.select_(odd, high, taken)",
        "    return part",
    ]
