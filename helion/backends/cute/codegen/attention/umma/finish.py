"""The correction of outputs in tensor memory, of which a thread has those of one query, and their end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ......hardware import VECTOR_BYTES
from ....plan.attention.numbers import text_of
from ....plan.attention.records import ACCUMULATOR, MAXIMUM, TOTAL, AttentionOutput
from ....plan.attention.umma import UmmaPlan
from ....plan.dtypes import itemsize
from ...setups import dsl
from .. import numbers, spans
from ..formula import arguments_of, computed, head_axes, per_row, read
from ..softmax import NEGATIVE_INFINITY

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
        *([call] if _row_lines(plan, axes) else []),
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
    formula, rows, divisors = plan.problem.finish, _rows(plan), _divisors(plan)
    found: list[str] = []
    for at, made in enumerate(formula.instructions):
        if rows[formula.computed + at]:
            continue
        for place, each in enumerate(made.arguments):
            if isinstance(each, int) and rows[each]:
                inverted = made.op == "div" and place == 1 and each in divisors
                found.append(f"{_name(plan, each)}_inverse" if inverted else _name(plan, each))
    if rows[plan.problem.matrix.value]:
        found.append(_name(plan, plan.problem.matrix.value))
    return list(dict.fromkeys(found))


def correction_functions(plan: UmmaPlan) -> list[list[str]]:
    """Return the functions that rescale the output of a row, finish it, and store numbers per query."""
    rescale = [_rescale(plan)] if plan.problem.softmax else []
    of_rows = [_finish_row(plan)] if _row_lines(plan, head_axes(plan.problem)) else []
    functions = [*rescale, *of_rows, _finish_chunk(plan)]
    if any(output.kind == "query" for output in plan.problem.outputs):
        functions.insert(
            0,
            [
                "@cute.jit",
                "def store_number(vector: cute.Tensor, place, value, inside):",
                "    if inside:",
                "        vector[place] = value",
            ],
        )
    return functions


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
        *_row_lines(plan, axes),
        *([f"    return {', '.join(names)}{',' * (len(names) == 1)}"] if names else []),
    ]


def _row_lines(plan: UmmaPlan, axes: Sequence[str]) -> list[str]:
    """Return what is computed and stored for a query, or nothing."""
    stored = [output for output in plan.problem.outputs if output.kind == "query"]
    return [*_of_rows(plan, axes), *(f"    {_stored(plan, each, axes)}" for each in stored)]


def _finish_chunk(plan: UmmaPlan) -> list[str]:
    """Return the function of a chunk's elements, which go to shared memory."""
    problem = plan.problem
    axes, stored = head_axes(problem), dsl(problem.matrix.dtype)
    chunk, width = chunk_of(problem.v.columns), VECTOR_BYTES // itemsize(problem.matrix.dtype)
    return [
        f"def finish_chunk({', '.join(_chunk_arguments(plan, axes))}):",
        *_of_elements(plan, axes, chunk),
        f"    rounded = cute.make_rmem_tensor({width}, {stored})",
        f"    for vector in range({chunk // width}):",
        f"        for e in range({width}):",
        f"            rounded[e] = values[{width} * vector + e].to({stored})",
        f"        place = (correction_thread, {chunk // width} * part + vector)",
        f"        cute.autovec_copy(rounded, cute.local_tile(stage, (1, {width}), place))",
    ]


def _name(plan: UmmaPlan, value: int) -> str:
    formula = plan.problem.finish
    if value < formula.starts:
        return {ACCUMULATOR: "x0", TOTAL: "total", MAXIMUM: "highest"}[value]
    if value < formula.computed:
        return f"{formula.sources[value - formula.starts].label}_value"
    return f"x{value - formula.computed + 1}"


