"""The passes of a row, for one granule each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...plan.dtypes import itemsize
from ...plan.epilogue import (
    COLUMN_NUMBER,
    GROUP_REDUCTIONS,
    PARTNER,
    ROUND_E4M3,
    ROW_NUMBER,
    ROW_PLACE,
    Constant,
    EpilogueOperand,
    EpilogueOutput,
    Instruction,
)
from ...plan.joint import OwnPart
from ...plan.rowwise.demand import GRANULE_BYTES
from ...plan.rowwise.extremes import IDENTITIES, packed_dtype, packed_extremes, rounded_pair
from ...plan.rowwise.logs import short_logs, summed_logs
from ...plan.rowwise.operands import Repeat
from ...plan.rowwise.passes import RowPass, Schedule, kept_bytes, schedule_of
from ...plan.rowwise.powers import fused_powers, fused_quotients, scaled_element
from ...plan.rowwise.records import SIZE_N, RowLayout, RowPlan, RowProblem, pitch_name
from ...plan.rowwise.shorts import short_quotients, short_values
from ..elements.quotients import has_inverse, near_quotient, near_quotients
from ..epilogue import SHORT, expression, literal
from ..rows import REDUCTIONS
from ..writer import Writer
from .masks import term_of, zeroed
from .stages import divisors_of_groups, last_stage, parts_of_wide, read_by, stage_of

CHAINS, FEWER_CHAINS = 4, 2
"""Independent partial results of a thread for each reduction, which hide latency; and where several sums do as well."""
SEVERAL = 4
"""Reductions of one walk from which they do."""
_NAMES = {"bool": "int8"}


def storage(dtype: str) -> str:
    """Return the suffix of the conversions of a type."""
    return _NAMES.get(dtype, dtype)


def value_name(problem: RowProblem, value: int) -> str:
    """Return the name of a value in the code of one element; per-row values are attributes."""
    epilogue = problem.epilogue
    if 0 < value <= len(epilogue.operands):
        operand = epilogue.operands[value - 1]
        if operand.kind == "number":
            return f"cta.{operand.label}"
        return f"row.{operand.label}" if operand.kind == "column" else f"{operand.label}_value"
    name = f"x{value - len(epilogue.operands)}"
    return f"row.{name}" if epilogue.per_row[value] else name


def chains(schedule: Schedule) -> int:
    """Return the partial results of a thread for each reduction."""
    several = len(schedule.passes[0].reduces) >= SEVERAL
    return FEWER_CHAINS if several else CHAINS


def first_term(schedule: Schedule, value: int) -> int:
    """Return the place of the first partial result of a reduction among those of a thread."""
    order = [each for level in schedule.reductions for each in level]
    return order.index(value) * chains(schedule)


def pitch_of(problem: RowProblem, tensor: EpilogueOperand | EpilogueOutput) -> str:
    """Return the stride of a tensor's rows, in elements."""
    if problem.has_launch_pitch(tensor):
        return f"cta.{pitch_name(tensor.label)}"
    follows = problem.columns_at_launch and tensor.pitch == problem.n
    return columns_of(problem) if follows else str(tensor.pitch)


def place_of_repeat(row: str, repeat: Repeat) -> str:
    """Return the number of the element, or of the row, that a row has of one that repeats."""
    divisor, modulus = (
        f"cta.{number}" if isinstance(number, str) else str(number) for number in (repeat.divisor, repeat.modulus)
    )
    return f"{row} // {divisor} % {modulus}"


def columns_of(problem: RowProblem) -> str:
    """Return the number of columns."""
    return f"cta.{SIZE_N}" if problem.columns_at_launch else str(problem.n)


def slice_of(layout: RowLayout) -> str:
    """Return the granules of a row in each CTA but the last."""
    return "cta.slice" if layout.slices_at_launch else str(layout.slice_granules)


