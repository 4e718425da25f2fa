"""The end of a tile: outputs computed from the accumulator, the row sums and the row maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...plan.attention.numbers import text_of
from ...plan.attention.records import (
    ACCUMULATOR,
    MAXIMUM,
    TOTAL,
    AttentionOutput,
    AttentionPlan,
)
from ..setups import dsl
from . import numbers, spans, splits
from .formula import arguments_of, computed, head_axes, per_row, read
from .softmax import NEGATIVE_INFINITY


def finish_call(plan: AttentionPlan, axes: Sequence[str]) -> list[str]:
    """Return the call in the kernel."""
    vectors = [f"vector_{output.label}" for output in plan.problem.outputs if output.kind == "query"]
    given = ["output", "rounded_output", *_registers(plan), splits.query_of(plan), "lane", *_first_column(plan), *axes]
    given += [*vectors, *arguments_of(plan.problem.finish), *_limits(plan), *numbers.parameters(plan)]
    return [f"finish({', '.join(given)})"]


def _first_column(plan: AttentionPlan) -> list[str]:
    """Return the first column of a thread's registers, unless these have all columns."""
    if plan.problem.latent:
        return [f"group * {plan.output_columns}"]
    return [f"group_warp * {plan.spread_columns}"] if plan.spread_columns else []


def finish_functions(plan: AttentionPlan) -> list[list[str]]:
    """Return the function of a tile's end, and the guarded store of numbers per query."""
    problem, formula = plan.problem, plan.problem.finish
    axes = head_axes(problem)
    vectors = [output for output in problem.outputs if output.kind == "query"]
    columns = ["first_column"] if _first_column(plan) else []
    given = ["output", "rounded_output", *_registers(plan), "first_query", "lane", *columns, *axes]
    given += [*(f"vector_{each.label}" for each in vectors), *arguments_of(formula), *_limits(plan)]
    given += numbers.parameters(plan)
    lines = [f"def finish({', '.join(given)}):", *_of_rows(plan, axes)]
    for each in vectors:
        lines += [f"    {line}" for line in _stored(plan, each, axes)]
    lines += _of_elements(plan, axes)
    lines.append(f"    rounded_output.store(output.load().to({dsl(problem.matrix.dtype)}))")
    functions = [lines]
    if vectors:
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


def _limits(plan: AttentionPlan) -> list[str]:
    return ["query_limit"] if plan.problem.spans_queries else []


def _registers(plan: AttentionPlan) -> list[str]:
    """Return the registers of two rows that outputs are computed from."""
    return ["highest"] * plan.problem.softmax + ["total"] * plan.problem.needs_total


def _name(plan: AttentionPlan, value: int) -> str:
    """Return the name of a value: a list of two rows, or an element."""
    formula = plan.problem.finish
    if value < formula.starts:
        return {ACCUMULATOR: "x0", TOTAL: "total_rows", MAXIMUM: "highest_rows"}[value]
    suffix = "rows" if _rows(plan)[value] else "value"
    if value < formula.computed:
        return f"{formula.sources[value - formula.starts].label}_{suffix}"
    return f"x{value - formula.computed + 1}" + ("_rows" if suffix == "rows" else "")


def _rows(plan: AttentionPlan) -> list[bool]:
    return per_row(plan.problem.finish, (TOTAL, MAXIMUM))


def _names(plan: AttentionPlan, value: int) -> str:
    return f"{_name(plan, value)}[row]" if _rows(plan)[value] else _name(plan, value)


def _of_rows(plan: AttentionPlan, axes: Sequence[str]) -> list[str]:
    """Return the definitions of the values with one number per query, as lists of both rows."""
    formula, columns, rows = plan.problem.finish, plan.problem.v.columns, _rows(plan)
    lines = _maxima_and_totals(plan)
    for at, source in enumerate(formula.sources):
        if rows[formula.starts + at]:
            text = read(plan, source, axes, "first_query + 8 * row", "0", columns)
            lines.append(f"    {source.label}_rows = [{text} for row in range(2)]")
    for at in range(len(formula.instructions)):
        value = formula.computed + at
        if rows[value]:
            text = computed(formula, value, lambda each: _names(plan, each), ("first_query + 8 * row", "0"))
            lines.append(f"    {_name(plan, value)} = [{text} for row in range(2)]")
    lines += [
        f"    {_name(plan, value)}_inverse = [cute.arch.rcp_approx({_name(plan, value)}[row]) for row in range(2)]"
        for value in _divisors(plan)
    ]
    return lines


