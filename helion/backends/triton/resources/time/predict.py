"""How long a launch takes, and what it takes the time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....._compiler.facts.records import KernelFacts
from .....autotuner.proposal import Predicted
from .....hardware import Target
from .demand import demands
from .launch import Launch
from .model import parts
from .parameters import Parameters, fitted

#: Of an element of a part of a sum.
_PART_BYTES = 4
#: What a launch waits for, in the order of the first fields of ``Parts``.
_UNITS = (
    "memory",
    "L2 cache",
    "instructions",
    "matrix units",
    "shared memory",
    "starting programs",
    "latency",
    "spilled registers",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Microseconds of a launch, and of each unit if nothing else took time; ``latency`` is what programs do one after the
    other while an SM holds as many as it can."""

    us: float
    units: tuple[tuple[str, float], ...]


def timing(facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target) -> Timing:
    """``predicted`` says what registers and shared memory the launch takes."""
    parameters = fitted().products if facts.matmuls else fitted().others
    found = [parts(each, parameters, target) for each in demands(facts, launch, predicted, target)]
    *units, total = map(sum, zip(*found, strict=True))
    beside = _adding_us(facts, launch, parameters, target) + _copying_us(launch, parameters, target)
    return Timing(us=total + beside, units=tuple(zip(_UNITS, units, strict=True)))


def _copying_us(launch: Launch, parameters: Parameters, target: Target) -> float:
    """Of copies of operands, element by element, which the product waits for."""
    if not launch.copied_bytes:
        return 0.0
    moved = 2 * launch.copied_bytes / (target.bandwidth_gb_per_s * 1e3 * parameters.memory_share)
    return moved + parameters.start_us + parameters.wait_us + parameters.store_us


def _adding_us(facts: KernelFacts, launch: Launch, parameters: Parameters, target: Target) -> float:
    """Of writing the parts of sums, and of the kernel that adds them up, which begins when the last part is there."""
    if launch.parts == 1:
        return 0.0
    axes: set[int | None] = set(facts.grid_axes)
    for fact in facts.matmuls[:1]:
        axes |= {fact.m_axis, fact.n_axis, *fact.batch_axes}
    numel = math.prod([facts.axes[axis].extent or 1 for axis in axes if axis is not None])
    # programs that share what follows read all parts each
    kept, read = launch.parts * numel * _PART_BYTES, launch.parts if facts.spread else 1
    rate = target.bandwidth_gb_per_s * 1e3 * parameters.memory_share
    rate *= parameters.cache_speedup if kept <= target.l2_bytes else 1.0
    # it starts behind the last program of the first, loads all parts at once and stores
    return (1 + read) * kept / rate + parameters.start_us + parameters.wait_us + parameters.store_us
