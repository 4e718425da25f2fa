"""Shared memory per block: an upper bound."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch

from ..._shapes import cdiv
from ...hardware import Target
from ..facts.records import KernelFacts, MemoryOpFact, ReductionFact
from .matrix import keeps_rows, tile_shape, unit_of
from .operands import operand_bytes
from .tiles import VECTOR_BYTES, inner_axis, tile_bytes, vector_elements

#: Warps of the group that shares an asynchronous product.
_GROUP_WARPS = 4
#: Rows of tensor memory.
_LANES = 128
#: Values that one scan combines, at a guess: a number and its key.
_SCAN_OPERANDS = 2


#: One barrier of the copy engine, with what aligns it.
_BARRIER_BYTES = 16


def shared_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, num_stages: int, target: Target) -> int:
    """Operands of dots and what is exchanged between them, or whatever else goes through shared memory."""
    exchange = _reduction_bytes(facts, sizes, num_warps, target)
    for region, size in _product_bytes(facts, sizes, target).items():
        exchange[region] = max(exchange.get(region, 0), size)
    return max(
        operand_bytes(facts, sizes, num_warps, num_stages, target, exchange),
        max(exchange.values(), default=0),
        _narrow_bytes(facts, sizes, num_warps, target),
        _turned_bytes(facts, sizes, num_warps * target.warp_size),
        _scan_bytes(facts, sizes, num_warps),
    )


def boxed_bytes(facts: KernelFacts, sizes: Mapping[int, int], slots: frozenset[int]) -> int:
    """What the accesses in memory ``slots`` take besides, when tensor descriptors move them: the copy engine goes
    through shared memory, where operands of products are in any case."""
    moved = [op for op in facts.memory_ops if op.kind != "atomic" and op.slot in slots]
    tiles = sum(op.itemsize * math.prod(sizes[a] for a in op.tile_axes) for op in moved if op.matmul_operand is None)
    return tiles + _BARRIER_BYTES * len(moved)


def warps_along(columns: int, itemsize: int, num_warps: int, target: Target) -> int:
    """Warps side by side along the contiguous axis of a tile, when each thread holds one vector of it."""
    threads = columns * itemsize // VECTOR_BYTES
    return max(1, min(num_warps, threads // target.warp_size))


def _reduction_bytes(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> dict[int, int]:
    """By region, partial results of warps that share a row or a column, and results that one warp turns to store them."""
    most: dict[int, int] = {}
    narrowest = min((op.itemsize for op in facts.memory_ops), default=1)
    for fact in facts.reductions:
        result = math.prod(sizes[axis] for axis in fact.tile if axis != fact.axis)
        warps = num_warps
        if fact.tile[-1] != fact.axis:
            warps = num_warps // warps_along(sizes[fact.tile[-1]], narrowest, num_warps, target)
        else:
            warps = _sharing(fact, facts, sizes, num_warps, target)
        if warps > 1 or result > 1:
            most[fact.region] = max(most.get(fact.region, 0), result * warps * fact.itemsize)
    return most


def _sharing(fact: ReductionFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Warps that have parts of the same row, at most: all, but for products. Of those there is one in each group of warps
    that share whole lanes of an asynchronous unit, and one on ``mma`` where the next product takes 16 rows a warp."""
    most = 0
    for dot in facts.matmuls:
        if dot.n_axis != fact.axis or dot.m_axis not in fact.tile:
            continue
        rows, unit = tile_shape(dot, sizes)[0], unit_of(dot, sizes, num_warps, target)
        if unit == "wgmma" or (unit == "tcgen05" and rows >= _LANES):
            sharing = cdiv(num_warps, _GROUP_WARPS)
        else:
            consumers = [tile_shape(other, sizes)[:2] for other in facts.matmuls if dot.number in other.consumes]
            own = unit == "mma" and consumers and all(keeps_rows(shape, num_warps, target) for shape in consumers)
            sharing = 1 if own else num_warps
        most = max(most, sharing)
    return most or num_warps


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
        inner = {inner_axis(op) for op in ops} - {None}
        # halves of a pair are taken apart within a thread
        pairs = any(sizes[op.tile_axes[-1]] == 2 and vector_elements(op, sizes, threads) < 2 for op in ops)
        if len(inner) > 1 or pairs or len(_widths(ops, sizes, threads)) > 1:
            least = 4 if pairs else 1  # pairs are widened before
            most = max(most, *(tile_bytes((op.tile_axes, max(least, op.itemsize)), sizes) for op in ops))
    return most


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


def _product_bytes(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> dict[int, int]:
    """By region, stored tiles of a kernel with dots: threads hold fragments of a product and write whole rows, but for
    AMD, where plain stores write the fragments."""
    most: dict[int, int] = {}
    products = [{fact.m_axis, fact.n_axis} for fact in facts.matmuls]
    for op in (*facts.memory_ops, *facts.atomics) if products else ():
        fragments = target.kind == "hip" and op.kind == "store" and any(axes <= set(op.tile_axes) for axes in products)
        if op.kind != "load" and len(op.tile_axes) > 1 and not fragments:
            most[op.region] = max(most.get(op.region, 0), tile_bytes((op.tile_axes, op.itemsize), sizes))
    return most
