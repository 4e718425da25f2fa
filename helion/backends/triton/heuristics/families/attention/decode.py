"""Attention of few queries against many keys (decoding), where the kernel itself fixes the queries of a program.

The kernel is memory-bound: each tile of keys and values is read once, so every SM needs some tiles in flight. Tiles of
64 keys in three stages for two warps are those of published kernels for H100. Where the kernel splits the keys
(split-K), a part is as long as leaves every SM the programs that it runs at once. Times of five unseen cells, and those
of the fastest library, are in benchmarks/results/nvidia-h200-unseen.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_shapes import next_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic, Predicted
from ......hardware import Target
from ....proposal import TritonProposal
from ... import register_safety as safety
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import (
    Sizes,
    all_sizes,
    clamp,
    extent_of,
    is_chosen,
    nearest_size,
    programs_of,
    tiles,
    tunables,
    wave_efficiency,
)
from ...tuned import Tuned, tuned
from .tiles import Tile, fits, start_sizes

#: The first is for programs that have an SM to themselves: only their warps hide latency (measurement ``decode_alone``).
_CANDIDATES = (
    Tile(0, 128, 3, 4),
    Tile(0, 64, 3, 2),
    Tile(0, 64, 3, 4),
    Tile(0, 32, 3, 2),
    Tile(0, 32, 3, 4),
    Tile(0, 32, 2, 4),
    Tile(0, 16, 2, 4),
)
#: The published tiles for AMD. Offline, LLVM refuses 64 keys of 64 features where a program has one query (Triton 3.7).
_HIP_CANDIDATES = (Tile(0, 32, 1, 4), Tile(0, 64, 1, 4), Tile(0, 16, 1, 4))


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "attention_decode"

    #: Least keys of a split: fewer do not fill the pipeline, and each split adds a partial result to combine.
    least_part: int
    #: Most waves of programs that the keys are split for.
    waves: int
    #: Fraction of the resident programs that counts as all of them, because each split adds a partial result to
    #: combine.
    busy: float


_TUNED = tuned(_Numbers)


class TritonAttentionDecodeHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionDecodeHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.attention
        if fact is None:
            return Declined("no two matmuls joined by a softmax")
        if fact.query_axis is not None and facts.axes[fact.query_axis].tunable:
            return Declined("queries are a tile")
        if not facts.axes[fact.key_axis].tunable:
            return Declined("keys are not a tile")
        alone, *others = _CANDIDATES
        found = self.found(facts, target, others if target.kind == "cuda" else _HIP_CANDIDATES)
        if not found:
            return Declined("no tile of keys fits without spilling")
        programs = programs_of(facts, all_sizes(facts, found[0].block_sizes), facts.attention_root)
        phases_share_warps = facts.num_roots > 1
        if programs <= target.num_sms and target.kind == "cuda" and not phases_share_warps:
            found = [*self.found(facts, target, (alone,)), *found]
        elif target.kind == "cuda" and facts.num_roots == 1 and not _splits(facts):
            longer = () if _has_pages(facts) else self.found(facts, target, (alone,))
            found = _fastest_first(facts, [*found, *longer], target)
        return tuple(found[:2])

    def found(self, facts: KernelFacts, target: Target, candidates: Iterable[Tile]) -> list[TritonProposal]:
        """Return the proposals of the tiles that fit without spilling."""
        fact, found = facts.attention, []
        assert fact is not None
        for tile in candidates:
            sizes = start_sizes(facts)
            sizes[fact.key_axis] = clamp(tile.walked, facts.axes[fact.key_axis])
            predicted = fits(facts, target, sizes, tile, safety.attention(target))
            if predicted is not None:
                found.append(_proposal(facts, target, tile, sizes, predicted))
        return found


def _splits(facts: KernelFacts) -> bool:
    """Return whether programs share the keys of a query."""
    assert facts.attention is not None
    outer = facts.axes[facts.attention.key_axis].outer
    return outer is not None and facts.axes[outer].on_grid


def _has_pages(facts: KernelFacts) -> bool:
    """Return whether keys are at loaded positions, of which a longer step has more (measurement ``converted_keys``)."""
    fact = facts.attention
    return fact is not None and any(op.gathered and op.region == fact.region for op in facts.memory_ops)


def _fastest_first(facts: KernelFacts, found: list[TritonProposal], target: Target) -> list[TritonProposal]:
    """Return the proposals, one of much less predicted time before the published one.

    Keys that a step converts, as those of 8 bits, keep more warps busy (measurement ``converted_keys``).
    """
    fact = facts.attention
    assert fact is not None
    timed = [(each, proposal_us(facts, each, target)) for each in found]
    converted = any(op.itemsize == 1 and op.kind == "load" and op.region == fact.region for op in facts.memory_ops)
    best = unless_faster(timed[0], timed[1:], 1.0 if converted else trust(target).several_matmuls)
    return [best, *(each for each in found if each is not best)]


def _proposal(facts: KernelFacts, target: Target, tile: Tile, sizes: Sizes, predicted: Predicted) -> TritonProposal:
    assert facts.attention is not None
    key = facts.axes[facts.attention.key_axis]
    part = key.outer if key.outer is not None and facts.axes[key.outer].on_grid else None
    text = f"{sizes[key.block_id]} keys in {tile.stages} stages"
    if part is not None and is_chosen(facts.axes[part]):
        length = _part(facts, target, part, sizes, max(1, predicted.occupancy_blocks))
        sizes = sizes | {part: nearest_size(max(length, sizes[key.block_id]), facts.axes[part])}
        text += f", splits of {sizes[part]}"
    programs = programs_of(facts, sizes, facts.attention_root)
    return TritonProposal(
        reason=f"{text}, {programs} programs on {target.num_sms} SMs",
        block_sizes=tiles(facts, sizes),
        num_warps=tile.warps,
        num_stages=tile.stages,
        launch=tunables(facts, sizes),
    )


def _part(facts: KernelFacts, target: Target, part: int, sizes: Sizes, together: int) -> int:
    """Return the number of keys per split: the largest that still keeps nearly all resident programs busy."""
    extent = extent_of(facts.axes[part])
    alone = programs_of(facts, sizes | {part: next_power_of_2(extent)}, facts.attention_root)
    slots = target.num_sms * min(together, _TUNED.waves)
    most = max(1, min(_TUNED.waves * slots // alone, extent // _TUNED.least_part))
    options = [1 << i for i in range(most.bit_length())]
    parts = max(
        options,
        key=lambda count: (min(_TUNED.busy, alone * count / slots), wave_efficiency(alone * count, target), -count),
    )
    return next_power_of_2(-(-extent // parts))