def row_expression(problem: RowProblem, value: int, names: Callable[[int], str], position: Callable[[str], str]) -> str:
    """Return the expression of a value, as of an epilogue's, or of a rounding that only row kernels have."""
    made = problem.epilogue.instruction(value)
    if made.op == ROW_PLACE:
        divisor, modulus = (int(float(x.text)) for x in made.arguments if isinstance(x, Constant))
        return f"cutlass.Float32(row.index // {divisor} % {modulus})"
    if made.op == ROUND_E4M3:
        return f"rounded_float8({names(_reduced(made))})"
    if made.op == "div" and has_inverse(made.arguments[1]) and isinstance(x := made.arguments[0], int):
        return f"over({names(x)}, {made.arguments[1].text})"
    if value in near_quotients(problem):
        return near_quotient(*(literal(x) if isinstance(x, Constant) else names(x) for x in made.arguments))
    return expression(problem, value, names, position)


def stored_word(dtype: str, value: str) -> str:
    """Return the word that stores one number of a type."""
    return {
        "float8_e4m3fn": f"pack_float8_e4m3fn([{value}] * 4)[0]",
        "uint8": f"{value}.to(Int32)",
        "int8": f"{value}.to(Int32)",
        "float32": f"{value}.bitcast(Int32)",
        "int64": f"{value}.to(Int64)",
        "int32": f"{value}.to(Int32)",
    }.get(dtype, f"pack_{dtype}([{value}, {value}])[0]")


def first_sum(plan: RowPlan, output: EpilogueOutput) -> int:
    """Return the place of the first of an output's sums among those of a thread."""
    return plan.problem.sums.index(output) * plan.layout.thread_granules * plan.layout.lanes


def print_pass(out: Writer, plan: RowPlan, each: RowPass) -> None:
    """Print the function of a pass over one granule of a thread."""
    problem, schedule = plan.problem, schedule_of(plan.problem)
    matrices = [operand for operand in _read(problem, each) if operand.kind == "exact"]
    given = [f"{operand.label}_words" for operand in matrices] + (["kept_words"] if each.kept else [])
    out.lines(("", ""))
    with out.block(f"def pass_{each.number}(cta, row, granule, kind{''.join(f', {name}' for name in given)}):"):
        out.line("inside = elements_inside(cta, row, granule, kind)")
        for operand in _read(problem, each):
            words = f"{operand.label}_words"
            if operand.kind == "group":
                name = f"{operand.label}_value"
                out.line(f"{name} = group_{operand.label}(cta, row, granule)")
                over = problem.value_of(operand) in divisors_of_groups(problem, _needed(problem, schedule, each))
                out.lines([f"{name}_inverse = reciprocal({name})"] if over else [])
            elif operand.kind == "row":
                out.line(f"{operand.label}_values = vector_{operand.label}(cta, row, granule)")
            else:
                out.line(f"{operand.label}_values = unpack_{storage(operand.dtype)}({words})")
        if each.kept:
            out.line(f"kept_values = unpack_{_kept_dtype(problem, each.kept)}(kept_words)")
        keeps = schedule.kept and each.number == 0
        out.lines(["kept_values = []"] if keeps else [])
        out.lines(f"{output.label}_values = []" for output in each.outputs)
        out.lines(f"wide_{value}_values = []" for value in each.wide)
        places = [value for value in each.reduces if problem.epilogue.instruction(value).op == "row_first"]
        out.lines(f"candidates_{value} = []" for value in places)
        if each.number == 0:
            print_centres(out, plan, schedule, each)
        if numbers_columns(problem, each):
            out.line("first_column = column_of(cta, row, granule)")
            out.line("first_number = Float32(first_column)")
        for stage in range(1 + last_stage(problem, _needed(problem, schedule, each))):
            out.lines(_between(plan, schedule, each, stage))
            if lines := _element(plan, schedule, each, stage):
                out.lines([f"for i in range({plan.layout.lanes}):", *(f"    {line}" for line in lines)])
        for value in packed_extremes(problem, plan.layout) if each.number == 0 else ():
            out.lines(_packed(problem, value))
        for value in places:
            out.lines(_first_place(problem, schedule, value))
        for output in each.outputs:
            out.line(f"store_{output.label}(cta, row, granule, kind, inside, {output.label}_values)")
        out.lines(parts_of_wide(plan, each))
        if keeps:
            out.line(f"return pack_{_kept_dtype(problem, schedule.kept)}(kept_values)")


