"""Chained dots, which add to each other's accumulator, where wgmma miscomputes them.

Triton gives dots that feed another dot all warps along M, and the last dot of the chain its own layout. With fewer than
16 rows of M per warp, warps of the former have copies of rows. The accumulator's conversion into the latter's layout is
then wrong. Results are off, or memory is corrupted (measurement ``chained_dots``). Unrolling a loop chains its dots, so loops whose dots have too few rows are not unrolled. Where the kernel
itself writes the chain, fewer warps run it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..._compiler.ir.grammar import Op, Program, Region
from ..._compiler.ir.operands import accumulator_of
from ..._compiler.ir.rewrite import Makers, nested_regions
from ...hardware import GROUP_WARPS, WARP_ROWS


def rows_of(op: Op, sizes: Mapping[int, int]) -> int:
    """Return the rows of the result of a dot."""
    dim = op.result.dims[-2]
    return math.prod((sizes[block] for block in dim.blocks), start=dim.const)


def may_unroll(region: Region, sizes: Mapping[int, int], num_warps: int) -> bool:
    """Return whether a loop of ``region`` computes the same when it is unrolled."""
    return all(rows_of(op, sizes) >= WARP_ROWS * num_warps for op in _straight(region) if op.kind == "dot")


def chained_products(program: Program) -> tuple[Op, ...]:
    """Return the dots that the kernel itself chains to another's accumulator."""
    found = []
    for root in program.roots:
        for region in nested_regions(root.body):
            makers = Makers.among(op for op in region.ops if op.kind == "dot")
            found += [op for op in makers.ops.values() if makers.of(accumulator_of(op)) is not None]
    return tuple(found)


def most_warps(chained: Iterable[Op], sizes: Mapping[int, int], num_warps: int) -> int:
    """Return ``num_warps``, or as many as the rows of chained dots allow."""
    rows = (rows_of(op, sizes) for op in chained)
    return min((num_warps, *(n // WARP_ROWS for n in rows if n >= WARP_ROWS * GROUP_WARPS)))


def _straight(region: Region) -> list[Op]:
    """Return the ops of a region and of branches in it, without those of loops."""
    found = []
    for op in region.ops:
        found.append(op)
        if op.kind == "if":
            for branch in op.regions:
                found += _straight(branch)
    return found
