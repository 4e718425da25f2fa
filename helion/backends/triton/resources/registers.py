"""Registers per thread, and whether they run out.

What must be there at once takes registers one for one where products are, and much less where elementwise ops can be
reordered: the assembler then holds as many loads in flight as it likes, which grows with the square root of what there
is. The weights are a robust least-squares fit of the relative error to 6800 kernels that were compiled offline with
Triton 3.7 (ptxas 12.8, and 13.1 from sm_100; LLVM for AMD): sweeps of the examples, and seeds of test/varied_kernels.py
and test/unseen_kernels.py for nine GPUs. Fitted on half of the kernels and asked about the other half, either way, the median
error of the unseen ones is 16 and 13 % without products and 13 and 15 % with them, on AMD 18 and 11 %, 14 and 21 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ...._compiler.facts.records import KernelFacts, LiveTile, LiveTiles, MatmulFact, MemoryOpFact, ReductionFact
from ...._shapes import cdiv
from ....hardware import Target
from .layouts import fragment_warps
from .matrix import is_promoted, is_transposed, tile_shape, unit_of
from .tiles import VECTOR_BYTES, tile_bytes, vector_elements

_REGISTER_BYTES = 4

#: Registers of each random number of a thread while it is made: Philox works on four words, and the assembler makes all
#: numbers of a tile at once. Offline for sm_90 and sm_100, with 4 to 32 of them a thread, 2 to 3.5.
_RANDOM = 3.0
#: Registers of the place of each value of a thread, on CUDA and on AMD: rows of 32000 held at once with 32 to 128 elements
#: a thread take 2.0 to 2.8 for each element together with its value, offline for sm_80 to sm_120 and gfx942.
_PLACE, _AMD_PLACE = 1.5, 0.9
#: Registers by what takes them, in a kernel without products; ``_features`` says what each is. ``curves``: a hyperbolic tangent of 8
#: and 16 elements takes 5 and 20, three powers of 4 and 8 each 35 and 58, offline for sm_90 and sm_100.
_PLAIN: Mapping[str, float] = MappingProxyType(
    {
        "base": 3.7,
        "held": 0.15,
        "walked": 0.62,
        "in_flight": 2.0,
        "few": 0.93,
        "accesses": 1.66,
        "many_ops": 0.059,
        "special": 0.2,
        "scanned": 0.8,
        "loops": 1.5,
        "random": _RANDOM,
        "places": _PLACE,
        "curves": 1.2,
    }
)
#: The same for AMD, whose compiler keeps addresses in scalar registers.
_AMD_PLAIN: Mapping[str, float] = MappingProxyType(
    {
        "held": 0.23,
        "walked": 0.66,
        "in_flight": 1.95,
        "ops": 1.45,
        "scanned": 0.68,
        "elements": 0.63,
        "random": _RANDOM,
        "places": _AMD_PLACE,
    }
)
#: With products. ``transposed``: by the assembler, for 128 x 256 in 8 warps, 43 registers of 128 more for plain products,
#: 51 to 127 behind a reduction. ``overflow``: accumulators that do not fit are stored and loaded for each product, offline for
#: the H200 up to five times what is over. ``met``: a residual of fp32 beside 128 x 256 in 8 warps spills 312 to 480 bytes on sm_90
#: and sm_120. ``transposed_left``: for sm_80, 1.2 to 1.9 with 3 stages, more with more of them. ``beside``: 3 and 4 products of
#: operands that they share in part take 73 to 140 registers more than 2, offline for sm_80 to sm_120. ``polynomials``: the error
#: function of 128 elements a thread takes 42 to 79 registers, and 190 on gfx950, of 64 none.
_DOTS: Mapping[str, float] = MappingProxyType(
    {
        "base": 8.3,
        "held": 0.96,
        "overflow": 2.0,
        "many_ops": 0.051,
        "loops": 5.2,
        "warps": 1.0,
        "several": 6.3,
        "narrow_loads": 0.32,
        "addresses": 1.22,
        "fragments": 0.61,
        "promoted": 0.8,
        "transposed": 0.6,
        "met": 0.6,
        "transposed_left": 2.8,
        "beside": 5.5,
        "polynomials": 1.1,
        "scanned": 0.6,
        "random": _RANDOM,
    }
)
_AMD_DOTS: Mapping[str, float] = MappingProxyType(
    {
        "base": 11.9,
        "held": 1.07,
        "special": 0.57,
        "several": 8.6,
        "loads": 1.23,
        "addresses": 0.73,
        "fragments": 0.68,
        "scanned": 0.6,
        "random": _RANDOM,
        "polynomials": 2.8,
    }
)
#: Elementwise ops of a thread that temporaries of others have room for.
_FREE_OPS = 100
#: Elements of a tile whose temporaries are there together: resident ones, all on AMD, those of special functions there.
_FEW, _MOST_ELEMENTS, _MOST_SPECIAL = 8, 64, 16
#: Registers of loads that AMD has in flight beside products.
_MOST_LOADS = 64
#: Registers that a product takes besides its accumulator.
_PRODUCT_BASE = 20
#: Elements of a thread whose polynomials take no registers of their own.
_FEW_POLYNOMIALS = 64
#: Steps along K whose operands a product has in flight.
_STEPS = 2.0
#: The operands of two products that share one, as a multiple of those of one.
_TWO, _TWO_SHARING = 2, 1.5
#: A kernel of more memory accesses than this has addresses of several tensors.
_SEVERAL = 4
#: Bytes of a number that is stored unnarrowed.
_WIDE_BYTES = 4
#: Rows of an accumulator fragment; products of fewer rows are padded.
_FRAGMENT_ROWS = 16
#: What elementwise reordering can save of resident registers, and of those wanted where there are no products; less where
#: random numbers or places are made, and where rows are walked in chunks, on AMD: 144 of 128 wanted spill 372 bytes, 278 of 256 do
#: 56.
_SLACK, _TIGHT_SLACK, _AMD_WALKED_SLACK = 1.2, 1.05, 1.1
#: What tiles need at least in AMD's vector registers, to which nothing that is loaded is moved back. A fit to 576 seeds
#: compiled for gfx942.
_AMD_BASE, _AMD_HELD, _AMD_RESIDENT = 8, 0.65, 0.57
#: Registers that addresses and temporaries cannot do without.
_LEAST_BASE = 10
#: Registers of each value of a thread that a scan combines, for the first op and for each more. Offline for sm_90, 128 sums
#: of exponentials a thread spill 600 bytes.
_COMBINED, _COMBINED_OP = 0.6, 0.2
#: With accumulators in tensor memory kernels take this part of it: 230 seeds of the table and 160 of unseen kernels, compiled
#: for sm_100 and sm_103, are 12 and 11 % off in the median with it and 15 % without. What spills is predicted without.
_APART = 0.95
#: Over the limit by this much, spilling is certain.
_CERTAIN = 0.25


def pressure(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> tuple[int, int, float]:
    """Registers one thread wants, before any limit, those that it cannot do without, and from 0 (none) to 1 (certain) the risk
    that some are spilled."""
    resident, held = _tile_registers(facts, sizes, num_warps, target)
    wanted = round(_wanted(resident, held, facts, sizes, num_warps, target))
    scanned = _combined_registers(facts, sizes, num_warps, target)
    slack = 1.0 if facts.matmuls else _slack(facts, sizes, target)
    tiles = resident / _SLACK
    if target.kind == "hip" and not facts.matmuls:
        tiles = _AMD_BASE + _AMD_HELD * held + _AMD_RESIDENT * resident
    need = max(wanted / slack, tiles, held + scanned + _LEAST_BASE)
    over = need / register_limit(num_warps, target) - 1
    apart = facts.matmuls and target.has("tcgen05")
    return round(wanted * (_APART if apart else 1.0)), round(need), min(1.0, max(0.0, over / _CERTAIN))


def ahead_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Registers of a thread for each step that loads are made ahead: a loop carries what they load, as it is in memory."""
    threads = num_warps * target.warp_size
    loads = (op for op in facts.memory_ops if op.kind == "load" and op.slot in facts.ahead)
    return sum(cdiv(cdiv(_product(sizes, op.tile_axes), threads) * op.itemsize, _REGISTER_BYTES) for op in loads)


