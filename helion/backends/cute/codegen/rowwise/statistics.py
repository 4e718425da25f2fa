"""Row statistics: reductions over a thread, its warp, and all warps and CTAs of a row."""

from __future__ import annotations

from ...plan.dtypes import itemsize
from ...plan.epilogue import Constant, EpilogueOperand
from ...plan.joint import OwnPart
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.extremes import packed_dtype, packed_extremes
from ...plan.rowwise.operands import Gather, Repeat
from ...plan.rowwise.passes import Schedule, gathered, gathers_late, numbers_at, schedule_of
from ...plan.rowwise.powers import fused_powers, fused_quotients, scaled_element
from ...plan.rowwise.records import RowPlan, RowProblem
from ..elements.quotients import INFINITY
from ..epilogue import EXPRESSIONS, literal
from ..rows import REDUCTIONS, found_at
from ..writer import Writer
from .centres import moved_sum, received_sums, row_sums_packed, sums_of, thread_sum, warp_sums
from .elements import (
    chains,
    divisors,
    first_term,
    own_name,
    pitch_of,
    place_of_repeat,
    position,
    row_expression,
    stored_word,
    value_name,
    warp_name,
)
from .wide import rows_of_groups


def _op(problem: RowProblem, value: int) -> str:
    return problem.epilogue.instruction(value).op


def print_statistics(out: Writer, plan: RowPlan) -> None:
    """Print the functions that begin a row, reduce a warp's elements, and exchange and combine the results."""
    problem, schedule = plan.problem, schedule_of(plan.problem)
    used = sorted({_op(problem, value) for level in schedule.reductions for value in level})
    for op in used:
        out.lines(("", ""))
        with out.block(f"def join_{op}(x, y):"):
            out.line(f"return {REDUCTIONS[op].join('x', 'y')}")
    _print_clear(out, plan, schedule)
    for number in range(len(schedule.reductions)):
        _print_fold(out, plan, schedule, number)
    if schedule.counts:
        _print_count(out, plan)
    for at, meeting in enumerate(schedule.meetings):
        _print_exchange(out, plan, schedule, at, meeting)
    _print_numbers(out, problem, schedule, 0)
    _print_number_stores(out, problem)


def _print_clear(out: Writer, plan: RowPlan, schedule: Schedule) -> None:
    problem, packed = plan.problem, packed_extremes(plan.problem, plan.layout)
    out.lines(("", ""))
    with out.block("def clear(row):"):
        out.lines(f"row.packed_{value} = None" for value in packed)
        for level in schedule.reductions:
            for value in (value for value in level if value not in packed):
                first, identity = first_term(schedule, value), REDUCTIONS[_op(problem, value)].identity
                out.line(f"for i in range({first}, {first + chains(schedule)}):")
                out.line(f"    row.terms[i] = Float32({identity})")
        if not schedule.reductions:
            out.line("return")


def _print_fold(out: Writer, plan: RowPlan, schedule: Schedule, number: int) -> None:
    """Print the reduction of a warp after pass ``number``, bit-identical in all lanes."""
    problem = plan.problem
    out.lines(("", ""))
    with out.block(f"def reduce_{number}(cta, row):"):
        out.lines(["gather(cta, row)"] if number == 0 and gathers_late(problem) else [])
        out.lines(["row.count, row.elements = count_elements(cta, row)"] if number == 0 and schedule.counts else [])
        for value in schedule.reductions[number]:
            join, first = f"join_{_op(problem, value)}", first_term(schedule, value)
            terms = f"[row.terms[i] for i in range({first}, {first + chains(schedule)})]"
            if number == 0 and value in packed_extremes(problem, plan.layout):
                dtype = packed_dtype(problem, value)
                terms = f"unpack_{dtype}([joined(row.packed_{value}, {_op(problem, value)}_{dtype})])"
            if schedule.centres and value in sums_of(problem, schedule):
                out.lines(thread_sum(problem, schedule, value, f"joined({terms}, {join})"))
                continue
            out.line(f"{warp_name(problem, value)} = butterfly(joined({terms}, {join}), 32, {join})")
        if schedule.centres:
            out.lines(warp_sums(problem, schedule) if number else [])
            return
        for part in schedule.joint if number == 0 else ():
            out.lines(_own(plan, part))
        for part in fused_powers(problem, schedule):
            own, result = own_name(problem, part), warp_name(problem, part.value)
            scaled = f"{result} = {result} * {own}_factor"
            out.line(_slope(problem, part, own) if number == 0 else scaled)


