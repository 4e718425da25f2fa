"""Attention on Hopper: the tile and the variant with the least predicted time.

A tile has two consumer groups of 64 queries, or one where there are few queries. Heads of up to 64 dimensions have three,
unless scores have a formula, which no measurement supports. So have heads of 128 whose scores are rounded. Blocks of keys are as long as registers allow. Tiles of different lengths, as with causal masks, are handed out by a counter, longest first, and so are many tiles of narrow heads. Measured
rates are in benchmarks/results/cute/nvidia-h100-attention.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..plan.attention.build import (
    KEY_STEP,
    LEAST_STAGES,
    MOST_KEYS,
    MOST_STAGES,
    bias_registers,
    consumer_registers,
    registers_of,
)
from ..plan.attention.records import LATENT_GROUPS, AttentionChoice
from ..plan.records import WGMMA_ROWS
from ..proposal import CuteProposal
from ..resources.attention import MASKED_REGISTERS, NARROW, AttentionShape, describes, predicted_us, shape_of
from ..score_rules import KEY_SPLITS

GATHERED_REGISTERS = 96
"""Those that indices of tables add (measurement ``attention_registers``)."""
LAUNCHED_REGISTERS = 8
"""More of these where sizes are known at a launch, and indices are sums of positions (measurement ``gathered_registers``)."""
LOOKED_UP_OPERATIONS, LOOKED_UP_KEYS = 6, 48
"""Operations of formulas with two such indices that have shorter blocks (measurement ``gathered_registers``)."""
GROUPS = (3, 2, 1)
SHORT_KEYS = 2048
"""Keys up to which tiles with masks are short: wide heads are faster with two tiles of queries than with a third stage."""
FEW_OPERATIONS, WIDE = 1, 128
"""Operations of formulas that three groups were faster with: a bias, and scores that are rounded to 16 bits (``sweep`` in
benchmarks/results/cute/nvidia-h200-attention.jsonl), which are the only ones in heads of 128 (measurement
``scores_in_groups``)."""
MANY_ROUNDS = 2
"""Rounds of tiles up to which a counter is no gain (measurement ``attention_rounds``)."""
MANY_BLOCKS = 16
"""Blocks of a tile from which a third stage for those of the next tile is no gain (measurement ``attention_handed_out``)."""
SHORTEST_KEYS = 32
"""The shortest blocks of tiles of several groups, which have room for longer ones with fewer queries."""
WIDE_KEYS, FORMULA_KEYS = 176, 128
"""The longest blocks that were measured: longer ones leave more of the last block empty. Masks and formulas of scores take
registers, so that shorter blocks are faster there (``rounded`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
MANY_OPERATIONS, MANY_KEYS = 16, 112
"""Operations of a formula for which one group has shorter blocks, as it has for a bias (measurement
``attention_registers``)."""
FEW_BLOCKS, FEW_KEYS = 2, 512
"""Blocks that are as long as they need to be, and keys of wide heads for which short blocks leave room for the queries of the
next tile (``two blocks`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
BIAS_STAGES, LEAST_BIAS_KEYS = 2, 64
"""Stages of a bias that TMA loads, and the shortest blocks that they leave room for."""
NARROW_STEP = 64
"""Multiple of the keys of blocks of 8 bits: rows of V are contiguous keys, and swizzled by 64 bytes at least."""
ALTERNATES, WITHIN = 3, 1.3
BLOCKS_OF_PART = 2
"""The least blocks of a part of the keys."""


class CuteAttentionHeuristic(Heuristic):
    name: ClassVar[str] = "CuteAttentionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not describes(facts):
            return Declined("the kernel is no attention")
        if not target.has("wgmma"):
            return Declined(f"{target} has no wgmma")
        shape = shape_of(facts)
        if isinstance(shape, str):
            return Declined(shape)
        found = [each for each in choices(shape, target) if _allows(shape, each)]
        ranked = sorted(found, key=lambda choice: predicted_us(shape, choice, target))
        if not ranked:
            return Declined("no tile of the attention fits")
        best = predicted_us(shape, ranked[0], target)
        near = [each for each in ranked if predicted_us(shape, each, target) <= WITHIN * best]
        return tuple(_proposal(shape, choice, target) for choice in near[:ALTERNATES])


def _allows(shape: AttentionShape, choice: AttentionChoice) -> bool:
    sizes = zip(shape.blocks, (WGMMA_ROWS * choice.groups, choice.keys), strict=True)
    return all(shape.fixed.get(block, size) == size for block, size in sizes)


def choices(shape: AttentionShape, target: Target) -> Iterator[AttentionChoice]:
    """Yield choices that fit; among equally fast ones the first wins."""
    needed = -(-shape.queries // WGMMA_ROWS)
    most = 1 if shape.latent else needed if _has_three_groups(shape) else min(needed, 2)
    for groups in (each for each in GROUPS if each <= most):
        keys, bias_stages = longest_keys(shape, groups, target), 0
        if shape.bias and (keys_with_bias := longest_keys(shape, groups, target, BIAS_STAGES)) >= LEAST_BIAS_KEYS:
            keys, bias_stages = keys_with_bias, BIAS_STAGES
        if groups == 1 and not shape.latent:  # blocks of 176 keys spill
            keys = min(keys, FORMULA_KEYS)
        if not keys or (keys < SHORTEST_KEYS and groups > 1):
            continue
        ranged = shape.ranged and shape.queries > WGMMA_ROWS * groups  # their estimated numbers of keys are small
        lengths = {keys, *(each for each in (128, 64, *_even_keys(shape, keys)) if each < keys and not ranged)}
        lengths = {64} if groups > 1 and _is_short(shape) and shape.operand_bytes == 2 else lengths
        if (fixed := shape.fixed.get(shape.blocks[1])) is not None:
            lengths = {fixed} if fixed <= keys else set()
        for length in sorted(lengths, reverse=True):
            choice = AttentionChoice(
                groups=groups,
                keys=length,
                stages=_stages(shape, groups, length, target),
                pingpong=groups == GROUPS[0] or _takes_turns(shape),
                lazy=shape.v_columns > 64 and shape.softmax and shape.operand_bytes > 1,
                scheduler="dynamic" if _varies(shape, groups) or _overlaps(shape, groups, target) else "static",
                bias_stages=bias_stages,
            )
            yield choice
            fits = _shared_bytes(shape, groups, length, True, bias_stages) <= target.smem_per_block_bytes
            for splits in key_splits(shape, choice, WGMMA_ROWS * groups, target) if fits else ():
                yield replace(choice, splits=splits, scheduler="static")


def _even_keys(shape: AttentionShape, keys: int) -> Iterator[int]:
    """Yield the length of a few blocks that leave the least of the last one empty."""
    blocks = -(-shape.keys // min(keys, FORMULA_KEYS))
    if shape.splittable and not shape.bounded and not shape.loaded and 1 < blocks <= FEW_BLOCKS:
        step = KEY_STEP if shape.operand_bytes > 1 else NARROW_STEP
        yield -(-shape.keys // (blocks * step)) * step


def _overlaps(shape: AttentionShape, groups: int, target: Target) -> bool:
    """Return whether a counter hands out equal tiles of narrow heads as well, so that a CTA loads the next one early
    (measurement ``attention_handed_out``)."""
    tiles = -(-shape.queries // (WGMMA_ROWS * groups)) * shape.heads
    plain = shape.softmax and shape.splittable and shape.operations <= FEW_OPERATIONS
    plain = plain and not (shape.bounded or shape.loaded or shape.bias)
    many = shape.keys >= FEW_KEYS and shape.queries > WGMMA_ROWS * groups and tiles > MANY_ROUNDS * target.num_sms
    return plain and many and groups > 1 and shape.v_columns <= NARROW and shape.operand_bytes == 2


def _stages(shape: AttentionShape, groups: int, keys: int, target: Target) -> int | None:
    """Return the stages of K and V, None for all that fit: few queries wait for memory, and so do short tiles."""
    few = shape.queries <= WGMMA_ROWS
    if (groups > 1 and _is_short(shape) and keys == 64) or (groups == GROUPS[0] and shape.v_columns == WIDE):
        return LEAST_STAGES + 1
    if shape.v_columns <= NARROW:
        third = groups == 1 or (_overlaps(shape, groups, target) and shape.keys <= MANY_BLOCKS * keys)
        return LEAST_STAGES + third if not few and not shape.bounded else None
    short = shape.ranged or (shape.bounded and (shape.window is not None or shape.keys <= SHORT_KEYS))
    if shape.v_columns == WIDE and keys == FORMULA_KEYS and short and groups > 1:
        return LEAST_STAGES
    return (
        _stages_beside_queries(shape, groups, keys, target) if shape.v_columns < WIDE and short and groups > 1 else None
    )


def _stages_beside_queries(shape: AttentionShape, groups: int, keys: int, target: Target) -> int | None:
    """Return the most stages of K and V that leave room for the queries of the next tile, and for an output of its own; None
    where all of them do, or too few (measurement ``stages_beside_queries``)."""
    rows, size = WGMMA_ROWS * groups, shape.operand_bytes
    tiles = rows * (2 * size * shape.qk_columns + shape.output_bytes * shape.v_columns) + 2048
    stages = (target.smem_per_block_bytes - tiles) // (size * keys * shape.columns_in_memory)
    return stages if LEAST_STAGES <= stages < MOST_STAGES else None


def _takes_turns(shape: AttentionShape) -> bool:
    """Return whether groups take turns: not in narrow heads whose tiles are short, nor in others whose MMAs take longer."""
    if shape.latent or shape.ranged or (shape.window is not None and shape.v_columns <= NARROW):
        return False
    return shape.v_columns != 128 or shape.bounded or shape.bias or shape.special > 0 or _is_short(shape)


def _is_short(shape: AttentionShape) -> bool:
    """Return whether wide heads have so few keys that loads of queries ahead matter more than the length of blocks."""
    plain = not (shape.bounded or shape.loaded or shape.bias or shape.operations)
    return plain and shape.softmax and shape.v_columns == 128 and shape.qk_columns == 128 and shape.keys <= FEW_KEYS


def _varies(shape: AttentionShape, groups: int) -> bool:
    """Return whether heads have several tiles, of different lengths."""
    return shape.bounded or (shape.loaded and shape.queries > WGMMA_ROWS * groups)


def _has_three_groups(shape: AttentionShape) -> bool:
    """Return whether three groups are supported by measurements: of narrow heads, and of wide ones with rounded scores."""
    reads = shape.gathers or shape.pairs or (shape.loads and not shape.bias)
    formula = shape.operations > FEW_OPERATIONS or shape.special or shape.ranged or shape.window or reads
    rounded = shape.operations and not (shape.bounded or shape.loaded or shape.bias or shape.rounded)
    wide = rounded and shape.qk_columns == shape.v_columns == WIDE and shape.operand_bytes == 2
    return not formula and (wide or max(shape.qk_columns, shape.v_columns) <= NARROW)


def key_splits(shape: AttentionShape, choice: AttentionChoice, rows: int, target: Target) -> Iterator[int]:
    """Yield the numbers of parts of the keys of few tiles of ``rows``, each part with several blocks."""
    tiles = -(-shape.queries // rows) * shape.heads
    blocks = -(-shape.keys // choice.keys)
    if not shape.softmax or not shape.splittable or shape.bounded or (shape.masked and shape.queries > rows):
        return
    for splits in KEY_SPLITS[1:]:
        if BLOCKS_OF_PART * splits <= blocks and tiles * splits <= 2 * target.num_sms:
            yield splits


def longest_keys(shape: AttentionShape, groups: int, target: Target, bias_stages: int = 0) -> int:
    """Return the most keys of a block that registers and shared memory hold, 0 if none."""
    masked = (shape.bounded or shape.loaded) and shape.operand_bytes > 1
    sharing = LATENT_GROUPS if shape.latent else 1
    most = consumer_registers(groups, shape.latent) - (MASKED_REGISTERS if masked and groups < 3 else 0)
    summed = shape.gathers and not (shape.splittable or shape.special or shape.pairs)
    most -= (GATHERED_REGISTERS if shape.gathers else 0) + (LAUNCHED_REGISTERS if summed else 0)
    computed = shape.operations > 0 and shape.v_columns > NARROW
    limit = FORMULA_KEYS if groups == 3 or shape.bounded or shape.loaded or computed else WIDE_KEYS
    if groups == 1 and (shape.operations >= MANY_OPERATIONS or shape.loads):
        limit = min(limit, MANY_KEYS)
    if summed and shape.gathers > 1 and shape.operations >= LOOKED_UP_OPERATIONS:
        limit = min(limit, LOOKED_UP_KEYS)
    if shape.operand_bytes == 1 and shape.window is not None:  # longer ones spill (measurement ``window_of_bytes``)
        limit = min(limit, NARROW_STEP)
    own_output = shape.qk_columns != shape.v_columns or shape.operand_bytes != shape.output_bytes
    step = KEY_STEP if shape.operand_bytes > 1 else NARROW_STEP
    for keys in range(min(limit, MOST_KEYS) // step * step, 0, -step):
        shared = _shared_bytes(shape, groups, keys, own_output, bias_stages)
        needed = registers_of(shape.v_columns // sharing, keys, shape.operand_bytes, shape.rounded)
        needed += bias_registers(AttentionChoice(groups=groups, keys=keys, bias_stages=bias_stages))
        if needed <= most and shared <= target.smem_per_block_bytes:
            return keys
    return 0


def _shared_bytes(shape: AttentionShape, groups: int, keys: int, own_output: bool, bias_stages: int) -> int:
    """Return the shared memory of a tile with two stages of K and V, barriers included."""
    rows = WGMMA_ROWS * groups
    size, own_output = shape.operand_bytes, own_output and not shape.latent
    tiles = rows * (size * shape.qk_columns + (shape.output_bytes * shape.v_columns if own_output else 0))
    tiles += 2 * bias_stages * rows * keys
    return tiles + LEAST_STAGES * size * keys * shape.columns_in_memory + 2048


def _proposal(shape: AttentionShape, choice: AttentionChoice, target: Target) -> CuteProposal:
    rows = WGMMA_ROWS * choice.groups
    blocks = dict(zip(shape.blocks, (rows, choice.keys), strict=True))
    of_config = shape.blocks[1:] if shape.whole else shape.blocks
    sizes = {block: size for block, size in blocks.items() if block in of_config and block not in shape.fixed}
    tiles = -(-shape.queries // rows) * shape.heads
    split = f" in {choice.splits} parts of the keys" if choice.splits > 1 else ""
    return CuteProposal(
        reason=(
            f"{tiles} tiles of {rows} queries{split} and blocks of {choice.keys} keys on {target.num_sms} SMs:"
            f" {predicted_us(shape, choice, target):.0f} us"
        ),
        block_sizes={**sizes, **dict.fromkeys(shape.head_blocks, 1)},
        unit={
            **({"wgmma_kv_stages": choice.stages} if choice.stages else {}),
            "wgmma_pingpong": choice.pingpong,
            "wgmma_lazy_rescale": choice.lazy,
            "wgmma_tile_scheduler": choice.scheduler,
            "wgmma_key_splits": choice.splits,
            **({"wgmma_bias_stages": choice.bias_stages} if choice.bias_stages else {}),
        },
    )
