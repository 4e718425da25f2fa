"""Sums over rows that begin anywhere: those of one place within a granule are added to their columns in shared memory."""

from __future__ import annotations

from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.records import RowPlan
from ..writer import Writer
from .elements import columns_of, first_sum, pitch_of, slice_of


def print_planes(out: Writer, plan: RowPlan) -> None:
    """Print the functions that find the sums of a column, and add a thread's sums to those of its columns."""
    _print_place(out, plan)
    _print_add(out, plan)


def _print_place(out: Writer, plan: RowPlan) -> None:
    """Print the address of a column's first sum: in one plane for each column modulo the lanes of a granule."""
    lanes, length = plan.layout.lanes, plan.layout.slice_granules
    out.lines(("", ""))
    with out.block("def place_of_sum(cta, column):"):
        place = f"(column & {lanes - 1}) * {length} + (column >> {lanes.bit_length() - 1})"
        out.line(f"return cta.planes + ({place}) * {WORD_BYTES}")


def _print_add(out: Writer, plan: RowPlan) -> None:
    problem, layout = plan.problem, plan.layout
    out.lines(("", ""))
    with out.block("def add_sums(cta, block, residue):"):
        out.line("row = types.SimpleNamespace(thread=cta.row_thread, base=cta.base)")
        out.line(f"row.shift, row.granules = span(cta, block * {problem.span} + residue, Int32(1))")
        with out.block(f"for granule in range({layout.thread_granules}):"):
            out.line('inside = elements_inside(cta, row, granule, "edge")')
            out.line(f"first = (row.thread + granule * {layout.threads}) * {layout.lanes} - row.shift")
            with out.block(f"for i in range({layout.lanes}):"):
                out.line("place = place_of_sum(cta, cutlass.select_(inside[i], first + i, Int32(0)))")
                for at, output in enumerate(problem.sums):
                    value = f"cta.sums[{first_sum(plan, output)} + granule * {layout.lanes} + i]"
                    offset = at * layout.plane_bytes
                    out.line(f"before = load_shared(place, {offset}, {WORD_BYTES})[0].bitcast(Float32)")
                    out.line("before = Float32(cutlass.select_(residue == 0, Float32(0.0), before))")
                    out.line(f"put(place + {offset}, [(before + {value}).bitcast(Int32)], inside[i])")


def print_stored_planes(out: Writer, plan: RowPlan) -> None:
    """Print the loop that stores the sums of a block."""
    problem, layout = plan.problem, plan.layout
    columns = layout.slice_granules * layout.lanes
    mine = f" & (column < {slice_of(layout)} * {layout.lanes})" if layout.slices_at_launch else ""
    with out.block(f"for column in cutlass.range(row_thread, {columns}, {layout.threads}, unroll=4):"):
        out.line(f"place = cta.base * {layout.lanes} + column")
        for at, output in enumerate(problem.sums):
            out.line(f"word = load_shared(place_of_sum(cta, column), {at * layout.plane_bytes}, {WORD_BYTES})[0]")
            out.line(f"address = {output.label} + (Int64(block) * {pitch_of(problem, output)} + place) * {WORD_BYTES}")
            inside = f"(place < {columns_of(problem)}){mine}"
            out.line(f"store_element(address, 0, word, 0, {WORD_BYTES}, {inside if mine else inside[1:-1]})")
