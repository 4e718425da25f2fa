"""Attention on tcgen05: the tile with the least predicted time.

A tile has two groups of 128 queries, which take turns in softmax and MMAs, or one where there are few queries. Blocks have
128 keys, or as many as shared and tensor memory hold. No Blackwell GPU has run these kernels: the prediction is that of
their units (``plan.attention.umma``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..plan.attention.build import LEAST_STAGES
from ..plan.attention.umma import UMMA_GROUPS, UMMA_KEYS, UMMA_ROWS, UmmaChoice
from ..proposal import CuteProposal
from ..resources.attention import AttentionShape, describes, shape_of
from ..resources.umma_attention import tensor_share, umma_us
from .attention import key_splits

SHORTER_KEYS = (UMMA_KEYS, 96, 64, 32)
"""Keys of blocks, the longest first."""
SPLIT_SCORES, SPLIT_FORMULAS = 192, 64
"""The most columns of scores of a tile whose keys are split, also where formulas fill registers. With more, threads of two
groups spill (measurement ``umma_split_keys``)."""
ALTERNATES = 3
SMALL_BYTES = 8192
"""Shared memory of messages and barriers, at most."""


class CuteTcgen05AttentionHeuristic(Heuristic):
    name: ClassVar[str] = "CuteTcgen05AttentionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not describes(facts):
            return Declined("the kernel is no attention")
        if not target.has("tcgen05"):
            return Declined(f"{target} has no tcgen05")
        shape = shape_of(facts)
        if isinstance(shape, str):
            return Declined(shape)
        if shape.latent:
            return Declined("attention on tcgen05 has values of its own")
        longest = UMMA_KEYS
        if _needs_registers(facts, shape):
            longest = UMMA_KEYS // (2 if shape.operand_bytes > 1 else 4)
        found = sorted(_choices(shape, target, longest), key=lambda choice: umma_us(shape, choice, target))
        if not found:
            return Declined("no tile of the attention fits")
        return tuple(_proposal(shape, choice, target) for choice in found[:ALTERNATES])


def _needs_registers(facts: KernelFacts, shape: AttentionShape) -> bool:
    """Return whether formulas fill the registers next to 128 scores. They read a number for each key, as a bias, draw one, or are
    all that weights without a softmax have. Blocks of 128 keys spill then (measurement ``umma_formulas``)."""
    multiplied = {fact.rhs_slot for fact in facts.matmuls}
    loads = (op for op in facts.memory_ops if op.kind == "load" and op.slot not in multiplied)
    return not shape.softmax or bool(facts.random_tiles) or any(shape.blocks[1] in op.tile_axes for op in loads)


def _choices(shape: AttentionShape, target: Target, longest: int) -> Iterator[UmmaChoice]:
    """Yield choices that fit; among equally fast ones the first wins."""
    most = min(UMMA_GROUPS, -(-shape.queries // UMMA_ROWS))
    for groups in range(most, 0, -1):
        for keys in (each for each in SHORTER_KEYS if each <= longest):
            if shape.loaded and keys & (keys - 1):
                continue  # pages are multiples of powers of two
            sizes = zip(shape.blocks, (UMMA_ROWS * groups, keys), strict=True)
            if any(shape.fixed.get(block, size) != size for block, size in sizes):
                continue
            if groups * (keys + shape.v_columns) <= target.tensor_memory_columns and _fits(shape, groups, keys, target):
                lazy = shape.softmax and shape.operand_bytes > 1  # else weights may leave the range of their type
                choice = UmmaChoice(groups=groups, keys=keys, lazy=lazy)
                yield choice
                most_split = SPLIT_SCORES if longest == UMMA_KEYS else SPLIT_FORMULAS
                if groups * keys <= most_split and _fits(shape, groups, keys, target, own_output=True):
                    for splits in key_splits(shape, choice, UMMA_ROWS * groups, target):
                        yield replace(choice, splits=splits)


def _fits(shape: AttentionShape, groups: int, keys: int, target: Target, own_output: bool = False) -> bool:
    rows = UMMA_ROWS * groups
    own_output = own_output or shape.qk_columns != shape.v_columns or shape.output_bytes != 2
    own = shape.output_bytes * shape.v_columns if own_output else 0
    of_rows = rows * (shape.operand_bytes * shape.qk_columns + own)
    of_blocks = LEAST_STAGES * shape.operand_bytes * keys * shape.columns_in_memory
    return of_rows + of_blocks + SMALL_BYTES <= target.smem_per_block_bytes


def _proposal(shape: AttentionShape, choice: UmmaChoice, target: Target) -> CuteProposal:
    rows = UMMA_ROWS * choice.groups
    blocks = dict(zip(shape.blocks, (rows, choice.keys), strict=True))
    of_config = shape.blocks[1:] if shape.whole else shape.blocks
    sizes = {block: size for block, size in blocks.items() if block in of_config and block not in shape.fixed}
    tiles = -(-shape.queries // rows) * shape.heads
    split = f" in {choice.splits} parts of the keys" if choice.splits > 1 else ""
    return CuteProposal(
        reason=(
            f"{tiles} tiles of {rows} queries{split} and blocks of {choice.keys} keys on {target.num_sms} SMs:"
            f" {umma_us(shape, choice, target):.0f} us, {tensor_share(shape, choice, target):.0%} of them on the tensor pipe"
        ),
        block_sizes={**sizes, **dict.fromkeys(shape.head_blocks, 1)},
        unit={"tcgen05_lazy_rescale": choice.lazy, "tcgen05_key_splits": choice.splits},
    )
