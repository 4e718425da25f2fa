"""Sums about a mean of a row, whose parts are added up about one number that is near all their means.

A thread has sums about one of its elements. All threads of a warp move theirs to the mean of its first thread, all warps
of a row to that of the first ones. Then they add up several sums at once, in one butterfly. With one thread of 32, a
sum of squares about its mean is at most 33 times that about the mean of all. So the correction loses few bits.
"""

from __future__ import annotations

import functools

from ...plan.joint import OwnPart
from ...plan.rowwise.passes import Schedule
from ...plan.rowwise.records import RowPlan, RowProblem
from ..elements.quotients import INFINITY
from .elements import centre_name, columns_of, value_name, warp_name

FEWEST_PARTIALS = 4
"""Warps of a row from which a butterfly of several values takes fewer shuffles."""


@functools.lru_cache(maxsize=256)
def sums_of(problem: RowProblem, schedule: Schedule) -> tuple[int, ...]:
    """Return the sums of a joint exchange, in the order of its messages."""
    values = [value for level in schedule.reductions for value in level]
    return tuple(value for value in values if problem.epilogue.instruction(value).op == "row_sum")


def row_sums_packed(plan: RowPlan, schedule: Schedule, meeting: tuple[int, ...]) -> bool:
    """Return whether an exchange combines its sums in one butterfly: sums about means alone depend on others."""
    joint = bool(schedule.joint) and all(part.counts for part in schedule.joint) and len(meeting) > 1
    return joint and not plan.layout.choice.ahead and plan.layout.exchanges and plan.layout.partials >= FEWEST_PARTIALS


def _thread_name(problem: RowProblem, value: int) -> str:
    """Return the name of a thread's sum."""
    return f"{value_name(problem, value)}_thread"


def _near(problem: RowProblem, value: int) -> str:
    """Return the name of the number about which sums are added up, for the mean of a sum of elements."""
    return f"{value_name(problem, value)}_near"


def _apart(problem: RowProblem, value: int) -> str:
    """Return the name of a sum of differences from that number."""
    return f"{value_name(problem, value)}_apart"


def _part(schedule: Schedule, value: int) -> OwnPart | None:
    return next((part for part in schedule.joint if part.value == value), None)


def _finite(value: str) -> str:
    return f"Float32(cutlass.select_(cute.math.abs({value}) < {INFINITY}, {value}, Float32(0.0)))"


def thread_sum(problem: RowProblem, schedule: Schedule, value: int, terms: str) -> list[str]:
    """Return the code of a thread's sum, from its terms: those about a mean are moved to the number of the warp."""
    name, part = _thread_name(problem, value), _part(schedule, value)
    if value in schedule.centres:
        centre, near, off = centre_name(problem, value), _near(problem, value), f"{value_name(problem, value)}_off"
        return [
            f"{name}_differences = {terms}",
            f"{name} = {name}_differences + row.count * {centre}",
            f"mean = cute.arch.shuffle_sync({centre} + {name}_differences * inverse(row.count), 0)",
            f"{near} = {_finite('mean')}",
            f"{off} = {centre} - {near}",
            f"{_apart(problem, value)} = {name}_differences + row.count * {off}",
        ]
    if part is None:
        return [f"{name} = {terms}"]
    off = f"{value_name(problem, part.of)}_off"
    if part.kind == "products":
        return [f"{name} = {terms} + {off} * {_thread_name(problem, part.weights)}"]
    differences = f"{_thread_name(problem, part.of)}_differences"
    return [f"{name} = {terms} + {off} * (2.0 * {differences} + row.count * {off})"]


