"""A kernel with less of all that only repeats itself, which is what is simulated: fewer CTAs, warps, sub-tiles and slots.

Warps of a role take the same steps, but for what the first does alone, and meet others through barriers that count them;
so do CTAs along N, along M, or of other parts of K. What two of them do to each other is the same for any two, so that of
each kind the first, another and a third are enough. Steps stay as they are, and so does by how much a count of arrivals,
bytes or threads is off from the plan's.
"""

from __future__ import annotations

import dataclasses
import math

from ..plan.counts import counts
from ..plan.records import WARP_THREADS, GemmPlan
from ..roles.grammar import KernelProgram, NamedBarrier, Pipeline
from .structure import visitors

FEW_SPLITS = 4
"""CTAs of a cluster that split K: one that sends, one that owns, and two that come before and behind either."""
FEW_COLUMNS = 3
"""CTAs along N: the first, which alone stores numbers per row, and two others."""
FEW_ROWS = 2
"""CTAs, or pairs, along M, which share nothing but B."""
FEW_CLUSTERS = 3
"""Clusters that split K: one that comes first, one between and one last."""
FEW_WARPS = 2
"""Of a role: the first, which stores and announces bytes, and two others."""
FEW_SLOTS = 3
"""Of operands: one that is read, one that is full and one that is filled."""
FEW_ROUNDS = 2
"""Of the buffers between registers and memory within a tile: one that finds them empty, and one that does not."""

#: What follows from the number of storing warps, by pipeline.
_BY_WARPS = {
    "ab": ("empty_arrivals",),
    "accumulator": ("empty_arrivals",),
    "residual": ("empty_arrivals",),
    "parts": ("empty_arrivals", "transaction_bytes"),
    "rows": ("transaction_bytes",),
}


def smaller(program: KernelProgram) -> KernelProgram:
    """`program` with fewer CTAs, warps, sub-tiles and slots, if it has many."""
    plan = program.plan
    few = _fewer_clusters(_fewer_slots(_fewer_splits(_fewer_subtiles(_fewer_ctas(plan)))))
    warps = min(plan.consumer_warps, FEW_WARPS)
    if few == plan and warps == plan.consumer_warps:
        return program
    return dataclasses.replace(
        program,
        plan=few,
        pipelines=tuple(_recounted(each, plan, few, warps) for each in program.pipelines),
        barriers=tuple(_with_fewer(each, program) for each in program.barriers),
        roles=tuple(dataclasses.replace(role, warps=min(role.warps, FEW_WARPS)) for role in program.roles),
    )


def _fewer_ctas(plan: GemmPlan) -> GemmPlan:
    """All CTAs along N load a slice of A for all, and tell all what they found of their rows; those along M, of B."""
    rows, columns = plan.cluster
    return dataclasses.replace(plan, cluster=(min(rows, FEW_ROWS * plan.ctas_per_mma), min(columns, FEW_COLUMNS)))


def _fewer_clusters(plan: GemmPlan) -> GemmPlan:
    """Clusters that split K differ in nothing but who comes last."""
    return dataclasses.replace(plan, grid_splits=min(plan.grid_splits, FEW_CLUSTERS))


def _fewer_slots(plan: GemmPlan) -> GemmPlan:
    """Slots of a longer ring of operands wait full while those of a shorter one would be waited for."""
    return dataclasses.replace(plan, ab_stages=min(plan.ab_stages, FEW_SLOTS))


def _fewer_subtiles(plan: GemmPlan) -> GemmPlan:
    """Sub-tiles beyond those that go around all rings of the epilogue, as many as leave the place of a tile's first as it
    was. Those of CTAs that split K are theirs in turn, which ``_fewer_splits`` sees to."""
    if plan.splits > 1:
        return plan
    ahead = plan.residual_stages if plan.has_residual else 1
    period = math.lcm(plan.store_stages, ahead)
    least = max(FEW_ROUNDS * plan.store_stages, ahead + 1)
    spare = max(0, plan.subtiles - least) // period * period
    return dataclasses.replace(plan, tile=(plan.tile[0], (plan.subtiles - spare) * plan.epilogue_n, plan.tile[2]))


def _fewer_splits(plan: GemmPlan) -> GemmPlan:
    """CTAs that split K differ in nothing but which sub-tiles are theirs, as many as before, and each of them talks to every
    other in the same way."""
    if plan.splits <= FEW_SPLITS:
        return plan
    subtiles = plan.rounds * FEW_SPLITS - (1 if plan.subtiles % plan.splits else 0)
    return dataclasses.replace(plan, splits=FEW_SPLITS, tile=(plan.tile[0], subtiles * plan.epilogue_n, plan.tile[2]))


def _recounted(pipeline: Pipeline, plan: GemmPlan, few: GemmPlan, warps: int) -> Pipeline:
    """With the counts of `few`, of which so many `warps` store, as far off as they were."""
    changed = {}
    for field in dataclasses.fields(pipeline.counts):
        before, behind = (getattr(getattr(counts(each), pipeline.name), field.name) for each in (plan, few))
        if field.name in _BY_WARPS[pipeline.name] and not _of_the_unit(pipeline, field.name):
            behind = behind * warps // few.consumer_warps
        changed[field.name] = behind + getattr(pipeline.counts, field.name) - before
    return dataclasses.replace(pipeline, counts=dataclasses.replace(pipeline.counts, **changed))


def _of_the_unit(pipeline: Pipeline, field: str) -> bool:
    """Whether it is tcgen05 that gives slots back, and no warp that stores."""
    return pipeline.kind == "tma_umma" and field == "empty_arrivals"


def _with_fewer(barrier: NamedBarrier, program: KernelProgram) -> NamedBarrier:
    """A barrier for as many threads less as there are warps less that come to it."""
    gone = sum(max(0, role.warps - FEW_WARPS) for role in visitors(program, barrier.name))
    return dataclasses.replace(barrier, threads=barrier.threads - gone * WARP_THREADS)
