"""Sizes of attention in generated code: constants of the plan, or names of numbers that only launches know.

The host function derives numbers of tiles from those that it is passed. Functions that need them take all, last.
"""

from __future__ import annotations

import math

from ...plan.attention.backward import BackwardPlan
from ...plan.attention.launch import strides_of
from ...plan.attention.numbers import is_known, launch_integers, text_of
from ...plan.attention.operands import RandomNumbers, Table
from ...plan.attention.records import AttentionPlan, ScorePlan, ScoreProblem
from ...plan.dtypes import PITCH, SIZE

QUERY_TILES, BATCHES, PIECES, BAND = "query_tiles", "batches", "pieces", "heads_per_band"


def less(number: str, other: int) -> str:
    """Return a number less a constant."""
    return str(int(number) - other) if number.isdigit() else f"{number} - {other}"


def product(one: str, other: str) -> str:
    """Return the product of two numbers."""
    return str(int(one) * int(other)) if one.isdigit() and other.isdigit() else f"({one} * {other})"


def quotient(one: str, other: str) -> str:
    """Return the quotient of two numbers, rounded down."""
    return str(int(one) // int(other)) if one.isdigit() and other.isdigit() else f"{one} // {other}"


def divides(one: str, other: str) -> bool:
    """Return whether a number is known to divide another one."""
    return one.isdigit() and other.isdigit() and int(other) % int(one) == 0


def parts(number: int, width: int) -> str:
    """Return the number of parts of ``width`` that cover a number."""
    return f"({text_of(number)} + {width - 1}) // {width}" if not is_known(number) else str(-(-number // width))


def query_tiles(plan: ScorePlan) -> str:
    """Return the tiles of queries of a head."""
    return str(-(-plan.problem.queries // plan.rows)) if is_known(plan.problem.queries) else QUERY_TILES


def batches(plan: ScorePlan) -> str:
    """Return the number of heads."""
    return str(plan.problem.batches) if all(map(is_known, plan.problem.heads)) else BATCHES


def pieces(plan: ScorePlan) -> str:
    """Return the work items of a launch."""
    return str(plan.pieces) if query_tiles(plan).isdigit() and batches(plan).isdigit() else PIECES


def heads_per_band(plan: ScorePlan) -> str:
    """Return the heads whose tiles are visited together."""
    return BAND if plan.problem.runtime else str(plan.heads_per_band)


def heads_of_bias(plan: ScorePlan) -> tuple[int, bool]:
    """Return the number of heads that share a tile of the bias that TMA loads. The flag is true if the first coordinates of a
    head number them, false if the last ones do. The number is 1 if K and V of all of them do not stay in the L2 cache."""
    bias = plan.bias if isinstance(plan, AttentionPlan) else None
    if bias is None:
        return 1, True
    heads, read = plan.problem.heads, frozenset[int]().union(*(mode.at.coordinates for mode in bias.modes))
    first, last = min(read, default=len(heads)), max(read, default=-1)
    found = max((math.prod(heads[:first]), True), (math.prod(heads[last + 1 :]), False))
    return found if found[0] <= plan.heads_per_band else (1, True)


def definitions(plan: ScorePlan) -> dict[str, str]:
    """Return the derived numbers by name, in the order of their definition in the host function."""
    problem, found = plan.problem, dict[str, str]()
    if query_tiles(plan) == QUERY_TILES:
        found[QUERY_TILES] = parts(problem.queries, plan.rows)
    if batches(plan) == BATCHES:
        found[BATCHES] = " * ".join(map(text_of, problem.heads))
    if pieces(plan) == PIECES:
        found[PIECES] = f"{query_tiles(plan)} * {batches(plan)}"
    if plan.orders_by_length and heads_per_band(plan) == BAND:
        found[BAND] = _band(plan)
    return found


def _band(plan: ScorePlan) -> str:
    """Return the heads whose streamed matrices stay in the L2 cache together, as planners compute them."""
    problem, heads = plan.problem, batches(plan)
    if isinstance(plan, BackwardPlan):
        streamed = f"({text_of(plan.problem.repeats)} * {text_of(problem.keys)})"
        band = f"cutlass.max(cutlass.min({heads}, {plan.cached_rows} // {streamed}), 1)"
        return f"cutlass.select_({pieces(plan)} <= {plan.few_tiles}, {heads}, {band})" if plan.few_tiles else band
    together = " * ".join([text_of(mode.size) for mode in problem.blocks["k"].modes]) or "1"
    readers = f"({heads} // ({together}))"
    return f"cutlass.max(cutlass.min({heads}, {plan.cached_rows} // {text_of(problem.keys)} * {readers}), 1)"


def parameters(plan: ScorePlan) -> list[str]:
    """Return the names of the numbers that the kernel takes: sizes, those of indices of heads, and derived numbers."""
    problem = plan.problem
    indices = tuple(mode.at for each in problem.accessed for mode in each.modes)
    rows = tuple((each.row, each.base) for each in (*problem.matrices, *problem.vectors))
    placed = (*indices, *rows, problem.spans, tuple(each.pages for each in problem.matrices))
    tables = tuple(each.size for each in problem.sources if isinstance(each, Table))
    sizes = (problem.heads, problem.coordinates, problem.queries, problem.keys, problem.band, placed, tables)
    used = (*sizes, *_steps(problem))
    return [*(each.name for each in launch_integers(used)), *definitions(plan)]


def _steps(problem: ScoreProblem) -> tuple[object, ...]:
    """Return the numbers in offsets of random numbers."""
    drawn = [each for each in problem.sources if isinstance(each, RandomNumbers)]
    return tuple((each.pitches, each.offset, tuple(mode.stride for mode in each.modes)) for each in drawn)


def wide(problem: ScoreProblem) -> frozenset[str]:
    """Return the names of the kernel's numbers that have 64 bits."""
    return frozenset(each.name for each in launch_integers(_steps(problem)) if each.kind == PITCH)


def multiples(plan: ScorePlan) -> dict[str, int]:
    """Return the divisors of strides that TMA uses, by name."""
    staged = [] if not isinstance(plan, BackwardPlan) else [each for group in plan.staged.values() for each in group]
    return strides_of(plan.problem.matrices, staged)


def assumed(plan: ScorePlan) -> list[str]:
    """Return the lines of the host function that tell the DSL divisors of strides."""
    return [f"{name} = cute.assume({name}, divby={multiple})" for name, multiple in multiples(plan).items()]


def given(plan: ScorePlan) -> dict[str, str]:
    """Return the numbers of a launch, and their types in the host function."""
    return {each.name: "Int32" if each.kind == SIZE else "Int64" for each in launch_integers(plan.problem)}
