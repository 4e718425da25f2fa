"""Reductions of groups of columns that no warp has at once, such as sums of the channels of a group norm's gradient.

Lanes of a warp reduce parts of a group over one granule each, and store them in shared memory. After the last pass over
a row, some lanes add up the parts of each group in a fixed order. One of them stores what follows from these.
"""

from __future__ import annotations

from ...plan.dtypes import itemsize
from ...plan.epilogue import GROUP_REDUCTIONS, Constant, EpilogueOperand, EpilogueOutput
from ...plan.rowwise.choice import WARP_LANES
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.records import RowLayout, RowPlan, RowProblem
from ..writer import Writer
from .elements import pitch_of, place_of_repeat, position, row_expression, stored_word, value_name, widened


def granules_of(layout: RowLayout, operand: EpilogueOperand) -> int:
    """Return the granules of a group of columns with one number of an operand."""
    return operand.group // layout.lanes


def print_numbers_of_groups(out: Writer, plan: RowPlan) -> None:
    """Print a function for each operand of groups, which reads the number of a granule's group."""
    for operand in plan.problem.epilogue.of_kind("group"):
        out.lines(("", ""))
        with out.block(f"def group_{operand.label}(cta, row, granule):"):
            out.line(f"place = row.base + row.thread + granule * {plan.layout.threads}")
            out.lines(_load(plan.layout, operand, "place", "is_inside(cta, row, granule)"))
            out.line(f"return {widened(operand.dtype)}")


def _load(layout: RowLayout, operand: EpilogueOperand, place: str, inside: str) -> list[str]:
    size = itemsize(operand.dtype)
    address = f"row.{operand.label}_address + Int64({place} // {granules_of(layout, operand)}) * {size}"
    return [f"word = load_global({address}, {size}, {inside})"]


def rows_of_groups(problem: RowProblem) -> list[str]:
    """Return the code that finds a row's numbers of groups, of each operand that has such."""
    repeats, lines = {repeat.operand: repeat for repeat in problem.repeats}, []
    for operand in problem.epilogue.of_kind("group"):
        repeat, size = repeats.get(operand.label), itemsize(operand.dtype)
        index = "row.index" if repeat is None else place_of_repeat("row.index", repeat)
        offset = f"Int64({index}) * {pitch_of(problem, operand)} * {size}"
        lines.append(f"row.{operand.label}_address = cta.{operand.label} + {offset}")
    return lines


def print_wide(out: Writer, plan: RowPlan) -> None:
    """Print the functions that store a part of a wide group, and that add up the parts of all groups of a row."""
    problem, layout = plan.problem, plan.layout
    if not problem.wide:
        return
    lanes, count = layout.demand.part_lanes, layout.group_parts
    first = f"cta.parts + cta.group * {len(problem.wide) * count * WORD_BYTES}"
    out.lines(("", ""))
    with out.block("def hold_part(cta, row, granule, number, value):"):
        # All lanes of a part have its value, and store it at one address.
        out.line(f"place = (row.thread + granule * {layout.threads}) // {lanes} + number * {count}")
        out.line(f"store_shared({first} + place * {WORD_BYTES}, value.bitcast(Int32), {WORD_BYTES})")
    each = layout.demand.group // layout.lanes
    parts = each // lanes
    width = min(WARP_LANES, 1 << (parts.bit_length() - 1))
    # A lane without a group reads the last one's parts: those of another would be outside of the shared memory.
    groups, at_once = layout.thread_granules * layout.threads // each, layout.threads // width
    assert 1 <= groups <= count // parts, "a CTA has no whole group of columns"
    for number, value in enumerate(problem.wide):
        join = f"join_{problem.epilogue.instruction(value).op}"
        out.lines(("", ""))
        with out.block(f"def group_total_{value}(cta, row, group):"):
            out.line(f"first = {first} + (group * {parts} + {number * count}) * {WORD_BYTES}")
            out.line(f"at = row.thread % {width}")
            out.line(f"total = load_plane(first + at * {WORD_BYTES}, 0, {WORD_BYTES}).bitcast(Float32)")
            with out.block(f"for i in range(1, {parts // width}):"):
                out.line(f"word = load_plane(first + at * {WORD_BYTES}, i * {width * WORD_BYTES}, {WORD_BYTES})")
                out.line(f"total = {join}(total, word.bitcast(Float32))")
            if parts % width:
                out.line(f"rest = cutlass.min(at + {parts - parts % width}, {parts - 1})")
                out.line(f"word = load_plane(first + rest * {WORD_BYTES}, 0, {WORD_BYTES})")
                joined = f"{join}(total, word.bitcast(Float32))"
                out.line(f"total = Float32(cutlass.select_(at < {parts % width}, {joined}, total))")
            out.line(f"return butterfly(total, {width}, {join})")
    out.lines(("", ""))
    with out.block("def store_groups(cta, row):"):
        out.line(f"count = row.granules // {each}")
        with out.block(f"for i in range({-(-groups // at_once)}):"):
            out.line(f"group = row.thread // {width} + i * {at_once}")
            out.line(f"inside = (group < count) & (row.thread % {width} == 0)")
            out.line(f"group = cutlass.min(group, {groups - 1})")
            out.line(f"place = row.base + group * {each}")
            out.lines(_values(plan))
            for output in problem.wide_groups:
                out.line(_store(problem, output, each))


def _values(plan: RowPlan) -> list[str]:
    """Return the code of the numbers of a group: its reductions, and what follows from these."""
    problem, epilogue, lines = plan.problem, plan.problem.epilogue, []
    wanted = {output.value for output in problem.wide_groups}
    for value in range(epilogue.last, len(epilogue.operands), -1):
        if value in wanted and value not in problem.wide and not epilogue.per_row[value]:
            wanted |= {x for x in epilogue.instruction(value).arguments if not isinstance(x, Constant)}
    for value in sorted(wanted):
        name = value_name(problem, value)
        if value <= len(epilogue.operands):
            operand = epilogue.operands[value - 1]
            if operand.kind == "group":
                lines += [*_load(plan.layout, operand, "place", "inside"), f"{name} = {widened(operand.dtype)}"]
        elif value in problem.wide:
            lines.append(f"{name} = group_total_{value}(cta, row, group)")
        elif not epilogue.per_row[value]:
            assert epilogue.instruction(value).op not in GROUP_REDUCTIONS, f"value {value} is of groups within a warp"
            made = row_expression(problem, value, lambda x: value_name(problem, x), position)
            lines.append(f"{name} = {made}")
    return lines


def _store(problem: RowProblem, output: EpilogueOutput, each: int) -> str:
    size, word = itemsize(output.dtype), stored_word(output.dtype, value_name(problem, output.value))
    place = f"Int64(row.index) * {output.pitch} + Int64(place // {each})"
    return f"store_element(cta.{output.label} + ({place}) * {size}, 0, {word}, 0, {size}, inside)"
