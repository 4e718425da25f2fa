"""Passes over the elements of a row: one per level of dependent reductions, and one that stores what needs them all."""

from __future__ import annotations

import functools

from ....._support.records import dataclass
from ..dtypes import itemsize
from ..epilogue import (
    COLUMN_NUMBER,
    GROUP_REDUCTIONS,
    PARTNER,
    REDUCTIONS,
    Constant,
    Epilogue,
    EpilogueOperand,
    EpilogueOutput,
)
from ..joint import OwnPart, own_parts
from ..reductions import reductions_of
from .demand import RowDemand
from .records import RowProblem

HALF = ("bfloat16", "float16")
ROUNDED_BYTES = {"round_bfloat16": 2, "round_float16": 2}
COSTLY = {"exp": 4, "log": 12, "div": 8, "tanh": 14, "erf": 20, "gelu": 24, "log1p": 14, "sqrt": 6, "rsqrt": 6}
"""Instructions of operations that take several, approximately; of any other: one."""
POLYNOMIALS = frozenset({"tanh", "erf", "gelu", "expm1", "log1p"})
"""Operations of dozens of instructions, each with a choice of two ways to compute it."""
MOST_KEPT_COLUMNS = 2**17
"""Columns up to which CTAs of a cluster have registers for a value of 32 bits of each."""
POSITION_REGISTERS = 24
"""Registers of the search for a position, whose comparisons keep unpacked elements alive, and of numbers of columns:
grpo_loss with 64 elements of a thread spilled (measurement ``column_numbers``). The same of numbers of groups."""
EXTREMES = ("row_maximum", "row_minimum")
POSITIONS = ("row_first", COLUMN_NUMBER)
ACCESS_WORK = 2
"""Instructions that unpack, or pack, an element and move it."""


@dataclass(frozen=True, kw_only=True)
class RowPass:
    """One pass: what it computes of each element, by numbers of values.

    ``computes`` are instructions in order, ``reads`` operands, ``reduces`` reductions whose terms it accumulates. ``sums``
    are outputs whose values it adds to those of earlier rows, ``groups`` those of groups of columns. A
    pass after the first reads the ``kept`` value in place of inputs, if there is one.
    """

    number: int
    computes: tuple[int, ...]
    reads: tuple[int, ...]
    reduces: tuple[int, ...]
    outputs: tuple[EpilogueOutput, ...]
    sums: tuple[EpilogueOutput, ...] = ()
    groups: tuple[EpilogueOutput, ...] = ()
    wide: tuple[int, ...] = ()
    """Reductions of wide groups whose terms it reduces over parts of a group."""
    kept: int = 0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The passes of a problem. ``held`` are inputs, by number of value, that passes after the first read again; or
    ``kept`` is one value that they read in their place.

    ``joint`` are reductions of the second pass that are exchanged with those of the first (``plan.joint``). Their terms
    may be accumulated in the first pass, relative to an element of the thread (``centres``).
    """

    passes: tuple[RowPass, ...]
    held: tuple[int, ...]
    kept: int
    joint: tuple[OwnPart, ...]
    reductions: tuple[tuple[int, ...], ...]

    @property
    def meetings(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the passes whose reductions share an exchange."""
        if self.joint:
            return ((0, 1),)
        return tuple((number,) for number in range(len(self.reductions)))

    @functools.cached_property
    def centres(self) -> dict[int, OwnPart]:
        """The sums of a row, by value, of which a thread sums differences from one of its elements, with such a part.

        The element is one of those n that are summed. A sum of squares about it is at most n + 1 times that about their
        mean. So the correction loses few bits.
        """
        walked = any(each.number == 1 for each in self.passes)
        return {} if walked else {part.of: part for part in self.joint}

    @property
    def counts(self) -> bool:
        """True if each warp sends the number of its elements as well."""
        return any(part.counts for part in self.joint)

    def sent(self, meeting: tuple[int, ...]) -> tuple[int, ...]:
        """Return the reductions of an exchange, in the order of its numbers."""
        return tuple(value for number in meeting for value in self.reductions[number])


