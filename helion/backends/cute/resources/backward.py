"""Gradients of attention as facts describe them, and the predicted time of a launch.

The rates are fitted to timings on two GPUs (measurement ``attention_rates``). Facts show masks, and not their width: those of
windows are predicted as causal ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...._compiler.decisions import Decisions
from ...._compiler.facts.records import KernelFacts, MatmulFact
from ...._support.records import dataclass, field
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..plan.attention.backward import EXCHANGE_STAGES, BackwardChoice
from ..plan.attention.build import REGISTERS
from ..plan.attention.gradients import PRODUCTS, estimated_registers, in_passes
from ..plan.records import SUM_BYTES, WGMMA_ROWS
from .attention import RATES, predicted, relative_rate, rows_of

BLOCK_NS = {1: 3.1, 2: 4.4, 3: 5.3}
"""Time of a row of a tile, for each block, in which no MMAs run: by the gradients of the kernel."""
SINGLE = {False: 1.3, True: 1.75}
"""Factor of one consumer group, whose other work overlaps with its own MMAs alone, by whether heads are wide."""
WIDE = 128
"""Columns of a gradient from which blocks are shorter than those of narrow heads."""
ADDED_TILE_US = 3.0
"""Time of a tile beside its blocks where it adds sums to memory, of which the first and the last block have no other work
(``operator_gradients`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
UNEVEN = 1.05
"""Factor of tiles that differ in length."""
SEQUENCE = 512
"""Rows of a sequence where integers in memory bound them: facts do not show how many. Tiles, of two
consumer groups at most, and blocks reach past its ends."""
STAGED = 0.71
"""Factor of a block that such integers bound where it adds to memory: TMA loads the numbers of its rows, which threads read from
global memory otherwise (``sequence_times`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
MASK_OPS = 2
"""Operations of a mask by loaded integers, which each pair of rows has, again for each gradient."""
STORED_NS, STORED_WIDE_NS, SUMMED_NS = 0.14, 0.21, 0.2
"""Time of a number that the loop stores for each of its rows, its bias included, in 16 bits and in fp32, or adds to memory
(``loop_outputs`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
LAUNCH_US, BEFORE_US = 5.0, 3.0
"""Time of a launch, and of a kernel before beside its memory (``computed_rows`` in
benchmarks/results/cute/nvidia-h200-attention.jsonl)."""


@dataclass(frozen=True, kw_only=True)
class BackwardShape:
    """Gradients of attention from facts: rows of tiles, streamed rows, and the columns of each product."""

    heads: int
    rows: int
    streamed: int
    products: tuple[int, ...]
    """Dimensions of a head in products of a tile with a block."""
    gradients: tuple[int, ...]
    """Columns of the gradients."""
    atomic: int = 0
    """Columns of the gradient of streamed rows that is added to memory; 0 if there is none."""
    blocks: tuple[int, int]
    """Blocks of owned and of streamed rows."""
    head_blocks: tuple[int, ...]
    repeats: int = 1
    """Heads that a tile streams."""
    hidden: bool = False
    """True if tiles differ in their blocks, as with causal masks."""
    bounded: bool = False
    """True if ``streamed`` is the mean of what tiles see, as of loops that begin with the tile."""
    loaded: bool = False
    """True if integers in memory bound the blocks of a tile, as of sequences."""
    draws: int = 0
    """Random numbers that are drawn for a pair of rows in each pass."""
    stored_bytes: int = 0
    """Bytes that the loop stores for each owned and streamed row."""
    summed: int = 0
    """Sums of rows that a kernel before computes."""
    fixed: Mapping[int, int] = field(default_factory=dict)

    def registers(self, keys: int) -> int:
        """Return the estimated registers of a consumer thread."""
        return estimated_registers(
            self.gradients,
            keys,
            atomic=self.atomic > 0,
            draws=self.draws > 0,
            stores=self.stored_bytes > 0,
            spans=self.loaded,
        )

    @property
    def is_wide(self) -> bool:
        return max(self.gradients, default=0) > WIDE

    @property
    def flops(self) -> int:
        pairs = self.heads * self.repeats * self.rows * self.streamed
        return 2 * int(pairs * self.seen) * self.columns

    @property
    def seen(self) -> float:
        """Fraction of the pairs of rows that causal masks leave."""
        fewer, more = sorted((self.rows, self.streamed))
        return 1 - fewer / (2 * max(1, more)) if self.hidden and not self.bounded else 1.0

    @property
    def columns(self) -> int:
        """Columns of all products of a block. Where gradients have a pass each, the scores are computed in both."""
        again = self.products[0] if self.passes > 1 else 0
        return sum(self.products) + again + sum(self.gradients) + self.atomic

    @property
    def passes(self) -> int:
        """Passes over the blocks of a tile."""
        return len(self.gradients) if not self.atomic and in_passes(self.gradients) else 1

    @property
    def bytes_moved(self) -> int:
        """Bytes that are loaded once and stored, in operands of 16 bits."""
        streamed = self.repeats * self.streamed
        each = self.rows * (sum(self.products) + sum(self.gradients)) + streamed * sum(self.products)
        return self.heads * (2 * each + self.rows * streamed * self.stored_bytes)

    @property
    def bytes_before(self) -> int:
        """Bytes that a kernel before reads."""
        rows = self.heads * max(self.rows, self.repeats * self.streamed)
        return 2 * self.summed * PRODUCTS * rows * max(self.products, default=0)


def describes_backward(facts: KernelFacts) -> bool:
    """Return whether facts describe gradients of attention in one loop."""
    return len(facts.attention_gradients) == 1 and facts.attention is None


def backward_shape(facts: KernelFacts) -> BackwardShape | str:
    """Return the shape, or the reason why facts do not show one."""
    if not describes_backward(facts):
        return "the kernel computes no gradients of attention in one loop"
    (fact,) = facts.attention_gradients
    inside = [each for each in facts.matmuls if each.region == fact.region]
    gradients = [each for each in inside if each.k_axis == fact.streamed_axis]
    added = [each for each in inside if each.k_axis == fact.stationary_axis]
    products = [each for each in inside if each not in gradients and each not in added]
    axis = facts.axes[fact.streamed_axis]
    rows, streamed, bounded = facts.axes[fact.stationary_axis].extent, axis.extent, False
    if streamed is None and gradients:  # the loop begins or ends with the tile
        bounded = axis.mean is not None
        streamed = axis.mean or rows_of(facts, gradients[0], fact.streamed_axis)
    dims, columns = (
        [_k(facts, each) for each in products],
        [_n(facts, each) for each in (*gradients, *added)],
    )
    others = [axis for axis in facts.axes if axis.on_grid and axis.block_id != fact.stationary_axis]
    if rows is None or streamed is None or None in dims or None in columns:
        return "an extent of the gradients depends on data"
    return BackwardShape(
        heads=math.prod(axis.extent or 1 for axis in others),
        rows=rows,
        streamed=streamed,
        products=tuple(each for each in dims if each is not None),
        gradients=tuple(each for each in columns[: len(gradients)] if each is not None),
        atomic=sum(each for each in columns[len(gradients) :] if each is not None),
        blocks=(fact.stationary_axis, fact.streamed_axis),
        head_blocks=tuple(axis.block_id for axis in others if axis.kind == "tile"),
        repeats=math.prod(axis.extent or 1 for axis in facts.axes if axis.kind == "scalar" and not axis.on_grid),
        hidden=fact.hidden,
        bounded=bounded,
        loaded=facts.axes[fact.streamed_axis].extent is None and not fact.hidden,
        draws=len(facts.random_tiles),
        stored_bytes=_stored_bytes(facts, {fact.stationary_axis, fact.streamed_axis}),
        summed=sum(each.category == "full_slice" for each in facts.reductions),
        fixed={axis.block_id: axis.size for axis in facts.axes if axis.kind == "fixed" and axis.size is not None},
    )


def _stored_bytes(facts: KernelFacts, axes: set[int]) -> int:
    """Return the bytes that the loop stores for each of its rows. An addition reads them as well."""
    written = [
        each for each in (*facts.memory_ops, *facts.atomics) if each.kind != "load" and axes <= {*each.tile_axes}
    ]
    return sum(each.dtype.itemsize * (2 if each.kind == "atomic" else 1) for each in written)


def _k(facts: KernelFacts, matmul: MatmulFact) -> int | None:
    return matmul.static_k if matmul.static_k is not None else _axis(facts, matmul.k_axis)


def _n(facts: KernelFacts, matmul: MatmulFact) -> int | None:
    """Return the columns of a gradient."""
    return matmul.static_n if matmul.static_n is not None else _axis(facts, matmul.n_axis)


def _axis(facts: KernelFacts, axis: int | None) -> int | None:
    return None if axis is None else facts.axes[axis].extent


def shape_bytes(shape: BackwardShape, choice: BackwardChoice) -> int:
    """Return the shared memory of a tile, barriers included."""
    rows, stages = WGMMA_ROWS * choice.groups, choice.stages or 2
    exchanged = 2 * EXCHANGE_STAGES * rows * choice.keys + SUM_BYTES * choice.keys * shape.atomic if shape.atomic else 0
    return 2 * (rows + stages * choice.keys) * sum(shape.products) + exchanged + 1024


def predicted_us(shape: BackwardShape, choice: BackwardChoice, target: Target) -> float:
    """Return the predicted time of a launch in microseconds."""
    rows = WGMMA_ROWS * choice.groups
    tiles = -(-shape.rows // rows) * shape.heads
    rate = target.matrix_tflops_for("bfloat16") * 1e3 / target.num_sms
    per_sm = relative_rate(target)
    blocks: float = -(-shape.streamed // choice.keys)
    if shape.hidden:  # half of the blocks on the diagonal is computed, and not seen
        most = math.inf if shape.bounded else blocks
        blocks = min(most, (blocks * shape.seen + rows / choice.keys / 2 + 0.5) * UNEVEN)
    added = len(shape.gradients) // shape.passes + bool(shape.atomic)
    others = shape.passes * BLOCK_NS[added] / per_sm * (SINGLE[shape.is_wide] if choice.groups == 1 else 1.0)
    draw_ns = RATES.draw_ns if len(shape.gradients) == 1 else RATES.key_draw_ns
    others += choice.keys * draw_ns * shape.draws * shape.passes / per_sm
    if shape.stored_bytes:
        stored_ns = SUMMED_NS if shape.stored_bytes > SUM_BYTES else STORED_WIDE_NS
        stored_ns = stored_ns if shape.stored_bytes >= SUM_BYTES else STORED_NS
        others += choice.keys * stored_ns / per_sm
    if shape.loaded:
        blocks *= 1 + (2 * WGMMA_ROWS + choice.keys) / SEQUENCE
        others += choice.keys * RATES.operation_ns * MASK_OPS * len(shape.gradients) / per_sm
    if shape.loaded and shape.atomic:
        blocks *= STAGED
    tile_us = rows * shape.repeats * blocks * (2 * choice.keys * shape.columns / rate + others) / 1e3
    tile_us += ADDED_TILE_US / per_sm if shape.atomic else 0.0
    memory_us = shape.bytes_moved / (target.bandwidth_gb_per_s * 1e3)
    before_us = BEFORE_US * shape.summed + shape.bytes_before / (target.bandwidth_gb_per_s * 1e3)
    return LAUNCH_US + before_us + max(-(-tiles // target.num_sms) * tile_us, memory_us)


def predict_backward(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """Return the predicted resources and time of one launch."""
    shape = backward_shape(facts)
    if isinstance(shape, str):
        return predicted(target, math.inf, reason=shape)
    choice = backward_choice(decisions, shape.blocks)
    registers = shape.registers(choice.keys)
    shared = shape_bytes(shape, choice)
    most = REGISTERS.get(choice.groups, (0, 0))[1]
    fits = shared <= target.smem_per_block_bytes and registers <= most and target.has("wgmma")
    return predicted(
        target,
        predicted_us(shape, choice, target),
        registers=registers,
        shared=shared,
        waves=-(-shape.rows // (WGMMA_ROWS * choice.groups)) * shape.heads / target.num_sms,
        fits=fits,
        reason="" if fits else f"{registers} registers and {shared} bytes of shared memory do not fit",
        bytes_moved=shape.bytes_moved + shape.bytes_before,
        flops=shape.flops,
    )


def backward_choice(decisions: Decisions, blocks: tuple[int, int]) -> BackwardChoice:
    """Return the decisions of a config as the planner's choice; ``blocks`` are those of owned and of streamed rows."""
    rows, keys = (decisions.sizes[block] for block in blocks)
    return BackwardChoice(
        groups=max(1, rows // WGMMA_ROWS),
        keys=keys,
        stages=decisions.values.get("wgmma_kv_stages"),
        scheduler=decisions.values.get("wgmma_tile_scheduler", "static"),
    )
