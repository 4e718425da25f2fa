"""Queries that are computed in shared memory before they are multiplied."""

from __future__ import annotations

from ...plan.attention.records import AttentionPlan
from ...plan.records import WARPGROUP_THREADS
from ..setups import dsl
from .formula import arguments_of, computed

VECTOR = 8
"""Elements of 16 bits in one access of a thread."""


def queries_functions(plan: AttentionPlan) -> list[list[str]]:
    """Return the function that the consumer groups of a stage of Q run on it, if there is a formula.

    It computes element by element in any order, so that the swizzle of the stage does not matter.
    """
    formula, problem = plan.problem.query, plan.problem
    if not formula.instructions:
        return []
    elements = plan.group_rows * problem.q.columns
    step = WARPGROUP_THREADS * plan.column_groups * VECTOR

    def names(value: int) -> str:
        if value == 0:
            return "x0"
        return formula.sources[value - 1].label if value < formula.computed else f"x{value - formula.computed + 1}"

    lines = [
        f"def transform_queries({', '.join(['shared_q', 'group', 'thread', *arguments_of(formula)])}):",
        f"    values = cute.make_rmem_tensor({VECTOR}, {dsl(problem.q.dtype)})",
        f"    for at in range({elements // step}):",
        f"        first = group * {elements} + at * {step} + thread * {VECTOR}",
        f"        part = cute.make_tensor(shared_q.iterator + cute.assume(first, divby={VECTOR}), cute.make_layout({VECTOR}))",
        "        cute.autovec_copy(part, values)",
        f"        for i in range({VECTOR}):",
        "            x0 = values[i].to(cutlass.Float32)",
    ]
    for at in range(len(formula.instructions)):
        value = formula.computed + at
        lines.append(f"            {names(value)} = {computed(formula, value, names, ('', ''))}")
    lines += [
        f"            values[i] = {names(formula.value)}.to({dsl(problem.q.dtype)})",
        "        cute.autovec_copy(values, part)",
    ]
    return [lines]