def _read(problem: RowProblem, each: RowPass) -> list[EpilogueOperand]:
    return [problem.epilogue.operands[value - 1] for value in each.reads]


def _kept_dtype(problem: RowProblem, value: int) -> str:
    op = problem.epilogue.instruction(value).op
    return op.removeprefix("round_") if kept_bytes(problem.epilogue, value) < 4 else "float32"


def numbers_columns(problem: RowProblem, each: RowPass) -> bool:
    made = [problem.epilogue.instruction(value).op for value in (*each.computes, *each.reduces)]
    return COLUMN_NUMBER in made or "row_first" in made


def _between(plan: RowPlan, schedule: Schedule, each: RowPass, stage: int) -> list[str]:
    """Return the code of a granule before a stage: its groups' reductions and what follows from them alone, then the lists
    of elements for later stages."""
    problem, needed = plan.problem, _needed(plan.problem, schedule, each)
    lines = []
    for value in needed:
        if not problem.epilogue.grouped[value] or stage_of(problem, value) != stage:
            continue
        name, made = value_name(problem, value), problem.epilogue.instruction(value)
        if made.op in GROUP_REDUCTIONS:
            lanes = problem.epilogue.grouped[value] // plan.layout.lanes
            joined = f"joined({value_name(problem, _reduced(made))}_each, join_{made.op})"
            lines.append(f"{name} = butterfly({joined}, {lanes}, join_{made.op})")
        else:
            lines.append(f"{name} = {_value(plan, schedule, each, value)}")
        if value in divisors_of_groups(problem, needed):
            lines.append(f"{name}_inverse = reciprocal({name})")
    for output in each.groups:
        if stage_of(problem, output.value) == stage:
            lines.append(f"store_{output.label}(cta, row, granule, {value_name(problem, output.value)})")
    return lines + [f"{value_name(problem, value)}_each = []" for value in _handed(problem, schedule, each, stage)]


def _handed(problem: RowProblem, schedule: Schedule, each: RowPass, stage: int) -> list[int]:
    """Return the elements of a stage that later stages, or reductions of groups, read."""
    needed = _needed(problem, schedule, each)
    read = {x for value in needed if stage_of(problem, value) > stage for x in read_by(problem, value)}
    if stage < last_stage(problem, needed):
        read |= _results(problem, schedule, each)
    given = [*each.reads, *([each.kept] if each.kept else []), *needed]
    return [x for x in given if x in read and stage_of(problem, x) == stage and not problem.epilogue.grouped[x]]


def _results(problem: RowProblem, schedule: Schedule, each: RowPass) -> set[int]:
    """Return the elements that a pass reduces, stores, adds up or keeps, in its last stage."""
    found = {output.value for output in (*each.outputs, *each.sums)}
    found |= {schedule.kept} if each.number == 0 else set()
    found |= {_reduced(problem.epilogue.instruction(value)) for value in each.wide}
    return found | {term_of(problem, schedule, each, value) for value in each.reduces}


def _element(plan: RowPlan, schedule: Schedule, each: RowPass, stage: int) -> list[str]:
    """Return the code of a stage of element ``i`` of a granule."""
    problem, needed = plan.problem, _needed(plan.problem, schedule, each)
    lines, last = [], stage == last_stage(problem, needed)
    if not stage:
        labels = {
            value: operand.label
            for value, operand in zip(each.reads, _read(problem, each), strict=True)
            if operand.kind != "group"
        }
        lines = [f"{value_name(problem, value)} = {label}_values[i]" for value, label in labels.items()]
        lines += [f"{value_name(problem, each.kept)} = kept_values[i]"] if each.kept else []
        lines += [_without(problem, value) for value in each.reads if value in zeroed(problem, schedule, each)]
    here = [value for value in needed if stage_of(problem, value) == stage and not problem.epilogue.grouped[value]]
    wanted = {x for value in here for x in read_by(problem, value)}
    wanted |= _results(problem, schedule, each) if last else set()
    for before in range(stage):
        names = [value_name(problem, x) for x in _handed(problem, schedule, each, before) if x in wanted]
        lines += [f"{name} = {name}_each[i]" for name in names]
    for value in here:
        lines.append(f"{value_name(problem, value)} = {_value(plan, schedule, each, value)}")
        lines += [_without(problem, value)] if value in zeroed(problem, schedule, each) else []
    lines += [
        f"{name}_each.append({name})"
        for x in _handed(problem, schedule, each, stage)
        if (name := value_name(problem, x))
    ]
    return lines + (_ends(plan, schedule, each) if last else [])


