"""Passes over the sub-tiles of a tile in the epilogue: one per level of dependent row reductions, then one that stores."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from ...._support.records import dataclass
from .counts import in_fragments
from .epilogue import REDUCTIONS, Constant, Epilogue, EpilogueOutput
from .joint import joint
from .records import WARP_THREADS, GemmPlan, GemmProblem
from .reductions import exchanges, needed
from .refusal import Refusal

WORD_BITS, MOST_WORDS = 32, 8
"""Bits of a register, and the most registers of a thread for bits that are drawn."""
BOUNDS = frozenset(("lt", "le", "gt", "ge"))
MOST_DRAWS = 8
"""The most bits of a thread in each K tile: more take longer than its MMAs, and gain nothing (measurement ``drawn_bits``)."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass: what it computes of each element, by numbers of values.

    ``held`` is the value in the accumulator registers when it begins, ``keeps`` the one that it leaves there.
    ``computes`` are instructions in order, ``reads`` operands, ``reduces`` reductions whose terms it accumulates.
    """

    number: int
    held: int
    keeps: int
    computes: tuple[int, ...]
    reads: tuple[int, ...]
    reduces: tuple[int, ...]
    outputs: tuple[EpilogueOutput, ...] = ()


@functools.lru_cache(maxsize=1024)
def passes(plan: GemmPlan) -> tuple[Pass, ...]:
    """Return the passes of `plan` in order; each but the storing one is followed by an exchange of its reductions.

    Registers of wgmma keep computed values if later passes need nothing else. Accumulators in tensor memory stay, and
    each pass recomputes from them.
    """
    epilogue, exact = plan.problem.epilogue, plan.problem.matrices
    if not plan.by_rows:
        # Here per-row values are recomputed for each element, which costs less than registers.
        operands = tuple(range(1, 1 + len(epilogue.operands)))
        computed = tuple(1 + len(epilogue.operands) + i for i in range(len(epilogue.instructions)))
        return (Pass(number=0, held=0, keeps=0, computes=computed, reads=operands, reduces=(), outputs=exact),)
    own = frozenset(part.term for part in joint(plan) if part.kind == "powers") if plan.joins else None
    return walks(epilogue, exact, exchanges(plan), 0, plan.unit == "wgmma", own)


def walks(
    epilogue: Epilogue,
    exact: Sequence[EpilogueOutput],
    reductions: Sequence[tuple[int, ...]],
    held: int,
    registers: bool,
    own: frozenset[int] | None = None,
) -> tuple[Pass, ...]:
    """Return one pass for each of the dependent `reductions`, and one that stores `exact`, starting from value `held`.

    With ``registers`` a pass may leave another value for the next. If the second pass uses statistics of a CTA's
    ``own`` columns, only values that can be corrected to those of the row are kept.
    """
    targets = [_terms(epilogue, reduced) for reduced in reductions]
    if exact:
        targets.append(tuple(output.value for output in exact))
    found = []
    for number, wanted in enumerate(targets):
        values = epilogue.elements_for(wanted, held)
        later = [value for target in targets[number + 1 :] for value in target]
        kept = values if own is None or number != 1 else [x for x in values if not epilogue.levels[x] or x in own]
        keeps = _kept(epilogue, kept, held, later) if registers else held
        last = number == len(reductions)
        found.append(
            Pass(
                number=number,
                held=held,
                keeps=keeps,
                computes=tuple(value for value in values if value > len(epilogue.operands) and value != held),
                reads=tuple(value for value in values if 0 < value <= len(epilogue.operands)),
                reduces=() if last else reductions[number],
                outputs=tuple(exact) if last else (),
            )
        )
        held = keeps
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def per_row(plan: GemmPlan, level: int) -> tuple[int, ...]:
    """Return per-row instructions that can run after exchange number `level`, without reductions."""
    return numbers_of(plan.problem, level)


@functools.lru_cache(maxsize=1024)
def numbers_of(problem: GemmProblem, level: int) -> tuple[int, ...]:
    """Return per-row instructions that outputs of `problem` need, at this reduction depth, without reductions."""
    epilogue = problem.epilogue
    return tuple(
        value
        for value in needed(epilogue, (output.value for output in problem.outputs))
        if epilogue.per_row[value] and epilogue.levels[value] == level
        if (made := epilogue.made(value)) and made.op not in REDUCTIONS
    )


@functools.lru_cache(maxsize=1024)
def divisors(plan: GemmPlan, level: int) -> tuple[int, ...]:
    """Return per-row divisors of elements that are known after exchange number `level`."""
    epilogue = plan.problem.epilogue
    found = {divisor_of(plan, value) for walk in passes(plan) for value in walk.computes}
    return tuple(sorted(value for value in found if value is not None and epilogue.levels[value] == level))


def divisor_of(plan: GemmPlan, value: int) -> int | None:
    """Return the per-row divisor of `value`, a per-element quotient; None if it is none."""
    epilogue, made = plan.problem.epilogue, plan.problem.epilogue.made(value)
    if made is None or made.op != "div" or not plan.by_rows or epilogue.per_row[value]:
        return None
    _, over = made.arguments
    return None if isinstance(over, Constant) or not epilogue.per_row[over] else over


@functools.lru_cache(maxsize=1024)
def draws_in_loop(plan: GemmPlan) -> bool:
    """Return whether bits of comparisons can be drawn in the mainloop: the plain one of wgmma, with all K tiles, which are
    enough for the bits."""
    problem = plan.problem
    apart = (problem.groups, problem.batch, problem.ends, problem.scales, plan.finish, plan.prepare)
    changed = plan.sliced or plan.converts or plan.promote or in_fragments(plan) or plan.by_rows
    known = not (problem.runtime or problem.terms or problem.absent) and all(each is None for each in apart)
    plain = plan.unit == "wgmma" and plan.parts == 1 and known and not (changed or problem.epilogue.in_pairs)
    return plain and draws(plan) <= MOST_DRAWS * plan.k_tiles


@functools.lru_cache(maxsize=1024)
def drawn(plan: GemmPlan) -> tuple[int, ...]:
    """Return the comparisons of random numbers whose results are drawn as bits before the epilogue, or none.

    Nothing else reads these random numbers, and they are compared with a constant or a number of the launch.
    """
    if not draws_in_loop(plan):
        return ()
    epilogue, found = plan.problem.epilogue, list[int]()
    for operand in epilogue.of_kind("uniform"):
        number = 1 + epilogue.operands.index(operand)
        numbers = range(1 + len(epilogue.operands), 1 + epilogue.last)
        readers = [value for value in numbers if number in epilogue.instruction(value).arguments]
        if len(readers) != 1 or not _is_bounded(epilogue, readers[0], number):
            return ()
        found += readers
    return tuple(found) if len(found) * draw_words(plan) <= MOST_WORDS else ()


def _is_bounded(epilogue: Epilogue, value: int, number: int) -> bool:
    """Return whether ``value`` compares operand ``number`` with a constant or a number of the launch."""
    made = epilogue.instruction(value)
    others = [each for each in made.arguments if each != number]
    return made.op in BOUNDS and len(others) == 1 and _is_number(epilogue, others[0])


def _is_number(epilogue: Epilogue, value: int | Constant) -> bool:
    if isinstance(value, Constant):
        return True
    return 0 < value <= len(epilogue.operands) and epilogue.operands[value - 1].kind == "number"


def draws(plan: GemmPlan) -> int:
    """Return the elements of a tile that a thread has, each with a bit of a comparison."""
    return plan.cta_tile[0] * plan.cta_tile[1] // (plan.consumer_warps * WARP_THREADS)


def draw_words(plan: GemmPlan) -> int:
    """Return the words of the bits of a comparison."""
    return -(-draws(plan) // WORD_BITS)


def reads_matrices(plan: GemmPlan, walk: Pass) -> bool:
    """Return whether `walk` reads residuals."""
    return any(plan.problem.epilogue.operands[value - 1].kind == "exact" for value in walk.reads)


def check_passes(plan: GemmPlan) -> None:
    """Check that matrices are read for a reason, and what ``check_places`` checks. Raises ``Refusal``."""
    epilogue = plan.problem.epilogue
    for rows in epilogue.rows_of_blocks:
        held = plan.unit == "wgmma" and plan.cta_tile[0] == rows and plan.teams == 1 and not plan.joins
        if not held or plan.problem.m % rows:
            raise Refusal(f"reductions of blocks of {rows} rows are implemented on wgmma in tiles of as many rows")
    if plan.has_residual and not any(reads_matrices(plan, each) for each in passes(plan)):
        raise Refusal(f"epilogue operand {epilogue.of_kind('exact')[0].name} is read by nothing")
    check_places(epilogue, passes(plan), plan.unit)


def check_places(epilogue: Epilogue, taken: Iterable[Pass], who: str) -> None:
    """Check that no position is searched for among recomputed values. Raises ``Refusal``.

    If the compiler fuses a multiply and an add in only one of both computations, values round differently from those of
    the maximum.
    """
    for each in taken:
        for value in each.reduces:
            made = epilogue.instruction(value)
            for x in _terms(epilogue, (value,)) if made.op == "row_first" else ():
                if any(
                    _joins(epilogue, computed)
                    for computed in epilogue.elements_for((x,), each.held)
                    if computed != each.held
                ):
                    raise Refusal(f"row_first of a value with a multiply and an add, which {who} recomputes here")


def _joins(epilogue: Epilogue, value: int) -> bool:
    """Return whether `value` is an add with a multiply in it, which the compiler may fuse into one rounding."""
    made = epilogue.made(value)
    if made is None or made.op not in ("add", "sub"):
        return False
    parts = [epilogue.made(x) for x in made.arguments if not isinstance(x, Constant)]
    return any(part is not None and part.op == "mul" for part in parts)


def _terms(epilogue: Epilogue, reductions: Iterable[int]) -> tuple[int, ...]:
    """Return the term of each of `reductions`."""
    found = []
    for value in reductions:
        term = epilogue.instruction(value).arguments[0]
        assert not isinstance(term, Constant)
        found.append(term)
    return tuple(found)


def _kept(epilogue: Epilogue, values: list[int], held: int, later: list[int]) -> int:
    """Return the last of `values` from which everything `later` can be computed without `held`."""
    for value in reversed(values):
        if value <= len(epilogue.operands) or value == held:
            continue
        if held not in epilogue.elements_for(later, value) and value in epilogue.elements_for(later, value):
            return value
    return held
