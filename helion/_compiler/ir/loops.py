"""The numbers by which loops are known: those of the program as traced, which rewrites may reorder."""

from __future__ import annotations

from .grammar import Bound, ForAttrs, Op, OperandRef, Program, Root, TileAttrs
from .rewrite import Makers


def loops_of(program: Program) -> tuple[Root | Op, ...]:
    """Grid loops and the loops inside of them, in program order; the place of each is its number."""
    found: list[Root | Op] = []
    for root in program.roots:
        found.append(root)
        found += (op for op in root.body.walk() if isinstance(op.attrs, ForAttrs))
    return tuple(found)


def tile_of_bound(makers: Makers, loop: Op, bound: Bound) -> TileAttrs | None:
    """The property of a tile that a bound of ``loop`` is; None where it is something else."""
    maker = makers.of(loop.operands[bound.at]) if isinstance(bound, OperandRef) else None
    return maker.attrs if maker is not None and isinstance(maker.attrs, TileAttrs) else None
