"""Shared memory per block: an upper bound."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch

from ...hardware import Target
from ..facts.records import KernelFacts, LiveTile, MatmulFact, MemoryOpFact, StagedOperand
from .matrix import Unit, is_waiting, tile_shape, unit_of

#: What Triton takes for the barriers of tcgen05 products: 8 bytes each.
_BARRIER_BYTES = 64
#: Bytes of the narrowest asynchronous copy to shared memory.
_ASYNC_COPY_BYTES = 4
#: Values that one scan combines, at a guess: a number and its key.
_SCAN_OPERANDS = 2
#: Widest element of a computed left operand that ``wgmma`` takes from registers.
_REGISTER_OPERAND_BYTES = 2
#: Bytes of the widest load or store of one thread.
VECTOR_BYTES = 16


def shared_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, num_stages: int, target: Target) -> int:
    """Operands of dots, or whatever else goes through shared memory when they are no longer needed."""
    operands = _operand_bytes(facts, sizes, num_warps, num_stages, target)
    exchange = max(
        _reduction_bytes(facts, sizes, num_warps, target),
        _narrow_bytes(facts, sizes, num_warps, target),
        _turned_bytes(facts, sizes, num_warps * target.warp_size),
        _product_bytes(facts, sizes, target),
        _scan_bytes(facts, sizes, num_warps),
    )
    return max(operands, exchange)


def _operand_bytes(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, num_stages: int, target: Target
) -> int:
    """Operands of all dots. In a loop they are prefetched: products that overlap read ``num_stages`` copies, others one
    fewer, for the last copy is in use. Loops that follow each other share the memory."""
    if not facts.matmuls:
        return 0
    computing = {
        fact.region
        for fact in facts.matmuls
        if facts.regions[fact.region].kind == "loop" and None in (fact.lhs_slot, fact.rhs_slot)
    }
    units = [unit_of(fact, sizes, num_warps, target) for fact in facts.matmuls]
    slots = {op.slot: op for op in facts.memory_ops}
    loops: dict[int, int] = {}
    turns: dict[int, int] = {}  # the largest of the operands that pass through the same memory one after the other
    lone = 0
    for operand in facts.staged:
        fact, unit = facts.matmuls[operand.dot], units[operand.dot]
        region, loaded = operand.region, tile_bytes((operand.axes, operand.itemsize), sizes)
        if facts.regions[region].kind != "loop":
            lone += loaded
            continue
        narrow = operand.direct and target.kind == "cuda" and _is_narrow(slots[operand.slot], sizes)
        size = loaded * (2 if unit == "tcgen05" else 1)
        if not narrow:
            size = _staged_bytes(operand, fact, unit, sizes, num_stages)
        # AMD without a pipeline brings in one operand after the other
        if target.kind == "hip" and num_stages == 1:
            turns[region] = max(turns.get(region, 0), size)
        else:
            loops[region] = loops.get(region, 0) + size
    staged = {operand.slot for operand in facts.staged}
    for op in facts.memory_ops:
        # whatever an operand is computed from is prefetched as well
        if op.kind == "load" and op.tile_axes and op.slot not in staged and op.region in computing:
            size = tile_bytes((op.tile_axes, op.itemsize), sizes) * max(1, num_stages - 1)
            loops[op.region] = loops.get(op.region, 0) + size
    for fact, unit in zip(facts.matmuls, units, strict=True):
        m, n, k = tile_shape(fact, sizes)
        if fact.lhs_slot is None and (unit != "wgmma" or fact.lhs_dtype.itemsize > _REGISTER_OPERAND_BYTES):
            # a left operand that was computed changes its layout on the way to the unit
            lone += m * k * fact.lhs_dtype.itemsize
        if fact.rhs_slot is None and unit != "mma":
            lone += k * n * fact.rhs_dtype.itemsize
    barriers = _BARRIER_BYTES if "tcgen05" in units else 0
    return lone + max((loops.get(r, 0) + turns.get(r, 0) for r in loops.keys() | turns.keys()), default=0) + barriers


def _is_narrow(op: MemoryOpFact, sizes: Mapping[int, int]) -> bool:
    """Whether a load moves fewer bytes at once than an asynchronous copy takes, so that it is not prefetched."""
    return vector_elements(op, sizes, 1) * op.itemsize < _ASYNC_COPY_BYTES


def _staged_bytes(
    operand: StagedOperand, fact: MatmulFact, unit: Unit, sizes: Mapping[int, int], num_stages: int
) -> int:
    loaded = tile_bytes((operand.axes, operand.itemsize), sizes)
    waiting = max(1, num_stages - 1)
    if operand.direct:
        return loaded * (waiting if is_waiting(fact, unit) else num_stages)
    # what ops compute from the load: the left operand stays in registers or tensor memory, the right one is written back
    converted = (fact.lhs_dtype if operand.role == "lhs" else fact.rhs_dtype).itemsize
    computed = loaded // operand.itemsize * converted
    if num_stages == 1:
        return max(loaded, computed) if unit == "mma" and operand.role == "rhs" else computed
    return loaded * waiting + (computed if operand.role == "rhs" and unit != "mma" else 0)


def tile_bytes(tile: LiveTile, sizes: Mapping[int, int]) -> int:
    axes, itemsize = tile
    return itemsize * math.prod(sizes[axis] for axis in axes)


def warps_along(columns: int, itemsize: int, num_warps: int, target: Target) -> int:
    """Warps side by side along the contiguous axis of a tile, when each thread holds one vector of it."""
    threads = columns * itemsize // VECTOR_BYTES
    return max(1, min(num_warps, threads // target.warp_size))


def _reduction_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Partial results of warps that share a row or a column."""
    most = 0
    narrowest = min((op.itemsize for op in facts.memory_ops), default=1)
    for fact in facts.reductions:
        result = math.prod(sizes[axis] for axis in fact.tile if axis != fact.axis)
        warps = num_warps
        if fact.tile[-1] != fact.axis:
            warps = num_warps // warps_along(sizes[fact.tile[-1]], narrowest, num_warps, target)
        if warps > 1:
            most = max(most, result * warps * fact.itemsize)
    return most