@functools.lru_cache(maxsize=256)
def schedule_of(problem: RowProblem) -> Schedule:
    """Return the passes of `problem`."""
    epilogue, reductions = problem.epilogue, reductions_of(problem)
    joint = own_parts(problem)
    found = (*problem.elements, *problem.sums, *problem.groups)
    count = max([len(reductions), *(1 + _pass_of(problem, each, bool(joint)) for each in found)])
    once = _has_centres(problem, joint)
    last = _pass_of_wide(problem, count, bool(joint)) if problem.wide else -1
    last, count = 0 if once and last == 1 else last, max(count, last + 1)
    targets = [_targets(problem, reductions, bool(joint), number) for number in range(count)]
    for value in problem.wide:
        targets[last].append(_term(epilogue, value))
    later = [value for target in targets[1 + once :] for value in target]
    held = tuple(value for value in epilogue.elements_for(later) if _is_input(epilogue, value))
    kept = _kept(epilogue, targets, later, held, _keeps_costly(problem))
    passes = []
    if once:
        targets[:2] = [[*targets[0], *targets[1]], []]
    for number, wanted in enumerate(targets):
        if once and number == 1:
            continue
        values = epilogue.elements_for(wanted, kept if number else 0)
        passes.append(
            RowPass(
                number=number,
                computes=tuple(
                    value for value in values if value > len(epilogue.operands) and not (number and value == kept)
                ),
                reads=tuple(value for value in values if 0 < value <= len(epilogue.operands)),
                reduces=_reduced_by(reductions, number, once),
                outputs=tuple(each for each in problem.elements if _pass_of(problem, each, bool(joint)) == number),
                sums=tuple(each for each in problem.sums if _pass_of(problem, each, bool(joint)) == number),
                groups=tuple(each for each in problem.groups if _pass_of(problem, each, bool(joint)) == number),
                wide=problem.wide if number == last else (),
                kept=kept if number and kept in values else 0,
            )
        )
    return Schedule(passes=tuple(passes), held=() if kept else held, kept=kept, joint=joint, reductions=reductions)


def demand_of(problem: RowProblem) -> RowDemand:
    """Return the demands of `problem` on a layout."""
    schedule, epilogue = schedule_of(problem), problem.epilogue
    held = sum(held_bytes(epilogue.operands[value - 1].dtype) for value in schedule.held)
    if schedule.kept:
        held = kept_bytes(epilogue, schedule.kept)
    sent = [len(schedule.sent(meeting)) + schedule.counts for meeting in schedule.meetings]
    return RowDemand(
        n=problem.n,
        least=problem.least,
        inputs=tuple(itemsize(each.dtype) for each in problem.inputs),
        outputs=tuple(itemsize(each.dtype) for each in problem.matrices),
        pitches=(
            *(_known_pitch(problem, each) for each in problem.inputs),
            *(_known_pitch(problem, each) for each in problem.matrices),
            *(_known_pitch(problem, each) for each in problem.sums),
            *(2 * each.pitch for each in problem.pairs),
        ),
        vectors=tuple(itemsize(each.dtype) for each in problem.vectors),
        strided_vectors=any(each.pitch != 1 for each in problem.vectors),
        wide_vectors=_has_wide_vectors(problem),
        repeated=any(repeat.operand == each.label for repeat in problem.repeats for each in problem.inputs),
        held_bytes=held,
        keeps_computed=bool(schedule.kept),
        live=_live(problem, schedule),
        exchanges=tuple(sent),
        passes=max(len(schedule.passes), len(schedule.reductions)),
        walks=len(schedule.passes),
        later=any(each.number >= len(schedule.reductions) for each in schedule.passes),
        stores_early=any(each.outputs or each.groups for each in schedule.passes[:-1]),
        sums=len(problem.sums),
        group=max(epilogue.grouped),
        wide=len(problem.wide),
        pairs=tuple(itemsize(each.dtype) for each in problem.pairs),
        gathers=len(problem.gathers),
        temporaries=POSITION_REGISTERS * _places(problem),
        work=_work(epilogue, schedule),
    )


