"""Workspace in global memory: split-K partials of clusters, rows of a matmul for the kernel that finishes them, and
operands that a kernel before the matmul writes.

It starts with ``MAX_COUNTERS`` counters, one for each tile of a CTA, which are zero between launches. The fp32 partials,
the rows and the operands follow. Kernels in order on a stream share one workspace: all of them have their counters in the same
place.
"""

from __future__ import annotations

from ...._support.records import replace
from .counts import takes_turns
from .finish import rows_bytes
from .operands import ALIGNMENT_BYTES, prepared_bytes
from .records import SUM_BYTES, WARP_THREADS, GemmPlan
from .refusal import Refusal

COUNTER_BYTES = 4
MAX_COUNTERS = 4096
"""Limit of one launch. K is split where tiles are few."""
MAX_SUMS_BYTES = 2**30
WORDS = 4
"""fp32 partials of one 16-byte access of a thread."""


MOST_SPLIT_LAST = 2
"""CTAs of a cluster where clusters split the last wave alone: as many clusters run at once as their CTAs fill SMs."""


def with_whole_tiles(plan: GemmPlan, sms: int) -> GemmPlan:
    """Return a plan whose clusters split the tiles of the last wave alone. Raises ``Refusal``."""
    if plan.unit != "wgmma" or not takes_turns(plan) or plan.splits > 1 or plan.ctas > MOST_SPLIT_LAST:
        raise Refusal(
            f"clusters split the tiles of the last wave alone on wgmma, of one matmul that TMA loads, in clusters of up to"
            f" {MOST_SPLIT_LAST} CTAs without k_splits; these are {plan.ctas} CTAs, and {plan.grid_splits} clusters split K"
        )
    at_once = sms // plan.ctas
    last = plan.tiles % at_once
    if plan.tiles < at_once or not last:
        raise Refusal(
            f"{plan.tiles} tiles on {at_once} clusters at once have no part of a wave that clusters could split"
        )
    return replace(plan, whole_tiles=plan.tiles - last)


def split_tiles(plan: GemmPlan) -> int:
    """Return the cluster tiles whose K clusters split."""
    return plan.tiles - plan.whole_tiles


def counters(plan: GemmPlan) -> int:
    """Return the tile counters: one for each split tile of all CTAs."""
    return split_tiles(plan) * plan.ctas


def counter_bytes(plan: GemmPlan) -> int:
    """Return the bytes of the counters that a launch uses."""
    return COUNTER_BYTES * counters(plan) if plan.grid_splits > 1 else 0


def sums_shape(plan: GemmPlan) -> tuple[int, ...]:
    """Return the shape of the partials; the first dimension is contiguous.

    Dimensions are words, threads, words of a thread in a sub-tile, sub-tiles that a CTA stores, parts of K, CTAs, and
    split cluster tiles.
    """
    threads = plan.consumer_warps * WARP_THREADS
    values = plan.cta_tile[0] * plan.epilogue_n // threads
    return (WORDS, threads, values // WORDS, plan.rounds, plan.grid_splits, plan.ctas, split_tiles(plan))


def sums_bytes(plan: GemmPlan) -> int:
    size = SUM_BYTES
    for extent in sums_shape(plan):
        size *= extent
    return size


def workspace_bytes(plan: GemmPlan) -> int:
    """Return the workspace bytes of a launch; 0 for plans that need none."""
    if plan.prepare is not None and plan.prepare.operands:
        return prepared_offset(plan) + prepared_bytes(plan.prepare)
    needs = plan.grid_splits > 1 or rows_bytes(plan.finish) > 0
    return rows_offset(plan) + rows_bytes(plan.finish) if needs else 0


def rows_offset(plan: GemmPlan) -> int:
    """Return the byte offset of the rows."""
    return MAX_COUNTERS * COUNTER_BYTES + (sums_bytes(plan) if plan.grid_splits > 1 else 0)


def prepared_offset(plan: GemmPlan) -> int:
    """Return the byte offset of operands in memory."""
    return -(-(rows_offset(plan) + rows_bytes(plan.finish)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