def _slack(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> float:
    """What the assembler can save of what a kernel without products wants."""
    if facts.random_tiles or _has_places(facts):
        return _TIGHT_SLACK
    if _is_walked(facts, sizes):
        return _AMD_WALKED_SLACK if target.kind == "hip" else _TIGHT_SLACK
    return _SLACK


def _wanted(
    resident: float, held: float, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> float:
    amd = target.kind == "hip"
    features = _features(resident, held, facts, sizes, num_warps * target.warp_size)
    weights = _AMD_PLAIN if amd else _PLAIN
    if facts.matmuls:
        weights = _AMD_DOTS if amd else _DOTS
        features |= _product_features(facts, sizes, num_warps, target)
        features["overflow"] = max(0.0, held + _PRODUCT_BASE - register_limit(num_warps, target))
    return sum(weight * features[name] for name, weight in weights.items())


def _features(
    resident: float, held: float, facts: KernelFacts, sizes: Mapping[int, int], threads: int
) -> dict[str, float]:
    """What one thread has of each: tiles, loads in flight (of which there are the more, the more is ``resident``),
    accesses, elementwise ops, elements of special functions, values that a scan combines, random numbers."""
    loads, accesses = _accesses(facts, sizes, threads)
    ops = _operations(facts, sizes, threads)
    elements = _elements(facts, sizes, threads)
    has_special = any(item.sfu_ops for item in facts.work)
    return {
        "base": 1.0,
        "held": held,
        "walked": held if _is_walked(facts, sizes) else 0.0,
        "in_flight": math.sqrt(resident + loads),
        "few": min(resident, _FEW),
        "accesses": math.sqrt(accesses),
        "ops": math.sqrt(ops),
        "many_ops": max(0.0, ops - _FREE_OPS),
        "special": 0.0 if not has_special else min(elements, _MOST_SPECIAL) if facts.matmuls else elements,
        "scanned": _scan_registers(facts, sizes, threads),
        "loops": sum(region.kind == "loop" for region in facts.regions),
        "elements": min(elements, _MOST_ELEMENTS),
        "loads": min(loads, _MOST_LOADS),
        "random": max((_numel(tile, sizes) for tile in facts.random_tiles), default=0) / threads,
        "places": _place_registers(facts, sizes, threads),
        "curves": _curves(facts, sizes, threads),
    }


def _product_features(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> dict[str, float]:
    """What products add to that: addresses of their operands, fragments of these, and copies of results."""
    return {
        "warps": num_warps,
        "several": len(facts.memory_ops) + len(facts.atomics) > _SEVERAL,
        "narrow_loads": _narrow_loads(facts, sizes, num_warps * target.warp_size),
        "addresses": _addresses(facts, sizes, num_warps, target),
        "fragments": _fragment_registers(facts, sizes, num_warps, target),
        "promoted": _promoted_registers(facts, sizes, num_warps, target),
        "transposed": _transposed_registers(facts, sizes, num_warps, target),
        "met": _met_registers(facts, sizes, num_warps, target),
        "transposed_left": _transposed_left_registers(facts, sizes, num_warps, target),
        "beside": _beside_registers(facts, sizes, num_warps, target),
        "polynomials": _polynomial_elements(facts, sizes, num_warps * target.warp_size),
    }


def _accesses(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> tuple[float, float]:
    """Registers that loads fill and accesses of all kinds that one thread makes, most of all regions."""
    loads: dict[int, float] = {}
    accesses: dict[int, float] = {}
    for op in (*facts.memory_ops, *facts.atomics):
        each = _each(op, sizes, threads)
        width = vector_elements(op, sizes, threads) if op.tile_axes else 1
        accesses[op.region] = accesses.get(op.region, 0.0) + max(1.0, each / width)
        if op.kind == "load":
            loads[op.region] = loads.get(op.region, 0.0) + max(1.0, each * op.itemsize / _REGISTER_BYTES)
    return max(loads.values(), default=0.0), max(accesses.values(), default=0.0)


def _narrow_loads(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Registers of a thread that loads of bytes fill, most of all regions."""
    found: dict[int, float] = {}
    for op in facts.memory_ops:
        if op.kind == "load" and op.itemsize == 1:
            found[op.region] = found.get(op.region, 0.0) + _each(op, sizes, threads) / _REGISTER_BYTES
    return max(found.values(), default=0.0)


def _each(op: MemoryOpFact, sizes: Mapping[int, int], threads: int) -> float:
    """Elements of a tile in memory for each thread, at least one."""
    return max(1.0, _product(sizes, op.tile_axes) / threads)


def _operations(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Elementwise ops of a thread in one iteration, most of all regions."""
    found: dict[int, float] = {}
    for item in facts.work:
        found[item.region] = found.get(item.region, 0.0) + item.ops * max(1.0, _product(sizes, item.axes) / threads)
    return max(found.values(), default=0.0)


def _elements(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Elements of the largest resident tile for each thread."""
    tiles = {axes for root in facts.resident_tiles for snapshot in root for axes, _ in snapshot}
    return max(1.0, max((_product(sizes, axes) for axes in tiles), default=0) / threads)


def _is_walked(facts: KernelFacts, sizes: Mapping[int, int]) -> bool:
    """Whether a whole dimension is reduced in chunks."""
    axes = (facts.axes[fact.axis] for fact in facts.reductions)
    return any(axis.rollable and sizes[axis.block_id] < axis.padded for axis in axes)


def _product(sizes: Mapping[int, int], axes: Iterable[int]) -> int:
    # a loop takes half the time of math.prod, and this is most of what a prediction does
    product = 1
    for axis in axes:
        product *= sizes[axis]
    return product


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

    # a row that is walked in chunks is reduced into an accumulator of the chunk's shape, there while chunks are
    walked = [fact for fact in facts.reductions if facts.axes[fact.axis].rollable]
    extra: dict[int, float] = {}
    together = 0.0
    for fact in walked:
        if sizes[fact.axis] < facts.axes[fact.axis].padded:
            own = _snapshot(((fact.tile, fact.itemsize),), sizes, threads, products, 1)
            extra[fact.axis] = max(extra.get(fact.axis, 0.0), own)
            together = max(together, own * _tiles_together(fact))

    singles = [fact for fact in facts.reductions if sizes[fact.axis] == 1 < facts.axes[fact.axis].padded]

    def most(snapshots: tuple[tuple[LiveTiles, ...], ...], least_rows: int) -> float:
        found = 0.0
        for tiles in (_added_at_once(tiles, singles) for root in snapshots for tiles in root):
            beside = max((extra[axis] for axis in extra if any(axis in tile[0] for tile in tiles)), default=0.0)
            found = max(found, _snapshot(tiles, sizes, threads, products, least_rows) + beside)
        return max(found, together)

    return most(facts.resident_tiles, 1), most(facts.held_tiles, _FRAGMENT_ROWS)


def _added_at_once(tiles: LiveTiles, singles: Iterable[ReductionFact]) -> LiveTiles:
    """``tiles`` without terms of sums that are there: of a reduction that is walked element by element each is added as it is made."""
    for fact in singles:
        sums = tuple(axis for axis in fact.tile if axis != fact.axis)
        same = [at for at, (axes, _) in enumerate(tiles) if tuple(axis for axis in axes if axis != fact.axis) == sums]
        tiles = tuple(tile for at, tile in enumerate(tiles) if at not in same[1:])
    return tiles


def _tiles_together(fact: ReductionFact) -> int:
    """Tiles that are there while a row is reduced chunk by chunk: an accumulator for each of the reductions that are done at
    once, the places of those that ask for one, and beside several of them the chunk, which one alone takes at once."""
    most = max(sum(1 + _is_place(name) for name in stage) for stage in fact.stages)
    return most + (most > 1)


def _is_place(name: str) -> bool:
    """Whether a reduction gives the place of a value, which goes with the value from step to step."""
    return name.startswith("arg")


def _has_places(facts: KernelFacts) -> bool:
    return any(_is_place(name) for fact in facts.reductions for name in fact.names)


def _place_registers(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Places of a thread that go with the values of a row which is reduced at once."""
    most = 0.0
    for fact in facts.reductions:
        if any(map(_is_place, fact.names)) and sizes[fact.axis] >= facts.axes[fact.axis].padded:
            most = max(most, _product(sizes, fact.tile) / threads)
    return most


def _numel(tile: LiveTile, sizes: Mapping[int, int]) -> int:
    return _product(sizes, tile[0])


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
        most = max(most, min(_STEPS, _steps(fact, k)) * _step_registers((m, n), num_warps))
    return most


def _curves(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Polynomials of a thread in one iteration, most of all regions."""
    found: dict[int, float] = {}
    for item in facts.work:
        found[item.region] = found.get(item.region, 0.0) + item.polynomials * _product(sizes, item.axes) / threads
    return max(found.values(), default=0.0)


def _polynomial_elements(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Elements of a thread beyond those whose polynomials the assembler computes one after the other."""
    tiles = (_product(sizes, item.axes) for item in facts.work if item.polynomials)
    return max(0.0, max(tiles, default=0) / threads - _FEW_POLYNOMIALS)


def _steps(fact: MatmulFact, k: int) -> float:
    """Steps of 32 bytes along K that a tile has on CUDA."""
    return max(1.0, k * fact.lhs_dtype.itemsize / 32)


def _step_registers(shape: tuple[int, int], num_warps: int) -> float:
    """Registers of a thread for both operands of one step: the side of a warp's tile times 32 bytes, for 32 threads of 4."""
    m, n = shape
    return math.sqrt(m * n / num_warps) / 2


def _beside_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of the operands of products that one iteration makes side by side, besides those of two which share one:
    nothing keeps the assembler from reading them all before the first product."""
    chains = {number for fact in facts.matmuls for number in (fact.number, *fact.consumes) if fact.consumes}
    found: dict[int, tuple[float, list[float]]] = {}
    read: set[int] = set()
    for fact in facts.matmuls if target.kind == "cuda" else ():
        if fact.chained or fact.number in chains or unit_of(fact, sizes, num_warps, target) != "mma":
            continue
        m, n, k = tile_shape(fact, sizes)
        both = _steps(fact, k) * _step_registers((m, n), num_warps)
        fresh = sum(slot is None or slot not in read for slot in (fact.lhs_slot, fact.rhs_slot))
        read.update(slot for slot in (fact.lhs_slot, fact.rhs_slot) if slot is not None)
        all_of, each = found.get(fact.region, (0.0, []))
        found[fact.region] = all_of + fresh * both / 2, [*each, both]
    several = ((all_of, each) for all_of, each in found.values() if len(each) > _TWO)
    return max((max(0.0, all_of - _TWO_SHARING * max(each)) for all_of, each in several), default=0.0)


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


def _scan_registers(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Registers of the values that one scan combines, per thread."""
    scans = (tile_bytes((fact.tile, fact.itemsize), sizes) for fact in facts.scans if fact.kind == "scan")
    return max(scans, default=0) / _REGISTER_BYTES / threads


def _combined_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers that one scan takes at least besides those that hold its values, per thread."""
    most = 0.0
    for fact in facts.scans:
        if fact.kind == "scan":
            values = max(1, fact.itemsize // _REGISTER_BYTES)
            each = tile_bytes((fact.tile, fact.itemsize), sizes) / _REGISTER_BYTES / (num_warps * target.warp_size)
            most = max(most, each * (_COMBINED + _COMBINED_OP * max(0.0, fact.ops / values - 1)))
    return most


def _transposed_left_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of the largest left operand of a warp that is transposed on its way to the unit, on CUDA; one of 4 bytes is
    read from shared memory as it is."""
    most = 0.0
    for fact in facts.matmuls if target.kind == "cuda" else ():
        narrow = fact.lhs_dtype.itemsize < _WIDE_BYTES
        if fact.lhs_layout == "mn_major" and narrow and unit_of(fact, sizes, num_warps, target) == "mma":
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
