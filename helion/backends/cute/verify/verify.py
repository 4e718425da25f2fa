"""``verify``: everything that can be known of a kernel without running it."""

from __future__ import annotations

import dataclasses
import functools

from ..plan.counts import counts
from ..plan.records import GemmPlan
from ..roles.finish import finish_steps
from ..roles.grammar import KernelProgram
from . import rules, workspace  # noqa: F401  (fill the table of rules)
from .cluster import Cluster
from .finish import verify_finish
from .smaller import smaller
from .structure import check_structure

SCHEDULES = (0, 253, 3)
"""Under which each of 477 faults that tests plant shows (test_verify.py, test_rows.py): one of few schedules misses 14."""


def verify(program: KernelProgram) -> None:
    """Raises ``Fault`` if the roles of `program` hang, overrun or read stale data, or if what they use does not fit.

    The result is kept by what the protocol depends on, which the extents of the problem are no part of.
    """
    check_structure(program)
    if program.plan.finish is not None:
        verify_finish(program.plan, finish_steps(program.plan.finish))
    _simulate(smaller(dataclasses.replace(program, plan=_without_extents(program.plan))))


def trips(plan: GemmPlan) -> list[tuple[int, int]]:
    """(tiles, K tiles) that every case of wrapping around a ring occurs in: 0 to 3 rounds of sums, 1 to 3 of operands.

    CTAs that split K have so many each, some one more.
    """
    rounds = _rounds(plan)
    return [
        (tiles, plan.parts * k_tiles + k_tiles % plan.parts)
        for tiles in range(3 * rounds + 1)
        for k_tiles in range(least_k_tiles(plan), least_k_tiles(plan) + 3 * plan.ab_stages)
    ]


def least_k_tiles(plan: GemmPlan) -> int:
    """Of a tile: exchanges of rows in one slot need more than the ring of operands has slots."""
    return 1 + plan.ab_stages if plan.joins else 1


def _rounds(plan: GemmPlan) -> int:
    """Tiles after which each slot that a tile takes has been taken once."""
    rows = counts(plan).rows
    return max(plan.accumulator_stages, plan.teams, rows.stages if rows else 1)


def _without_extents(plan: GemmPlan) -> GemmPlan:
    return dataclasses.replace(
        plan,
        finish=None,
        problem=dataclasses.replace(
            plan.problem, m=1, n=1, k=1, a_pitch=0, b_pitch=0, d_pitch=0, batch=None, runtime=()
        ),
    )


@functools.lru_cache(maxsize=256)
def _simulate(program: KernelProgram) -> None:
    """A sample of ``trips``, all of which tests run: no work, more tiles than sums have stages, a wrap within a tile, of
    which clusters that split K have more than one each anyway."""
    plan, rounds = program.plan, _rounds(program.plan)
    several, two = (rounds + 1, 2) if plan.grid_splits == 1 else (2, 1)
    more = least_k_tiles(plan) - 1
    sampled = [(0, plan.parts), (several, plan.parts + more), (two, plan.parts * plan.ab_stages + 1 + more)]
    for seed, (tiles, k_tiles) in zip(SCHEDULES, sampled, strict=True):
        Cluster(program, tiles=tiles, k_tiles=k_tiles, seed=seed).run()
