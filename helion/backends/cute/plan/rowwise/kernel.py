"""The plan of one row kernel of the user, and a printable report."""

from __future__ import annotations

import functools

from ....._support.records import dataclass
from ...roles.rowwise.program import RowProgram, row_program
from ..epilogue import EpilogueOperand, EpilogueOutput
from ..launch import LaunchPlan
from .passes import schedule_of
from .records import RowPlan
from .time import described


@dataclass(frozen=True, kw_only=True)
class RowsPlan(LaunchPlan):
    """The plan of a kernel over rows, which is ``rows``."""

    rows: RowPlan

    @functools.cached_property
    def roles(self) -> RowProgram:
        """The programs of the warps, the pipelines between them and their barriers."""
        return row_program(self.rows)

    @property
    def shared_bytes(self) -> int:
        return self.rows.layout.shared_bytes

    def __str__(self) -> str:
        problem, layout, schedule = self.rows.problem, self.rows.layout, schedule_of(self.rows.problem)
        rows = "size_m" if problem.counted_at_launch else str(problem.m)
        columns = f"size_n, {problem.least} to {problem.n}," if problem.columns_at_launch else str(problem.n)
        lines = [
            f"{self.kernel_names[0]}: {rows} rows of {columns} columns",
            f"  {described(layout)}",
            f"  inputs: {_listed(problem.inputs)}; outputs: {_listed(problem.outputs)}",
        ]
        for each in schedule.passes:
            made = [problem.epilogue.instruction(value).op for value in (*each.computes, *each.reduces)]
            stored = "".join(f"; stores {output.name}" for output in each.outputs)
            of_groups = (*each.groups, *(problem.wide_groups if each.wide else ()))
            stored += "".join(f"; stores {output.name}" for output in of_groups)
            stored += "".join(f"; adds to {output.name}" for output in each.sums)
            lines.append(f"  pass {each.number}: {', '.join(made) or 'none'}{stored}")
        if problem.totals:
            lines.append(f"  a second kernel adds up {', '.join(output.name for output in problem.totals)}")
        joined = ", of two passes at once" if schedule.joint else ""
        count = len(schedule.meetings) if layout.exchanges else 0
        lines.append(f"  {count} exchanges between {layout.partials} warps{joined}")
        lines.append(f"roles, {self.roles.warps} warps:")
        lines += [f"  {role.name}: {role.warps} warps from {role.first_warp}" for role in self.roles.roles]
        lines.append(f"shared memory: {self.shared_bytes} of {self.rows.shared_limit_bytes} bytes")
        lines += [f"  {name}: {size} bytes at {offset}" for name, offset, size in layout.allocations]
        return "\n".join(lines)


def _listed(tensors: tuple[EpilogueOperand, ...] | tuple[EpilogueOutput, ...]) -> str:
    return ", ".join(f"{each.name} ({each.kind}, {each.dtype})" for each in tensors)
