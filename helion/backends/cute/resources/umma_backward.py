"""The predicted time of attention's gradients on tcgen05, from the times of a block on each unit of an SM.

No Blackwell GPU has run them: overheads are those of Hopper, and rates those of the data sheet.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...._compiler.decisions import Decisions
from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..plan.attention.backward import BackwardChoice
from ..plan.attention.gradients import PRODUCTS
from ..plan.attention.umma import FP32_PER_SPECIAL, HAND_OVER_US, OVERLAP, UMMA_ROWS
from .attention import RATES, predicted
from .backward import BackwardShape, backward_shape

DTYPE = "bfloat16"
"""Operands of 16 bits, of any type, have one rate."""
ISSUED = 14.0
"""Instructions of a thread for each pair of rows: loads of both products, an exponential, the differences and their rounding.
They are counted in the printed code of a kernel without masks and formulas."""


def memory_columns(shape: BackwardShape, choice: BackwardChoice) -> int:
    """Return the columns of tensor memory of products and sums."""
    return choice.groups * (PRODUCTS * choice.keys + sum(shape.gradients))


def umma_backward_bytes(shape: BackwardShape, choice: BackwardChoice) -> int:
    """Return the shared memory of a tile, barriers included."""
    rows, stages = UMMA_ROWS * choice.groups, choice.stages or 2
    return 2 * (rows + stages * choice.keys) * sum(shape.products) + stages * 8 * choice.keys + 1024


def umma_backward_us(shape: BackwardShape, choice: BackwardChoice, target: Target) -> float:
    """Return the predicted microseconds of a launch. Units overlap where groups take turns."""
    rows = UMMA_ROWS * choice.groups
    tiles = -(-shape.rows // rows) * shape.heads
    blocks = -(-shape.streamed // choice.keys) * shape.seen + (rows / choice.keys / 2 + 0.5 if shape.hidden else 0.0)
    pairs, lanes_per_us = UMMA_ROWS * choice.keys, target.fp32_tflops * 1e6 / 2 / target.num_sms
    tensor = 2 * pairs * shape.columns * target.num_sms / (target.matrix_tflops_for(DTYPE) * 1e6)
    units = (tensor, pairs * FP32_PER_SPECIAL / lanes_per_us, pairs * ISSUED / lanes_per_us)
    if choice.groups > 1:
        of_block = HAND_OVER_US + choice.groups * sum(each**OVERLAP for each in units) ** (1 / OVERLAP)
    else:
        of_block = HAND_OVER_US + tensor + max(units[1:])
    tile_us = shape.repeats * blocks * of_block + RATES.tile_us
    memory_us = shape.bytes_moved / (RATES.memory * target.bandwidth_gb_per_s * 1e3)
    return float(RATES.launch_us + max(-(-tiles // target.num_sms) * tile_us, memory_us))


def predict_umma_backward(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """Return the predicted resources and time of one launch."""
    shape = backward_shape(facts)
    if isinstance(shape, str):
        return predicted(target, math.inf, reason=shape)
    choice = umma_backward_choice(decisions, shape.blocks)
    shared, columns = umma_backward_bytes(shape, choice), memory_columns(shape, choice)
    fits = shared <= target.smem_per_block_bytes and columns <= target.tensor_memory_columns
    return replace(
        predicted(
            target,
            umma_backward_us(shape, choice, target),
            registers=target.registers_per_sm // (UMMA_ROWS * (choice.groups + 1)) // 8 * 8,
            shared=shared,
            waves=-(-shape.rows // (UMMA_ROWS * choice.groups)) * shape.heads / target.num_sms,
            fits=fits,
            reason="" if fits else f"{shared} bytes of shared memory and {columns} columns of tensor memory do not fit",
            bytes_moved=shape.bytes_moved,
            flops=shape.flops,
        ),
        tensor_memory_columns=columns,
        never_spills=True,
    )


def umma_backward_choice(decisions: Decisions, blocks: tuple[int, int]) -> BackwardChoice:
    """Return the decisions of a config as the planner's choice; ``blocks`` are those of owned and of streamed rows."""
    rows, keys = (decisions.sizes[block] for block in blocks)
    return BackwardChoice(groups=max(1, rows // UMMA_ROWS), keys=keys, stages=decisions.values.get("tcgen05_kv_stages"))
