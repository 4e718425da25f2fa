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
from .formula import arguments_of, computed, definitions, head_axes, per_row, read
from .softmax import NEGATIVE_INFINITY


def finish_call(plan: AttentionPlan, axes: Sequence[str]) -> list[str]:
    """Return the call in the kernel."""
    vectors = [f"vector_{output.label}" for output in plan.problem.outputs if output.kind == "query"]
    given = ["output", "rounded_output", *_registers(plan), splits.query_of(plan), "lane", *_first_column(plan), *axes]
    given += [*vectors, *arguments_of(plan.problem.finish), *_limits(plan), *numbers.parameters(plan)]
    return [f"finish({', '.join(given)})"]


def _first_column(plan: AttentionPlan) -> list[str]:
    """Return the first column of a thread's registers, unless these have all columns."""
    if plan.combining > 1:
        return [splits.first_column(plan)]
    if plan.problem.latent:
        return [f"group * {plan.output_columns}"]
    return [f"group_warp * {plan.spread_columns}"] if plan.spread_columns else []


def finish_functions(plan: AttentionPlan) -> list[list[str]]:
    """Return the function of a tile's end, and the guarded store of numbers per query."""
    problem, ends = plan.problem, Ends(plan)
    vectors = [output for output in problem.outputs if output.kind == "query"]
    columns = ["first_column"] if _first_column(plan) else []
    given = ["output", "rounded_output", *_registers(plan), "first_query", "lane", *columns, *ends.axes]
    given += [*(f"vector_{each.label}" for each in vectors), *arguments_of(problem.finish), *_limits(plan)]
    given += numbers.parameters(plan)
    lines = [f"def finish({', '.join(given)}):", *ends.of_rows()]
    for each in vectors:
        lines += [f"    {line}" for line in _stored(ends, each)]
    lines += [
        *_of_elements(ends),
        f"    rounded_output.store(output.load().to({dsl(problem.matrix.dtype)}))",
    ]
    return [*([STORE_NUMBER] if vectors else []), lines]


def _limits(plan: AttentionPlan) -> list[str]:
    return ["query_limit"] if plan.problem.spans_queries else []


def _registers(plan: AttentionPlan) -> list[str]:
    """Return the registers of two rows that outputs are computed from."""
    return ["highest"] * plan.problem.softmax + ["total"] * plan.problem.needs_total


