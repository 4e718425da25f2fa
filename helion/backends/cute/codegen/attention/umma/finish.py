"""The correction of outputs in tensor memory, of which a thread has those of one query, and their end."""

from __future__ import annotations

from collections.abc import Sequence

from ......hardware import VECTOR_BYTES
from ....plan.attention.umma import UmmaPlan
from ....plan.dtypes import itemsize
from ...setups import dsl
from .. import numbers
from ..finish import STORE_NUMBER, Ends
from ..formula import arguments_of, head_axes

MOST_CHUNK = 32
"""Columns that a thread has in registers at a time."""


def chunk_of(columns: int) -> int:
    """Return the columns of one load of tensor memory: the largest power of two up to ``MOST_CHUNK`` that divides them."""
    return min(MOST_CHUNK, columns & -columns)


def finish_lines(plan: UmmaPlan, axes: Sequence[str]) -> list[str]:
    """Return the lines of the kernel. Their loop over chunks stays rolled: the addresses of its stores would fill registers."""
    chunks = plan.problem.v.columns // chunk_of(plan.problem.v.columns)
    of_rows, of_chunk = (", ".join(each) for each in (_of_row_arguments(plan, axes), _chunk_arguments(plan, axes)))
    made = "".join(f"{name}, " for name in _row_names(plan))
    read = [
        "cute.copy(output_reads, from_parts[None, None, part, group], values)",
        "cute.arch.fence_view_async_tmem_load()",
    ]
    combined = "combine_chunk(partials, correction_thread, first_part, values, message, part, has_query)"
    call = f"{made.removesuffix(' ')} = finish_row({of_rows})" if made else f"finish_row({of_rows})"
    return [
        *([call] if _row_lines(plan) else []),
        f"for part in cutlass.range({chunks}, unroll=1):",
        *(f"    {line}" for line in ([combined] if plan.splits > 1 else read)),
        f"    finish_chunk({of_chunk})",
    ]


def _of_row_arguments(plan: UmmaPlan, axes: Sequence[str]) -> list[str]:
    vectors = [f"vector_{output.label}" for output in plan.problem.outputs if output.kind == "query"]
    limits = ["query_limit"] if plan.problem.spans_queries else []
    given = ["message", "query", *axes, *vectors, *arguments_of(plan.problem.finish)]
    return [*given, *limits, *numbers.parameters(plan)]


def _chunk_arguments(plan: UmmaPlan, axes: Sequence[str]) -> list[str]:
    given = ["values", "stage", "part", "correction_thread", *_row_names(plan), "message", "query", *axes]
    return [*given, *arguments_of(plan.problem.finish), *numbers.parameters(plan)]


def _row_names(plan: UmmaPlan) -> list[str]:
    """Return the names of the values per query that elements are computed from."""
    formula, ends = plan.problem.finish, Ends(plan, pairs=False)
    found: list[str] = []
    for at, made in enumerate(formula.instructions):
        if ends.rows[formula.computed + at]:
            continue
        for place, each in enumerate(made.arguments):
            if isinstance(each, int) and ends.rows[each]:
                inverted = made.op == "div" and place == 1 and each in ends.divisors
                found.append(ends.name(each) + "_inverse" * inverted)
    if ends.rows[plan.problem.matrix.value]:
        found.append(ends.name(plan.problem.matrix.value))
    return list(dict.fromkeys(found))


def correction_functions(plan: UmmaPlan) -> list[list[str]]:
    """Return the functions that rescale the output of a row, finish it, and store numbers per query."""
    rescale = [_rescale(plan)] if plan.problem.softmax else []
    of_rows = [_finish_row(plan)] if _row_lines(plan) else []
    functions = [*rescale, *of_rows, _finish_chunk(plan)]
    stores = any(output.kind == "query" for output in plan.problem.outputs)
    return [*([STORE_NUMBER] if stores else []), *functions]


def _rescale(plan: UmmaPlan) -> list[str]:
    """Return the function that multiplies a row of the output by its factor, unless those of the whole warp are 1."""
    columns = plan.problem.v.columns
    chunk = chunk_of(columns)
    return [
        "@cute.jit",
        "def rescale(output_reads, output_writes, from_parts, to_parts, values, factor):",
        "    if cute.arch.vote_any_sync(factor != 1.0):",
        f"        for part in cutlass.range_constexpr({columns // chunk}):",
        "            cute.copy(output_reads, from_parts[None, None, part], values)",
        "            cute.arch.fence_view_async_tmem_load()",
        f"            for pair in cutlass.range_constexpr({chunk // 2}):",
        "                values[2 * pair], values[2 * pair + 1] = cute.arch.mul_packed_f32x2(",
        "                    (values[2 * pair], values[2 * pair + 1]), (factor, factor)",
        "                )",
        "            cute.copy(output_writes, values, to_parts[None, None, part])",
        "        cute.arch.fence_view_async_tmem_store()",
    ]


def _finish_row(plan: UmmaPlan) -> list[str]:
    """Return the function of the values of a query, which stores those that are outputs."""
    axes, names = head_axes(plan.problem), _row_names(plan)
    return [
        f"def finish_row({', '.join(_of_row_arguments(plan, axes))}):",
        *_row_lines(plan),
        *([f"    return {', '.join(names)}{',' * (len(names) == 1)}"] if names else []),
    ]


def _row_lines(plan: UmmaPlan) -> list[str]:
    """Return what is computed and stored for a query, or nothing."""
    stored, ends = [output for output in plan.problem.outputs if output.kind == "query"], Ends(plan, pairs=False)
    return [*ends.of_rows(), *(f"    {ends.stored(each)}" for each in stored)]


def _finish_chunk(plan: UmmaPlan) -> list[str]:
    """Return the function of a chunk's elements, which go to shared memory."""
    problem = plan.problem
    axes, stored = head_axes(problem), dsl(problem.matrix.dtype)
    chunk, width = chunk_of(problem.v.columns), VECTOR_BYTES // itemsize(problem.matrix.dtype)
    return [
        f"def finish_chunk({', '.join(_chunk_arguments(plan, axes))}):",
        *_of_elements(plan, chunk),
        f"    rounded = cute.make_rmem_tensor({width}, {stored})",
        f"    for vector in range({chunk // width}):",
        f"        for e in range({width}):",
        f"            rounded[e] = values[{width} * vector + e].to({stored})",
        f"        place = (correction_thread, {chunk // width} * part + vector)",
        f"        cute.autovec_copy(rounded, cute.local_tile(stage, (1, {width}), place))",
    ]


def _of_elements(plan: UmmaPlan, chunk: int) -> list[str]:
    """Return the loop over the elements of a chunk: their formula, from the accumulator relative to the maximum."""
    restored, ends = " * message[2]" if plan.restores_maxima and plan.splits == 1 else "", Ends(plan, pairs=False)
    return [
        f"    for e in range({chunk}):",
        f"        column = {chunk} * part + e",
        f"        x0 = values[e]{restored}",
        *ends.of_element(),
        f"        values[e] = {ends.one(plan.problem.matrix.value)}",
    ]
