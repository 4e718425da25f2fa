"""How long a launch takes, and what it takes the time."""

from __future__ import annotations

from dataclasses import dataclass

from ....._compiler.facts.records import KernelFacts
from .....autotuner.decisions import Decisions
from .....autotuner.proposal import Predicted
from .....hardware import Target
from .demand import demands
from .launch import launch_of
from .model import parts
from .parameters import fitted

#: What a launch waits for, by the field of ``Parts``.
_NAMES = {
    "memory": "memory",
    "cache": "L2 cache",
    "instructions": "instructions",
    "matrix": "matrix units",
    "shared": "shared memory",
    "programs": "starting programs",
    "latency": "latency",
    "spills": "spilled registers",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Microseconds of a launch, and of each unit if nothing else took time; ``latency`` is what programs do one after the
    other while an SM holds as many as it can."""

    us: float
    units: tuple[tuple[str, float], ...]


def timing(facts: KernelFacts, decisions: Decisions, predicted: Predicted, target: Target) -> Timing:
    """Of the config that ``decisions`` stand for; ``predicted`` says what registers and shared memory it takes."""
    parameters = fitted().products if facts.matmuls else fitted().others
    found = [parts(each, parameters, target) for each in demands(facts, launch_of(decisions), predicted, target)]
    units = tuple((name, sum(getattr(root, field) for root in found)) for field, name in _NAMES.items())
    return Timing(us=sum(root.total for root in found), units=units)