def _maxima_and_totals(plan: AttentionPlan) -> list[str]:
    """Return the definitions of maxima and sums of both rows.

    A query that has seen no key has the initial maximum, and may have a sum of NaN.
    """
    problem = plan.problem
    totals = ["    total_rows = [total[row] for row in range(2)]"] * problem.needs_total
    if not problem.softmax:
        return totals
    scale = f" * {problem.scale!r}" if problem.scale != 1.0 else ""
    start = 'float("-inf")' if math.isinf(problem.start) else repr(problem.start)
    unseen = f"highest[row] == {NEGATIVE_INFINITY}"
    lines = [
        f"    highest_rows = [cutlass.Float32(cutlass.select_({unseen}, cutlass.Float32({start}), highest[row]{scale}))"
        " for row in range(2)]",
    ]
    if not problem.lacks_sum:
        return [*lines, *totals]
    nan = 'cutlass.Float32(float("nan"))'
    return [
        *lines,
        f"    total_rows = [cutlass.Float32(cutlass.select_({unseen}, {nan}, total[row])) for row in range(2)]",
    ]


def _divisors(plan: AttentionPlan) -> list[int]:
    """Return the values per query by which elements are divided. Their reciprocals have an error of one rounding of
    fp32, and the output has 16 bits."""
    rows = _rows(plan)
    found = [
        made.arguments[1]
        for at, made in enumerate(plan.problem.finish.instructions)
        if made.op == "div" and not rows[plan.problem.finish.computed + at]
    ]
    return [each for each in dict.fromkeys(found) if isinstance(each, int) and rows[each]]


def _stored(plan: AttentionPlan, output: AttentionOutput, axes: Sequence[str]) -> list[str]:
    """Return the stores of both rows, by the first of the four lanes, and of the groups, that share them."""
    first = f"{row} + " if (row := spans.row_of(plan, output.matrix)) else ""
    places = ", ".join([f"{first}first_query + 8 * row", *(mode.at.text(tuple(axes)) for mode in output.matrix.modes)])
    value = f"{_names(plan, output.value)}.to({dsl(output.dtype)})"
    queries = "query_limit" if plan.problem.spans_queries else text_of(plan.problem.queries)
    inside = f"(lane % 4 == 0) & (first_query + 8 * row < {queries})"
    inside += " & (first_column == 0)" if _first_column(plan) else ""
    return [
        "for row in range(2):",
        f"    store_number(vector_{output.label}, ({places}{',' if len(output.matrix.modes) == 0 else ''}), {value}, {inside})",
    ]


def _of_elements(plan: AttentionPlan, axes: Sequence[str]) -> list[str]:
    problem, formula = plan.problem, plan.problem.finish
    rows, value = _rows(plan), problem.matrix.value
    if value == ACCUMULATOR:
        return []
    lines = [
        f"    for e in range({(plan.spread_columns or plan.output_columns) // 2}):",
        "        row = e // 2 % 2",
        "        query = first_query + 8 * row",
        f"        column = {'first_column + ' if _first_column(plan) else ''}lane % 4 * 2 + e // 4 * 8 + e % 2",
        "        x0 = output[e]",
    ]
    for at, source in enumerate(formula.sources):
        if not rows[formula.starts + at]:
            text = read(plan, source, axes, "query", "column", problem.v.columns)
            lines.append(f"        {source.label}_value = {text}")
    divisors = _divisors(plan)
    for at, made in enumerate(formula.instructions):
        number = formula.computed + at
        if rows[number]:
            continue
        text = computed(formula, number, lambda each: _names(plan, each), ("query", "column"))
        if made.op == "div" and made.arguments[1] in divisors:
            one, other = made.arguments
            assert isinstance(one, int) and isinstance(other, int)
            text = f"{_names(plan, one)} * {_name(plan, other)}_inverse[row]"
        lines.append(f"        {_name(plan, number)} = {text}")
    return [*lines, f"        output[e] = {_names(plan, value)}"]
