"""Work: blocks and waves, bytes, floating-point operations, and a roofline of the time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ...._shapes import cdiv
from ...._support.records import dataclass
from ....hardware import Target
from .matrix import unit_of

#: Bandwidth of the L2 cache relative to memory (about 3 on A100 and H100 by their published figures).
_L2_SPEEDUP = 3.0
#: Fraction of the L2 cache that one tensor may take and still be cached when it is read again.
_L2_SHARE = 0.5
#: Fraction of repeated reads that goes to memory when the tensor does not fit: neighbours in the grid share most of
#: them.
_MISS = 0.25
#: Fraction of its data sheet's rate that a matrix unit reaches; ``mma`` on a GPU that also has a faster one is half.
_EFFICIENCY = {"mma": 0.75, "wgmma": 0.8, "tcgen05": 0.8}
_LEGACY_EFFICIENCY = 0.4
#: Operations that one transcendental op counts as.
_SFU_OPS = 8
#: This fraction of the SMs can saturate memory: one in this many.
_SMS_TO_SATURATE = 2.0
#: Time from launch to first instruction.
_LAUNCH_US = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Work of a launch. ``blocks`` is the whole grid, ``bytes_moved`` counts memory, ``bytes_read`` the L2 cache.
    ``flops`` counts useful elements. ``matrix_us`` and ``scalar_us`` are times on all SMs together, padding included.
    """

    blocks: int
    bytes_moved: int
    bytes_read: int
    flops: int
    matrix_us: float
    scalar_us: float


