"""Registers per thread, and the risk of spills.

Live values take registers one for one in kernels with matmuls. They take far fewer where ptxas can reorder elementwise
ops: it then keeps many loads in flight, which grow with the square root of the live registers. The weights are a robust
least-squares fit of the relative error to 6800 kernels compiled offline with Triton 3.7 (ptxas 12.8, and 13.1 from
sm_100; LLVM for AMD). The kernels are sweeps of the examples, and seeds of test/varied_kernels.py and
test/unseen_kernels.py for nine GPUs. Fitted on one half and tested on the other, median errors are 16 and 13 % without
matmuls, and 13 and 15 % with them. On AMD it is 18 and 11 %, 14 and 21 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from ...._compiler.facts.records import KernelFacts, LiveTiles, ReductionFact
from ...._shapes import cdiv
from ....hardware import REGISTER_BYTES, WARP_ROWS, Target
from .fragments import beside_registers, fragment_registers, indexed_elements, narrow_stores
from .known import again
from .late import late_registers
from .results import (
    keeps_parts,
    met_registers,
    promoted_registers,
    summed_elements,
    transposed_left_registers,
    transposed_registers,
)
from .tiles import VECTOR_BYTES, tile_bytes, vector_elements, vector_of

#: Registers per random number of a thread: Philox works on four words, and ptxas computes all numbers of a tile at
#: once. Offline for sm_90 and sm_100, with 4 to 32 of them a thread, 2 to 3.5.
_RANDOM = 3.0
#: Registers of the index of each value of a thread (argmax, argmin), on CUDA and on AMD. Whole rows of 32000 with 32 to
#: 128 elements a thread take 2.0 to 2.8 per element with its value (offline, sm_80 to sm_120, gfx942).
_PLACE, _AMD_PLACE = 1.5, 0.9
#: Register weights of a kernel without matmuls; ``_features`` documents each. ``curves``: offline for sm_90 and sm_100,
#: a hyperbolic tangent of 8 and 16 elements takes 5 and 20, three powers 35 and 58.
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
#: The same for AMD, whose compiler keeps addresses in scalar registers. ``singles``: by LLVM for gfx942, whole rows of
#: 32001 elements take 26 to 44 registers more than rows of 32000. Cross entropy of 50257 spills 196 bytes.
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
        "singles": 1.0,
    }
)
#: With matmuls. ``transposed``: by ptxas, for 128 x 256 in 8 warps, 43 of 128 registers more for plain matmuls, 51 to
#: 127 after a reduction. ``overflow``: accumulators that do not fit spill for each dot, offline for the H200 up to five
#: times the excess. ``met``: a residual of fp32 for 128 x 256 in 8 warps spills 312 to 480 bytes on sm_90 and sm_120.
#: ``summed``: each element of a bf16 tile that is added up with a result takes 0.8 to 1.3, offline for sm_80 to sm_100.
#: ``transposed_left``: for sm_80, 1.2 to 1.9 with 3 stages, more with more. ``beside``: 3 and 4 dots that share some
#: operands take 73 to 140 registers more than 2, offline for sm_80 to sm_120. ``polynomials``: the error function of
#: 128 elements a thread takes 42 to 79 registers, and 190 on gfx950, of 64 none. ``indexed``: a causal mask of 128 columns
#: a thread spills 408 to 1456 bytes on sm_100.
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
        "summed": 1.0,
        "transposed_left": 2.8,
        "beside": 5.5,
        "polynomials": 1.1,
        "indexed": 0.8,
        "stored": 1.6,
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
#: Elementwise ops of a thread that fit into the temporaries of others.
_FREE_OPS = 100
#: Most ops of a thread that take registers in a filter: 49 taps of 16 and 32 elements take 80 and 128 on sm_90.
_TAPS_OPS = 500
#: Elements of a tile whose temporaries are live together: resident ones, all on AMD, those of special functions there.
_FEW, _MOST_ELEMENTS, _MOST_SPECIAL = 8, 64, 16
#: Registers of loads that AMD keeps in flight during dots.
_MOST_LOADS = 64
_PRODUCT_BASE = 20  #: Registers of a dot besides its accumulator.
#: Elements of a thread whose polynomials take no registers of their own.
_FEW_POLYNOMIALS = 64
#: A kernel of more memory accesses than this keeps addresses of several tensors.
_SEVERAL = 4
#: Ratio by which reordering can reduce resident registers, and wanted ones without matmuls. It is smaller for random
#: numbers or indices, and for chunked rows; on AMD, 144 of 128 wanted spill 372 bytes, 278 of 256 spill 56.
_SLACK, _TIGHT_SLACK, _AMD_WALKED_SLACK = 1.2, 1.05, 1.1
#: Least registers of tiles in AMD's vector registers, to which no loaded value returns. A fit to 576 seeds compiled for
#: gfx942.
_AMD_BASE, _AMD_HELD, _AMD_RESIDENT = 8, 0.65, 0.57
#: Least registers for addresses and temporaries.
_LEAST_BASE = 10
#: Registers of each value of a thread that a scan combines, for the first op and for each further one. Offline for
#: sm_90, 128 sums of exponentials a thread spill 600 bytes.
_COMBINED, _COMBINED_OP = 0.6, 0.2
#: Factor for kernels with accumulators in tensor memory. 390 seeds compiled for sm_100 and sm_103 are 12 and 11 % off
#: in the median with it and 15 % without. The prediction of spills omits it.
_APART = 0.95
#: Factor of reductions there: of 106 seeds for sm_103, the median takes 2 % more, and errors are least with this.
_REDUCED = 1.05
#: Above the limit by this fraction, spilling is certain.
_CERTAIN = 0.25


def pressure(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> tuple[int, int, float]:
    """Return the registers one thread wants before any limit, the registers it needs, and the risk of spills.

    The risk is between 0 (none) and 1 (certain).
    """
    late, spread, limit = 0, num_warps, register_limit(num_warps, target)
    if facts.late_reductions:
        late, spread = late_registers(facts, sizes, num_warps, limit, target)
    resident, needed, held, kept = [each + late for each in _tile_registers(facts, sizes, spread, target)]
    wanted = round(_wanted(resident, held, facts, sizes, spread, target))
    scanned = _combined_registers(facts, sizes, num_warps, target) if facts.scans else 0.0
    slack = 1.0 if facts.matmuls else _slack(facts, sizes, target)
    tiles = needed / _SLACK
    if target.kind == "hip" and not facts.matmuls:
        tiles = _AMD_BASE + _AMD_HELD * held + _AMD_RESIDENT * needed
    need = max(wanted / slack, tiles, kept + scanned + _LEAST_BASE)
    over = need / limit - 1
    factor = (_APART if facts.matmuls else _REDUCED if facts.reductions else 1.0) if target.has("tcgen05") else 1.0
    return round(wanted * factor), round(need), min(1.0, max(0.0, over / _CERTAIN))


def ahead_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the registers of a thread per prefetched step, whose values the loop carries in their memory dtype."""
    threads = num_warps * target.warp_size
    loads = (op for op in facts.memory_ops if op.kind == "load" and op.slot in facts.prefetchable_slots)
    return sum(cdiv(cdiv(_product(sizes, op.tile_axes), threads) * op.itemsize, REGISTER_BYTES) for op in loads)


