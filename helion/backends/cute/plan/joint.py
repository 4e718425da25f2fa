"""Dependent reductions in one exchange. CTAs reduce relative to statistics of their own columns first, and the results
are corrected to those of the row when all parts are there.

The sum of squares about t is that about a part's mean c, plus its columns times (c - t) ** 2. The source is Chan, Golub
and LeVeque 1983. A sum of products w * (x - t) is that about c, plus the part's sum of w times c - t. A sum of exponentials about t is that about a part's maximum c, times exp(c - t).
"""

from __future__ import annotations

import functools
from typing import Literal

from ...._support.records import dataclass, replace
from .epilogue import Constant, Epilogue, Instruction
from .records import GemmPlan
from .reductions import Evaluated, exchanges, reductions_of


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """A dependent reduction ``value``, with the CTA-local statistic ``of`` that replaces the one of the row.

    ``squares``: of ``difference`` from number ``about`` of the row; ``of`` is the sum of the minuend. ``products``: of
    ``difference`` with elements whose sum is ``weights``. ``powers``: ``term`` is ``op`` (``difference`` * ``scale``),
    and ``of`` the maximum. ``first``: the position of ``of``, an extreme.
    """

    value: int
    kind: Literal["squares", "products", "powers", "first"]
    of: int
    term: int
    about: int = 0
    difference: int = 0
    op: str = ""
    scale: float = 1.0
    weights: int = 0

    @property
    def counts(self) -> bool:
        """True if the part's own statistic is the mean of its elements, whose number the correction needs."""
        return self.kind in ("squares", "products")


def joint(plan: GemmPlan) -> tuple[OwnPart, ...]:
    """Return the reductions of the second pass, if exchanged together with those of the first; else none."""
    return own_parts(plan.problem) if plan.joins else ()


@functools.lru_cache(maxsize=1024)
def own_parts(problem: Evaluated) -> tuple[OwnPart, ...]:
    """Return how reductions of the second of two passes follow from parts of a row; none if one of them does not."""
    reductions = reductions_of(problem)
    if len(reductions) != 2:
        return ()
    parts = [_part(problem.epilogue, value, reductions[0]) for value in reductions[1]]
    known = [part for part in parts if part is not None]
    owners: dict[int, set[tuple[int, str]]] = {}
    for part in (part for part in known if part.kind != "first"):
        owners.setdefault(part.difference, set()).add((part.of, "mean" if part.counts else part.op))
    apart = all(len(found) == 1 for found in owners.values())
    powers = [part.difference for part in known if part.kind == "powers"]
    return tuple(known) if len(known) == len(parts) and apart and len({*powers}) == len(powers) else ()


@functools.lru_cache(maxsize=1024)
def meetings(plan: GemmPlan) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the passes whose reductions share an exchange."""
    return ((0, 1),) if plan.joins else tuple((number,) for number in range(len(exchanges(plan))))


def meeting(plan: GemmPlan, number: int) -> tuple[int, ...]:
    """Return the exchange of the reductions of pass `number`."""
    return next(each for each in meetings(plan) if number in each)


def exchanged(plan: GemmPlan, number: int) -> tuple[int, ...]:
    """Return all reductions of that exchange, in the order of their places in a stage."""
    return tuple(value for walk in meeting(plan, number) for value in exchanges(plan)[walk])


def most_exchanged(plan: GemmPlan) -> int:
    """Return the largest number of reductions in one exchange."""
    return max((len(exchanged(plan, numbers[0])) for numbers in meetings(plan)), default=0)


def moved(plan: GemmPlan, value: int) -> OwnPart | None:
    """Return the reduction whose terms, value number `value`, a CTA computes relative to its own maximum."""
    return next((part for part in joint(plan) if part.kind == "powers" and part.term == value), None)


def _part(epilogue: Epilogue, value: int, before: tuple[int, ...]) -> OwnPart | None:
    made = epilogue.instruction(value)
    term = made.arguments[0]
    if not isinstance(term, int):
        return None
    if made.op == "row_first":
        of = made.arguments[1]
        known = {("row_maximum", (term,)), ("row_minimum", (term,))}
        found = isinstance(of, int) and of in before and _named(epilogue.instruction(of)) in known
        return OwnPart(value=value, kind="first", of=of, term=term) if found and isinstance(of, int) else None
    if made.op != "row_sum":
        return None
    inner = epilogue.made(term)
    if inner is None:
        return None
    if inner.op == "mul" and len({*inner.arguments}) == 1:
        return _about(epilogue, value, term, inner.arguments[0], "row_sum", before)
    if inner.op == "mul":
        return _product(epilogue, value, term, before)
    if inner.op in ("exp", "exp2"):
        scale, difference = _scaled(epilogue, inner.arguments[0])
        return _about(epilogue, value, term, difference, "row_maximum", before, inner.op, scale)
    return None


def _product(epilogue: Epilogue, value: int, term: int, before: tuple[int, ...]) -> OwnPart | None:
    """Return the part for a sum of products of a difference and elements whose own sum is available."""
    sums = {made.arguments: each for each in before if (made := epilogue.instruction(each)).op == "row_sum"}
    first, second = epilogue.instruction(term).arguments
    for difference, weight in ((first, second), (second, first)):
        part = _about(epilogue, value, term, difference, "row_sum", before)
        if part is not None and (weight,) in sums:
            return replace(part, kind="products", weights=sums[weight,])
    return None


def _about(
    epilogue: Epilogue,
    value: int,
    term: int,
    difference: int | Constant,
    reduction: str,
    before: tuple[int, ...],
    op: str = "",
    scale: float = 1.0,
) -> OwnPart | None:
    """Return the part for a `difference` from a number of the row, if the `reduction` of its minuend is available."""
    made = epilogue.made(difference) if isinstance(difference, int) else None
    if made is None or made.op != "sub" or not isinstance(difference, int):
        return None
    x, about = made.arguments
    if not isinstance(x, int) or not isinstance(about, int) or epilogue.levels[x] or not epilogue.per_row[about]:
        return None
    of = [each for each in before if _named(epilogue.instruction(each)) == (reduction, (x,))]
    if not of:
        return None
    return OwnPart(
        value=value,
        kind="powers" if op else "squares",
        of=of[0],
        term=term,
        about=about,
        difference=difference,
        op=op,
        scale=scale,
    )


def _named(made: Instruction) -> tuple[str, tuple[int | Constant, ...]]:
    return made.op, made.arguments


def _scaled(epilogue: Epilogue, value: int | Constant) -> tuple[float, int | Constant]:
    """Return a positive factor of `value`, and the other operand."""
    made = epilogue.made(value) if isinstance(value, int) else None
    if made is None or made.op != "mul":
        return 1.0, value
    factors = [float(x.text) for x in made.arguments if isinstance(x, Constant)]
    others = [x for x in made.arguments if isinstance(x, int)]
    if len(factors) != 1 or len(others) != 1 or not 0 < factors[0] < float("inf"):
        return 1.0, value
    return factors[0], others[0]