class Ends:
    """The formula at a tile's end as text. Values with one number per query are lists of both rows of a thread, or are of its only
    row, if ``pairs`` is false."""

    def __init__(self, plan: AttentionPlan, pairs: bool = True) -> None:
        self.plan, self.pairs, self.formula = plan, pairs, plan.problem.finish
        self.axes = head_axes(plan.problem)
        self.rows = per_row(self.formula, (TOTAL, MAXIMUM))
        """Flags by value, true for one number per query."""
        self.query = "first_query + 8 * row" if pairs else "query"
        own = [made for at, made in enumerate(self.formula.instructions) if not self.rows[self.formula.computed + at]]
        divisors = [made.arguments[1] for made in own if made.op == "div"]
        self.divisors = [each for each in dict.fromkeys(divisors) if isinstance(each, int) and self.rows[each]]
        """Values per query by which elements are divided. Their reciprocals have an error of one rounding of fp32, and the output
        has 16 bits."""

    def name(self, value: int) -> str:
        """Return the name of a value."""
        formula, suffix = self.formula, "_rows" if self.pairs and self.rows[value] else ""
        if value < formula.starts:
            return {ACCUMULATOR: "x0", TOTAL: "total", MAXIMUM: "highest"}[value] + suffix
        if value < formula.computed:
            return formula.sources[value - formula.starts].label + (suffix or "_value")
        return f"x{value - formula.computed + 1}{suffix}"

    def one(self, value: int) -> str:
        """Return a value of the current row."""
        return f"{self.name(value)}[row]" if self.pairs and self.rows[value] else self.name(value)

    def _defined(self, name: str, text: str) -> str:
        return f"    {name} = [{text} for row in range(2)]" if self.pairs else f"    {name} = {text}"

    def of_rows(self) -> list[str]:
        """Return the definitions of the values with one number per query, and of the reciprocals of divisors."""
        formula, columns = self.formula, self.plan.problem.v.columns
        lines = self._maxima_and_totals()
        for at, source in enumerate(formula.sources):
            value = formula.starts + at
            if self.rows[value]:
                text = read(self.plan, source, self.axes, self.query, "0", columns)
                lines.append(self._defined(self.name(value), text))
        for value in range(formula.computed, formula.computed + len(formula.instructions)):
            if self.rows[value]:
                text = computed(formula, value, self.one, (self.query, "0"))
                lines.append(self._defined(self.name(value), text))
        for value in self.divisors:
            text = f"cute.arch.rcp_approx({self.one(value)})"
            lines.append(self._defined(f"{self.name(value)}_inverse", text))
        return lines

    def _maxima_and_totals(self) -> list[str]:
        """Return the definitions of maxima and sums. A query that has seen no key has the initial maximum, and may have a sum of
        NaN."""
        problem, names = self.plan.problem, (MAXIMUM, TOTAL)
        most, total = ("highest[row]", "total[row]") if self.pairs else ("message[1]", "message[0]")
        lines = [total] * problem.needs_total
        if problem.softmax:
            scale = f" * {problem.scale!r}" if problem.scale != 1.0 else ""
            start = 'float("-inf")' if math.isinf(problem.start) else repr(problem.start)
            unseen = f"cutlass.Float32(cutlass.select_({most} == {NEGATIVE_INFINITY}, cutlass.Float32("
            lines = [f"{unseen}{start}), {most}{scale}))", *lines]
            if problem.lacks_sum:
                lines[1:] = [f'{unseen}float("nan")), {total}))']
        return [
            self._defined(self.name(each), text)
            for each, text in zip(names[-len(lines) :] if lines else (), lines, strict=True)
        ]

    def of_element(self) -> list[str]:
        """Return the definitions of an element's values, from the accumulator."""
        lines, formula = [], self.formula
        for at, source in enumerate(formula.sources):
            if not self.rows[formula.starts + at]:
                text = read(self.plan, source, self.axes, "query", "column", self.plan.problem.v.columns)
                lines.append(f"        {source.label}_value = {text}")
        for at, made in enumerate(formula.instructions):
            value = formula.computed + at
            if self.rows[value]:
                continue
            text = computed(formula, value, self.one, ("query", "column"))
            if made.op == "div" and made.arguments[1] in self.divisors:
                one, other = made.arguments
                assert isinstance(one, int) and isinstance(other, int)
                text = f"{self.one(one)} * {self.name(other)}_inverse{'[row]' * self.pairs}"
            lines.append(f"        {self.name(value)} = {text}")
        return lines

    def stored(self, output: AttentionOutput, condition: str = "{}") -> str:
        """Return the store of a number per query; ``condition`` is met by one of the threads that have it, and holds that there
        is such a query."""
        first = f"{row} + " if (row := spans.row_of(self.plan, output.matrix)) else ""
        modes = output.matrix.modes
        places = ", ".join([f"{first}{self.query}", *(mode.at.text(self.axes) for mode in modes)]) + "," * (not modes)
        value = f"{self.one(output.value)}.to({dsl(output.dtype)})"
        queries = "query_limit" if self.plan.problem.spans_queries else text_of(self.plan.problem.queries)
        inside = condition.format(f"{self.query} < {queries}")
        return f"store_number(vector_{output.label}, ({places}), {value}, {inside})"


STORE_NUMBER = [
    "@cute.jit",
    "def store_number(vector: cute.Tensor, place, value, inside):",
    "    if inside:",
    "        vector[place] = value",
]
"""The guarded store of a number per query."""


def _stored(ends: Ends, output: AttentionOutput) -> list[str]:
    """Return the stores of both rows, by the first of the four lanes, and of the groups, that share them."""
    only = " & (first_column == 0)" if _first_column(ends.plan) else ""
    return ["for row in range(2):", f"    {ends.stored(output, f'(lane % 4 == 0) & ({{}}){only}')}"]


def _of_elements(ends: Ends) -> list[str]:
    plan, value = ends.plan, ends.plan.problem.matrix.value
    if value == ACCUMULATOR:
        return []
    column = f"{'first_column + ' if _first_column(plan) else ''}lane % 4 * 2 + e // 4 * 8 + e % 2"
    lines = ends.of_element()
    return [
        f"    for e in range({splits.combined_columns(plan) // 2}):",
        "        row = e // 2 % 2",
        *(f"        {line}" for line in definitions({"query": "first_query + 8 * row", "column": column}, lines)),
        "        x0 = output[e]",
        *lines,
        f"        output[e] = {ends.one(value)}",
    ]