def _slope(problem: RowProblem, part: OwnPart, about: str) -> str:
    """Return the code that finds the slope, offset and factor of powers relative to a number."""
    found, scaled = f"{about}_slope, {about}_offset, {about}_factor", scaled_element(problem, part)
    assert scaled is not None
    if not scaled.op:
        return f"{found} = power_base({about})"
    if isinstance(scaled.by, Constant):
        by, inverse = f"Float32({scaled.by.text})", repr(1.0 / float(scaled.by.text))
    else:
        by = value_name(problem, scaled.by)
        inverse = f"{by}_short"
    factor, inverse = (by, inverse) if scaled.op == "mul" else (inverse, by)
    dtype = problem.epilogue.operands[scaled.element - 1].dtype
    element = f"unpack_{dtype}(pack_{dtype}([{about} * {inverse}] * 2))[0]"
    return f"{found} = scaled_power_base({about}, {factor}, {element})"


def _own(plan: RowPlan, part: OwnPart) -> list[str]:
    """Return the warp's own statistic: the mean of its elements, or their maximum, or 0 where that is not finite."""
    problem = plan.problem
    found = warp_name(problem, part.of)
    if part.kind == "powers":
        finite = f"cute.math.abs({found}) < {INFINITY}"
        return [f"{own_name(problem, part)} = Float32(cutlass.select_({finite}, {found}, Float32(0.0)))"]
    return [f"{own_name(problem, part)} = {found} * inverse(row.elements)"] if part.counts else []


def _print_count(out: Writer, plan: RowPlan) -> None:
    """Print the number of a row's elements in a thread and in its warp."""
    layout = plan.layout
    granules = [layout.kind(granule) for granule in range(layout.thread_granules)]
    sure = granules.count("all") * layout.lanes
    out.lines(("", ""))
    with out.block("def inverse(count):"):
        # of any accuracy: a sum and what it is corrected by have the same
        out.line("return cute.arch.rcp_approx(cute.arch.fmax(count, Float32(1.0)))")
    out.lines(("", ""))
    with out.block("def count_elements(cta, row):"):
        if len(set(granules)) == 1 and granules[0] == "all":
            out.line(f"return Float32({float(sure)}), Float32({float(32 * sure)})")
            return
        out.line(f"count = Float32({float(sure)})")
        with out.block(f"for granule, kind in enumerate({tuple(granules)!r}):"):
            out.line("inside = elements_inside(cta, row, granule, kind)")
            out.line('if kind == "some":')
            out.line(
                f"    count = count + Float32(cutlass.select_(inside[0], Float32({float(layout.lanes)}), Float32(0.0)))"
            )
            out.line('if kind == "edge":')
            out.line("    for each in inside:")
            out.line("        count = count + Float32(cutlass.select_(each, Float32(1.0), Float32(0.0)))")
        known = layout.partials == 1 and not plan.problem.columns_at_launch
        elements = f"Float32({float(plan.problem.n)})" if known else "butterfly(count, 32, add_counts)"
        out.line(f"return count, {elements}")
    out.lines(("", "", "def add_counts(x, y):", "    return x + y"))


