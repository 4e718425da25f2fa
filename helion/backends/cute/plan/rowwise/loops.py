"""Loops over the chunks of a row, in place of code for each granule of a thread."""

from __future__ import annotations

import functools

from .extremes import packed_extremes
from .passes import schedule_of
from .records import RowPlan

LEAST_CHUNKS = 4
"""Chunks of a row from which the passes over a row in shared memory are loops."""
UNROLLED_CHUNKS = 2
"""Chunks in a step of such a loop."""
LEAST_OPERATIONS = 4096
"""Operations of a thread in all passes over a row from which they are. Straight code of so many takes longer to compile, and does not
stay in the cache of instructions (measurement ``row_loops``)."""
_REDUCTIONS = {"row_sum", "row_maximum", "row_minimum"}


@functools.lru_cache(maxsize=256)
def walks_in_loops(plan: RowPlan) -> bool:
    """Return whether loops run over the chunks of a row in shared memory, of which several passes read each.

    Partial results are then in registers with an index. So there are no words that stay packed, values of the first
    granule, or places of columns.
    """
    layout, problem = plan.layout, plan.problem
    schedule = schedule_of(problem)
    if not layout.held_stages or layout.chunks < LEAST_CHUNKS or layout.choice.rows_ahead or layout.choice.overlap:
        return False
    if layout.thread_granules != layout.chunks * layout.chunk_granules:
        return False
    if not layout.aligned or layout.by_words or layout.choice.loads_itself or layout.lanes % 4:
        return False
    if (
        problem.sums
        or problem.groups
        or problem.repeats
        or layout.demand.pairs
        or any(each.wide for each in schedule.passes)
    ):
        return False
    reductions = [value for found in schedule.reductions for value in found]
    if any(problem.epilogue.instruction(value).op not in _REDUCTIONS for value in reductions):
        return False
    if schedule.kept or schedule.centres or packed_extremes(problem, layout):
        return False
    operations = sum(len(each.computes) + len(each.reduces) + len(each.outputs) for each in schedule.passes)
    return operations * layout.lanes * layout.thread_granules >= LEAST_OPERATIONS


def in_loops(plan: RowPlan) -> bool:
    """Return whether any pass over a row is a loop over its chunks."""
    return plan.layout.rolled or walks_in_loops(plan)
