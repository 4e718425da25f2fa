"""Registers of matmul results, and of tiles that meet them."""

from __future__ import annotations

from collections.abc import Mapping

from ...._compiler.facts.records import KernelFacts
from ....hardware import REGISTER_BYTES, Target
from .layouts import fragment_warps
from .matrix import is_promoted, tile_shape, unit_of
from .tiles import tile_bytes

#: Bytes of an element that is stored without narrowing.
_WIDE_BYTES = 4


def transposed_left_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the registers of a warp's largest left operand that is transposed on its way to the unit, on CUDA.

    A 4-byte operand is read from shared memory without a transposition.
    """
    most = 0.0
    for fact in facts.matmuls if target.kind == "cuda" else ():
        narrow = fact.lhs_dtype.itemsize < _WIDE_BYTES
        if fact.lhs_layout == "mn_major" and narrow and unit_of(fact, sizes, num_warps, target) == "mma":
            m, n, k = tile_shape(fact, sizes)
            (of_warp, _), (down, _) = fragment_warps((m, n), num_warps, target)
            rows = max(of_warp, m // down)
            most = max(most, rows * k * fact.lhs_dtype.itemsize / (target.warp_size * REGISTER_BYTES))
    return most


def met_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the registers of the largest tile of at least 4-byte elements that is loaded and combined with a matmul's
    result.
    """
    products = [{fact.m_axis, fact.n_axis} for fact in facts.matmuls]
    wide = [
        op for op in facts.memory_ops if op.kind == "load" and op.itemsize >= _WIDE_BYTES and op.matmul_operand is None
    ]
    met = [op for op in wide if any(axes <= set(op.tile_axes) for axes in products)]
    most = max((tile_bytes((op.tile_axes, op.itemsize), sizes) for op in met), default=0)
    return most / REGISTER_BYTES / (num_warps * target.warp_size)


def summed_elements(facts: KernelFacts, sizes: Mapping[int, int], threads: int) -> float:
    """Return the elements of a thread of the largest narrow tile that meets a matmul's result before both are reduced:
    ptxas converts all of them before the first is added. Results that another matmul takes are left out.
    """
    taken = {number for fact in facts.matmuls for number in fact.consumes}
    reduced = {(fact.region, frozenset(fact.tile)) for fact in facts.reductions}
    results = {
        (fact.region if fact.accumulator_loop is None else facts.regions[fact.accumulator_loop].parent, axes)
        for fact in facts.matmuls
        for axes in (frozenset((fact.m_axis, fact.n_axis)),)
        if fact.number not in taken
    }
    most = 0
    for region, axes in results & reduced:
        for op in facts.memory_ops:
            met = op.kind == "load" and op.region == region and frozenset(op.tile_axes) == axes
            if met and op.itemsize < _WIDE_BYTES and op.matmul_operand is None:
                most = max(most, tile_bytes((op.tile_axes, 1), sizes))
    return most / threads


def promoted_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the registers of fp8 partials next to the accumulator they are added to."""
    most = 0.0
    for fact in facts.matmuls:
        m, n, depth = tile_shape(fact, sizes)
        if is_promoted(fact, unit_of(fact, sizes, num_warps, target), depth, target):
            most = max(most, m * n / (num_warps * target.warp_size))
    return most


def transposed_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Return the registers of the largest result in tensor memory that is stored with 4 bytes an element or more."""
    most = 0.0
    wide = [set(op.tile_axes) for op in facts.memory_ops if op.kind == "store" and op.itemsize >= _WIDE_BYTES]
    for fact in facts.matmuls:
        if unit_of(fact, sizes, num_warps, target) == "tcgen05" and {fact.m_axis, fact.n_axis} in wide:
            m, n, _ = tile_shape(fact, sizes)
            most = max(most, m * n / (num_warps * target.warp_size))
    return most


def keeps_parts(facts: KernelFacts) -> bool:
    """Return whether a reduction keeps a batch next to the contiguous axis of its tile, as of ``x[B, K, N]``."""
    return any(len(fact.tile) > 2 and fact.axis != fact.tile[-1] for fact in facts.reductions)