def _print_exchange(out: Writer, plan: RowPlan, schedule: Schedule, at: int, meeting: tuple[int, ...]) -> None:
    """Print the message of each warp, and the combination of all messages in a fixed order."""
    problem, layout = plan.problem, plan.layout
    sent = [warp_name(problem, value) for value in schedule.sent(meeting)]
    sent += ["row.elements"] if schedule.counts else []
    words = [f"{name}.bitcast(Int32)" for name in sent]
    words += ["Int32(0)"] * (layout.slot_words - len(words) if layout.exchanges else 0)
    out.lines(("", ""))
    with out.block(f"def message_{at}(row):"):
        out.line(f"return [{', '.join(words)}]")
    out.lines(("", ""))
    with out.block(f"def combine_{at}(cta, row, slots):"):
        if not layout.exchanges:
            out.line(f"parts = [[{', '.join(sent)}]]")
        else:
            out.lines(_received(plan, len(sent)))
        packed = row_sums_packed(plan, schedule, meeting)
        out.lines(received_sums(plan, schedule) if packed else [])
        for number in meeting:
            for value in schedule.reductions[number]:
                if not packed or value not in sums_of(problem, schedule):
                    out.lines(_joined(plan, schedule, meeting, value))
                elif number:
                    out.line(moved_sum(problem, schedule, value))
            out.lines(_numbers(problem, schedule, number + 1))


def _received(plan: RowPlan, count: int) -> list[str]:
    """Return the code that reads the messages of all warps, a few by each lane."""
    layout = plan.layout
    width, size = min(layout.partials, 32), layout.slot_words * WORD_BYTES
    return [
        "parts = []",
        f"for i in range({-(-layout.partials // 32)}):",
        f"    address = slots + (cta.lane % {width} + i * 32) * {size}",
        f"    words = load_shared(address, 0, {size})",
        f"    parts.append([word.bitcast(Float32) for word in words[:{count}]])",
    ]


def _joined(plan: RowPlan, schedule: Schedule, meeting: tuple[int, ...], value: int) -> list[str]:
    """Return the code that combines the parts of one reduction."""
    problem = plan.problem
    places = {each: at for at, each in enumerate(schedule.sent(meeting))}
    known = {part.value: part for part in schedule.joint}
    join, width = f"join_{_op(problem, value)}", min(plan.layout.partials, 32)
    name = value_name(problem, value)
    if value not in known:
        return [f"{name} = butterfly(joined([part[{places[value]}] for part in parts], {join}), {width}, {join})"]
    lines = ["found = []", "for part in parts:"]
    lines += [f"    {line}" for line in _corrected(problem, known[value], places, len(places))]
    return [*lines, f"{name} = butterfly(joined(found, {join}), {width}, {join})"]


def _corrected(problem: RowProblem, part: OwnPart, places: dict[int, int], count: int) -> list[str]:
    """Return the code that corrects a part from the warp's own statistic to the one of the row."""
    received, about = f"part[{places[part.value]}]", f"part[{places[part.of]}]"
    if part.kind == "first":
        return [f"found.append({found_at(about, value_name(problem, part.of), received)})"]
    to = value_name(problem, part.about)
    if part.kind == "powers":
        scaled = "" if part.scale == 1.0 else f" * {part.scale!r}"
        return [
            f"shift = Float32(cutlass.select_({about} == {INFINITY}, Float32(0.0), {about}))",
            f"found.append({received} * cute.math.{part.op}((shift - {to}){scaled}))",
        ]
    off = f"off = {about} * inverse(part[{count}]) - {to}"
    if part.kind == "products":
        return [off, f"found.append({received} + part[{places[part.weights]}] * off)"]
    return [off, f"found.append({received} + part[{count}] * off * off)"]


def _numbers(problem: RowProblem, schedule: Schedule, level: int, without: frozenset[int] = frozenset()) -> list[str]:
    """Return the code of per-row instructions after `level` reductions, and of reciprocals of divisors."""
    lines = [
        f"{value_name(problem, value)} = {row_expression(problem, value, lambda x: value_name(problem, x), position)}"
        for value in numbers_at(problem, level)
        if value not in without
    ]
    for part in {*fused_quotients(problem, schedule).values()} if level == 2 else ():
        about, total = value_name(problem, part.about), value_name(problem, part.value)
        lines += [_slope(problem, part, about), f"{total}_share = {about}_factor / {total}"]
    for value, kinds in divisors(problem, schedule).items():
        known = problem.epilogue.levels[value] == level and value not in without
        if known and not _is_launch_number(problem, value):
            lines += _reciprocals(problem, value, kinds)
    return lines