def _without(problem: RowProblem, value: int) -> str:
    """Return the code that sets an element to zero outside of a row."""
    name = value_name(problem, value)
    return f"{name} = masked({name}, inside, i, 0.0)"


def _ends(plan: RowPlan, schedule: Schedule, each: RowPass) -> list[str]:
    """Return the code that keeps, reduces, stores and adds up element ``i``."""
    problem, lines = plan.problem, []
    if schedule.kept and each.number == 0:
        lines.append(f"kept_values.append({value_name(problem, schedule.kept)})")
    packed = packed_extremes(problem, plan.layout) if each.number == 0 else ()
    for value in (value for value in each.reduces if value not in packed):
        made = problem.epilogue.instruction(value)
        term = value_name(problem, term_of(problem, schedule, each, value))
        reduction = REDUCTIONS[made.op]
        if made.op == "row_first":
            lines.append(f"candidates_{value}.append({term})")
            continue
        if made.op != "row_sum" or not zeroed(problem, schedule, each):
            term = f"masked({term}, inside, i, {reduction.identity})"
        number = f"(granule * {plan.layout.lanes} + i)" if plan.layout.lanes < chains(schedule) else "i"
        place = f"row.terms[{first_term(schedule, value)} + {number} % {chains(schedule)}]"
        lines.append(f"{place} = {reduction.join(place, term)}")
    for output in each.outputs:
        lines.append(f"{output.label}_values.append({value_name(problem, output.value)})")
    for value in each.wide:
        term = value_name(problem, _reduced(problem.epilogue.instruction(value)))
        lines.append(f"wide_{value}_values.append({term})")
    for output in each.sums:
        place = f"cta.sums[{first_sum(plan, output)} + granule * {plan.layout.lanes} + i]"
        lines.append(f"{place} = {place} + {value_name(problem, output.value)}")
    return lines


def _needed(problem: RowProblem, schedule: Schedule, each: RowPass) -> list[int]:
    """Return the computed values of a pass, without those that fused powers replace."""
    fused = _fused(problem, schedule, each)
    needed = {output.value for output in (*each.outputs, *each.sums, *each.groups)} | (
        {schedule.kept} if each.number == 0 else set()
    )
    reductions = (*each.reduces, *each.wide)
    needed |= {x for value in reductions for x in problem.epilogue.instruction(value).arguments if isinstance(x, int)}
    for value in reversed(each.computes):
        if value in needed:
            arguments = problem.epilogue.instruction(value).arguments
            element = scaled_element(problem, fused[value]) if value in fused else None
            needed |= {element.element} if element else {x for x in arguments if isinstance(x, int)}
    return [value for value in each.computes if value in needed]


def _fused(problem: RowProblem, schedule: Schedule, each: RowPass) -> Mapping[int, OwnPart]:
    """Return the fused powers of a pass: terms of sums about the warp's own maximum, or quotients."""
    if each.number == 1:
        return {part.term: part for part in fused_powers(problem, schedule)}
    return fused_quotients(problem, schedule) if each.number else {}


def _power(problem: RowProblem, part: OwnPart, about: str) -> str:
    """Return the power of an element relative to a number with a slope and an offset."""
    scaled = scaled_element(problem, part)
    assert scaled is not None
    x = value_name(problem, scaled.element)
    return f"cute.math.exp2(cute.math.fma({x}, {about}_slope, {about}_offset), fastmath=True)"


