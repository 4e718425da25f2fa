"""Loop numbers: positions of loops in the program as traced. Rewrites may reorder the loops."""

from __future__ import annotations

from .grammar import Bound, ForAttrs, Op, OperandRef, Program, Root, TileAttrs
from .rewrite import Makers


def loops_of(program: Program) -> tuple[Root | Op, ...]:
    """Return the grid loops and the loops inside them, in program order; the position of a loop is its number."""
    found: list[Root | Op] = []
    for root in program.roots:
        found.append(root)
        found += (op for op in root.body.walk() if isinstance(op.attrs, ForAttrs))
    return tuple(found)


def tile_of_bound(makers: Makers, loop: Op, bound: Bound) -> TileAttrs | None:
    """Return the tile property that a bound of ``loop`` is; None for any other bound."""
    maker = makers.of(loop.operands[bound.at]) if isinstance(bound, OperandRef) else None
    return maker.attrs if maker is not None and isinstance(maker.attrs, TileAttrs) else None
