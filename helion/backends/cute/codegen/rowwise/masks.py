"""Elements outside of a row in sums: some values are set to zero, of which products are zero as well."""

from __future__ import annotations

import functools

from ...plan.rowwise.passes import RowPass, Schedule
from ...plan.rowwise.records import RowProblem
from .stages import last_stage


def term_of(problem: RowProblem, schedule: Schedule, each: RowPass, reduction: int) -> int:
    """Return the value of each element that a pass accumulates for a reduction."""
    centre = schedule.centres.get(reduction) if each.number == 0 else None
    term = centre.difference if centre else problem.epilogue.instruction(reduction).arguments[0]
    assert isinstance(term, int)
    return term


@functools.lru_cache(maxsize=256)
def zeroed(problem: RowProblem, schedule: Schedule, each: RowPass) -> frozenset[int]:
    """Return the values that a pass sets to zero outside of a row, if other terms of its sums are products of them alone.

    None of its sums is masked then.
    """
    epilogue = problem.epilogue
    sums = [value for value in each.reduces if epilogue.instruction(value).op == "row_sum"]
    terms = {term_of(problem, schedule, each, value) for value in sums}
    factors = {term: {*made.arguments} for term in terms if (made := epilogue.made(term)) and made.op == "mul"}
    products = {term for term, given in factors.items() if given <= terms - factors.keys()}
    if not products or last_stage(problem, each.computes):
        return frozenset()
    return frozenset(terms - products)
