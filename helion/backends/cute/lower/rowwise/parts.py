"""The dimensions that columns are reshaped to: groups of columns, and the columns of a group.

Both have one block if there are as many groups as columns of each. They differ by their places then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....._compiler.ir.grammar import Op, Program, ReduceAttrs, Value
from ....._shapes import Dim
from ...plan.refusal import Refusal
from ..frame import Frame

PARTS = 2
"""Dimensions of columns that are reshaped to groups."""
OF_COLUMNS = (
    "numbers of the columns of a group, which all groups share, are not implemented; those of groups have a last dimension"
    " of one"
)


def groups_of(program: Program) -> frozenset[int]:
    """Return the blocks of dimensions that the columns of a row are reshaped to: two, of which one counts groups.

    A reshape of other dimensions, such as one of numbers of groups, is none of columns: it has fewer elements.
    """
    found: dict[int, int] = {}
    for op in program.walk():
        if op.kind != "view" or not isinstance(op.operands[0], Value):
            continue
        before = [dim.block for dim in op.operands[0].dims if dim.block is not None]
        after = [dim.block for dim in op.result.dims if dim.block is not None]
        split = [block for block in after if block not in before]
        merged = [block for block in before if block not in after]
        if not merged or len(split) != PARTS or (len(merged) > 1 and not {*merged} <= {*found}):
            continue
        extents = [program.blocks[block].extent for block in split]
        whole = [program.blocks[block].extent for block in merged]
        if all(isinstance(each, int) for each in (*extents, *whole)) and math.prod(extents) == math.prod(whole):  # type: ignore[arg-type]
            found |= {block: max(math.prod(extents), found.get(block, 0)) for block in split}  # type: ignore[arg-type]
    columns = max(found.values(), default=0)
    return frozenset(block for block, count in found.items() if count == columns)


def _places(frame: Frame, dims: Sequence[Dim]) -> list[int]:
    return [at for at, dim in enumerate(dims) if frame.block(dim) in frame.groups]


def check_places(frame: Frame, dims: Sequence[Dim]) -> None:
    """Check that a value with one of these dimensions has a number for each group. Raises ``Refusal``."""
    places = _places(frame, dims)
    if len(places) == 1 and len(dims) > PARTS and places[0] == len(dims) - 1:
        raise Refusal(OF_COLUMNS)


def check_aligned(frame: Frame, op: Op) -> None:
    """Check that groups meet groups in an elementwise operation, which aligns dimensions from the last one. Raises
    ``Refusal``."""
    rank, met = len(op.result.dims), _places(frame, op.result.dims)
    for value in op.operands:
        dims = value.dims if isinstance(value, Value) else ()
        places = [rank - len(dims) + at for at in _places(frame, dims)]
        if places and places != met[: len(places)]:
            raise Refusal(OF_COLUMNS)


def reduced_columns(frame: Frame, op: Op) -> int:
    """Return the columns of a group, if an op reduces those of each group, and nothing else; else 0."""
    source = op.operands[0]
    assert isinstance(source, Value)
    places = _places(frame, source.dims)
    if len(places) != PARTS or [*op.attributes(ReduceAttrs).dims] != places[-1:]:
        return 0
    return columns_in(frame, source.dims[-1])


def columns_in(frame: Frame, dim: Dim) -> int:
    """Return the extent of a dimension that columns are reshaped to; 0 for others."""
    block = frame.block(dim)
    extent = frame.program.blocks[block].extent if block is not None and block in frame.groups else 0
    return extent if isinstance(extent, int) else 0
