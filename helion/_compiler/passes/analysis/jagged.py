"""Refuses values for which the valid lanes of a jagged loop are unknown."""

from __future__ import annotations

from collections.abc import Mapping

from .... import exc
from ...._shapes import Dims
from ...ir.grammar import ForAttrs, LoopAxis, MaskAttrs, MemoryAttrs, Op, Program, Region, Value

#: Blocks of the rows, by the block of the jagged loop around an op.
_Rows = Mapping[int, frozenset[int]]


def check_jagged(program: Program) -> Program:
    """Refuse masks along a jagged dimension on values without the row dimensions, since lanes are valid row by row."""
    if any(axis.jagged is not None for op in program.walk() for axis in _axes(op)):
        for root in program.roots:
            _region(root.body, {})
    return program


def _axes(op: Op) -> tuple[LoopAxis, ...]:
    return op.attrs.axes if isinstance(op.attrs, ForAttrs) else ()


def _region(region: Region, rows: _Rows) -> None:
    for at, op in enumerate(region.ops):
        dims = op.result.dims if op.results else ()
        along = (
            range(len(dims))
            if isinstance(op.attrs, MemoryAttrs)
            else op.attrs.dims
            if isinstance(op.attrs, MaskAttrs)
            else ()
        )
        if any(_is_unknown(dims, position, rows) for position in along):
            raise exc.InvalidJaggedTileUsage(
                "a value has the jagged dimension but not that of the rows, so its valid lanes are unknown.",
                # a mask has no source line: use that of the op that needs it
                location=next((other.location for other in region.ops[at:] if other.location is not None), None),
            )
        inner = _inside(op, rows)
        for child in op.regions:
            _region(child, inner)


def _inside(op: Op, rows: _Rows) -> _Rows:
    """Return ``rows`` within a loop."""
    inner = dict(rows)
    for axis in _axes(op):
        inner.pop(axis.block, None)
        if axis.jagged is not None:
            lengths = op.operands[axis.jagged.at]
            assert isinstance(lengths, Value)
            inner[axis.block] = frozenset(block for dim in lengths.dims for block in dim.blocks)
    return inner


def _is_unknown(dims: Dims, position: int, rows: _Rows) -> bool:
    """Return whether a dimension is jagged and the other dimensions do not cover its rows."""
    block = dims[position].block
    return block is not None and not rows.get(block, frozenset()) <= {dim.block for dim in dims}