def _live(problem: RowProblem, schedule: Schedule) -> int:
    """Return how many values of an element stay in registers from one pass to a later one at most.

    A compiler computes a value, and converts an element, in the first pass that needs it, and then reads it. Passes that
    compare packed words convert none.
    """
    if problem.sums or schedule.kept:
        return 0
    epilogue = problem.epilogue
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, each in enumerate(schedule.passes):
        fresh = [value for value in each.computes if value not in first]
        used = [x for value in fresh for x in epilogue.instruction(value).arguments if isinstance(x, int)]
        used += [
            _term(epilogue, value) for value in (*each.reduces, *each.wide) if not _compares_words(epilogue, value)
        ]
        used += [output.value for output in (*each.outputs, *each.groups)]
        last.update((value, at) for value in used)
        reads = {value for value in each.reads if value in used}
        first.update((value, first.get(value, at)) for value in (*fresh, *reads))
    spans = [range(first[value], last.get(value, 0)) for value in first]
    return max(sum(at in span for span in spans) for at in range(len(schedule.passes)))


def _compares_words(epilogue: Epilogue, value: int) -> bool:
    """Return whether a reduction is an extreme of loaded elements, of which a word has two."""
    term = _term(epilogue, value)
    extreme = epilogue.instruction(value).op in EXTREMES and _is_input(epilogue, term)
    return extreme and epilogue.operands[term - 1].dtype in HALF


def _places(problem: RowProblem) -> int:
    """Return how many numbers threads find by places of elements: columns, parts of groups, or one of each operand."""
    epilogue = problem.epilogue
    positions = any(each.op in POSITIONS for each in epilogue.instructions)
    return max(positions or bool(problem.wide), len(epilogue.of_kind("group")))


def _has_wide_vectors(problem: RowProblem) -> bool:
    """Return whether threads may convert vectors of 16 bits to fp32: issue of instructions bounds sums over rows."""
    halves = [each.dtype in HALF for each in problem.vectors if itemsize(each.dtype) == 2]
    return bool(problem.sums and halves) and all(halves)


def _reduced_by(reductions: tuple[tuple[int, ...], ...], number: int, once: bool) -> tuple[int, ...]:
    """Return the reductions whose terms a pass accumulates."""
    if once and number == 0:
        return (*reductions[0], *reductions[1])
    return reductions[number] if number < len(reductions) else ()


def _has_centres(problem: RowProblem, joint: tuple[OwnPart, ...]) -> bool:
    """Return whether the terms of ``joint`` are differences from a mean, of elements of their own column alone."""
    epilogue = problem.epilogue
    terms = epilogue.elements_for([part.term for part in joint])
    alone = all(made.op not in (*GROUP_REDUCTIONS, PARTNER) for value in terms if (made := epilogue.made(value)))
    return bool(joint) and all(part.counts for part in joint) and alone


def _known_pitch(problem: RowProblem, tensor: EpilogueOperand | EpilogueOutput) -> int:
    """Return a stride of rows; 0, which no rows without a gap have, if only the launch knows it."""
    return 0 if problem.has_launch_pitch(tensor) else tensor.pitch


def held_bytes(dtype: str) -> int:
    """Return the bytes of an input's element between passes. ptxas keeps those of fp8 as fp32, since it does not convert
    them twice."""
    return 4 if dtype == "float8_e4m3fn" else itemsize(dtype)


def kept_bytes(epilogue: Epilogue, value: int) -> int:
    """Return the bytes of a computed value in registers: 16-bit ones stay packed."""
    return ROUNDED_BYTES.get(epilogue.instruction(value).op, 4)


def numbers_at(problem: RowProblem, level: int) -> tuple[int, ...]:
    """Return per-row instructions that can run after `level` exchanges of reductions, without reductions."""
    epilogue = problem.epilogue
    found: set[int] = set()
    left = [output.value for output in problem.outputs]
    while left:
        value = left.pop()
        made = epilogue.made(value)
        if value in found or made is None:
            continue
        found.add(value)
        left += [x for x in made.arguments if not isinstance(x, Constant)]
    return tuple(
        value
        for value in sorted(found)
        if epilogue.per_row[value] and epilogue.levels[value] == level
        if epilogue.instruction(value).op not in REDUCTIONS
    )


