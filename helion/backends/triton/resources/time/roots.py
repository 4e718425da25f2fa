"""What of a kernel's facts predicted times need of each grid loop, before any config is known."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from ....._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact, ReductionFact, ScanFact, WorkFact
from ..predict import Same

#: Elements from where on a stride no longer makes accesses of one thread narrower.
_ALIGNED = 16


class Access(NamedTuple):
    """A load, store or atomic. ``inner`` is the axis along which elements lie together, None where none does, and ``aligned`` the
    elements that rows begin at multiples of. ``inside`` are the axes of the grid that it depends on, ``apart`` the others."""

    op: MemoryOpFact
    itemsize: int
    once_bytes: int
    """Of all elements in reach."""
    inner: int | None
    aligned: int
    unit_stride: frozenset[int | None]
    inside: tuple[int, ...]
    apart: tuple[int, ...]
    feeds_dots: bool


class Root(NamedTuple):
    """The facts of one grid loop. ``tiles`` are the regions and axes of what is held, each once."""

    root: int
    accesses: tuple[Access, ...]
    work: tuple[WorkFact, ...]
    reductions: tuple[ReductionFact, ...]
    scans: tuple[tuple[int, ScanFact], ...]
    """Each with its axis."""
    matmuls: tuple[MatmulFact, ...]
    tiles: tuple[tuple[int, tuple[int, ...]], ...]


def roots_of(facts: KernelFacts) -> tuple[Root, ...]:
    """One for each grid loop; asked again about the same facts, it answers the same."""
    return _roots_of(Same(facts))


@functools.lru_cache(maxsize=64)
def _roots_of(same: Same) -> tuple[Root, ...]:
    regions = same.facts.regions
    return tuple(_root(same.facts, region.root, region.axes) for region in regions if region.kind == "root")


def _root(facts: KernelFacts, root: int, order: tuple[int, ...]) -> Root:
    def mine(region: int) -> bool:
        return facts.regions[region].root == root

    dots = {fact.region for fact in facts.matmuls}
    work = tuple(fact for fact in facts.work if mine(fact.region))
    operations = [op for op in facts.memory_ops if mine(op.region)]
    matmuls = tuple(fact for fact in facts.matmuls if mine(fact.region))
    tiles: list[tuple[int, tuple[int | None, ...]]] = [(fact.region, fact.axes) for fact in work]
    tiles += [(op.region, op.tile_axes) for op in operations]
    tiles += [(fact.region, (fact.m_axis, fact.n_axis)) for fact in matmuls]
    known = [(region, tuple(axis for axis in axes if axis is not None)) for region, axes in tiles]
    operations += [op for op in facts.atomics if mine(op.region)]
    return Root(
        root=root,
        accesses=tuple(_access(op, order, op.region in dots) for op in operations),
        work=work,
        reductions=tuple(fact for fact in facts.reductions if mine(fact.region)),
        scans=tuple(
            (fact.axis, fact) for fact in facts.scans if fact.axis is not None and not set(fact.tile).isdisjoint(order)
        ),
        matmuls=matmuls,
        tiles=tuple(dict.fromkeys(known)),
    )


def _access(op: MemoryOpFact, order: tuple[int, ...], feeds_dots: bool) -> Access:
    dimensions = tuple(zip(op.subscript_axes, op.strides, op.extents, op.scales, strict=True))
    together = [a for a, stride, extent, scale in dimensions if a is not None and stride == scale == 1 < extent]
    inner = together[-1] if together else None
    apart = [stride for axis, stride, extent, _ in dimensions if axis != inner and stride > 1 and extent > 1]
    reached = {*op.tile_axes, *op.subscript_axes}
    return Access(
        op=op,
        itemsize=op.itemsize,
        once_bytes=op.accessed_numel * op.itemsize,
        inner=inner,
        aligned=math.gcd(_ALIGNED, *apart),
        unit_stride=frozenset(a for a, stride in zip(op.subscript_axes, op.strides, strict=True) if stride == 1),
        inside=tuple(axis for axis in order if axis in reached),
        apart=tuple(axis for axis in order if axis not in reached),
        feeds_dots=feeds_dots,
    )
