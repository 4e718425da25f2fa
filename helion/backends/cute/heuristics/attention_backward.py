"""Gradients of attention on Hopper: the longest blocks that registers and shared memory hold.

A tile has two consumer groups of 64 rows, or one where there are few. Shorter blocks and one group follow, for formulas that
hold more values between both products than facts show: binaries of seeds are checked for spills before they run. Both tile
schedulers are seeds. Where tiles differ in length, as with causal masks, the dynamic one may be the first: for gradients of
keys and values, and for heads of 128 or more. It was faster on an H200 (benchmarks/results/cute/nvidia-h200-attention.jsonl).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..plan.attention.backward import BackwardChoice, atomic_tile
from ..plan.attention.build import KEY_STEP, REGISTERS
from ..plan.attention.gradients import SHORTEST_KEYS
from ..plan.attention.records import Scheduler
from ..plan.records import WGMMA_ROWS
from ..proposal import CuteProposal
from ..resources.backward import (
    BackwardShape,
    backward_shape,
    describes_backward,
    predicted_us,
    shape_bytes,
)

MOST = {1: 128, 2: 96}
"""The longest blocks, by number of gradients."""
LEAST = 64
"""The shortest blocks, unless heads are so wide that a tile holds none of them."""
GROUPS = (2, 1)
ALTERNATES = 4
SCHEDULERS: dict[bool, tuple[Scheduler, Scheduler]] = {False: ("static", "dynamic"), True: ("dynamic", "static")}
"""Tile schedulers, the faster one first, by whether tiles of sequences, of two gradients, or of ``LONG_HEADS``, differ in length,
or tiles add to memory (``sequence_times`` and ``operator_gradients`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
LONG_HEADS = 128
"""Columns of one gradient from which a counter is faster for tiles of different lengths (measurement ``query_schedulers``)."""


class CuteAttentionBackwardHeuristic(Heuristic):
    name: ClassVar[str] = "CuteAttentionBackwardHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not describes_backward(facts):
            return Declined("the kernel computes no gradients of attention")
        if not target.has("wgmma"):
            return Declined(f"{target} has no wgmma")
        shape = backward_shape(facts)
        if isinstance(shape, str):
            return Declined(shape)
        found = [each for each in choices(shape, target) if _allows(shape, each)]
        ranked = sorted(found, key=lambda choice: predicted_us(shape, choice, target))
        if not ranked:
            return Declined("no tile of the gradients fits")
        return tuple(_proposal(shape, choice, target) for choice in ranked[:ALTERNATES])


def _allows(shape: BackwardShape, choice: BackwardChoice) -> bool:
    sizes = zip(shape.blocks, (WGMMA_ROWS * choice.groups, choice.keys), strict=True)
    return all(shape.fixed.get(block, size) == size for block, size in sizes)


def choices(shape: BackwardShape, target: Target) -> Iterator[BackwardChoice]:
    """Yield choices that fit; among equally fast ones the first wins."""
    needed = -(-shape.rows // WGMMA_ROWS)
    own, longest = atomic_tile(shape.atomic, shape.gradients, shape.draws > 0) if shape.atomic else (0, 0)
    for groups in (own,) if shape.atomic else (each for each in GROUPS if each <= needed):
        longest = longest or MOST[len(shape.gradients)]
        shortest = longest if shape.atomic else SHORTEST_KEYS
        sizes = [keys for keys in range(longest, shortest - 1, -KEY_STEP) if _fits(shape, groups, keys, target)]
        for keys in [each for each in sizes if each >= LEAST] or sizes:
            differ = shape.loaded or (shape.hidden and (len(shape.gradients) > 1 or max(shape.gradients) >= LONG_HEADS))
            schedulers = SCHEDULERS[differ or shape.atomic > 0]
            yield from (BackwardChoice(groups=groups, keys=keys, scheduler=each) for each in schedulers)


def _fits(shape: BackwardShape, groups: int, keys: int, target: Target) -> bool:
    """Return whether registers and shared memory hold blocks of ``keys`` rows."""
    fits = shape_bytes(shape, BackwardChoice(groups=groups, keys=keys)) <= target.smem_per_block_bytes
    return fits and shape.registers(keys) <= REGISTERS[groups][1]


def _proposal(shape: BackwardShape, choice: BackwardChoice, target: Target) -> CuteProposal:
    rows = WGMMA_ROWS * choice.groups
    blocks = dict(zip(shape.blocks, (rows, choice.keys), strict=True))
    sizes = {block: size for block, size in blocks.items() if block not in shape.fixed}
    tiles = -(-shape.rows // rows) * shape.heads
    return CuteProposal(
        reason=(
            f"{tiles} tiles of {rows} rows and blocks of {choice.keys} streamed rows on {target.num_sms} SMs,"
            f" {choice.scheduler} tile scheduler: {predicted_us(shape, choice, target):.0f} us"
        ),
        block_sizes={**sizes, **dict.fromkeys(shape.head_blocks, 1)},
        unit={"wgmma_tile_scheduler": choice.scheduler},
    )