def warp_sums(problem: RowProblem, schedule: Schedule) -> list[str]:
    """Return the code of a warp's sums from those of its threads: sums about a mean are about that of the warp."""
    sums = sums_of(problem, schedule)
    given = [_apart(problem, value) if value in schedule.centres else _thread_name(problem, value) for value in sums]
    lines = [f"{', '.join(_results(problem, schedule))}, = butterflies([{', '.join(given)}], 32, cta.lane)"]
    for value in (value for value in sums if value in schedule.centres):
        near, name = _near(problem, value), warp_name(problem, value)
        lines.append(f"{name} = {_apart(problem, value)}_warp + row.elements * {near}")
        lines.append(f"{value_name(problem, value)}_to = {name} * inverse(row.elements) - {near}")
    for part in schedule.joint:
        to = f"{value_name(problem, part.of)}_to"
        lines.append(f"{warp_name(problem, part.value)} = {_moved(problem, part, to, 'row.elements')}")
    return lines


def _results(problem: RowProblem, schedule: Schedule) -> list[str]:
    """Return the names of added up sums: the differences of those that have means."""
    means = {part.of for part in schedule.joint}
    return [
        f"{_apart(problem, value)}_warp" if value in means else warp_name(problem, value)
        for value in sums_of(problem, schedule)
    ]


def _moved(problem: RowProblem, part: OwnPart, to: str, count: str) -> str:
    """Return the sum of a part about a number that is ``to`` above that of its added up sum."""
    name = warp_name(problem, part.value)
    if part.kind == "products":
        return f"{name} - {to} * {warp_name(problem, part.weights)}"
    return f"{name} - {to} * (2.0 * {_apart(problem, part.of)}_warp - {count} * {to})"


def received_sums(plan: RowPlan, schedule: Schedule) -> list[str]:
    """Return the code that adds up the sums of all messages about a number near all means, which are in ``parts``."""
    problem, width = plan.problem, min(plan.layout.partials, 32)
    places = {value: at for at, value in enumerate(value for level in schedule.reductions for value in level)}
    means, count = sorted({part.of for part in schedule.joint}), len(places)
    lines = []
    for of in means:
        total, elements = (f"joined([part[{at}] for part in parts], join_row_sum)" for at in (places[of], count))
        lines.append(f"mean = cute.arch.shuffle_sync({total} * inverse({elements}), 0)")
        lines.append(f"{_near(problem, of)} = {_finite('mean')}")
    sums = sums_of(problem, schedule)
    lines += [f"found = [[] for _ in range({len(sums)})]", "for part in parts:"]
    for of in means:
        off = f"off_{of} = part[{places[of]}] * inverse(part[{count}]) - {_near(problem, of)}"
        lines.append(f"    {off}")
    for at, value in enumerate(sums):
        part, term = _part(schedule, value), f"part[{places[value]}]"
        if value in means:
            # not of a part's mean: the rounded inverse of its count would bias the mean of every row alike
            term = f"cute.math.fma(-part[{count}], {_near(problem, value)}, {term})"
        elif part is not None and part.kind == "products":
            term += f" + part[{places[part.weights]}] * off_{part.of}"
        elif part is not None:
            term += f" + part[{count}] * off_{part.of} * off_{part.of}"
        lines.append(f"    found[{at}].append({term})")
    totals = "[joined(each, join_row_sum) for each in found]"
    lines.append(f"{', '.join(_results(problem, schedule))}, = butterflies({totals}, {width}, cta.lane)")
    for of in means:
        apart = f"{_apart(problem, of)}_warp"
        lines.append(f"{warp_name(problem, of)} = {apart} + Float32({columns_of(problem)}) * {_near(problem, of)}")
    level = schedule.reductions[0]
    lines += [f"{value_name(problem, x)} = {warp_name(problem, x)}" for x in sums if x in level]
    return lines


def moved_sum(problem: RowProblem, schedule: Schedule, value: int) -> str:
    """Return the code of a sum of a row about the number that it is of, from that about a number near all means."""
    part = _part(schedule, value)
    assert part is not None, "sums of the second pass are about a mean"
    to = f"({value_name(problem, part.about)} - {_near(problem, part.of)})"
    return f"{value_name(problem, value)} = {_moved(problem, part, to, f'Float32({columns_of(problem)})')}"
