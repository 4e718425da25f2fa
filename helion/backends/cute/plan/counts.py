"""Every number that two sides of a pipeline must agree on, from one function of the plan."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .dtypes import itemsize
from .records import SUM_BYTES, WARP_THREADS, GemmPlan
from .reductions import exchanges

ROW_SLOTS = 2
"""Of exchanges of rows: CTAs that have the result of one may begin the next while others still read."""


@dataclass(frozen=True, kw_only=True)
class PipelineCounts:
    """Of one ring of ``stages`` slots. Transaction bytes are those that one full barrier awaits per phase."""

    stages: int
    full_arrivals: int
    empty_arrivals: int
    transaction_bytes: int = 0
    spare_words: int = 0
    """Places of barriers that are not used."""

    @property
    def barrier_words(self) -> int:
        """64-bit barriers: one that says full per slot, and one that says empty unless nobody has to."""
        return (2 if self.empty_arrivals else 1) * self.stages + self.spare_words


@dataclass(frozen=True, kw_only=True)
class Counts:
    a_stage_bytes: int
    """One slot of A in the shared memory of one CTA."""
    b_stage_bytes: int
    """Of both products, where there are two."""
    ab: PipelineCounts
    accumulator: PipelineCounts | None
    residual: PipelineCounts | None
    """One slot holds a sub-tile of every exact operand."""
    parts: PipelineCounts | None
    """One slot holds the sums of every other CTA that shares the K, of all sub-tiles that this one stores; its bytes are
    those of one such sub-tile."""
    parts_stage_bytes: int
    rows: PipelineCounts | None
    """One slot holds what all CTAs of a row found of it; its bytes are those of one reduction. Nobody says that a slot is
    empty: who fills it has seen the exchange before the one that it takes part in, which everybody sent to who had read
    the slot. Of one slot it has seen K tiles for which everybody gave back theirs of A and B behind reading it."""
    rows_stage_bytes: int
    """Of as many reductions as the exchange with the most of them has. The slot of all at once has the bytes of two for those
    apart: memory is predicted by facts that do not say which it will be."""
    a_multicast: int
    """CTAs of the cluster that one A tile is loaded for at once: those along N, or one."""
    b_multicast: int
    """CTAs, or pairs, that read one B tile: those along M."""
    consumer_threads: int
    """Threads of the barrier among the warps that store."""
    tensor_memory_threads: int
    """Threads of the barrier at which tensor memory is handed over: the storing warps and the one that issues."""
    tensor_memory_columns: int


@functools.lru_cache(maxsize=1024)
def counts(plan: GemmPlan) -> Counts:
    """The counts of `plan`."""
    rows, columns = plan.cta_tile
    a_bytes = rows * plan.tile[2] * plan.operand_bytes
    b_bytes = columns * plan.products // plan.ctas_per_mma * plan.tile[2] * plan.operand_bytes
    a_multicast, b_multicast = plan.cluster[1] if plan.shares_a else 1, plan.cluster_tiles[0]
    sharers = a_multicast + b_multicast - 1
    tcgen05 = plan.unit == "tcgen05"
    row_bytes = plan.cluster[1] * rows * SUM_BYTES
    slots = 1 if plan.joins else ROW_SLOTS
    parts_bytes = (plan.splits - 1) * rows * plan.epilogue_n * SUM_BYTES
    return Counts(
        a_stage_bytes=a_bytes,
        b_stage_bytes=b_bytes,
        ab=PipelineCounts(
            stages=plan.ab_stages,
            full_arrivals=1,
            # wgmma: every consumer warp of every CTA that reads what this one loads; tcgen05: one commit per CTA or pair.
            empty_arrivals=sharers if tcgen05 else sharers * plan.consumer_warps,
            transaction_bytes=(a_bytes + b_bytes) * plan.ctas_per_mma,
        ),
        accumulator=PipelineCounts(
            stages=plan.accumulator_stages, full_arrivals=1, empty_arrivals=plan.consumer_warps * plan.ctas_per_mma
        )
        if tcgen05
        else None,
        residual=PipelineCounts(
            stages=plan.residual_stages,
            full_arrivals=1,
            empty_arrivals=plan.consumer_warps,
            transaction_bytes=sum(
                subtile_bytes(plan, operand.dtype) for operand in plan.problem.epilogue.of_kind("exact")
            ),
        )
        if plan.has_residual
        else None,
        parts=PipelineCounts(
            stages=1,
            full_arrivals=1,
            empty_arrivals=(plan.splits - 1) * plan.consumer_warps,
            transaction_bytes=parts_bytes,
        )
        if plan.splits > 1
        else None,
        parts_stage_bytes=parts_bytes,
        rows=PipelineCounts(
            stages=slots,
            full_arrivals=1,
            empty_arrivals=0,
            transaction_bytes=row_bytes,
            spare_words=ROW_SLOTS - slots,
        )
        if exchanges(plan) and plan.cluster[1] > 1
        else None,
        rows_stage_bytes=ROW_SLOTS // slots * row_bytes * max(map(len, exchanges(plan)), default=0),
        a_multicast=a_multicast,
        b_multicast=b_multicast,
        consumer_threads=plan.consumer_warps * WARP_THREADS,
        tensor_memory_threads=(plan.consumer_warps + 1) * WARP_THREADS if tcgen05 else 0,
        tensor_memory_columns=_columns(plan.accumulator_stages * plan.sum_columns) if tcgen05 else 0,
    )


def subtile_bytes(plan: GemmPlan, dtype: str) -> int:
    """A sub-tile of an exact operand, or of an output, of `dtype`."""
    return plan.cta_tile[0] * plan.epilogue_n * itemsize(dtype)


@functools.lru_cache(maxsize=4096)
def multicast_masks(plan: GemmPlan, rank: int) -> tuple[int, int]:
    """CTAs of the cluster, as bits, that receive what CTA `rank` loads of A and of B.

    Ranks count the halves of a pair first, then pairs along M, then CTAs along N, then parts of K. Both halves of a pair
    keep their own half of either operand.
    """
    half, pair_m, cta_n = place(plan, rank)
    rows, columns = plan.cluster_tiles
    a = sum(1 << rank_at(plan, half, pair_m, n) for n in (range(columns) if plan.shares_a else (cta_n,)))
    b = sum(1 << rank_at(plan, half, m, cta_n) for m in range(rows))
    first = rank_at(plan, 0, 0, 0, part_of(plan, rank))
    return a << first, b << first


@functools.lru_cache(maxsize=4096)
def place(plan: GemmPlan, rank: int) -> tuple[int, int, int]:
    """(half of its pair, tile along M, tile along N) of CTA `rank` in its cluster."""
    pair, half = divmod(rank % (plan.cluster[0] * plan.cluster[1]), plan.ctas_per_mma)
    cta_n, pair_m = divmod(pair, plan.cluster_tiles[0])
    return half, pair_m, cta_n


def part_of(plan: GemmPlan, rank: int) -> int:
    """Which part of K CTA `rank` of its cluster multiplies."""
    return rank // (plan.cluster[0] * plan.cluster[1])


def rank_at(plan: GemmPlan, half: int, pair_m: int, cta_n: int, part: int = 0) -> int:
    """The inverse of ``place`` and ``part_of``."""
    return half + plan.ctas_per_mma * (pair_m + plan.cluster_tiles[0] * (cta_n + plan.cluster_tiles[1] * part))


def k_range(plan: GemmPlan, rank: int, k_tiles: int, grid_part: int = 0) -> range:
    """The K tiles that CTA `rank` of a cluster multiplies, one behind the other: on an H200 that is up to an eighth faster
    than to take them in turn. ``grid_part`` says which of the clusters that split K it is."""
    part = grid_part * plan.splits + part_of(plan, rank)
    return range(k_tiles * part // plan.parts, k_tiles * (part + 1) // plan.parts)


def row_peers(plan: GemmPlan, rank: int) -> list[int]:
    """Ranks of the CTAs that hold the rows of CTA `rank` together with it, itself among them, from the first column on."""
    half, pair_m, _ = place(plan, rank)
    return [rank_at(plan, half, pair_m, n) for n in range(plan.cluster_tiles[1])]


def block_count(plan: GemmPlan) -> int:
    """Blocks of K with factors of their own."""
    return -(-plan.k_tiles // plan.promote_k_tiles)


def owner(plan: GemmPlan, subtile: int) -> int:
    """The part of K whose CTA adds all sums of `subtile` and stores it."""
    return subtile % plan.splits


def _columns(needed: int) -> int:
    """Tensor memory is allocated in powers of two from 32 columns."""
    return max(32, 1 << (needed - 1).bit_length())