def _of_rows(plan: UmmaPlan, axes: Sequence[str]) -> list[str]:
    """Return the definitions of the values with one number per query, and the reciprocals of divisors."""
    formula, columns, rows = plan.problem.finish, plan.problem.v.columns, _rows(plan)
    lines = _maximum_and_total(plan)
    for at, source in enumerate(formula.sources):
        if rows[formula.starts + at]:
            lines.append(f"    {source.label}_value = {read(plan, source, axes, 'query', '0', columns)}")
    for at in range(len(formula.instructions)):
        value = formula.computed + at
        if rows[value]:
            text = computed(formula, value, lambda each: _name(plan, each), ("query", "0"))
            lines.append(f"    {_name(plan, value)} = {text}")
    return [
        *lines,
        *(f"    {_name(plan, each)}_inverse = cute.arch.rcp_approx({_name(plan, each)})" for each in _divisors(plan)),
    ]


def _rows(plan: UmmaPlan) -> list[bool]:
    return per_row(plan.problem.finish, (TOTAL, MAXIMUM))


def _maximum_and_total(plan: UmmaPlan) -> list[str]:
    """Return the definitions of the maximum and the sum of a row.

    A query that has seen no key has the initial maximum, and may have a sum of NaN.
    """
    problem = plan.problem
    if not problem.softmax:
        return ["    total = message[0]"] * problem.needs_total
    scale = f" * {problem.scale!r}" if problem.scale != 1.0 else ""
    start = 'float("-inf")' if math.isinf(problem.start) else repr(problem.start)
    unseen = f"message[1] == {NEGATIVE_INFINITY}"
    lines = [f"    highest = cutlass.Float32(cutlass.select_({unseen}, cutlass.Float32({start}), message[1]{scale}))"]
    if not problem.lacks_sum:
        return [*lines, "    total = message[0]"]
    nan = 'cutlass.Float32(float("nan"))'
    return [*lines, f"    total = cutlass.Float32(cutlass.select_({unseen}, {nan}, message[0]))"]


def _divisors(plan: UmmaPlan) -> list[int]:
    """Return the values per query by which elements are divided: their reciprocals have an error of one rounding."""
    rows, formula = _rows(plan), plan.problem.finish
    found = [
        made.arguments[1]
        for at, made in enumerate(formula.instructions)
        if made.op == "div" and not rows[formula.computed + at]
    ]
    return [each for each in dict.fromkeys(found) if isinstance(each, int) and rows[each]]


def _stored(plan: UmmaPlan, output: AttentionOutput, axes: Sequence[str]) -> str:
    first = f"{row} + " if (row := spans.row_of(plan, output.matrix)) else ""
    places = ", ".join([f"{first}query", *(mode.at.text(tuple(axes)) for mode in output.matrix.modes)])
    comma = "" if output.matrix.modes else ","
    value = f"{_name(plan, output.value)}.to({dsl(output.dtype)})"
    queries = "query_limit" if plan.problem.spans_queries else text_of(plan.problem.queries)
    return f"store_number(vector_{output.label}, ({places}{comma}), {value}, query < {queries})"


def _of_elements(plan: UmmaPlan, axes: Sequence[str], chunk: int) -> list[str]:
    """Return the loop over the elements of a chunk: their formula, from the accumulator relative to the maximum."""
    problem, formula = plan.problem, plan.problem.finish
    rows, value, divisors = _rows(plan), problem.matrix.value, _divisors(plan)
    restored = " * message[2]" if plan.restores_maxima and plan.splits == 1 else ""
    lines = [
        f"    for e in range({chunk}):",
        f"        column = {chunk} * part + e",
        f"        x0 = values[e]{restored}",
    ]
    for at, source in enumerate(formula.sources):
        if not rows[formula.starts + at]:
            text = read(plan, source, axes, "query", "column", problem.v.columns)
            lines.append(f"        {source.label}_value = {text}")
    for at, made in enumerate(formula.instructions):
        number = formula.computed + at
        if rows[number]:
            continue
        text = computed(formula, number, lambda each: _name(plan, each), ("query", "column"))
        if made.op == "div" and made.arguments[1] in divisors:
            one, other = made.arguments
            assert isinstance(one, int) and isinstance(other, int)
            text = f"{_name(plan, one)} * {_name(plan, other)}_inverse"
        lines.append(f"        {_name(plan, number)} = {text}")
    return [*lines, f"        values[e] = {_name(plan, value)}"]
