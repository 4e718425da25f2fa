"""Registers of dot operands on the matrix unit that takes them from registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from ...._compiler.facts.records import KernelFacts, MatmulFact
from ....hardware import REGISTER_BYTES, Target
from .layouts import fragment_warps
from .matrix import is_transposed, tile_shape, unit_of
from .paired import paired_stores
from .tiles import VECTOR_BYTES, vector_elements

#: Steps along K whose operands a dot keeps in flight.
_STEPS = 2.0
#: The same of two dots that share an operand of 4-byte elements, offline for sm_80.
_WIDE_BYTES, _WIDE_STEPS = 4, 1.0
#: The operands of two dots that share one, as a multiple of those of one.
_TWO, _TWO_SHARING = 2, 1.5
#: Column indices of a thread that take no registers of their own, and addresses of stores.
_FEW_INDICES, _FEW_STORES = 64, 32
#: Bytes of a number that is stored from a register of its own, not the accumulator's.
_CONVERTED_BYTES = 2


def fragment_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the registers of dot operands on the unit that takes them from registers.

    Up to two steps along K are in flight, on AMD all of them.
    """
    most, pairs = 0.0, shared_operands(facts)
    for fact in facts.matmuls:
        unit = unit_of(fact, sizes, num_warps, target)
        if unit != "mma" and not is_transposed(fact, unit):
            continue
        m, n, k = tile_shape(fact, sizes)
        pair = pairs.get(fact.number) if target.kind == "cuda" and unit == "mma" else None
        if target.kind == "hip":
            of_warp, (down, across) = fragment_warps((m, n), num_warps, target)
            rows, columns = max(of_warp[0], m // down), max(of_warp[1], n // across)
            of_k = rows * fact.lhs_dtype.itemsize + columns * fact.rhs_dtype.itemsize
            most = max(most, of_k * k / target.warp_size / REGISTER_BYTES)
            continue
        if pair is None:
            most = max(most, min(_STEPS, _steps(fact, k)) * _step_registers((m, n), num_warps))
        else:
            ahead = _STEPS if fact.lhs_dtype.itemsize < _WIDE_BYTES else _WIDE_STEPS
            most = max(most, min(ahead, _steps(fact, k)) * _pair_registers((m, n), num_warps, pair))
    return most


def _steps(fact: MatmulFact, k: int) -> float:
    """Return the steps of 32 bytes along K of a tile on CUDA."""
    return max(1.0, k * fact.lhs_dtype.itemsize / 32)


def _step_registers(shape: tuple[int, int], num_warps: int) -> float:
    """Return the registers of a thread for both operands of one step: the side of a warp's tile times 32 bytes, for 32
    threads of 4.
    """
    m, n = shape
    return math.sqrt(m * n / num_warps) / 2


def _pair_registers(shape: tuple[int, int], num_warps: int, shared: str) -> float:
    """Return the same for two dots that share an operand.

    Triton then gives all warps to the longer side. Each warp has whole rows of the tile, or whole columns, of both dots.
    """
    m, n = (
        (max(1, shape[0] // num_warps), shape[1]) if shape[0] >= shape[1] else (shape[0], max(1, shape[1] // num_warps))
    )
    return (m + 2 * n if shared == "lhs" else 2 * m + n) / 4


@functools.lru_cache(maxsize=64)
def shared_operands(facts: KernelFacts) -> Mapping[int, str]:
    """Return the operand that two dots of one loop share, by the number of each; others are not in the result."""
    chains = {number for fact in facts.matmuls for number in (fact.number, *fact.consumes) if fact.consumes}
    by_region: dict[int, list[MatmulFact]] = {}
    for fact in facts.matmuls:
        by_region.setdefault(fact.region, []).append(fact)
    found: dict[int, str] = {}
    for region in by_region.values():
        if len(region) != _TWO or any(fact.chained or fact.number in chains for fact in region):
            continue
        first, second = region
        if first.lhs_slot is not None and first.lhs_slot == second.lhs_slot:
            found |= dict.fromkeys((first.number, second.number), "lhs")
        elif first.rhs_slot is not None and first.rhs_slot == second.rhs_slot:
            found |= dict.fromkeys((first.number, second.number), "rhs")
    return found


def beside_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the operand registers of independent dots of one iteration, beyond those of two that share an operand.

    ptxas may read all of them before the first dot.
    """
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


def indexed_elements(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the elements of a thread, beyond ``_FEW_INDICES``, of a result in tensor memory that is masked by its column
    and goes to another dot. A thread has a row, and keeps the indices of its columns.
    """
    indexed = {(work.region, work.axes) for work in facts.work if work.indices}
    taken = {number for fact in facts.matmuls for number in fact.consumes}
    most = 0.0
    for fact in facts.matmuls:
        axes = tuple(axis for axis in (fact.m_axis, fact.n_axis) if axis is not None)
        masked = fact.number in taken and (fact.region, axes) in indexed
        if masked and unit_of(fact, sizes, num_warps, target) == "tcgen05":
            most = max(most, math.prod(sizes[axis] for axis in axes) / (num_warps * target.warp_size))
    return max(0.0, most - _FEW_INDICES)


def narrow_stores(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the stores of a thread, beyond ``_FEW_STORES``, that are narrower than a vector: the maximum over grid loops.

    Their addresses are computed together, and numbers of 16 bits are converted before (measurement ``narrow_stores``).
    Results in tensor memory arrive in parts.
    """
    threads, found, paired = num_warps * target.warp_size, dict[int, float](), paired_stores(facts)
    for op in facts.memory_ops if target.kind == "cuda" and not target.has("tcgen05") else ():
        if op.slot in paired:
            continue
        width = vector_elements(op, sizes, threads)
        if op.kind == "store" and len(op.tile_axes) > 1 and width * op.itemsize < VECTOR_BYTES:
            root, numel = facts.regions[op.region].root, math.prod(sizes[axis] for axis in op.tile_axes)
            found[root] = found.get(root, 0.0) + numel / threads / width * min(1.0, _CONVERTED_BYTES / op.itemsize)
    return max(0.0, max(found.values(), default=0.0) - _FEW_STORES)
