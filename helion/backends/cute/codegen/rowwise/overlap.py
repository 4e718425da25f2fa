"""The map of a row that overlaps with the reduction of a later one."""

from __future__ import annotations

from ...plan.rowwise.passes import RowPass, schedule_of
from ...plan.rowwise.records import RowPlan
from ..writer import Writer


def print_overlap(out: Writer, plan: RowPlan) -> None:
    """Print the last pass over ``row``, and the first over ``next_row``, by granules: both read the same vectors."""
    layout, schedule = plan.layout, schedule_of(plan.problem)
    first, last, size = schedule.passes[0], schedule.passes[-1], layout.chunk_granules
    out.lines(("", ""))
    out.line(f"def walk_{last.number}_and_reduce(cta, row, next_row):")
    with out.block(f"    for granule in range({layout.thread_granules}):"):
        out.line(f"    chunk, at = granule // {size}, granule % {size}")
        for name, each in (("next_row", first), ("row", last)):
            given = "".join(f", {load}" for load in _loads(plan, each, name))
            out.line(f"    pass_{each.number}(cta, {name}, granule, KINDS[granule]{given})")
        out.line(f"    if at == {size - 1} or granule == {layout.thread_granules - 1}:")
        out.line(f"        arrive(cta.barrier + ({layout.stages} + row.stages[chunk]) * 8, cta.lane == 0)")


def _loads(plan: RowPlan, each: RowPass, row: str) -> list[str]:
    """Return the loads of the granule of each input that a pass reads, from the stage of a row."""
    inputs = {plan.problem.value_of(operand): operand.label for operand in plan.problem.inputs}
    return [f"load_{inputs[value]}(cta, {row}, {row}.stages[chunk], at)" for value in each.reads if value in inputs]
