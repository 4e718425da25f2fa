"""Shared memory per block: an upper bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from ...._compiler.facts.records import KernelFacts, MemoryOpFact, ReductionFact
from ...._shapes import cdiv
from ....hardware import DESCRIPTOR_RANKS, GROUP_WARPS, Target
from ..histograms import counts, exchanged_bytes, width_of
from ..lookups import passed_bytes
from ..sorts import Network
from .buffers import Exchange
from .conversions import expanded_bytes, narrow_bytes, transposed_bytes, width_rounds
from .layouts import fragment_held, moved_at_once, rounds, rows_held, spread
from .matrix import is_k_major, is_swapped, is_transposed, keeps_rows, tile_shape, unit_of
from .operands import Operands
from .tiles import VECTOR_BYTES, tile_bytes, vector_elements

#: Rows of tensor memory.
_LANES = 128
#: Bytes of an index along an axis.
_INDEX_BYTES = 4
#: Bytes of the dtype that narrower ones are widened to.
_FLOAT_BYTES = 4
#: Bytes of one TMA barrier, and the alignment of several.
_BARRIER_BYTES, _BARRIER_ALIGNMENT = 8, 16
#: Alignment of tiles that TMA moves.
_BOX_ALIGNMENT = 128


def shared_bytes(
    facts: KernelFacts,
    sizes: Mapping[int, int],
    num_warps: int,
    num_stages: int,
    target: Target,
    unrolled: int = 1,
    fused: frozenset[int] = frozenset(),
    descriptor_slots: frozenset[int] = frozenset(),
    persistent: bool = False,
) -> int:
    """Return the largest use of shared memory per block: dot operands with the exchanges between them, or any other
    conversion.

    Loops prefetch operands of ``unrolled`` steps per stage. ``fused`` are the grid loops that are one loop with those
    inside; ``persistent`` programs compute several tiles.
    """
    options = (unrolled, fused, descriptor_slots, persistent)
    results = _reduction_bytes(facts, sizes, num_warps, target) if facts.reductions else {}
    most = max(results.values(), default=0)
    if facts.matmuls:
        exchanges = [Exchange(region=region, size=size) for region, size in results.items()]
        looked_up = passed_bytes(facts, sizes) if target.kind == "cuda" and num_stages > 1 else ()
        exchanges += [Exchange(region=region, size=size) for region, size in looked_up]
        operands = Operands(facts, sizes, num_warps, num_stages, target, exchanges, *options)
        prefetched = operands.prefetched_sources()
        exchanges += _product_exchanges(facts, sizes, num_warps, target, prefetched, descriptor_slots)
        most = max([each.size for each in exchanges], default=0)
        most = max(most, operands.bytes())  # adds exchanges of its own
    else:
        most = max(
            most,
            narrow_bytes(facts, sizes, num_warps, target),
            transposed_bytes(facts, sizes, num_warps, target),
            expanded_bytes(facts, sizes, num_warps * target.warp_size, target),
        )
    if facts.scans:
        most = max(most, _scan_bytes(facts, sizes, num_warps, target))
    if facts.sorts:
        most = max(most, _sort_bytes(facts, sizes, num_warps))
    return max(most, _atomic_bytes(facts, sizes, num_warps, target)) if facts.atomics else most


def descriptor_bytes(facts: KernelFacts, sizes: Mapping[int, int], slots: frozenset[int], num_stages: int) -> int:
    """Return the additional bytes of the accesses in memory ``slots`` when they use tensor descriptors.

    TMA goes through shared memory, which dot operands use in any case, and each stage has a barrier.
    """
    moved = [op for op in facts.memory_ops if op.slot in slots and _may_use_descriptor(op, facts)]
    own = [tile_bytes((op.tile_axes, op.itemsize), sizes) for op in moved if op.matmul_operand is None]
    tiles = sum(cdiv(size, _BOX_ALIGNMENT) * _BOX_ALIGNMENT for size in own)
    barriers = cdiv(_BARRIER_BYTES * num_stages, _BARRIER_ALIGNMENT) * _BARRIER_ALIGNMENT
    return tiles + _prefetched_bytes(facts, sizes, slots, num_stages) + barriers * len(moved)


def stored_behind_loops(facts: KernelFacts) -> frozenset[int]:
    """Return the memory slots of stores outside of loops with dots, which can reuse the operands' memory.

    fp32 operands are excluded, because copies of them may remain, unless A and B are swapped.
    """
    wide = (
        not is_swapped(fact) and max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) > 2 for fact in facts.matmuls
    )
    if not facts.matmuls or any(wide) or any(fact.accumulator_loop is None for fact in facts.matmuls):
        return frozenset()
    outside = {region.region for region in facts.regions if region.kind == "root"}
    return frozenset(op.slot for op in facts.memory_ops if op.kind == "store" and op.region in outside)


def _prefetched_bytes(facts: KernelFacts, sizes: Mapping[int, int], slots: frozenset[int], num_stages: int) -> int:
    """Return the additional bytes that TMA prefetches for operands that go through registers.

    These are transposed integers, which registers would hold otherwise, and fp32 that is not K-major unless A and B are
    swapped.
    """
    copies: dict[int | None, int] = {}
    for fact in facts.matmuls:
        if is_transposed(fact, "wgmma"):
            copies[fact.rhs_slot] = max(0, num_stages - 1)
        if fact.lhs_dtype == torch.float32 and not is_swapped(fact) and not is_k_major(fact):
            copies |= dict.fromkeys((fact.lhs_slot, fact.rhs_slot), num_stages)
    ops = (op for op in facts.memory_ops if op.slot in slots)
    return sum(tile_bytes((op.tile_axes, op.itemsize), sizes) * copies.get(op.slot, 0) for op in ops)


def _may_use_descriptor(op: MemoryOpFact, facts: KernelFacts) -> bool:
    """Return whether an access can use a descriptor.

    It excludes atomics, gathers and ranks without descriptors, and needs static strides. One launch must not read and
    write the storage, or write it in two places.
    """
    if op.kind == "atomic" or op.gathered or not op.static or len(op.strides) not in DESCRIPTOR_RANKS:
        return False
    root = facts.regions[op.region].root
    others = [o for o in facts.memory_ops if o.storage == op.storage and facts.regions[o.region].root == root]
    return all(o is op or o.kind == op.kind == "load" for o in others)


def _reduction_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> dict[int, int]:
    """Return, by region, the bytes of partials of warps that share a row or a column, and of results that convert
    before a store.
    """
    most: dict[int, int] = {}
    threads = num_warps * target.warp_size
    for fact in facts.reductions:
        # dimensions of one length are one axis, possibly twice in the tile
        numel = tile_bytes((fact.tile, 1), sizes)
        result = numel // sizes[fact.axis]
        if fact.tile[-1] != fact.axis:
            across = _across(fact, facts, sizes, threads) // target.warp_size
            warps = min(num_warps // max(1, min(num_warps, across)), sizes[fact.axis])
        else:
            warps = _sharing(fact, facts, sizes, num_warps, target)
        size = result * warps * (fact.itemsize + _index_bytes(fact)) if warps > 1 else 0
        if warps <= 1 and result > 1:
            kept = set(fact.tile) - {fact.axis}
            stored = [op.itemsize for op in facts.memory_ops if op.tile_axes and kept.issuperset(op.tile_axes)]
            if stored:
                # a wider sum, such as int64, is narrowed before
                size = result * (min(fact.itemsize, max(_FLOAT_BYTES, *stored)) + _index_bytes(fact))
                size //= _stored_rounds(fact, facts, sizes, threads, target)
        if sizes[fact.axis] < facts.axes[fact.axis].padded and numel < threads:
            # chunks smaller than the number of threads, which then repeat them, convert their layout after the first
            # one
            size = max(size, numel * fact.itemsize)
        if size:
            most[fact.region] = max(most.get(fact.region, 0), size)
    return most


def _stored_rounds(
    fact: ReductionFact, facts: KernelFacts, sizes: Mapping[int, int], threads: int, target: Target
) -> int:
    """Return the rounds in which the result of a reduction across rows converts to the layout of its stores."""
    axes = fact.tile
    if axes[0] != fact.axis or len(axes) != 2 or len(set(axes)) != 2:
        return 1
    reduced = {vector_elements(op, sizes, threads) for op in facts.memory_ops if op.tile_axes == axes}
    stored = {
        vector_elements(op, sizes, threads)
        for op in facts.memory_ops
        if op.kind == "store" and op.tile_axes == axes[1:] and op.inner_axis == axes[1]
    }
    least = [1] if not reduced or not stored else []
    for one, other in itertools.product(reduced, stored):
        held = rows_held(axes, sizes, one, threads)
        moved = moved_at_once(one * fact.itemsize, other * fact.itemsize, target)
        least.append(rounds(held, rows_held(axes[1:], sizes, other, threads), fact.itemsize, moved))
    return min(least)


def _index_bytes(fact: ReductionFact) -> int:
    """Return the bytes of the index that accompanies each value of argmax and argmin."""
    return _INDEX_BYTES if any(name.startswith("arg") for name in fact.names) else 0


def _across(fact: ReductionFact, facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> int:
    """Return the least number of threads along the axes after the reduced one.

    Threads are assigned from the contiguous axis on, where each has as many elements as some access moves.
    """
    ops = [op for op in facts.memory_ops if op.tile_axes]
    if any(set(op.tile_axes) == set(fact.tile) and op.inner_axis == fact.axis for op in ops):
        return 1
    inner = [op for op in ops if op.tile_axes[-1] == fact.tile[-1]]
    least = VECTOR_BYTES // min((op.itemsize for op in ops), default=1)
    together = max((vector_elements(op, sizes, threads) for op in inner), default=least)
    return math.prod(sizes[axis] for axis in fact.tile[fact.tile.index(fact.axis) + 1 :]) // together


def _sharing(fact: ReductionFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the most warps that share a row.

    Of a matmul result it is one warp per warp group with a whole lane of an asynchronous unit. On ``mma`` it is one
    where the next dot keeps rows in their warps. Of rows accessed in their memory layout, it is the warps along them.
    """
    most = 0
    for dot in facts.matmuls:
        if dot.n_axis != fact.axis or dot.m_axis not in fact.tile:
            continue
        rows, unit = tile_shape(dot, sizes)[0], unit_of(dot, sizes, num_warps, target)
        if unit == "wgmma" or (unit == "tcgen05" and rows >= _LANES):
            sharing = cdiv(num_warps, GROUP_WARPS)
        else:
            consumers = [other for other in facts.matmuls if dot.number in other.consumes]
            own = all(keeps_rows(other, facts, sizes, num_warps, target) for other in consumers)
            sharing = 1 if unit == "mma" and consumers and own else num_warps
        most = max(most, sharing)
    return most or _warps_in_row(fact, facts, sizes, num_warps, target)


