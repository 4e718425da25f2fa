"""Gradients of attention on tcgen05: the tile with the least predicted time.

A tile has two groups of 128 rows, which take turns in left operands and MMAs, or one where tensor memory holds no more. No
Blackwell GPU has run these kernels: the prediction is that of their units (``resources.umma_backward``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..plan.attention.backward import BackwardChoice
from ..plan.attention.umma import UMMA_GROUPS, UMMA_KEYS, UMMA_ROWS
from ..proposal import CuteProposal
from ..resources.backward import BackwardShape, backward_shape, describes_backward
from ..resources.umma_backward import memory_columns, umma_backward_bytes, umma_backward_us

SHORTER_KEYS = (UMMA_KEYS, 96, 64, 32)
"""Streamed rows of blocks, the most first."""
ALTERNATES = 3


class CuteTcgen05BackwardHeuristic(Heuristic):
    name: ClassVar[str] = "CuteTcgen05BackwardHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not describes_backward(facts):
            return Declined("the kernel computes no gradients of attention")
        if not target.has("tcgen05"):
            return Declined(f"{target} has no tcgen05")
        shape = backward_shape(facts)
        if isinstance(shape, str):
            return Declined(shape)
        found = sorted(_choices(shape, target), key=lambda choice: umma_backward_us(shape, choice, target))
        if not found:
            return Declined("no tile of the gradients fits")
        return tuple(_proposal(shape, choice, target) for choice in found[:ALTERNATES])


def _choices(shape: BackwardShape, target: Target) -> Iterator[BackwardChoice]:
    """Yield choices that fit; among equally fast ones the first wins."""
    most = min(UMMA_GROUPS, -(-shape.rows // UMMA_ROWS))
    for groups in range(most, 0, -1):
        for keys in SHORTER_KEYS:
            choice = BackwardChoice(groups=groups, keys=keys)
            sizes = zip(shape.blocks, (UMMA_ROWS * groups, keys), strict=True)
            if any(shape.fixed.get(block, size) != size for block, size in sizes):
                continue
            fits = umma_backward_bytes(shape, choice) <= target.smem_per_block_bytes
            if fits and memory_columns(shape, choice) <= target.tensor_memory_columns:
                yield choice


def _proposal(shape: BackwardShape, choice: BackwardChoice, target: Target) -> CuteProposal:
    rows = UMMA_ROWS * choice.groups
    blocks = dict(zip(shape.blocks, (rows, choice.keys), strict=True))
    tiles = -(-shape.rows // rows) * shape.heads
    return CuteProposal(
        reason=(
            f"{tiles} tiles of {rows} rows and blocks of {choice.keys} streamed rows on {target.num_sms} SMs:"
            f" {umma_backward_us(shape, choice, target):.0f} us"
        ),
        block_sizes={
            **{block: size for block, size in blocks.items() if block not in shape.fixed},
            **dict.fromkeys(shape.head_blocks, 1),
        },
        unit={},
    )