def _narrow_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Tiles that span some axes of a larger one, its contiguous one among them (weights of a row, a mask for all heads),
    are loaded in one layout and used in another: when warps are spread over several rows, or when accesses of
    different widths meet."""
    if facts.matmuls:
        return 0
    threads = num_warps * target.warp_size
    most = 0
    for op in facts.memory_ops:
        if not op.tile_axes:
            continue
        own, inner = set(op.tile_axes), op.tile_axes[-1]
        wider = [o for o in facts.memory_ops if own < set(o.tile_axes) and o.tile_axes[-1] == inner]
        rows = max((math.prod(sizes[a] for a in set(o.tile_axes) - own) for o in wider), default=1)
        widest = max((o.itemsize for o in wider), default=4)
        spread = rows > 1 and warps_along(sizes[inner], widest, num_warps, target) < num_warps
        if wider and (spread or _widths(wider, sizes, threads) != {vector_elements(op, sizes, threads)}):
            # numbers are widened first
            itemsize = op.itemsize if op.dtype == torch.bool else max(4, op.itemsize)
            most = max(most, tile_bytes((op.tile_axes, itemsize), sizes))
    return most


def vector_elements(op: MemoryOpFact, sizes: Mapping[int, int], threads: int) -> int:
    """Elements that one thread accesses together: neighbours in memory, as many as the strides keep aligned, and no
    more than there are for each thread."""
    inner = _inner_axis(op)
    share = math.prod(sizes[axis] for axis in op.tile_axes) // threads
    width = max(1, min(VECTOR_BYTES // op.itemsize, share))
    for axis, stride, scale in zip(op.subscript_axes, op.strides, op.scales, strict=True):
        if inner is None or (axis == inner and stride == 1 and scale != 1):
            return 1
        if axis != inner:
            width = math.gcd(width, stride)
    return width


def _widths(ops: Collection[MemoryOpFact], sizes: Mapping[int, int], threads: int) -> set[int]:
    """Elements per thread of accesses of one tile: loads take the most that any of them can, stores their own."""
    own = [vector_elements(op, sizes, threads) for op in ops]
    return {max(own) if op.kind == "load" else width for op, width in zip(ops, own, strict=True)}


def _turned_bytes(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> int:
    """Tiles change their layout in shared memory between accesses whose contiguous axis in memory or whose width
    differs."""
    if facts.matmuls:
        return 0
    groups: dict[frozenset[int], list[MemoryOpFact]] = {}
    for op in facts.memory_ops:
        if op.tile_axes:
            groups.setdefault(frozenset(op.tile_axes), []).append(op)
    most = 0
    for ops in groups.values():
        inner = {_inner_axis(op) for op in ops} - {None}
        # halves of a pair are taken apart within a thread
        pairs = any(sizes[op.tile_axes[-1]] == 2 and vector_elements(op, sizes, threads) < 2 for op in ops)
        if len(inner) > 1 or pairs or len(_widths(ops, sizes, threads)) > 1:
            least = 4 if pairs else 1  # pairs are widened before
            most = max(most, *(tile_bytes((op.tile_axes, max(least, op.itemsize)), sizes) for op in ops))
    return most


def _inner_axis(op: MemoryOpFact) -> int | None:
    """The axis along which neighbours of the tile are neighbours in memory."""
    for axis, stride in zip(op.subscript_axes, op.strides, strict=True):
        if stride == 1 and axis in op.tile_axes:
            return axis
    return None


def _scan_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int) -> int:
    """Scans along the contiguous axis pass on one number per warp; others turn values and keys in shared memory."""
    most = 0
    for fact in facts.scans:
        if fact.kind != "scan" or fact.axis is None:
            continue
        for axes, itemsize in (tile for tiles in facts.live_tiles for tile in tiles if fact.axis in tile[0]):
            numel = math.prod(sizes[axis] for axis in axes)
            parts = numel // sizes[fact.axis] * num_warps if axes[-1] == fact.axis else numel
            most = max(most, _SCAN_OPERANDS * itemsize * parts if len(axes) > 1 or axes[-1] == fact.axis else 0)
    return most


def _product_bytes(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> int:
    """Stored tiles of a kernel with dots: threads hold fragments of a product and write whole rows, but for AMD, where
    plain stores write the fragments."""
    if not facts.matmuls:
        return 0
    stores = [op for op in facts.memory_ops if op.kind == "store" and target.kind != "hip"]
    tiles = [op for op in (*stores, *facts.atomics) if len(op.tile_axes) > 1]
    return max((tile_bytes((op.tile_axes, op.itemsize), sizes) for op in tiles), default=0)
