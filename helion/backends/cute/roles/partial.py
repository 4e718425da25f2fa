"""Mainloops of sums of matmuls, of which some terms add to a part of the accumulators: a loop for each term.

The accumulators that a term adds to are columns of its B in shared memory, and of the sums. Adjacent ones are one piece,
which one instruction multiplies. The first K tile of a term overwrites accumulators that no earlier term adds to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ..plan.records import GemmPlan
from .grammar import Advance, KLoop, Mma, Release, Step, Wait, WgmmaCommit, WgmmaFence, WgmmaWait


@dataclass(frozen=True)
class TermLoop(KLoop):
    """Loop over the K tiles of one term: from its ``first`` on, up to its ``stop``, or all."""

    term: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class TermMma(Mma):
    """Issue the MMAs of a K tile of a term, with the accumulators that it adds to; with ``first`` those that no earlier
    term adds to are overwritten."""

    term: int = 0


@dataclass(frozen=True)
class PieceViews(Step):
    """Make the views of ``all_pieces``."""


@dataclass(frozen=True, order=True)
class Piece:
    """Adjacent accumulators, from number ``first`` on; ``fresh`` ones have no earlier term."""

    first: int
    count: int
    fresh: bool = False

    @property
    def name(self) -> str:
        return f"part_{self.first}_{self.count}"


def pieces(plan: GemmPlan, term: int, first: bool = False) -> tuple[Piece, ...]:
    """Return the accumulators that a term adds to; at its ``first`` K tile fresh ones are pieces of their own."""
    own, fresh = _added(plan, term), _fresh(plan, term) if first else frozenset[int]()
    # ptxas waits for each MMA of registers, and moves its results, if blocks of several sizes share them
    blocks = _runs(own) if plan.unit == "tcgen05" else [atom for atom in _atoms(plan) if atom.start in own]
    found = list[Piece]()
    for block in blocks:
        for is_fresh, group in itertools.groupby(block, fresh.__contains__):
            members = list(group)
            found.append(Piece(members[0], len(members), is_fresh))
    return tuple(found)


def all_pieces(plan: GemmPlan) -> list[Piece]:
    """Return the pieces of all terms, each once, without the one of all accumulators."""
    found = {
        Piece(each.first, each.count)
        for term in _terms(plan)
        for at in (True, False)
        for each in pieces(plan, term, at)
    }
    return sorted(found - {Piece(0, plan.products)})


def _terms(plan: GemmPlan) -> range:
    return range(1 + len(plan.problem.terms))


def _runs(numbers: frozenset[int]) -> list[range]:
    """Return ranges of consecutive numbers."""
    found = list[range]()
    for number in sorted(numbers):
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def _atoms(plan: GemmPlan) -> list[range]:
    """Return the adjacent accumulators of the same terms."""
    added = [_added(plan, term) for term in _terms(plan)]
    atoms = itertools.groupby(range(plan.products), lambda at: [at in each for each in added])
    return [range(members[0], members[-1] + 1) for members in (list(group) for _, group in atoms)]


def _added(plan: GemmPlan, term: int) -> frozenset[int]:
    """Return the numbers of the accumulators that a term adds to."""
    rights = [each for each in plan.problem.multiplicands if each.term == term and each.base != "a"]
    return frozenset(at for at, each in enumerate(rights) if not each.absent)


def _fresh(plan: GemmPlan, term: int) -> frozenset[int]:
    """Return those of them that no earlier term adds to."""
    return _added(plan, term).difference(*(_added(plan, earlier) for earlier in range(term)))


def _loops(plan: GemmPlan, term: int, after: tuple[Step, ...], before: tuple[Step, ...] = ()) -> Iterator[Step]:
    """Yield the loops of a term, of which the first K tile is one where it overwrites accumulators."""
    apart = int(bool(_fresh(plan, term)))
    if apart:
        yield TermLoop((*before, TermMma("ab_read", first=True, term=term), *after), term=term, stop=1)
    yield TermLoop((*before, TermMma("ab_read", term=term), *after), first=apart, term=term)


def wgmma_mainloop(plan: GemmPlan) -> tuple[Step, ...]:
    """Return the mainloop of wgmma: one K tile is in flight during the wait for the next."""
    before, free = (Wait("ab_read"), WgmmaFence()), (Release("ab_free"), Advance("ab_free"))
    first = (*before, TermMma("ab_read", first=True, term=0), WgmmaCommit(), Advance("ab_read"))
    after = (WgmmaCommit(), WgmmaWait(1), *free, Advance("ab_read"))
    rest = TermLoop((*before, TermMma("ab_read", term=0), *after), first=1, term=0)
    others = (loop for term in range(1, 1 + len(plan.problem.terms)) for loop in _loops(plan, term, after, before))
    return (*first, rest, *others, WgmmaWait(0), *free)


def issued_loops(plan: GemmPlan) -> tuple[Step, ...]:
    """Return the loops of the warp that issues MMAs of tcgen05."""
    before, after = (Wait("ab_read"),), (Release("ab_read"), Advance("ab_read"))
    return tuple(loop for term in range(1 + len(plan.problem.terms)) for loop in _loops(plan, term, after, before))