def _warps_in_row(
    fact: ReductionFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> int:
    """Return the most warps along the reduced axis, over all accesses of such a tile."""
    if facts.matmuls:
        return num_warps
    tile = set(fact.tile)
    ops = [op for op in facts.memory_ops if tile == set(op.tile_axes)]
    if not all([op.tile_axes == fact.tile and op.inner_axis in (fact.axis, None) for op in ops]):
        return num_warps
    threads = num_warps * target.warp_size
    vectors = {1, *[vector_elements(op, sizes, threads) for op in ops]}
    return max(spread(fact.tile, sizes, vector, num_warps, target)[fact.axis][2] for vector in vectors)


def prefetched_bytes(
    facts: KernelFacts, sizes: Mapping[int, int], stages: int, target: Target, persistent: bool = False
) -> int:
    """Return the bytes of prefetched loads in loops without a dot: a tile per stage except the last.

    Loops that run one after the other use the same memory. ``persistent`` programs loop over their tiles.
    """
    if facts.matmuls or stages < 2 or target.kind != "cuda":
        return 0
    held = dict.fromkeys((fact.region for fact in facts.regions), 0)
    loops = {fact.region for fact in facts.regions if fact.kind == "loop" or (persistent and fact.parent is None)}
    for op in facts.memory_ops:
        if op.kind == "load" and op.region in loops and op.tile_axes:
            held[op.region] += (stages - 1) * tile_bytes((op.tile_axes, op.itemsize), sizes)
    nested = dict.fromkeys(held, 0)
    for fact in reversed(facts.regions):  # parents come first
        held[fact.region] += nested[fact.region]
        if fact.parent is not None:
            nested[fact.parent] = max(nested[fact.parent], held[fact.region])
    return max(held.values(), default=0)


def combined_bytes(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, stages: int, target: Target, parts: int
) -> int:
    """Return the bytes for stores in a loop of values computed with sums of ``parts`` partials.

    They have the layout of the partials: prefetched loads are read from shared memory in any layout. Sums that are
    reduced again have no such layout.
    """
    if facts.matmuls or stages < 2 or parts < 2 or target.kind != "cuda":
        return 0
    loops = {fact.region for fact in facts.regions if fact.kind == "loop"}
    threads = num_warps * target.warp_size
    most = 0
    for fact in facts.reductions:
        kept = [axis for axis in fact.tile if axis != fact.axis]
        count = parts * math.prod(sizes[axis] for axis in kept)
        width = max(1, min(VECTOR_BYTES // fact.itemsize, count // threads))
        if not kept or any(other.axis in kept for other in facts.reductions):
            continue
        for op in facts.memory_ops:
            if op.kind != "store" or op.region not in loops or not set(kept).issubset(op.tile_axes):
                continue
            own = vector_elements(op, sizes, threads)
            if op.inner_axis != kept[-1] or op.tile_axes[-1] != kept[-1] or own == width:
                continue
            size = tile_bytes((op.tile_axes, op.itemsize), sizes)
            most = max(most, size // width_rounds(op, {own, width}, op.itemsize, sizes, threads, None))
    return most


def _scan_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the bytes of folds and scans: an element per warp, per lane next to it, and per step along the axis."""
    most = 0
    threads = num_warps * target.warp_size
    for fact in facts.scans:
        if fact.kind == "fold" and num_warps > 1:
            kept = math.prod(sizes[axis] for axis in fact.tile if axis != fact.axis)
            most = max(most, fact.itemsize * kept * num_warps)
        if fact.kind == "scan" and fact.axis is not None:
            ops = [op for op in facts.memory_ops if sorted(op.tile_axes) == sorted(fact.tile)]
            orders = {op.tile_axes if op.inner_axis in (op.tile_axes[-1], None) else op.tile_axes[::-1] for op in ops}
            vectors = {vector_elements(op, sizes, threads) for op in ops} or {1}
            for axes, vector in itertools.product(orders or {fact.tile}, vectors):
                most = max(most, fact.itemsize * _passed_on(fact.axis, axes, sizes, vector, num_warps, target))
    return most


def _sort_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int) -> int:
    """Return the bytes of the largest sort with exchanges between warps: all of its keys."""
    most = 0
    for fact in facts.sorts:
        size = tile_bytes((fact.tile, fact.itemsize), sizes)
        lanes = 1 if fact.axis is None else sizes[fact.axis]
        if Network.of(size // fact.itemsize, lanes, fact.itemsize, num_warps).between_warps:
            most = max(most, size)
    return most


def _atomic_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the bytes of the largest histogram, or of the number that an atomic on one element returns to all threads."""
    counted = [
        exchanged_bytes(width, op.summed)
        for op in facts.atomics
        for width in (width_of(op.bins, op.summed),)
        if counts(math.prod(sizes[axis] for axis in op.tile_axes), width, num_warps, target, op.summed)
    ]
    returned = (op.itemsize for op in facts.atomics if not op.tile_axes)
    return max((*counted, *returned), default=0)


def _passed_on(
    axis: int, axes: Sequence[int], sizes: Mapping[int, int], vector: int, num_warps: int, target: Target
) -> int:
    """Return the elements that a scan along ``axis`` of a tile in rows exchanges in shared memory."""
    layout = spread(axes, sizes, vector, num_warps, target)
    if layout[axis][2] == 1:
        return 0
    blocks = math.prod(cdiv(sizes[other], math.prod(layout[other])) for other in axes)
    beside = math.prod(layout[other][0] * layout[other][1] for other in axes if other != axis)
    return num_warps * beside * blocks


def _product_exchanges(
    facts: KernelFacts,
    sizes: Mapping[int, int],
    num_warps: int,
    target: Target,
    prefetched: Collection[int],
    descriptor_slots: Collection[int],
) -> Iterator[Exchange]:
    """Yield the exchanges of tiles of a kernel with dots that are stored, or loaded and combined with a matmul result.

    Threads have fragments of a result but access whole rows. Exceptions are AMD's plain stores, which write the
    fragments, and loads that are ``prefetched``, by slot.
    """
    products = [{fact.m_axis, fact.n_axis} for fact in facts.matmuls]
    # the result's own dtype, or the one that a later load is widened to
    wide = target.kind == "hip" or (
        target.has("tcgen05") and any(unit_of(f, sizes, num_warps, target) == "tcgen05" for f in facts.matmuls)
    )
    for op in (*facts.memory_ops, *facts.atomics) if products else ():
        if op.kind == "load" and op.slot in prefetched:
            continue
        product = any([axes.issubset(op.tile_axes) for axes in products])
        itemsize = op.itemsize
        if op.kind == "load" and len(op.tile_axes) == 1:
            # one element per row or column
            transposed = any(op.tile_axes[0] in axes for axes in products)
        elif op.kind == "load":
            transposed = product and op.matmul_operand is None
            if wide:
                itemsize = max(itemsize, _FLOAT_BYTES)
        else:
            transposed = len(op.tile_axes) > 1 and not (target.kind == "hip" and op.kind == "store" and product)
        if transposed:
            size = tile_bytes((op.tile_axes, itemsize), sizes) // _product_rounds(op, facts, sizes, num_warps, target)
            # a loaded value converts its layout anywhere before its use
            after = None if op.kind == "load" else op.after
            boxed = op.kind == "store" and op.slot in descriptor_slots and _may_use_descriptor(op, facts)
            region = _begun_with(op, facts, sizes) if op.kind == "load" and product else op.region
            yield Exchange(region=region, size=size, after=after, boxed=boxed)


def _begun_with(op: MemoryOpFact, facts: KernelFacts, sizes: Mapping[int, int]) -> int:
    """Return the region in which a loaded tile takes the layout of a matmul's result.

    A loop of one step has no sums before it: Triton begins them with a tile that is added to the result. Its layout then
    changes next to the operands.
    """
    for fact in facts.matmuls:
        loop = facts.regions[fact.region]
        axes = [facts.axes[axis] for axis in loop.axes]
        once = all(axis.extent is not None and sizes[axis.block_id] >= axis.extent for axis in axes)
        behind = loop.kind == "loop" and loop.parent == op.region and {fact.m_axis, fact.n_axis} <= set(op.tile_axes)
        if once and behind and op.after > fact.number:
            return fact.region
    return op.region


def _product_rounds(
    op: MemoryOpFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> int:
    """Return the rounds in which a tile converts from fragments of the kernel's dots to rows, or back."""
    axes = op.tile_axes[-2:]
    others = op.tile_axes[:-2]
    if len(axes) < 2 or op.inner_axis != axes[1] or any(sizes[axis] > 1 for axis in others):
        return 1
    row, column = axes
    threads = num_warps * target.warp_size
    held = rows_held(axes, sizes, vector_elements(op, sizes, threads), threads)
    least = []
    for fact in facts.matmuls:
        # chained dots, and those of one region that share operands, use the same layout of warps
        others_there = (other for other in facts.matmuls if other is not fact)
        chained = fact.consumes or any(o.region == fact.region or fact.number in o.consumes for o in others_there)
        if chained or fact.m_axis != row or unit_of(fact, sizes, num_warps, target) != "mma":
            return 1
        m, n, _ = tile_shape(fact, sizes)
        fragments = fragment_held((row, sizes[row]), (column, sizes[column]), (m, n), num_warps, target)
        least.append(rounds(fragments, held, op.itemsize))
    return min(least)
