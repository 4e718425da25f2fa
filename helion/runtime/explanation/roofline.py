"""The limiting resource of a kernel on a target, from the numbers of ``helion.hardware``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..._compiler.facts.access import MemoryOpFact
from ..._compiler.facts.records import KernelFacts
from ..._shapes import dtype_name
from ...autotuner.proposal import Predicted
from ...hardware import Target

#: Time in microseconds below which a kernel is bound by launch overhead.
_LAUNCH_US = 2.0


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Least times in microseconds, and their inputs.

    ``intensity`` and ``ridge`` are operations per byte: of the kernel, and of the target's roofline ridge. ``bound_by``
    names the limit. ``units`` are the predicted microseconds that each unit of the GPU needs by itself, the slowest
    first; empty without a model.
    """

    bytes_moved: int
    flops: int
    memory_us: float
    arithmetic_us: float
    predicted_us: float
    gb_per_s: float
    tflops: float
    unit: str
    intensity: float
    ridge: float
    bound_by: str
    units: tuple[tuple[str, float], ...]


def roofline(facts: KernelFacts, predicted: Predicted, target: Target) -> Roofline:
    """Compute the bounds of a launch with this predicted traffic and work."""
    dtypes = [dtype_name(fact.lhs_dtype) for fact in facts.matmuls]
    rates = [(target.matrix_tflops_for(_rate_name(name)), f"matrix units, {name}") for name in dtypes]
    tflops, unit = min(rates, default=(target.fp32_tflops, "fp32 units"))
    moved = max(0, predicted.bytes_moved - _counted_again(facts))
    memory_us = moved / (target.bandwidth_gb_per_s * 1e3)
    arithmetic_us = predicted.flops / (tflops * 1e6)
    return Roofline(
        bytes_moved=moved,
        flops=predicted.flops,
        memory_us=memory_us,
        arithmetic_us=arithmetic_us,
        predicted_us=predicted.time_us,
        gb_per_s=target.bandwidth_gb_per_s,
        tflops=tflops,
        unit=unit,
        intensity=predicted.flops / max(moved, 1),
        ridge=tflops * 1e3 / target.bandwidth_gb_per_s,
        bound_by=_bound_by(memory_us, arithmetic_us, unit),
        units=tuple(sorted(predicted.units, key=lambda unit: -unit[1])),
    )


def _counted_again(facts: KernelFacts) -> int:
    """Return the bytes that predicted traffic counts beyond the sizes of tensors, as of loads of a window's taps."""
    loaded: dict[tuple[int, str], tuple[int, int]] = {}
    for op in facts.memory_ops:
        if op.kind == "load":
            known, _ = loaded.get((op.storage, op.name), (0, 0))
            size = math.prod(n for n, stride in zip(op.extents, op.strides, strict=True) if stride) * op.itemsize
            loaded[op.storage, op.name] = known + _elements(facts, op) * op.itemsize, size
    return sum(max(0, counted - size) for counted, size in loaded.values())


def _elements(facts: KernelFacts, op: MemoryOpFact) -> int:
    """Return the elements of an access, of a gather at most the lanes of all its tiles."""
    axes = {axis for axis in (*op.tile_axes, *op.subscript_axes) if axis is not None}
    extents = [facts.axes[axis].extent for axis in axes]
    if not op.gathered or None in extents:
        return op.accessed_numel
    return min(op.accessed_numel, math.prod(filter(None, extents)))


def _rate_name(dtype: str) -> str:
    return "tf32" if dtype == "float32" else dtype


def _bound_by(memory_us: float, arithmetic_us: float, unit: str) -> str:
    if max(memory_us, arithmetic_us) < _LAUNCH_US:
        return "launch overhead"
    return "memory" if memory_us >= arithmetic_us else unit
