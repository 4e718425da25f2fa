"""The stages of a pass: elements that depend on a reduction of their group of columns, or on another column, come after."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from ...plan.epilogue import GROUP_REDUCTIONS, PARTNER, Constant
from ...plan.rowwise.passes import RowPass
from ...plan.rowwise.records import RowPlan, RowProblem

STAGED = (*GROUP_REDUCTIONS, PARTNER)
"""Operations that read other columns of a granule."""


@functools.lru_cache(maxsize=256)
def _stages(problem: RowProblem) -> tuple[int, ...]:
    epilogue = problem.epilogue
    found = [0] * (1 + len(epilogue.operands))
    for instruction in epilogue.instructions:
        before = max((found[x] for x in instruction.arguments if isinstance(x, int)), default=0)
        number = len(found)
        found.append(0 if epilogue.per_row[number] else before + (instruction.op in STAGED))
    return tuple(found)


def stage_of(problem: RowProblem, value: int) -> int:
    """Return the number of operations on several columns that a value comes after; those of numbers of a row do not count."""
    return _stages(problem)[value]


def last_stage(problem: RowProblem, values: Iterable[int]) -> int:
    """Return the last stage of a pass with these values."""
    return max((stage_of(problem, value) for value in values), default=0)


def read_by(problem: RowProblem, value: int) -> set[int]:
    """Return the values that an instruction reads."""
    made = problem.epilogue.made(value)
    return {x for x in made.arguments if not isinstance(x, Constant)} if made is not None else set()


def divisors_of_groups(problem: RowProblem, values: Sequence[int]) -> set[int]:
    """Return the numbers of groups that elements are divided by."""
    epilogue, found = problem.epilogue, set()
    for value in values:
        made = epilogue.instruction(value)
        over = made.arguments[1] if made.op == "div" else None
        if isinstance(over, int) and epilogue.grouped[over] and not epilogue.grouped[value]:
            found.add(over)
    return found


def parts_of_wide(plan: RowPlan, each: RowPass) -> list[str]:
    """Return the code of a granule after its elements, which stores parts of wide groups."""
    lines = []
    for number, value in enumerate(each.wide):
        join = f"join_{plan.problem.epilogue.instruction(value).op}"
        part = f"butterfly(joined(wide_{value}_values, {join}), {plan.layout.demand.part_lanes}, {join})"
        lines.append(f"hold_part(cta, row, granule, {number}, {part})")
    return lines