def _reciprocals(problem: RowProblem, value: int, kinds: set[bool]) -> list[str]:
    """Return the code of a reciprocal, rounded (``True``) or scaled so that quotients by it are precise."""
    name = value_name(problem, value)
    return [
        f"{name}_short = 1.0 / {name}" if short else f"{name}_inverse = reciprocal({name})" for short in sorted(kinds)
    ]


def _is_launch_number(problem: RowProblem, value: int) -> bool:
    operands = problem.epilogue.operands
    return value <= len(operands) and operands[value - 1].kind == "number"


def _print_numbers(out: Writer, problem: RowProblem, schedule: Schedule, level: int) -> None:
    """Print the loads of a row's numbers, and what follows from them alone; gathers have a function of their own."""
    indices = {gather.operand: gather for gather in problem.gathers}
    repeats = {repeat.operand: repeat for repeat in problem.repeats}
    after = gathered(problem)
    out.lines(("", ""))
    with out.block("def begin(cta, row):"):
        for operand in problem.epilogue.of_kind("column"):
            if operand.label not in indices:
                out.lines(_load_number(problem, operand, "", repeats.get(operand.label)))
        out.lines(_numbers(problem, schedule, level, without=after))
        out.lines(rows_of_groups(problem))
        for value, kinds in divisors(problem, schedule).items():
            if _is_launch_number(problem, value):
                out.lines(_reciprocals(problem, value, kinds))
        out.lines(["gather(cta, row)"] if indices and not gathers_late(problem) else [])
        out.line("clear(row)")
    if not indices:
        return
    out.lines(("", ""))
    with out.block("def gather(cta, row):"):
        for operand in problem.epilogue.of_kind("column"):
            if operand.label in indices:
                out.lines(_load_number(problem, operand, f" + {_column(indices[operand.label])}"))
        early = frozenset(numbers_at(problem, level)) - after
        out.lines(_numbers(problem, schedule, level, without=early))


def _column(gather: Gather) -> str:
    """Return the column of the row that a gather reads."""
    column = f"Int64(row.{gather.index}_word)"
    if not gather.comparison:
        return column
    other = literal(gather.other) if isinstance(gather.other, Constant) else f"cta.{gather.other}"
    holds = EXPRESSIONS[gather.comparison](f"row.{gather.index}", other)
    return f"cutlass.select_({holds} != 0.0, {column}, Int64({gather.otherwise}))"


def _load_number(problem: RowProblem, operand: EpilogueOperand, place: str, repeat: Repeat | None = None) -> list[str]:
    size = itemsize(operand.dtype)
    word = f"row.{operand.label}_word"
    index = "row.index" if repeat is None else place_of_repeat("row.index", repeat)
    return [
        f"address = cta.{operand.label} + (Int64({index}) * {pitch_of(problem, operand)}{place}) * {size}",
        f"{word} = load_global(address, {size}, row.live)",
        f"row.{operand.label} = {_number(operand.dtype, word)}",
    ]


def _number(dtype: str, word: str) -> str:
    return {
        "float32": f"{word}.bitcast(Float32)",
        "bfloat16": f"({word} << 16).bitcast(Float32)",
        "float16": f"unpack_float16([{word}])[0]",
    }.get(dtype, f"{word}.to(Float32)")


def _print_number_stores(out: Writer, problem: RowProblem) -> None:
    """Print the stores of one number per row, by one thread of the row."""
    out.lines(("", ""))
    with out.block("def store_numbers(cta, row):"):
        out.line("first = row.live & (row.thread == 0) & (cta.rank == 0)")
        for output in problem.numbers:
            size, word = itemsize(output.dtype), stored_word(output.dtype, value_name(problem, output.value))
            address = f"cta.{output.label} + Int64(row.index) * {output.pitch * size}"
            out.line(f"store_element({address}, 0, {word}, 0, {size}, first)")