def _slack(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> float:
    """Return the ratio by which ptxas can reduce the registers of a kernel without matmuls."""
    if facts.random_tiles or _has_places(facts):
        return _TIGHT_SLACK
    if _is_walked(facts, sizes):
        return _AMD_WALKED_SLACK if target.kind == "hip" else _TIGHT_SLACK
    return _SLACK


def _wanted(
    resident: float, held: float, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> float:
    amd = target.kind == "hip"
    threads = num_warps * target.warp_size
    weights = _AMD_PLAIN if amd else _PLAIN
    features = _features(resident, held, facts, sizes, threads)
    if facts.matmuls:
        weights = _AMD_DOTS if amd else _DOTS
        features["overflow"] = max(0.0, held + _PRODUCT_BASE - register_limit(num_warps, target))
    terms = [weights[name] * value for name, value in features.items() if name in weights]
    for name in _others(facts, amd):
        of_matmuls = _OF_MATMULS.get(name)
        value = of_matmuls(facts, sizes, num_warps, target) if of_matmuls else _OF_THREADS[name](facts, sizes, threads)
        terms.append(weights[name] * value)
    # exact, so that rounding is the same in every version of Python
    return math.fsum(terms)


@functools.lru_cache(maxsize=64)
def _others(facts: KernelFacts, amd: bool) -> tuple[str, ...]:
    """Return the weighted features that are not in ``_features``, without those that are zero whatever the sizes."""
    weights = (_AMD_DOTS if amd else _DOTS) if facts.matmuls else _AMD_PLAIN if amd else _PLAIN
    names = [name for name in weights if name in _OF_THREADS or name in _OF_MATMULS]
    return tuple(name for name in names if name not in _ARE_THERE or _ARE_THERE[name](facts))


def _features(
    resident: float, held: float, facts: KernelFacts, sizes: Mapping[int, int], threads: int
) -> dict[str, float]:
    """Return the features of one thread that all kernels have: tiles, loads in flight, accesses, elementwise ops.

    Loads in flight grow with ``resident``. ``_OF_THREADS`` and ``_OF_MATMULS`` have the others.
    """
    loads, accesses = _accesses(facts, sizes, threads)
    ops = min(_operations(facts, sizes, threads), _TAPS_OPS if facts.row_windows else math.inf)
    return {
        "base": 1.0,
        "held": held,
        "walked": held if _is_walked(facts, sizes) else 0.0,
        "in_flight": math.sqrt(resident + loads),
        "few": min(resident, _FEW),
        "accesses": math.sqrt(accesses),
        "ops": math.sqrt(ops),
        "many_ops": max(0.0, ops - _FREE_OPS),
        "loops": sum([region.kind == "loop" for region in facts.regions]),
        "loads": min(loads, _MOST_LOADS),
    }


def _accesses(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> tuple[float, float]:
    """Return the registers that loads fill, and the accesses of all kinds, of one thread: the maximum over regions."""
    loads: dict[int, float] = {}
    accesses: dict[int, float] = {}
    for op in (*facts.memory_ops, *facts.atomics):
        region, numel = op.region, _product(sizes, op.tile_axes)
        each, width = 1.0, 1
        if numel > threads:
            each, width = numel / threads, vector_of(op, numel, threads)
        accesses[region] = accesses.get(region, 0.0) + (each / width if each > width else 1.0)
        if op.kind == "load":
            loads[region] = loads.get(region, 0.0) + max(1.0, each * op.itemsize / REGISTER_BYTES)
    return max(loads.values(), default=0.0), max(accesses.values(), default=0.0)


def _single_loads(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the loads of one element each of a thread, in rows that are not aligned: the maximum over regions."""
    found: dict[int, float] = {}
    for op in facts.memory_ops:
        if op.kind != "load" or 1 not in op.strides or vector_elements(op, sizes, threads) > 1:
            continue
        inside = (min(sizes[axis], facts.axes[axis].extent or sizes[axis]) for axis in op.tile_axes)
        each = math.prod(inside) / threads
        found[op.region] = found.get(op.region, 0.0) + (each if each > 1 else 0.0)
    return max(found.values(), default=0.0)


def _narrow_loads(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the registers of a thread that byte loads fill: the maximum over regions."""
    found: dict[int, float] = {}
    for op in facts.memory_ops:
        if op.kind == "load" and op.itemsize == 1:
            each = max(1.0, _product(sizes, op.tile_axes) / threads)
            found[op.region] = found.get(op.region, 0.0) + each / REGISTER_BYTES
    return max(found.values(), default=0.0)


def _operations(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the elementwise ops of a thread in one iteration: the maximum over regions."""
    found: dict[int, float] = {}
    for item in facts.work:
        numel = _product(sizes, item.axes)
        each = item.ops * (numel / threads) if numel > threads else float(item.ops)
        found[item.region] = found.get(item.region, 0.0) + each
    return max(found.values(), default=0.0)


def _elements(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the elements of the largest resident tile per thread."""
    tiles = {axes for root in facts.resident_tiles for snapshot in root for axes, _ in snapshot}
    return max(1.0, max([_product(sizes, axes) for axes in tiles], default=0) / threads)


def _special_elements(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the elements of a thread whose special functions are live together."""
    return min(_elements(facts, sizes, threads), _MOST_SPECIAL if facts.matmuls else math.inf)


def _is_walked(facts: KernelFacts, sizes: Mapping[int, int]) -> bool:
    """Return whether a whole dimension is reduced in chunks."""
    for fact in facts.reductions:
        axis = facts.axes[fact.axis]
        if axis.rollable and sizes[fact.axis] < axis.padded:
            return True
    return False


def _product(sizes: Mapping[int, int], axes: Iterable[int]) -> int:
    # a loop takes half the time of math.prod, and this dominates the time of a prediction
    product = 1
    for axis in axes:
        product *= sizes[axis]
    return product


def register_limit(num_warps: int, target: Target) -> int:
    """Return the registers that a block of ``num_warps`` leaves each thread."""
    limit = target.registers_per_sm // (num_warps * target.warp_size)
    return min(target.max_registers_per_thread, limit - limit % target.register_granularity)


def _tile_registers(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> tuple[float, float, float, float]:
    """Return the registers of the largest snapshot of resident, of needed, of held and of kept tiles.

    The assembler for CUDA keeps values that are converted from loads in the loads' dtype (measurement
    ``converted_rows``), so that needed tiles are packed there. In a loop, loads of the next step take these registers.
    """
    threads = num_warps * target.warp_size
    products = frozenset([fact.axes for fact in facts.accumulators if fact.of_dot])
    # a chunked row is reduced into an accumulator of the chunk's shape, live during the loop over chunks
    extra, together = dict[int, float](), 0.0
    for fact in facts.reductions:
        if facts.axes[fact.axis].rollable and sizes[fact.axis] < facts.axes[fact.axis].padded:
            own = _snapshot(((fact.tile, fact.itemsize),), sizes, threads, products, 1)
            extra[fact.axis] = max(extra.get(fact.axis, 0.0), own)
            together = max(together, own * _tiles_together(fact))
    singles = [fact for fact in facts.reductions if sizes[fact.axis] == 1 < facts.axes[fact.axis].padded]

    known: dict[tuple[int, bool, LiveTiles], float] = {}  # snapshots of several kinds are the same

    def most(snapshots: tuple[tuple[LiveTiles, ...], ...], least_rows: int, apart: bool = False) -> float:
        found = together
        for root in snapshots:
            for tiles in root:
                key = least_rows if products else 1, apart, tiles
                own = known.get(key)
                if own is None:
                    live = _added_at_once(tiles, singles) if singles else tiles
                    own = _snapshot(live, sizes, threads, products, least_rows, apart)
                    if extra:
                        own += max([extra[axis] for axis in extra if any([axis in t[0] for t in live])], default=0.0)
                    known[key] = own
                if own > found:
                    found = own
        return found

    resident = most(facts.resident_tiles, 1)
    packs = target.kind == "cuda" and not any([region.kind == "loop" for region in facts.regions])
    needed, kept = (facts.packed_tiles, facts.kept_tiles) if packs else (facts.needed_tiles, facts.held_tiles)
    merged = _merged_registers(facts, sizes, threads)
    held = max(most(facts.held_tiles, WARP_ROWS), merged)
    apart = packs and not facts.matmuls and keeps_parts(facts)
    needs = resident if needed == facts.resident_tiles and not apart else most(needed, 1, apart)
    keeps = held if kept == facts.held_tiles and not apart else max(most(kept, WARP_ROWS, apart), merged)
    return resident, needs, held, keeps


def _merged_registers(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the registers of the largest tile that stays from one loop to the next, because each has one step."""
    most = 0.0
    for load in () if facts.matmuls else again(facts):
        if all(sizes[axis] >= facts.axes[axis].padded > 0 for axis in load.once):
            each = _product(sizes, load.op.tile_axes) / threads
            most = max(most, each * max(load.op.itemsize, load.op.cast_itemsize) / REGISTER_BYTES)
    return most


def _added_at_once(tiles: LiveTiles, singles: Iterable[ReductionFact]) -> LiveTiles:
    """Return ``tiles`` without the live terms of accumulations that run element by element, whose terms are added at
    once.
    """
    for fact in singles:
        sums = tuple(axis for axis in fact.tile if axis != fact.axis)
        same = [at for at, (axes, _) in enumerate(tiles) if tuple(axis for axis in axes if axis != fact.axis) == sums]
        tiles = tuple(tile for at, tile in enumerate(tiles) if at not in same[1:])
    return tiles


def _tiles_together(fact: ReductionFact) -> int:
    """Return the tiles live during a chunked reduction: an accumulator per simultaneous reduction, and the indices of
    argmax or argmin.

    With several reductions the chunk is live too; a single one consumes it at once.
    """
    most = max(sum(1 + _is_place(name) for name in stage) for stage in fact.stages)
    return most + (most > 1)


def _is_place(name: str) -> bool:
    """Return whether a reduction returns an index, which accompanies the value from step to step."""
    return name.startswith("arg")


def _has_places(facts: KernelFacts) -> bool:
    return any(_is_place(name) for fact in facts.reductions for name in fact.names)


def _place_registers(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the indices of a thread that accompany the values of a row reduced as a whole."""
    most = 0.0
    for fact in facts.reductions:
        if any(map(_is_place, fact.names)) and sizes[fact.axis] >= facts.axes[fact.axis].padded:
            most = max(most, _product(sizes, fact.tile) / threads)
    return most


def _random_numbers(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    return max([_product(sizes, axes) for axes, _ in facts.random_tiles], default=0) / threads


def _snapshot(
    tiles: LiveTiles,
    sizes: Mapping[int, int],
    threads: int,
    products: frozenset[tuple[int, ...]],
    least_rows: int,
    apart: bool = False,
) -> float:
    """Return the registers of one thread for all of ``tiles``. Accumulators of dots have at least ``least_rows`` rows.

    The largest tile is distributed over the threads. Tiles that span some of its axes have the layout of its slices,
    which several threads repeat. Those of several axes count as rows of a thread, as fitted, or, if ``apart``, as their own.
    """
    if not tiles:
        return 0.0
    total = 0
    for tile in tiles:
        numel = 1
        for axis in tile[0]:
            numel *= sizes[axis]
        if numel > total:
            total, largest = numel, tile
    axes, itemsize = largest
    columns = sizes[axes[-1]] if axes else 1
    rows = total // columns
    if axes in products and rows < least_rows:
        total, rows = total // rows * least_rows, least_rows
    each = total / threads if total > threads else 1.0
    if axes in products:
        # a thread has two of every 16 rows of a matrix fragment
        thread_rows = min(float(rows), max(2.0, rows / 8 / max(1, threads // 32)))
    else:
        across = min(threads, max(1, columns * itemsize // VECTOR_BYTES))
        beside = threads // across
        thread_rows = rows / beside if rows > beside else 1.0
    thread_columns = each / thread_rows if each > thread_rows else 1.0
    inside, sum_of = set(axes), 0.0
    for tile_axes, size in tiles:
        if tile_axes == axes and axes:
            count = thread_columns * thread_rows if len(axes) > 1 else thread_columns
        elif tile_axes and inside.issuperset(tile_axes):
            count, others = (thread_columns, tile_axes[:-1]) if tile_axes[-1] == axes[-1] else (1.0, tile_axes)
            if others:
                count *= min(thread_rows, _product(sizes, others)) if apart else thread_rows
        else:
            numel = _product(sizes, tile_axes)
            count = numel / threads if numel > threads else 1.0
        registers = count * size / REGISTER_BYTES
        sum_of += registers if registers > 1.0 else 1.0
    return sum_of


def _curves(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the polynomials of a thread in one iteration: the maximum over regions."""
    found: dict[int, float] = {}
    for item in facts.work:
        found[item.region] = found.get(item.region, 0.0) + item.polynomials * _product(sizes, item.axes) / threads
    return max(found.values(), default=0.0)


def _polynomial_elements(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the elements of a thread beyond those whose polynomials ptxas computes one after the other."""
    tiles = (_product(sizes, item.axes) for item in facts.work if item.polynomials)
    return max(0.0, max(tiles, default=0) / threads - _FEW_POLYNOMIALS)


def operand_accesses(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the loads of one thread for operands of dots in one iteration: the maximum over loops."""
    loads = _operand_loads(facts, sizes, num_warps, target)
    by_region: dict[int, float] = {}
    for (region, _), (count, _) in loads.items():
        by_region[region] = by_region.get(region, 0.0) + count
    return max(by_region.values(), default=0.0)


def _addresses(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the addresses that a thread has at the same time: those of operands in one loop.

    With scalar accesses they are those of all loops of a grid loop, because they are computed before the first loop.
    Those of loads that an operand is computed from are added.
    """
    by_root: dict[int, float] = {}
    for (region, _), (count, width) in _operand_loads(facts, sizes, num_warps, target).items():
        root = facts.regions[region].root
        by_root[root] = by_root.get(root, 0.0) + (count if width == 1 else 0.0)
    operands = max(operand_accesses(facts, sizes, num_warps, target), *by_root.values(), 0.0)
    return operands + _scalar_loads(facts, sizes, num_warps * target.warp_size)


def _scalar_loads(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the loads of one element each of a thread before the first matmul of a loop, without those of operands."""
    staged = {operand.slot for operand in facts.staged}
    firsts: dict[int, int] = {}
    for fact in facts.matmuls:
        if facts.regions[fact.region].kind == "loop":
            firsts.setdefault(fact.region, fact.number)
    loads = dict.fromkeys(firsts, 0.0)
    for op in facts.memory_ops:
        before = op.kind == "load" and not op.gathered and op.after <= firsts.get(op.region, -1)
        if before and op.slot not in staged and len(op.tile_axes) > 1 and vector_elements(op, sizes, threads) == 1:
            loads[op.region] += _product(sizes, op.tile_axes) / threads
    return max(loads.values(), default=0.0)


def _operand_loads(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> dict[tuple[int, int], tuple[float, int]]:
    """Return, by region and slot, the loads of one thread for dot operands in one iteration, and the elements
    of each.
    """
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
    """Return the registers per thread of the values that one scan combines."""
    scans = (tile_bytes((fact.tile, fact.itemsize), sizes) for fact in facts.scans if fact.kind == "scan")
    return max(scans, default=0) / REGISTER_BYTES / threads


def _combined_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the least registers per thread of one scan, besides those of its values."""
    most = 0.0
    for fact in facts.scans:
        if fact.kind == "scan":
            values = max(1, fact.itemsize // REGISTER_BYTES)
            each = tile_bytes((fact.tile, fact.itemsize), sizes) / REGISTER_BYTES / (num_warps * target.warp_size)
            most = max(most, each * (_COMBINED + _COMBINED_OP * max(0.0, fact.ops / values - 1)))
    return most


#: Features of one thread that some weights need, from facts, sizes and threads. Others are not counted (measurement
#: ``seeding_features``).
_OF_THREADS: Mapping[str, Callable[[KernelFacts, Mapping[int, int], int], float]] = {
    "special": _special_elements,
    "scanned": _scan_registers,
    "elements": lambda *of: min(_elements(*of), _MOST_ELEMENTS),
    "random": _random_numbers,
    "places": _place_registers,
    "curves": _curves,
    "singles": _single_loads,
    "narrow_loads": _narrow_loads,
    "summed": summed_elements,
    "polynomials": _polynomial_elements,
}
#: Features that are zero for kernels without what they count.
_ARE_THERE: Mapping[str, Callable[[KernelFacts], bool]] = {
    "special": lambda facts: any(item.sfu_ops for item in facts.work),
    "scanned": lambda facts: bool(facts.scans),
    "random": lambda facts: bool(facts.random_tiles),
    "places": _has_places,
    "curves": lambda facts: any(item.polynomials for item in facts.work),
    "polynomials": lambda facts: any(item.polynomials for item in facts.work),
    "narrow_loads": lambda facts: any(op.itemsize == 1 for op in facts.memory_ops),
}
#: Those of matmuls: addresses of operands, fragments, and copies of results.
_OF_MATMULS: Mapping[str, Callable[[KernelFacts, Mapping[int, int], int, Target], float]] = {
    "warps": lambda facts, sizes, num_warps, target: num_warps,
    "several": lambda facts, *_: len(facts.memory_ops) + len(facts.atomics) > _SEVERAL,
    "addresses": _addresses,
    "fragments": fragment_registers,
    "promoted": promoted_registers,
    "transposed": transposed_registers,
    "met": met_registers,
    "transposed_left": transposed_left_registers,
    "beside": beside_registers,
    "indexed": indexed_elements,
    "stored": narrow_stores,
}
