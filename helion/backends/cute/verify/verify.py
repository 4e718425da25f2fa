"""``verify``: everything that can be known of a kernel without running it."""

from __future__ import annotations

import dataclasses
import functools

from ..plan.records import GemmPlan
from ..roles.grammar import KernelProgram
from . import rules  # noqa: F401  (fills the table of rules)
from .cluster import Cluster
from .structure import check_structure


def verify(program: KernelProgram) -> None:
    """Raises ``Fault`` if the roles of `program` hang, overrun or read stale data, or if what they use does not fit.

    The result is kept by what the protocol depends on, which the extents of the problem are no part of.
    """
    check_structure(program)
    _simulate(dataclasses.replace(program, plan=_without_extents(program.plan)))


def trips(plan: GemmPlan) -> list[tuple[int, int]]:
    """(tiles, K tiles) that every case of wrapping around a ring occurs in: 0 to 3 rounds of sums, 1 to 3 of operands.

    CTAs that split K have so many each, some one more.
    """
    rounds = max(plan.accumulator_stages, plan.teams)
    return [
        (tiles, plan.splits * k_tiles + k_tiles % plan.splits)
        for tiles in range(3 * rounds + 1)
        for k_tiles in range(1, 3 * plan.ab_stages + 1)
    ]


def _without_extents(plan: GemmPlan) -> GemmPlan:
    return dataclasses.replace(
        plan, problem=dataclasses.replace(plan.problem, m=1, n=1, k=1, a_pitch=0, b_pitch=0, d_pitch=0)
    )


@functools.lru_cache(maxsize=256)
def _simulate(program: KernelProgram) -> None:
    """A sample of ``trips``, all of which tests run: no work, more tiles than sums have stages, a wrap within a tile."""
    plan = program.plan
    rounds = max(plan.accumulator_stages, plan.teams)
    sampled = [(0, plan.splits), (rounds + 2, plan.splits), (2, plan.splits * plan.ab_stages + 1)]
    for seed, (tiles, k_tiles) in enumerate(sampled):
        Cluster(program, tiles=tiles, k_tiles=k_tiles, seed=seed).run()
