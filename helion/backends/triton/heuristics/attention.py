"""Attention: two dots in one loop, joined by a softmax over the loop's axis, for tiles of queries.

Of each height the first tile that fits without spilling, from the one that flash attention kernels for A100 and H100 use
for heads of 64 and 128 down to what heads of 576 leave room for; then the height whose programs come out best: an SM
works through its share of them, and rows beyond the last query and SMs without a program count as work. Narrow heads of
16 bits where the matrix unit is asynchronous leave registers for two programs of four warps on an SM, of which one has its
exponentials while the other multiplies: on an H200 heads of 64 take 1455 us instead of 1789 (16 heads, 8192 keys, batch
of 2), where there are as many programs: one on an SM takes 11425 us with four warps and 6895 with eight. Offline for sm_80 to sm_120, gfx942 and gfx950 first seeds for heads of 64 to 576 fit and do not spill.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._shapes import cdiv
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .attention_tiles import Tile, cost_of, fits, programs_of
from .sizing import Sizes, clamp, extent_of

#: Queries, keys, stages and warps; of one height, the first that fits is taken.
_CANDIDATES = (
    Tile(128, 128, 3, 8),
    Tile(128, 128, 2, 8),
    Tile(128, 64, 3, 8),
    Tile(128, 64, 3, 4),
    Tile(128, 64, 2, 8),
    Tile(128, 32, 3, 8),
    Tile(64, 64, 3, 4),
    Tile(64, 64, 2, 4),
    Tile(64, 64, 2, 8),
    Tile(64, 32, 3, 4),
    Tile(64, 32, 2, 4),
    Tile(64, 32, 2, 8),
    Tile(64, 16, 2, 8),
    Tile(64, 32, 1, 8),
    Tile(32, 64, 3, 4),
    Tile(32, 32, 2, 4),
    Tile(32, 64, 2, 8),
    Tile(32, 32, 2, 8),
    Tile(32, 16, 2, 8),
    Tile(16, 64, 2, 4),
    Tile(16, 32, 2, 4),
    Tile(16, 16, 1, 4),
)
#: What comes before them for heads of at most so many numbers.
_NARROW, _NARROW_HEAD = Tile(128, 64, 3, 4), 64
#: Proposals given.
_KEPT = 3


class TritonAttentionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.attention
        if fact is None:
            return Declined("no two matrix products joined by a softmax")
        if fact.query_axis is None or not (facts.axes[fact.query_axis].tunable and facts.axes[fact.key_axis].tunable):
            return Declined("queries or keys are not tiles")
        for percent in (safety.attention(target), safety.ALL):
            found = tuple(itertools.islice(_feasible(facts, fact.query_axis, fact.key_axis, target, percent), _KEPT))
            if found:
                return found
        return Declined("no tile of queries and keys fits without spilling")


def _feasible(facts: KernelFacts, query: int, key: int, target: Target, percent: int) -> Iterator[TritonProposal]:
    """Those that fit, the least that an SM works through first, and of one height in the order of the table."""

    def sizes_of(tile: Tile) -> Sizes:
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        return sizes | {query: clamp(tile.held, facts.axes[query]), key: clamp(tile.walked, facts.axes[key])}

    def cost(tile: Tile) -> float:
        sizes = sizes_of(tile)
        walks = 1 if facts.axes[query].on_grid else cdiv(extent_of(facts.axes[query]), sizes[query])
        return cost_of(tile, programs_of(facts, facts.attention_root, sizes), walks * sizes[query], target)

    paired = programs_of(facts, facts.attention_root, sizes_of(_NARROW)) > target.num_sms
    first = (_NARROW,) if paired and target.has("wgmma") and _has_narrow_heads(facts, key) else ()
    for tile in sorted((*first, *(each for each in _CANDIDATES if each not in first)), key=cost):
        sizes = sizes_of(tile)
        predicted = fits(facts, target, sizes, tile, percent)
        if predicted is not None:
            programs = programs_of(facts, facts.attention_root, sizes)
            yield TritonProposal(
                reason=f"{sizes[query]} queries by {sizes[key]} keys, {predicted.registers_per_thread} registers, "
                f"{programs} programs on {target.num_sms} SMs",
                block_sizes=sizes,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )


def _has_narrow_heads(facts: KernelFacts, key: int) -> bool:
    """Whether queries meet keys in products of so few 16-bit numbers that the sums of the output are few as well."""
    scores = [product for product in facts.matmuls if product.n_axis == key]
    return bool(scores) and all(
        product.lhs_dtype.itemsize == 2 and (product.static_k or _NARROW_HEAD + 1) <= _NARROW_HEAD for product in scores
    )
