"""Loop numbers: positions of loops in the program as traced. Rewrites may reorder the loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .grammar import Bound, ForAttrs, LoopAxis, Op, OperandRef, Program, Region, Root, TileAttrs
from .rewrite import Makers, remembered


@remembered
def loops_of(program: Program) -> tuple[Root | Op, ...]:
    """Return the grid loops and the loops inside them, in program order; the position of a loop is its number."""
    found: list[Root | Op] = []
    for root in program.roots:
        found.append(root)
        found += (op for op in root.body.walk() if isinstance(op.attrs, ForAttrs))
    return tuple(found)


def inside_loops(region: Region, axes: Mapping[int, LoopAxis]) -> Iterator[tuple[Op, Mapping[int, LoopAxis]]]:
    """Yield the ops of loops in ``region``, with the axes around them."""
    for op in region.ops:
        if isinstance(op.attrs, ForAttrs):
            around = {**axes, **{axis.block: axis for axis in op.attrs.axes}}
            yield from ((inner, around) for inner in op.regions[0].ops)
            yield from inside_loops(op.regions[0], around)


def tile_of_bound(makers: Makers, loop: Op, bound: Bound) -> TileAttrs | None:
    """Return the tile property that a bound of ``loop`` is; None for any other bound."""
    maker = makers.of(loop.operands[bound.at]) if isinstance(bound, OperandRef) else None
    return maker.attrs if maker is not None and isinstance(maker.attrs, TileAttrs) else None