def _value(plan: RowPlan, schedule: Schedule, each: RowPass, value: int) -> str:
    """Return the expression of an element's value. The second pass of a joint exchange uses the warp's own statistics."""
    problem = plan.problem
    made = problem.epilogue.instruction(value)
    part = _fused(problem, schedule, each).get(value)
    if part is not None and value == part.term:
        return _power(problem, part, own_name(problem, part))
    if part is not None:
        return f"{_power(problem, part, value_name(problem, part.about))} * {value_name(problem, part.value)}_share"
    own = {}
    if schedule.joint and each.number == 1:
        own = {part.about: own_name(problem, part) for part in schedule.joint if part.difference == value}
    if schedule.centres and each.number == 0:
        own = {part.about: centre_name(problem, part.of) for part in schedule.joint if part.difference == value}

    def names(x: int) -> str:
        return own.get(x) or value_name(problem, x)

    if (pair := rounded_pair(problem, value)) is not None:
        return f"rounded_difference({', '.join(map(names, pair))})"
    over = made.arguments[1] if made.op == "div" else None
    if isinstance(over, int) and (
        problem.epilogue.per_row[over] or (problem.epilogue.grouped[over] and not problem.epilogue.grouped[value])
    ):
        return _quotient(problem, schedule, value, names)
    powers = [part.term for part in schedule.joint if part.kind == "powers"]
    if made.op in SHORT and (value in short_values(problem) or (value in powers and each.number == 1)):
        (argument,) = made.arguments
        assert isinstance(argument, int)
        return SHORT[made.op](names(argument))
    if value in short_logs(problem):
        (argument,) = made.arguments
        assert isinstance(argument, int)
        return f"{'summed' if value in summed_logs(problem) else 'short'}_{made.op}({names(argument)})"
    if made.op == PARTNER:
        return f"{value_name(problem, _reduced(made))}_each[i ^ 1]"
    if made.op == COLUMN_NUMBER:
        return "first_number + float(i)"
    return row_expression(problem, value, names, position)


def position(op: str) -> str:
    """Return the index of the row, by the name of the operation."""
    assert op == ROW_NUMBER, f"{op} is a value of each element"
    return "row.index"


def _quotient(problem: RowProblem, schedule: Schedule, value: int, names: Callable[[int], str]) -> str:
    """Return a quotient by a per-row number, from its reciprocal."""
    x, over = problem.epilogue.instruction(value).arguments
    assert isinstance(over, int)
    numerator = f"Float32({x.text})" if isinstance(x, Constant) else names(x)
    if value in short_quotients(problem) and is_multiplied(problem, schedule, over):
        return f"{numerator} * {value_name(problem, over)}_short"
    short = value in short_quotients(problem)
    return f"{'divided_short' if short else 'divided'}({numerator}, {value_name(problem, over)}_inverse)"


def is_multiplied(problem: RowProblem, schedule: Schedule, over: int) -> bool:
    """Return whether one product with a rounded reciprocal is a short quotient: a divisor is a number of the launch, as
    in eager, or a sum of powers relative to their maximum, which is at least 1."""
    sums = [part.value for part in schedule.joint if part.kind == "powers" and part.about == part.of]
    return over in sums or (over <= len(problem.epilogue.operands) and problem.epilogue.per_row[over])


def divisors(problem: RowProblem, schedule: Schedule) -> dict[int, set[bool]]:
    """Return the per-row numbers that elements are divided by, and if these quotients are products with one number."""
    found: dict[int, set[bool]] = {}
    for each in schedule.passes:
        for value in _needed(problem, schedule, each):
            over = None if value in _fused(problem, schedule, each) else _divisor(problem, value)
            if over is not None:
                short = value in short_quotients(problem) and is_multiplied(problem, schedule, over)
                found.setdefault(over, set()).add(short)
    for part in fused_powers(problem, schedule):
        scaled = scaled_element(problem, part)
        if scaled is not None and scaled.op and isinstance(scaled.by, int):
            found.setdefault(scaled.by, set()).add(True)
    return dict(sorted(found.items()))


def _divisor(problem: RowProblem, value: int) -> int | None:
    """Return the per-row number that an element is divided by."""
    made = problem.epilogue.instruction(value)
    over = made.arguments[1] if made.op == "div" else None
    return over if isinstance(over, int) and problem.epilogue.per_row[over] else None


