"""Registers per thread, and whether they run out.

The constants are a least-squares fit to 1828 kernels that were compiled offline with Triton 3.7 (ptxas 12.8, and 13.1
for sm_100) for sm_80, sm_90 and sm_100: reductions, matrix products, epilogues, elementwise, attention. The median
error is 12 %; of the 69 kernels that spill more than 64 bytes 65 are predicted to, and 11 of the 1759 others are. Those
for AMD are a fit to 576 seeds compiled for gfx942 (median error 17 %): its compiler keeps addresses in scalar registers,
and what is loaded in vector registers, of which there are plenty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...._compiler.facts.records import KernelFacts, LiveTile, LiveTiles
from ....hardware import Target
from .layouts import fragment_warps
from .matrix import is_promoted, is_transposed, tile_shape, unit_of
from .tiles import VECTOR_BYTES, tile_bytes, vector_elements

_REGISTER_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """``base``: registers for addresses, masks and loop counters. The others are weights: of what must be ``held``, of
    what is ``resident`` if there is room, and of operand ``fragments``, the part that is there with everything else."""

    base: float
    held: float
    resident: float
    fragments: float = 0.0


#: Without dots and with them, and the same for AMD.
_PLAIN, _DOTS = _Weights(base=18, held=0.70, resident=0.20), _Weights(base=26, held=1.05, resident=0.15, fragments=0.6)
_AMD_PLAIN = _Weights(base=8, held=0.65, resident=0.57)
_AMD_DOTS = _Weights(base=28, held=0.20, resident=0.80, fragments=1.2)
#: Part of a product in tensor memory that is in registers twice when it is stored unnarrowed: as it is read from there,
#: and in rows. By the assembler, for 128 x 256 in 8 warps: 43 registers of 128 more for plain products, 51 to 127 behind
#: a reduction.
_TRANSPOSED = 0.58
_WIDE_BYTES = 4
#: Registers of each access of a thread to operands in memory, beyond as many as others leave room for: addresses and
#: masks. It matters where rows are not aligned, and one access is one element.
_ACCESS, _FREE_ACCESSES = 1.0, 16
#: Rows of an accumulator fragment; products of fewer rows are padded.
_FRAGMENT_ROWS = 16
#: Registers of those that hold a warp's rows of a left operand that is contiguous along M, over all of K, where it goes
#: through registers. Offline for sm_80, 1.2 to 1.9 with 3 stages, more with more of them.
_TRANSPOSED_LEFT = 2.8
#: Part of a tile of 4-byte numbers that is loaded to meet a product and in registers twice, as it is read and as fragments.
#: Offline, a residual of fp32 beside 128 x 256 in 8 warps spills 312 to 480 bytes on sm_90 and sm_120.
_MET = 0.6
#: Registers of each random number of a thread while it is made: Philox works on four words, and the assembler makes all
#: numbers of a tile at once. Offline for sm_90 and sm_100, with 4 to 32 of them a thread, 2 to 3.5.
_RANDOM = 3.0
#: Registers of each value of a thread that a scan combines, besides those that hold it. Offline for sm_90 and gfx942, 0.4 to
#: 0.9.
_SCAN = 0.6
#: Resident registers over the limit by this factor do not fit in what elementwise reordering can save.
_SLACK = 1.2
#: Registers that addresses and temporaries cannot do without.
_LEAST_BASE = 10
#: Over the limit by this much, spilling is certain.
_CERTAIN = 0.25


def pressure(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> tuple[int, float]:
    """Registers one thread wants, before any limit, and from 0 (none) to 1 (certain) the risk that some are spilled."""
    resident, held = _tile_registers(facts, sizes, num_warps, target)
    wanted = round(_wanted(resident, held, facts, sizes, num_warps, target))
    need = max(wanted, resident / _SLACK, held + _LEAST_BASE)
    over = need / register_limit(num_warps, target) - 1
    return wanted, min(1.0, max(0.0, over / _CERTAIN))


def _wanted(
    resident: float, held: float, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> float:
    plain, dots = (_AMD_PLAIN, _AMD_DOTS) if target.kind == "hip" else (_PLAIN, _DOTS)
    weights = dots if facts.matmuls else plain
    tiles = weights.base + weights.held * held + weights.resident * resident
    tiles += _SCAN * _scan_registers(facts, sizes, num_warps, target)
    tiles += _RANDOM * _random_numbers(facts, sizes, num_warps, target)
    if not facts.matmuls:
        return tiles
    fragments = _fragment_registers(facts, sizes, num_warps, target)
    transposed = _transposed_registers(facts, sizes, num_warps, target)
    accesses = max(0.0, _addresses(facts, sizes, num_warps, target) - _FREE_ACCESSES)
    met = 0.0 if target.kind == "hip" else _met_registers(facts, sizes, num_warps, target)
    promoted = _promoted_registers(facts, sizes, num_warps, target) + _MET * met
    promoted += _TRANSPOSED_LEFT * _transposed_left_registers(facts, sizes, num_warps, target)
    return tiles + weights.fragments * fragments + _TRANSPOSED * transposed + _ACCESS * accesses + promoted


def register_limit(num_warps: int, target: Target) -> int:
    """Registers that a block of ``num_warps`` leaves each thread."""
    limit = target.registers_per_sm // (num_warps * target.warp_size)
    return min(target.max_registers_per_thread, limit - limit % target.register_granularity)


def _tile_registers(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> tuple[float, float]:
    """Registers of the largest snapshot of resident and of held tiles."""
    threads = num_warps * target.warp_size
    products = frozenset(fact.axes for fact in facts.accumulators if fact.of_dot)

    def most(snapshots: tuple[tuple[LiveTiles, ...], ...], least_rows: int) -> float:
        found = (_snapshot(t, sizes, threads, products, least_rows) for root in snapshots for t in root)
        return max(found, default=0.0)

    # a row that is walked in chunks is reduced into an accumulator of the chunk's shape
    walked = [fact for fact in facts.reductions if facts.axes[fact.axis].rollable]
    sums = [(fact.tile, fact.itemsize) for fact in walked if sizes[fact.axis] < facts.axes[fact.axis].padded]
    extra = max((_snapshot((tile,), sizes, threads, products, 1) for tile in sums), default=0.0)
    return most(facts.resident_tiles, 1) + extra, most(facts.held_tiles, _FRAGMENT_ROWS) + extra


def _numel(tile: LiveTile, sizes: Mapping[int, int]) -> int:
    return math.prod(sizes[axis] for axis in tile[0])


def _snapshot(
    tiles: LiveTiles,
    sizes: Mapping[int, int],
    threads: int,
    products: frozenset[tuple[int, ...]],
    least_rows: int,
) -> float:
    """Registers one thread holds of ``tiles`` together. Accumulators of dots have at least ``least_rows`` rows.

    The largest tile is spread over the threads; those that span some of its axes are laid out as its slices, which
    several threads repeat.
    """
    if not tiles:
        return 0.0
    largest = max(tiles, key=lambda tile: _numel(tile, sizes))
    axes, itemsize = largest
    total = _numel(largest, sizes)
    columns = sizes[axes[-1]] if axes else 1
    rows = total // columns
    if axes in products and rows < least_rows:
        total, rows = total // rows * least_rows, least_rows
    each = max(1.0, total / threads)
    if axes in products:
        # a thread holds two of every 16 rows of a matrix fragment
        thread_rows = min(float(rows), max(2.0, rows / 8 / max(1, threads // 32)))
    else:
        across = min(threads, max(1, columns * itemsize // VECTOR_BYTES))
        thread_rows = max(1.0, rows / max(1, threads // across))
    thread_columns = max(1.0, each / thread_rows)
    inside, sum_of = set(axes), 0.0
    for tile_axes, size in tiles:
        if tile_axes and inside.issuperset(tile_axes):
            count = thread_columns if tile_axes[-1] == axes[-1] else 1.0
            if len(tile_axes) > 1 or tile_axes[-1] != axes[-1]:
                count *= thread_rows
        else:
            count = max(1.0, _numel((tile_axes, size), sizes) / threads)
        sum_of += max(1.0, count * size / _REGISTER_BYTES)
    return sum_of


def _fragment_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of dot operands on the unit that takes them from registers: up to two steps along K are in flight, on AMD
    all of them."""
    most = 0.0
    for fact in facts.matmuls:
        unit = unit_of(fact, sizes, num_warps, target)
        if unit != "mma" and not is_transposed(fact, unit):
            continue
        m, n, k = tile_shape(fact, sizes)
        if target.kind == "hip":
            of_warp, (down, across) = fragment_warps((m, n), num_warps, target)
            rows, columns = max(of_warp[0], m // down), max(of_warp[1], n // across)
            of_k = rows * fact.lhs_dtype.itemsize + columns * fact.rhs_dtype.itemsize
            most = max(most, of_k * k / target.warp_size / _REGISTER_BYTES)
            continue
        side = math.sqrt(m * n / num_warps)
        steps = min(2.0, max(1.0, k * fact.lhs_dtype.itemsize / 32))
        # one step is 32 bytes along K: side * 32 bytes per operand over 32 threads of 4 bytes
        most = max(most, steps * 2 * side / 4)
    return most


def operand_accesses(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Loads of one thread for operands of dots in one iteration, most of all loops."""
    loads = _operand_loads(facts, sizes, num_warps, target)
    by_region: dict[int, float] = {}
    for (region, _), (count, _) in loads.items():
        by_region[region] = by_region.get(region, 0.0) + count
    return max(by_region.values(), default=0.0)


def _addresses(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Addresses of operands that a thread has at the same time: those of one loop, and if each is of one element, of all
    loops of a grid loop, which are made before the first."""
    by_root: dict[int, float] = {}
    for (region, _), (count, width) in _operand_loads(facts, sizes, num_warps, target).items():
        root = facts.regions[region].root
        by_root[root] = by_root.get(root, 0.0) + (count if width == 1 else 0.0)
    return max(operand_accesses(facts, sizes, num_warps, target), *by_root.values(), 0.0)


def _operand_loads(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> dict[tuple[int, int], tuple[float, int]]:
    """By region and slot: loads of one thread for operands of dots in one iteration, and elements of each."""
    threads = num_warps * target.warp_size
    slots = {op.slot: op for op in facts.memory_ops}
    found: dict[tuple[int, int], tuple[float, int]] = {}
    for operand in facts.staged:
        op = slots[operand.slot]
        elements = tile_bytes((operand.axes, operand.itemsize), sizes) / op.itemsize
        width = vector_elements(op, sizes, threads)
        found[operand.region, operand.slot] = elements / threads / width, width
    return found


def _scan_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of the values that one scan combines, per thread."""
    scans = (tile_bytes((fact.tile, fact.itemsize), sizes) for fact in facts.scans if fact.kind == "scan")
    return max(scans, default=0) / _REGISTER_BYTES / (num_warps * target.warp_size)


def _random_numbers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Random numbers that a thread makes together."""
    tiles = (_numel(tile, sizes) for tile in facts.random_tiles)
    return max(tiles, default=0) / (num_warps * target.warp_size)


def _transposed_left_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of the largest left operand of a warp that is transposed on its way to the unit, on CUDA."""
    most = 0.0
    for fact in facts.matmuls if target.kind == "cuda" else ():
        if fact.lhs_layout == "mn_major" and unit_of(fact, sizes, num_warps, target) == "mma":
            m, n, k = tile_shape(fact, sizes)
            (of_warp, _), (down, _) = fragment_warps((m, n), num_warps, target)
            rows = max(of_warp, m // down)
            most = max(most, rows * k * fact.lhs_dtype.itemsize / (target.warp_size * _REGISTER_BYTES))
    return most


def _met_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of the largest tile of 4 bytes or more that is loaded to meet a product that spans the same axes."""
    products = [{fact.m_axis, fact.n_axis} for fact in facts.matmuls]
    wide = [
        op for op in facts.memory_ops if op.kind == "load" and op.itemsize >= _WIDE_BYTES and op.matmul_operand is None
    ]
    met = [op for op in wide if any(axes <= set(op.tile_axes) for axes in products)]
    most = max((tile_bytes((op.tile_axes, op.itemsize), sizes) for op in met), default=0)
    return most / _REGISTER_BYTES / (num_warps * target.warp_size)


def _promoted_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of partial sums that stand beside the accumulator they are added to."""
    most = 0.0
    for fact in facts.matmuls:
        m, n, depth = tile_shape(fact, sizes)
        if is_promoted(fact, unit_of(fact, sizes, num_warps, target), depth, target):
            most = max(most, m * n / (num_warps * target.warp_size))
    return most


def _transposed_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of the largest product in tensor memory that is stored with 4 bytes an element or more."""
    most = 0.0
    wide = [set(op.tile_axes) for op in facts.memory_ops if op.kind == "store" and op.itemsize >= _WIDE_BYTES]
    for fact in facts.matmuls:
        if unit_of(fact, sizes, num_warps, target) == "tcgen05" and {fact.m_axis, fact.n_axis} in wide:
            m, n, _ = tile_shape(fact, sizes)
            most = max(most, m * n / (num_warps * target.warp_size))
    return most