def work(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> Work:
    loops = _Loops(facts, sizes)
    moved = read = 0
    for op in facts.memory_ops:
        once = op.accessed_numel * op.itemsize
        total = loops.elements(op.region, op.tile_axes) * op.itemsize
        total *= _passes(op, facts, sizes) if op.looped else 1
        once = total if op.per_tile else min(once, total)
        fits = once <= target.l2_bytes * _L2_SHARE
        moved += once + (0 if fits else round((total - once) * _MISS))
        read += total
    flops, matrix_us = 0, 0.0
    for fact in facts.matmuls:
        useful, padded = loops.dot_flops(fact)
        flops += useful
        matrix_us += padded / (_dot_tflops(fact, sizes, num_warps, target) * 1e6)
    scalar = 0
    for item in facts.work:
        count = item.ops + (_SFU_OPS - 1) * item.sfu_ops
        scalar += count * loops.elements(item.region, item.axes)
    return Work(
        blocks=loops.blocks(),
        bytes_moved=moved,
        bytes_read=read,
        flops=flops + scalar,
        matrix_us=matrix_us,
        scalar_us=scalar / (target.fp32_tflops * 1e6 / 2),
    )


def read_after_bytes(facts: KernelFacts, sizes: Mapping[int, int]) -> int:
    """Return the bytes of results of tiles, such as their sums, that host code reads after the launch (measurement
    ``read_after``).
    """
    loops, loaded = _Loops(facts, sizes), {op.storage for op in facts.memory_ops if op.kind == "load"}
    stored = (op for op in facts.memory_ops if op.per_tile and op.storage not in loaded)
    return sum(loops.elements(op.region, op.tile_axes) * op.itemsize for op in stored)


def time_us(done: Work, target: Target) -> float:
    """Return the longest of memory, cache and arithmetic time, including idle SMs of the last wave."""
    active = min(1.0, done.blocks / target.num_sms)
    saturation = min(1.0, active * _SMS_TO_SATURATE)
    bandwidth = target.bandwidth_gb_per_s * 1e3 * saturation
    memory = max(done.bytes_moved / bandwidth, done.bytes_read / (bandwidth * _L2_SPEEDUP))
    per_sm = done.blocks / target.num_sms
    tail = max(1.0, math.ceil(per_sm) / per_sm) if per_sm >= 1 else 1.0
    arithmetic = (done.matrix_us + done.scalar_us) / active * tail
    return max(memory, arithmetic) + _LAUNCH_US


class _Loops:
    """The loops of a kernel with sizes: ``trips`` are the tiles along each axis, ``spans`` the elements of all of them."""

    def __init__(self, facts: KernelFacts, sizes: Mapping[int, int]) -> None:
        self.facts, self.sizes = facts, sizes
        self.trips: list[int] = []
        self.spans: list[int] = []
        for axis in facts.axes:
            extent, size = axis.mean if axis.extent is None else axis.extent, sizes[axis.block_id]
            if extent is None:
                extent = size if axis.outer is None else max(sizes[axis.outer], size)
                self.trips.append(1 if axis.outer is None else max(1, cdiv(sizes[axis.outer], size)))
            else:
                self.trips.append(-(-extent // size) if extent > size else 1)
            self.spans.append(extent)
        self.counted: dict[tuple[int, tuple[int, ...]], int] = {}

    def blocks(self) -> int:
        return sum([_product(self.trips, root.axes) for root in self.facts.regions if root.kind == "root"])

    def elements(self, region: int, axes: tuple[int, ...]) -> int:
        """Return the elements of a tile over ``axes`` in ``region``, over all programs and iterations."""
        found = self.counted.get((region, axes))
        if found is None:
            around, whole, own = _factors(self.facts, region, axes)
            found = _product(self.trips, around) * _product(self.spans, whole) * _product(self.sizes, own)
            self.counted[region, axes] = found
        return found

    def dot_flops(self, fact: MatmulFact) -> tuple[int, int]:
        """Return the useful operations, and those of whole tiles."""
        useful = padded = 2
        sides = (fact.m_axis, fact.n_axis, fact.k_axis)
        inside = (*fact.batch_axes, *(axis for axis in sides if axis is not None))
        for axis in inside:
            useful *= self.spans[axis]
            padded *= self.trips[axis] * self.sizes[axis]
        for side, constant in zip(sides, (fact.static_m, fact.static_n, fact.static_k), strict=True):
            if side is None:
                useful *= constant or 1
                padded *= constant or 1
        others = _product(self.trips, _factors(self.facts, fact.region, inside)[0])
        return useful * others, padded * others


@functools.lru_cache(maxsize=256)
def _factors(
    facts: KernelFacts, region: int, axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the axes that the elements of a tile in all programs and iterations are a product over.

    These are the axes of loops around it, by their trips, its own ones with all elements, and those with a tile's.
    """
    around = tuple(axis for axis in facts.enclosing_axes(region) if axis not in axes)
    # dimensions of one extent are one axis: after the first, each has the tile's own elements
    first = [axis not in axes[:at] or facts.axes[axis].kind == "full" for at, axis in enumerate(axes)]
    whole = tuple(axis for axis, is_first in zip(axes, first, strict=True) if is_first)
    return around, whole, tuple(axis for axis, is_first in zip(axes, first, strict=True) if not is_first)


def _product(of: Sequence[int] | Mapping[int, int], axes: Iterable[int]) -> int:
    product = 1
    for axis in axes:
        product *= of[axis]
    return product


def _passes(op: MemoryOpFact, facts: KernelFacts, sizes: Mapping[int, int]) -> int:
    """Return the number of passes of an access: a load of a chunked row repeats for each pass that needs it."""
    most = 0
    for axis, passes in op.looped:
        if passes > most and sizes[axis] < facts.axes[axis].padded:
            most = passes
    return most or 1


def _dot_tflops(fact: MatmulFact, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    name = str(fact.lhs_dtype).removeprefix("torch.")
    if name == "float32" and fact.precision != "ieee":
        name = "tf32"
    unit = unit_of(fact, sizes, num_warps, target)
    faster = target.has("wgmma") or target.has("tcgen05")
    return target.matrix_tflops_for(name) * (_LEGACY_EFFICIENCY if unit == "mma" and faster else _EFFICIENCY[unit])