def divisors_again(problem: RowProblem, schedule: Schedule, each: RowPass) -> list[str]:
    """Return code that renews the reciprocals of quotients that an earlier pass has computed: ptxas would keep these."""
    before = {value for other in schedule.passes[: each.number] for value in other.computes}
    fused = _fused(problem, schedule, each)
    again = [x for x in _needed(problem, schedule, each) if x in before and x not in fused]
    lines = set()
    for value in again:
        if (over := _divisor(problem, value)) is not None:
            name = value_name(problem, over)
            if value in short_quotients(problem) and is_multiplied(problem, schedule, over):
                lines.add(f"{name}_short = renewed({name}_short, cta.lane)")
            else:
                lines.add(f"{name}_inverse = (renewed({name}_inverse[0], cta.lane), *{name}_inverse[1:])")
    return sorted(lines)


def print_centres(out: Writer, plan: RowPlan, schedule: Schedule, each: RowPass) -> None:
    """Print the choice of the element that a thread's differences are from: one in its first granule, or in its warp's."""
    problem = plan.problem
    for value in schedule.centres:
        x = _reduced(problem.epilogue.instruction(value))
        with out.block("if granule == 0:"):
            out.line("candidates = []")
            with out.block(f"for i in range({plan.layout.lanes}):"):
                for read in each.reads:
                    operand = problem.epilogue.operands[read - 1]
                    if operand.kind == "group":
                        continue
                    out.line(f"{value_name(problem, read)} = {operand.label}_values[i]")
                for made in (made for made in problem.epilogue.elements_for([x]) if made in each.computes):
                    out.line(f"{value_name(problem, made)} = {_value(plan, schedule, each, made)}")
                out.line(f"candidates.append({value_name(problem, x)})")
            place = f"row.shift // {plan.layout.lanes}"
            first = f"cutlass.select_(row.base + row.thread < 32, {place}, Int32(0))"
            first = "Int32(0)" if plan.layout.aligned else first
            fewest = problem.least or problem.n
            centre = "centre" if plan.layout.aligned or fewest >= plan.layout.lanes - 1 else "centre_of_few"
            out.line(f"{centre_name(problem, value)} = {centre}(candidates, inside, {first})")


def centre_name(problem: RowProblem, value: int) -> str:
    """Return the name of the element from which a thread sums differences, in place of a sum of elements."""
    return f"{value_name(problem, value)}_centre"


def own_name(problem: RowProblem, part: OwnPart) -> str:
    """Return the name of a warp's own statistic in place of the one of the row."""
    return f"{value_name(problem, part.value)}_own"


def warp_name(problem: RowProblem, value: int) -> str:
    """Return the name of a warp's result of a reduction."""
    return f"{value_name(problem, value)}_warp"


def _packed(problem: RowProblem, value: int) -> list[str]:
    """Return the code that compares the words of a granule with the extremes of earlier ones."""
    made, dtype = problem.epilogue.instruction(value), packed_dtype(problem, value)
    label = problem.epilogue.operands[_reduced(made) - 1].label
    place, identity = f"row.packed_{value}", IDENTITIES[made.op, dtype]
    return [
        f"words = {label}_words",
        'if kind == "edge":',
        f"    values = [masked({label}_values[i], inside, i, {REDUCTIONS[made.op].identity}) for i in range(len({label}_values))]",
        f"    words = pack_{dtype}(values)",
        'if kind == "some":',
        f"    words = [cutlass.select_(inside[0], word, Int32({identity})) for word in words]",
        f"{place} = words if {place} is None else [{made.op}_{dtype}(x, y) for x, y in zip({place}, words)]",
    ]


def _reduced(made: Instruction) -> int:
    """Return the value that an operation is of, or a reduction is over."""
    x = made.arguments[0]
    assert isinstance(x, int)
    return x


def _first_place(problem: RowProblem, schedule: Schedule, value: int) -> list[str]:
    """Return the code that keeps the first column of a granule whose element is the extreme of the row."""
    _, extreme = problem.epilogue.instruction(value).arguments
    assert isinstance(extreme, int)
    joint = {part.value for part in schedule.joint if part.kind == "first"}
    sought = warp_name(problem, extreme) if value in joint else value_name(problem, extreme)
    place = f"row.terms[{first_term(schedule, value)} + granule % {chains(schedule)}]"
    first = f"cutlass.Float32(first_column) + first_match(candidates_{value}, {sought}, inside)"
    return [f"{place} = {REDUCTIONS['row_first'].join(place, first)}"]


