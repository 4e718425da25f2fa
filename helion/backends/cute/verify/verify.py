"""``verify``: everything that can be known of a kernel without running it."""

from __future__ import annotations

import dataclasses
import functools

from ..plan.counts import counts
from ..plan.records import GemmPlan
from ..roles.grammar import KernelProgram, Pipeline
from . import rules, workspace  # noqa: F401  (fill the table of rules)
from .cluster import Cluster
from .structure import check_structure

FEW_SPLITS = 4
"""CTAs of a cluster that split K are simulated in full up to so many."""
FEW_COLUMNS = 4
"""So are CTAs of a cluster along N."""
FEW_CLUSTERS = 3
"""So are clusters that split K."""


def verify(program: KernelProgram) -> None:
    """Raises ``Fault`` if the roles of `program` hang, overrun or read stale data, or if what they use does not fit.

    The result is kept by what the protocol depends on, which the extents of the problem are no part of.
    """
    check_structure(program)
    _simulate(smaller(dataclasses.replace(program, plan=_without_extents(program.plan))))


def trips(plan: GemmPlan) -> list[tuple[int, int]]:
    """(tiles, K tiles) that every case of wrapping around a ring occurs in: 0 to 3 rounds of sums, 1 to 3 of operands.

    CTAs that split K have so many each, some one more.
    """
    rounds = _rounds(plan)
    return [
        (tiles, plan.parts * k_tiles + k_tiles % plan.parts)
        for tiles in range(3 * rounds + 1)
        for k_tiles in range(1, 3 * plan.ab_stages + 1)
    ]


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


def smaller(program: KernelProgram) -> KernelProgram:
    """`program` in a cluster of fewer CTAs, if it has many. Steps stay as they are, and so does by how much a count of
    arrivals or bytes is off from the plan's."""
    plan = program.plan
    few = _fewer_clusters(_fewer_splits(_fewer_columns(plan)))
    if few == plan:
        return program
    return dataclasses.replace(
        program, plan=few, pipelines=tuple(_recounted(each, plan, few) for each in program.pipelines)
    )


def _fewer_clusters(plan: GemmPlan) -> GemmPlan:
    """Clusters that split K differ in nothing but who comes last: with ``FEW_CLUSTERS`` there are one that comes first, one
    between and one last."""
    return dataclasses.replace(plan, grid_splits=min(plan.grid_splits, FEW_CLUSTERS))


def _fewer_columns(plan: GemmPlan) -> GemmPlan:
    """CTAs along N differ in nothing but their columns: all load a slice of A for all, and tell all what they found of
    their rows. With ``FEW_COLUMNS`` of them there are the first, which alone stores numbers per row, the last and others."""
    return dataclasses.replace(plan, cluster=(plan.cluster[0], min(plan.cluster[1], FEW_COLUMNS)))


def _fewer_splits(plan: GemmPlan) -> GemmPlan:
    """CTAs that split K differ in nothing but which sub-tiles are theirs, as many as before, and each of them talks to every
    other in the same way: with ``FEW_SPLITS`` of them there are one that sends, one that owns, and two that come before and
    behind either."""
    if plan.splits <= FEW_SPLITS:
        return plan
    subtiles = plan.rounds * FEW_SPLITS - (1 if plan.subtiles % plan.splits else 0)
    return dataclasses.replace(plan, splits=FEW_SPLITS, tile=(plan.tile[0], subtiles * plan.epilogue_n, plan.tile[2]))


def _recounted(pipeline: Pipeline, plan: GemmPlan, few: GemmPlan) -> Pipeline:
    before, behind = (getattr(counts(each), pipeline.name) for each in (plan, few))
    changed = {
        field.name: getattr(pipeline.counts, field.name) + getattr(behind, field.name) - getattr(before, field.name)
        for field in dataclasses.fields(pipeline.counts)
    }
    return dataclasses.replace(pipeline, counts=dataclasses.replace(pipeline.counts, **changed))


@functools.lru_cache(maxsize=256)
def _simulate(program: KernelProgram) -> None:
    """A sample of ``trips``, all of which tests run: no work, more tiles than sums have stages, a wrap within a tile."""
    plan, rounds = program.plan, _rounds(program.plan)
    sampled = [(0, plan.parts), (rounds + 2, plan.parts), (2, plan.parts * plan.ab_stages + 1)]
    for seed, (tiles, k_tiles) in enumerate(sampled):
        Cluster(program, tiles=tiles, k_tiles=k_tiles, seed=seed).run()
