"""Reductions of groups of columns: lanes of a warp have a group, and one of them stores its numbers."""

from __future__ import annotations

from ...plan.dtypes import itemsize
from ...plan.epilogue import GROUP_REDUCTIONS
from ...plan.rowwise.records import RowPlan
from ..rows import REDUCTIONS
from ..writer import Writer
from .elements import stored_word


def print_groups(out: Writer, plan: RowPlan) -> None:
    """Print the functions that join two values of a group, and that store the number of a granule's group."""
    problem, layout = plan.problem, plan.layout
    used = {instruction.op for instruction in problem.epilogue.instructions} & {*GROUP_REDUCTIONS}
    for op in sorted(used):
        join = REDUCTIONS[GROUP_REDUCTIONS[op]].join("x", "y")
        out.lines(("", "", f"def join_{op}(x, y):", f"    return {join}"))
    for output in problem.groups:
        size, each = itemsize(output.dtype), problem.epilogue.grouped[output.value] // layout.lanes
        out.lines(("", ""))
        with out.block(f"def store_{output.label}(cta, row, granule, value):"):
            out.line(f"place = row.base + row.thread + granule * {layout.threads}")
            out.line(f"first = is_inside(cta, row, granule) & (place % {each} == 0)")
            out.line(f"address = row.{output.label}_address + Int64(place // {each}) * {size}")
            out.line(f"store_element(address, 0, {stored_word(output.dtype, 'value')}, 0, {size}, first)")