def gathered(problem: RowProblem) -> frozenset[int]:
    """Return the per-row values of level 0 that depend on a gather."""
    epilogue, labels = problem.epilogue, {gather.operand for gather in problem.gathers}
    found = {1 + at for at, operand in enumerate(epilogue.operands) if operand.label in labels}
    for value in numbers_at(problem, 0):
        if found.intersection(x for x in epilogue.instruction(value).arguments if not isinstance(x, Constant)):
            found.add(value)
    return frozenset(found)


def gathers_late(problem: RowProblem) -> bool:
    """Return whether the first pass needs no gather, which then runs after it: a warp waits for its index otherwise."""
    epilogue, first = problem.epilogue, schedule_of(problem).passes[0]
    read = {x for value in first.computes for x in epilogue.instruction(value).arguments if not isinstance(x, Constant)}
    read |= {output.value for output in first.outputs}
    return bool(problem.gathers) and not read & gathered(problem)


def _pass_of(problem: RowProblem, output: EpilogueOutput, joint: bool) -> int:
    """Return the pass that has the values of a matrix or a sum: the first that has all statistics it needs, or a late one."""
    if problem.late_sums and output in problem.sums:
        return max(_pass_of(problem, each, joint) for each in problem.matrices)
    level = problem.epilogue.levels[output.value]
    return level + 1 if joint and level == 1 else level


def _pass_of_wide(problem: RowProblem, count: int, joint: bool) -> int:
    """Return the pass that reduces wide groups: the last one, or a later one that has all statistics they need."""
    level = max(problem.epilogue.levels[_term(problem.epilogue, value)] for value in problem.wide)
    return max(count - 1, level + 1 if joint and level == 1 else level)


def _term(epilogue: Epilogue, reduction: int) -> int:
    term = epilogue.instruction(reduction).arguments[0]
    assert not isinstance(term, Constant)
    return term


def _targets(problem: RowProblem, reductions: tuple[tuple[int, ...], ...], joint: bool, number: int) -> list[int]:
    epilogue, found = problem.epilogue, []
    for value in reductions[number] if number < len(reductions) else ():
        found.append(_term(epilogue, value))
    given = (*problem.elements, *problem.sums, *problem.groups)
    return found + [each.value for each in given if _pass_of(problem, each, joint) == number]


def _is_input(epilogue: Epilogue, value: int) -> bool:
    return 0 < value <= len(epilogue.operands) and epilogue.operands[value - 1].kind == "exact"


def _keeps_costly(problem: RowProblem) -> bool:
    """Return whether threads have registers for a value of each element that takes many instructions."""
    return problem.n <= MOST_KEPT_COLUMNS and not (problem.sums or problem.wide)


def _kept(epilogue: Epilogue, targets: list[list[int]], later: list[int], held: tuple[int, ...], costly: bool) -> int:
    """Return the value of the first pass that later passes can read in place of inputs; or 0.

    It has fewer bytes than several of them, or with ``costly`` is a polynomial of one of them.
    """
    bytes_held = sum(itemsize(epilogue.operands[value - 1].dtype) for value in held)
    for value in reversed(epilogue.elements_for(targets[0])) if held else ():
        if value <= len(epilogue.operands):
            continue
        fewer = len(held) > 1 and kept_bytes(epilogue, value) < bytes_held
        if not fewer and not (costly and len(held) == 1 and _is_polynomial(epilogue, value)):
            continue
        after = epilogue.elements_for(later, value)
        if value in after and not any(_is_input(epilogue, x) for x in after):
            return value
    return 0


def _is_polynomial(epilogue: Epilogue, value: int) -> bool:
    """Return whether a polynomial is among the instructions that compute a value from the inputs."""
    return any(made.op in POLYNOMIALS for each in epilogue.elements_for([value]) if (made := epilogue.made(each)))


def _work(epilogue: Epilogue, schedule: Schedule) -> int:
    """Return the instructions per element of all passes, approximately."""
    found = 0
    for each in schedule.passes:
        found += sum(COSTLY.get(epilogue.instruction(value).op, 1) for value in each.computes)
        found += ACCESS_WORK * (len(each.reads) + len(each.outputs)) + len(each.reduces) + len(each.sums)
    return found
