"""A smaller kernel for simulation, with fewer repeated parts: CTAs, warps, sub-tiles and stages.

Warps of a role execute the same steps, except for those of the first warp, and synchronize through counting barriers.
The same holds for CTAs along N, along M, or of other parts of K. Any two of them interact in the same way, so the
first, another and a third of each kind are enough.

Steps are unchanged. An error in a count of arrivals, bytes or threads keeps its difference from the plan's count.
"""

from __future__ import annotations

import dataclasses
import math

from ..plan.counts import copy_warps, counts, full_arrivals, least_stages, turns
from ..plan.records import WARP_THREADS, GemmPlan
from ..roles.grammar import KernelProgram, NamedBarrier, Pipeline
from .structure import visitors

FEW_SPLITS = 4
"""CTAs of a cluster that split K: a sender, an owner, and two before and after them."""
FEW_COLUMNS = 3
"""CTAs along N: the first, which alone stores per-row numbers, and two others."""
FEW_ROWS = 2
"""CTAs, or pairs, along M, which share only B."""
FEW_CLUSTERS = 3
"""Clusters that split K: the first, the last, and one between."""
FEW_WARPS = 2
"""Warps of a role: the first, which stores and sets expected bytes, and others."""
FEW_SLOTS = 3
"""Stages of operands: one that is read, one that is full and one that is filled."""
FEW_ROUNDS = 2
"""Rounds over the store buffers within a tile: one that finds them empty, and one that does not."""

#: Counts that depend on the number of epilogue warps, by pipeline.
_BY_WARPS = {
    "ab": ("empty_arrivals",),
    "accumulator": ("empty_arrivals",),
    "residual": ("empty_arrivals",),
    "raw": (),
    "parts": ("empty_arrivals", "transaction_bytes"),
    "rows": ("transaction_bytes",),
}


def smaller(program: KernelProgram) -> KernelProgram:
    """Reduce the CTAs, warps, sub-tiles and stages of `program`, if it has many."""
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
    """Reduce the CTAs along N, which share A and exchange row reductions, and those along M, which share B."""
    rows, columns = plan.cluster
    return dataclasses.replace(plan, cluster=(min(rows, FEW_ROWS * plan.ctas_per_mma), min(columns, FEW_COLUMNS)))


def _fewer_clusters(plan: GemmPlan) -> GemmPlan:
    """Reduce the clusters that split K, which differ only in the order of their arrivals."""
    return dataclasses.replace(plan, grid_splits=min(plan.grid_splits, FEW_CLUSTERS))


def _fewer_slots(plan: GemmPlan) -> GemmPlan:
    """Reduce the stages of operands: extra stages only let the producer run further ahead."""
    of_turns = -(-FEW_SLOTS // turns(plan)) * turns(plan)
    return dataclasses.replace(plan, ab_stages=min(plan.ab_stages, max(of_turns, least_stages(plan))))


def _fewer_subtiles(plan: GemmPlan) -> GemmPlan:
    """Remove sub-tiles that only repeat a full round of all epilogue pipelines, so that the next tile starts at the
    same stage.

    CTAs that split K interleave sub-tiles, which ``_fewer_splits`` handles.
    """
    if plan.splits > 1:
        return plan
    ahead = plan.residual_stages if plan.has_residual else 1
    period = math.lcm(plan.store_stages, ahead)
    least = max(FEW_ROUNDS * plan.store_stages, ahead + 1)
    spare = max(0, plan.subtiles - least) // period * period
    return dataclasses.replace(plan, tile=(plan.tile[0], (plan.subtiles - spare) * plan.epilogue_n, plan.tile[2]))


def _fewer_splits(plan: GemmPlan) -> GemmPlan:
    """Reduce the CTAs that split K. They differ only in the sub-tiles they own, whose number per CTA stays, and all
    pairs exchange alike."""
    if plan.splits <= FEW_SPLITS:
        return plan
    subtiles = plan.rounds * FEW_SPLITS - (1 if plan.subtiles % plan.splits else 0)
    return dataclasses.replace(plan, splits=FEW_SPLITS, tile=(plan.tile[0], subtiles * plan.epilogue_n, plan.tile[2]))


def _recounted(pipeline: Pipeline, plan: GemmPlan, few: GemmPlan, warps: int) -> Pipeline:
    """Return a pipeline with the counts of `few`, with `warps` epilogue warps, and the same differences from the plan."""
    changed = {}
    for field in dataclasses.fields(pipeline.counts):
        before, after = (getattr(getattr(counts(each), pipeline.name), field.name) for each in (plan, few))
        sliced = plan.sliced and pipeline.name in ("ab", "raw")
        if field.name in _BY_WARPS[pipeline.name] and not _of_the_unit(pipeline, field.name):
            after = after * warps // few.consumer_warps
        if field.name == "full_arrivals" and pipeline.name == "ab":
            after = full_arrivals(few, min(copy_warps(few), FEW_WARPS) // turns(plan))
        if field.name == "empty_arrivals" and pipeline.name == "raw":
            after = warps if few.converts else min(copy_warps(few), FEW_WARPS) // turns(plan)
        if field.name == "empty_arrivals" and sliced:
            after = 1  # each warp is a slice of its own
        changed[field.name] = after + getattr(pipeline.counts, field.name) - before
    return dataclasses.replace(pipeline, counts=dataclasses.replace(pipeline.counts, **changed))


def _of_the_unit(pipeline: Pipeline, field: str) -> bool:
    """Return whether tcgen05, rather than an epilogue warp, releases the stages."""
    return pipeline.kind == "tma_umma" and field == "empty_arrivals"


def _with_fewer(barrier: NamedBarrier, program: KernelProgram) -> NamedBarrier:
    """Return a barrier without the threads of removed warps."""
    gone = sum(max(0, role.warps - FEW_WARPS) for role in visitors(program, barrier.name))
    return dataclasses.replace(barrier, threads=barrier.threads - gone * WARP_THREADS)
