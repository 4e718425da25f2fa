"""Predicted resources and time of a row kernel."""

from __future__ import annotations

import math

from ....._compiler.decisions import Decisions
from ....._compiler.facts.records import KernelFacts
from .....autotuner.proposal import Predicted
from .....hardware import Target
from ...lower.rowwise.kernel import choice_of
from ...plan.refusal import Refusal
from ...plan.rowwise.demand import bytes_moved
from ...plan.rowwise.layout import layout_of
from ...plan.rowwise.time import predicted_us, resident
from .shape import RowShape, row_shape_of
from .shape import describes_rows as describes_rows


def predict_rows(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """Return the predicted resources and time of one launch."""
    shape = row_shape_of(facts)
    if isinstance(shape, str):
        return _unknown(target, True, shape)
    try:
        layout = layout_of(shape.demand, choice_of(decisions, shape.tile), target)
    except Refusal as refusal:
        return _unknown(target, False, str(refusal), shape)
    span = 1 if shape.blocks is None else decisions.sizes[shape.blocks]
    tiles = -(-shape.m // (layout.choice.rows * span))
    return Predicted(
        registers_per_thread=layout.registers_needed,
        spill_risk=0.0,
        shared_bytes=layout.shared_bytes,
        tensor_memory_columns=0,
        waves=tiles / resident(layout, target),
        occupancy_blocks=layout.choice.ctas_per_sm,
        fits=True,
        bytes_moved=bytes_moved(shape.m, shape.demand),
        flops=shape.m * shape.demand.n * shape.demand.work,
        time_us=predicted_us(layout, shape.m, target, span=span),
        register_limit=layout.register_limit,
        least_shared_bytes=layout.shared_bytes,
    )


def _unknown(target: Target, fits: bool, reason: str, shape: RowShape | None = None) -> Predicted:
    """Return a prediction without a layout. If facts do not describe the kernel, its time never wins."""
    return Predicted(
        registers_per_thread=0,
        spill_risk=0.0,
        shared_bytes=0,
        tensor_memory_columns=0,
        waves=0.0,
        occupancy_blocks=0,
        fits=fits,
        bytes_moved=bytes_moved(shape.m, shape.demand) if shape else 0,
        flops=0,
        time_us=math.inf if fits else 0.0,
        register_limit=target.max_registers_per_thread,
        reason=reason,
    )