# Granules ----------------------------------------------------------------------------------------------------------------


def print_places(out: Writer, plan: RowPlan) -> None:
    """Print the functions that find and check the elements of a granule."""
    layout = plan.layout
    lanes, threads, n = layout.lanes, layout.threads, columns_of(plan.problem)
    out.lines(("", ""))
    with out.block("def is_inside(cta, row, granule):"):
        out.line(f"return (row.thread + granule * {threads}) < row.granules")
    out.lines(("", ""))
    with out.block("def column_of(cta, row, granule):"):
        shift = "" if layout.aligned else " - row.shift"
        out.line(f"return (row.base + row.thread + granule * {threads}) * {lanes}{shift}")
    out.lines(("", ""))
    with out.block("def range_inside(cta, row, granule):"):
        out.line("inside, first = is_inside(cta, row, granule), column_of(cta, row, granule)")
        begin, end = "Int32(0)", f"Int32({n})"
        if layout.by_columns and layout.choice.cluster > 1:
            begin, end = f"cta.base * {lanes}", f"cutlass.min({end}, (cta.base + {slice_of(layout)}) * {lanes})"
        out.line(f"return {begin} - first, cutlass.select_(inside, {end} - first, Int32(0))")
    out.lines(("", ""))
    with out.block("def elements_inside(cta, row, granule, kind):"):
        out.line('if kind == "all":')
        out.line("    return None")
        out.line("inside = is_inside(cta, row, granule)")
        out.line('if kind == "some":')
        out.line(f"    return [inside] * {lanes}")
        out.line("begin, end = range_inside(cta, row, granule)")
        low = "" if layout.aligned else "(i >= begin) & "
        out.line(f"return [{low}(i < end) for i in range({lanes})]")


def vector_dtype(layout: RowLayout, operand: EpilogueOperand) -> str:
    """Return the type of a vector in shared memory."""
    return "float32" if layout.wide and itemsize(operand.dtype) == 2 else operand.dtype


def print_vectors(out: Writer, plan: RowPlan) -> None:
    """Print a function for each vector that reads the values of a granule.

    A granule in fp32 has several parts of 16 bytes. They lie in planes, so that threads read without bank conflicts.
    """
    layout = plan.layout
    for at, (operand, place) in enumerate(zip(plan.problem.vectors, layout.vector_offsets, strict=False)):
        size, dtype = layout.vector_sizes[at], vector_dtype(layout, operand)
        out.lines(("", ""))
        with out.block(f"def vector_{operand.label}(cta, row, granule):"):
            if layout.aligned:
                part = (
                    min(GRANULE_BYTES, layout.granule_bytes(size))
                    if dtype != operand.dtype
                    else layout.granule_bytes(size)
                )
                out.line(f"address = cta.vectors + row.thread * {part}")
                out.line(f"address, offset = shifted(address, granule, {layout.threads * part})")
                for number in range(layout.granule_bytes(size) // part):
                    plane = place + number * layout.vector_granules * part
                    out.line(f"words {'+=' if number else '='} load_shared(address, {plane} + offset, {part})")
                out.line(f"return unpack_{storage(dtype)}(words)")
                continue
            out.line("words = []")
            with out.block(f"for i in range({layout.lanes}):"):
                out.line(f"place = cta.vectors + row.places[i] * {size}")
                out.line(f"address, offset = shifted(place, granule, {layout.threads * size})")
                out.line(f"words.append(load_plane(address, {place} + offset, {size}))")
            out.line(f"return [{widened(dtype)} for word in words]")


def widened(dtype: str) -> str:
    """Return the fp32 value of one element in the low bits of ``word``."""
    return {
        "bfloat16": "(word << 16).bitcast(Float32)",
        "float16": "unpack_float16([word])[0]",
        "float32": "word.bitcast(Float32)",
    }.get(dtype, "((word << 24) >> 24).to(Float32)")
