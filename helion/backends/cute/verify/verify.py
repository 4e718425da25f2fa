"""``verify``: all checks of a kernel without running it."""

from __future__ import annotations

import dataclasses
import functools

from ..plan.counts import counts, turns
from ..plan.records import GemmPlan
from ..roles.finish import finish_steps
from ..roles.grammar import KernelProgram
from ..roles.overlapped import GROUP
from . import copied, epilogue, micro, overlapped, rules, sliced, workspace  # noqa: F401  (fill the table of rules)
from .cluster import Cluster
from .drawn import check_draws
from .finish import verify_finish
from .smaller import smaller
from .structure import check_structure

SCHEDULES = (0, 253, 3)
"""Seeds that expose each of 477 faults that tests plant (test_verify.py, test_rows.py): most sets of schedules miss
some, such as 14."""


def verify(program: KernelProgram) -> None:
    """Check that the roles of `program` cannot deadlock, overrun or read stale data, and that they fit. Raises
    ``Fault``.

    The result is cached by everything that the protocol depends on, which excludes the extents of the problem.
    """
    check_structure(program)
    check_draws(program)
    if program.plan.finish is not None:
        verify_finish(program.plan, finish_steps(program.plan.finish))
    _simulate(smaller(dataclasses.replace(program, plan=_without_extents(program.plan))))


def trips(plan: GemmPlan) -> list[tuple[int, int]]:
    """Return (tiles, K tiles) that cover every case of pipeline wrap-around: 0 to 3 rounds of accumulators, 1 to 3 of
    operands.

    CTAs that split K have this many each, some one more.
    """
    rounds = _rounds(plan)
    return [
        (tiles, plan.parts * k_tiles + k_tiles % plan.parts)
        for tiles in range(3 * rounds + 1)
        for k_tiles in range(least_k_tiles(plan), least_k_tiles(plan) + 3 * plan.ab_stages)
    ]


def least_k_tiles(plan: GemmPlan) -> int:
    """Return the least K tiles of a tile: a row exchange in one stage needs more than the stages of operands."""
    return 1 + plan.ab_stages if plan.joins else 1


def _rounds(plan: GemmPlan) -> int:
    """Return the tiles after which each stage with one use per tile has been used once."""
    rows = counts(plan).rows
    return max(plan.accumulator_stages, plan.teams, rows.stages if rows else 1)


def _without_extents(plan: GemmPlan) -> GemmPlan:
    return dataclasses.replace(
        plan,
        finish=None,
        prepare=None,
        whole_tiles=min(1, plan.whole_tiles),
        problem=dataclasses.replace(
            plan.problem, m=1, n=1, k=1, a_pitch=0, b_pitch=0, d_pitch=0, batch=None, starts=(), runtime=()
        ),
    )


@functools.lru_cache(maxsize=256)
def _simulate(program: KernelProgram) -> None:
    """Run a sample of ``trips``, all of which tests run.

    The cases are no work, more tiles than accumulator stages, and a wrap within a tile. In the last, clusters that
    split K have more than one tile each anyway. Half of the tiles are whole, where they split the last wave alone.
    """
    plan, rounds = program.plan, _rounds(program.plan)
    several, two = (rounds + 1, 2) if plan.grid_splits == 1 else (3, 2) if plan.whole_tiles else (2, 1)
    more = least_k_tiles(plan) - 1
    in_turn = 2 * GROUP * plan.promote_k_tiles if plan.unit == "wgmma" and plan.accumulator_stages > 1 else 0
    raw = counts(plan).raw
    by_turns = turns(plan) * raw.stages if raw is not None and not plan.converts else 0
    wraps = max(plan.ab_stages, in_turn, by_turns)
    sampled = [(0, plan.parts), (several, plan.parts + more), (two, plan.parts * wraps + 1 + more)]
    for seed, (tiles, k_tiles) in zip(SCHEDULES, sampled, strict=True):
        Cluster(program, tiles=tiles, k_tiles=k_tiles, seed=seed).run()
