"""The predicted time of a launch, and its breakdown by unit; measurement ``first_pick_misses`` has where it is wrong."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....._compiler.facts.records import KernelFacts, MatmulFact
from ....._support.locks import new_lock
from ....._support.records import dataclass
from .....autotuner.proposal import Predicted
from .....hardware import Target
from ..traffic import read_after_bytes
from .demand import demands as demands_of
from .launch import Launch
from .model import Parts, parts
from .parameters import Parameters, fitted
from .peeled import with_known_masks
from .record import Demand

#: Bytes of an element of a split-K partial.
_PART_BYTES = 4
#: Microseconds by which a barrier of all programs is shorter than the end of a launch and the begin of the next one: the
#: median of benchmarks/results/ops/nvidia-h200-cooperative.jsonl, in graphs, less what the model says of persistent programs.
MEETING_GAIN_US = 0.3
#: Units that a launch waits for, in the order of the first fields of ``Parts``.
_UNITS = (
    "memory",
    "L2 cache",
    "instructions",
    "matrix units",
    "shared memory",
    "starting programs",
    "latency",
    "atomics",
    "spilled registers",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Microseconds of a launch, and of each unit if nothing else took time, in the order of ``_UNITS``.

    ``latency`` is the dependent chain of a program while an SM runs as many as it can.
    """

    us: float
    each: tuple[float, ...]

    @property
    def units(self) -> tuple[tuple[str, float], ...]:
        """Microseconds of each unit, by name."""
        return tuple(zip(_UNITS, self.each, strict=True))

    @property
    def error(self) -> float:
        """The error of the time, as in ``Predicted``."""
        return fitted().error_of(self.units)


def timing(facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target, root: int | None = None) -> Timing:
    """Return the predicted time, of one grid loop alone if ``root`` is its number.

    ``predicted`` has the registers and shared memory of the launch. A repeated call returns the same object: the
    legalizer asks for launches that heuristics have chosen (measurements ``seeding_equal`` and ``seeding_recent``).
    """
    parameters = fitted().products if facts.matmuls else fitted().others
    asked = facts, predicted, target, parameters
    for known in _RECENT.get(id(predicted), ()):
        if all(map(operator.is_, known.asked, asked)) and known.root == root and known.launch == launch:
            return known.timing
    made = _timing(*asked, launch, root)
    with _LOCK:
        _RECENT[id(predicted)] = (_Known(asked, launch, root, made), *_RECENT.pop(id(predicted), ()))
        while len(_RECENT) > _RECENTLY:
            del _RECENT[next(iter(_RECENT))]
    return made


class _Known(NamedTuple):
    """The time of one launch, with what it depends on."""

    asked: tuple[KernelFacts, Predicted, Target, Parameters]
    launch: Launch
    root: int | None
    timing: Timing


#: The last launches by the identity of their ``predicted``, the latest last, and the number of those.
_RECENT: dict[int, tuple[_Known, ...]] = {}
_RECENTLY = 64
_LOCK = new_lock()


def _timing(
    facts: KernelFacts,
    predicted: Predicted,
    target: Target,
    parameters: Parameters,
    launch: Launch,
    root: int | None,
) -> Timing:
    demands = demanded(facts, launch, predicted, target)
    demands = demands if root is None else demands[root : root + 1]
    found = [parts(each, parameters, target) for each in demands]
    apart = root is not None or launch.persistent or len(found) != len(facts.phases)
    phases = range(len(found)) if apart else facts.phases
    several = _phases(demands, found, phases, parameters, target)
    *units, total = found[0] if len(found) == 1 else map(sum, zip(*several, strict=True))
    beside = _adding_us(facts, launch, parameters, target) + _copying_us(launch, parameters, target)
    beside += _reading_us(facts, launch, parameters, target) if root is None else 0.0
    beside -= MEETING_GAIN_US * facts.meetings if launch.together else 0.0
    return Timing(us=total + beside, each=tuple(units))


def _phases(
    demands: Sequence[Demand], found: Sequence[Parts], phases: Sequence[int], parameters: Parameters, target: Target
) -> Iterator[Parts]:
    """Yield the times of each phase, whose grid loops run at the same time.

    Each takes the SMs that have a program of it, and its share of the memory and the L2 cache.
    """
    for phase in dict.fromkeys(phases):
        each = [(demand, part) for demand, part, at in zip(demands, found, phases, strict=True) if at == phase]
        both = Parts(*map(sum, zip(*(part for _, part in each), strict=True)))
        if len(each) > 1:
            alone = [part.total - parameters.launch_us for _, part in each]
            busy = sum(
                us * min(1.0, demand.programs / target.num_sms) for us, (demand, _) in zip(alone, each, strict=True)
            )
            total = max(*alone, busy, both.memory, both.cache) + parameters.launch_us
            both = both._replace(total=total, latency=max(part.latency for _, part in each))
        yield both


def demanded(facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target) -> list[Demand]:
    """Return one demand for each grid loop, where tiles with known masks demand less."""
    found = demands_of(facts, launch, predicted, target)
    return with_known_masks(found, facts, launch, predicted, target) if launch.peeled else found


def _is_inside(facts: KernelFacts, fact: MatmulFact) -> bool:
    """Return whether a step of the loop around a matmul uses its result up, as a tile of scores."""
    loops = {axis for region in facts.regions if region.kind == "loop" for axis in region.axes}
    return not loops.isdisjoint((fact.m_axis, fact.n_axis))


def _reading_us(facts: KernelFacts, launch: Launch, parameters: Parameters, target: Target) -> float:
    """Return the microseconds in which host code reads the results of tiles, without its launches."""
    if not any(op.per_tile for op in facts.memory_ops):
        return 0.0
    read = read_after_bytes(facts, launch.sizes)
    rate = target.bandwidth_gb_per_s * 1e3 * parameters.memory_share
    return read / (rate * (parameters.cache_speedup if read <= target.l2_bytes else 1.0))


def _copying_us(launch: Launch, parameters: Parameters, target: Target) -> float:
    """Return the microseconds of element-by-element copies of operands, which the matmul waits for."""
    if not launch.copied_bytes:
        return 0.0
    moved = 2 * launch.copied_bytes / (target.bandwidth_gb_per_s * 1e3 * parameters.memory_share)
    return moved + parameters.start_us + parameters.wait_us + parameters.store_us


def _adding_us(facts: KernelFacts, launch: Launch, parameters: Parameters, target: Target) -> float:
    """Return the microseconds of writing split-K partials, and of the kernel that reduces them after the last one."""
    if launch.parts == 1:
        return 0.0
    axes: set[int | None] = set(facts.grid_axes)
    kept_results = [fact for fact in facts.matmuls if not _is_inside(facts, fact)] or facts.matmuls
    for fact in kept_results[:1]:
        root = facts.regions[fact.region].root
        axes = {axis for each in facts.regions if each.root == root and each.kind == "root" for axis in each.axes}
        axes |= {fact.m_axis, fact.n_axis, *fact.batch_axes}
    numel = math.prod([facts.axes[axis].extent or 1 for axis in axes if axis is not None])
    # programs that share the code after the reduction read all partials each
    kept, read = launch.parts * numel * _PART_BYTES, launch.parts if facts.split_epilogue_loops else 1
    rate = target.bandwidth_gb_per_s * 1e3 * parameters.memory_share
    rate *= parameters.cache_speedup if kept <= target.l2_bytes else 1.0
    # it starts after the last program of the first kernel, loads all partials at once and stores; kernels with matmuls
    # are the ones whose fit has such launches
    after = fitted().products
    return (1 + read) * kept / rate + after.start_us + after.wait_us + after.store_us
