"""Predicted shared and tensor memory of a launch, exact from the plan, and its time."""

from __future__ import annotations

import math

from ...._compiler.decisions import Decisions
from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..legality import choice_of
from ..plan.build import plan_gemm
from ..plan.counts import counts
from ..plan.records import Choice, GemmPlan
from ..plan.refusal import Refusal
from ..plan.shared import shared_bytes
from .shape import ProductShape, bytes_moved, shape_of
from .time import Timing, predicted_time

#: Registers of a thread that holds the accumulator; kernels of tcgen05 hold one sub-tile of it.
WGMMA_REGISTERS, TCGEN05_REGISTERS = 168, 96


def timing(plan: GemmPlan, shape: ProductShape, target: Target) -> Timing:
    moved = bytes_moved(plan.problem) - shape.shared_bytes
    return predicted_time(plan, moved, target, element_ops=shape.element_ops)


def plan_of(shape: ProductShape, choice: Choice, target: Target) -> GemmPlan | str:
    """Return the plan of a choice, or the reason why there is none."""
    try:
        return plan_gemm(shape.problem, choice, target)
    except Refusal as refusal:
        return str(refusal)


def predict(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """Return the predicted resources and time of one launch; ``fits`` follows from the plan."""
    shape = shape_of(facts)
    if isinstance(shape, str):
        return _unknown(shape, target)
    plan = plan_of(shape, choice_of(decisions, shape, target), target)
    if isinstance(plan, str):
        return _refused(shape, target, plan)
    time = timing(plan, shape, target)
    registers = WGMMA_REGISTERS if plan.unit == "wgmma" else TCGEN05_REGISTERS
    return Predicted(
        registers_per_thread=registers,
        spill_risk=0.0,
        shared_bytes=shared_bytes(plan),
        tensor_memory_columns=counts(plan).tensor_memory_columns,
        waves=plan.pieces * plan.ctas / (target.num_sms * plan.ctas_per_sm),
        occupancy_blocks=plan.ctas_per_sm,
        fits=True,
        bytes_moved=shape.bytes_moved,
        flops=shape.flops,
        time_us=time.total_us,
        register_limit=target.max_registers_per_thread,
        least_shared_bytes=shared_bytes(plan),
    )


def _unknown(reason: str, target: Target) -> Predicted:
    """Return an unknown prediction, for a GEMM that facts do not describe: its time never wins."""
    return Predicted(
        registers_per_thread=0,
        spill_risk=0.0,
        shared_bytes=0,
        tensor_memory_columns=0,
        waves=0.0,
        occupancy_blocks=0,
        fits=True,
        bytes_moved=0,
        flops=0,
        time_us=math.inf,
        register_limit=target.max_registers_per_thread,
        reason=reason,
    )


def _refused(shape: ProductShape, target: Target, reason: str) -> Predicted:
    return Predicted(
        registers_per_thread=0,
        spill_risk=0.0,
        shared_bytes=0,
        tensor_memory_columns=0,
        waves=0.0,
        occupancy_blocks=0,
        fits=False,
        bytes_moved=shape.bytes_moved,
        flops=shape.flops,
        time_us=0.0,
        register_limit=target.max_registers_per_thread,
        reason=reason,
    )
