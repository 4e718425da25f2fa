"""The predicted time of attention on tcgen05, from the times of a block on each unit of an SM (``plan.attention.umma``).

No Blackwell GPU has run it: overheads are those of Hopper, and rates those of the data sheet.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...._compiler.decisions import Decisions
from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..plan.attention.umma import UMMA_REGISTERS, UMMA_ROWS, UmmaChoice, best_polynomial, block_time
from .attention import RATES, AttentionShape, predicted, shape_of

DTYPES = {2: "bfloat16", 1: "float8_e4m3fn"}
"""A type of operands by their bytes: those of as many bits have one rate."""


def umma_us(shape: AttentionShape, choice: UmmaChoice, target: Target) -> float:
    """Return the predicted microseconds of a launch."""
    rows = UMMA_ROWS * choice.groups
    tiles, blocks = -(-shape.queries // rows) * shape.heads, float(-(-shape.keys // choice.keys))
    if shape.bounded:
        blocks = min(blocks, (blocks + -(-rows // choice.keys)) / 2 + 0.5)
    if shape.window:
        blocks = min(blocks, -(-rows // choice.keys) - (1 - shape.window) // choice.keys)
    columns, operations = (shape.qk_columns, shape.v_columns), shape.operations + 8 * shape.special
    polynomial, dtype = choice.polynomial, DTYPES[shape.operand_bytes]
    if polynomial is None:
        polynomial = best_polynomial(columns, choice.keys, operations, dtype, target) if shape.softmax else 0
    time = block_time(columns, choice.keys, operations, polynomial, dtype, target)
    of_block = (time if shape.softmax else replace(time, special=0.0)).of_groups(choice.groups)
    longest = 1.2 if shape.bounded and not shape.window and tiles <= target.num_sms else 1.0
    tile_us = blocks * of_block * longest + RATES.tile_us
    if choice.splits > 1:
        tiles *= choice.splits
        tile_us = math.ceil(blocks / choice.splits) * of_block + RATES.tile_us + RATES.combine_us
    read_gb_per_s = min(RATES.memory * target.bandwidth_gb_per_s, RATES.sm_gb_per_s * tiles)
    memory_us = shape.bytes_moved / (read_gb_per_s * 1e3)
    return RATES.launch_us + max(-(-tiles // target.num_sms) * tile_us, memory_us)


def tensor_share(shape: AttentionShape, choice: UmmaChoice, target: Target) -> float:
    """Return the predicted share of a launch in which the tensor pipes of all SMs multiply."""
    return shape.flops / (target.matrix_tflops_for(DTYPES[shape.operand_bytes]) * 1e6) / umma_us(shape, choice, target)


def predict_umma(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """Return the predicted resources and time of one launch."""
    shape = shape_of(facts)
    if isinstance(shape, str):
        return predicted(target, math.inf, reason=shape)
    choice = umma_choice(decisions, shape.blocks)
    rows = UMMA_ROWS * choice.groups
    shared = shape.operand_bytes * (
        rows * shape.qk_columns + (choice.stages or 2) * choice.keys * shape.columns_in_memory
    )
    columns = choice.groups * (choice.keys + shape.v_columns)
    fits = shared <= target.smem_per_block_bytes and columns <= target.tensor_memory_columns
    return replace(
        predicted(
            target,
            umma_us(shape, choice, target),
            registers=UMMA_REGISTERS[min(max(choice.groups, 1), max(UMMA_REGISTERS))][0],
            shared=shared,
            waves=-(-shape.queries // rows) * shape.heads / target.num_sms,
            fits=fits,
            reason="" if fits else f"{shared} bytes of shared memory and {columns} columns of tensor memory do not fit",
            bytes_moved=shape.bytes_moved,
            flops=shape.flops,
        ),
        tensor_memory_columns=columns,
        never_spills=True,
    )


def umma_choice(decisions: Decisions, blocks: tuple[int, int]) -> UmmaChoice:
    """Return the decisions of a config as the planner's choice; ``blocks`` are those of queries and keys."""
    values = decisions.values
    rows, keys = (decisions.sizes[block] for block in blocks)
    return UmmaChoice(
        groups=max(1, rows // UMMA_ROWS),
        keys=keys,
        stages=values.get("tcgen05_kv_stages"),
        lazy=values.get("tcgen05_lazy_rescale", False),
        polynomial=values.get("tcgen05_polynomial"),
        splits=values.get("tcgen05_key_splits", 1),
    )
