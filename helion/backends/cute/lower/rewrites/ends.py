"""Loops over K that end with the tile of rows, or of columns, as for triangular matrices.

::

    for tile_k in hl.tile(tile_m.end):               for tile_k in hl.tile(m):
        acc = hl.dot(a[...], b[...], acc=acc)   →        acc = hl.dot(a[...], b[...], acc=acc)

The product keeps the side whose tiles end K.
"""

from __future__ import annotations

import dataclasses

from ....._compiler.ir.grammar import ForAttrs, MemoryAttrs, Op, OperandRef, Program, TileAttrs, Value
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import Expr, Number, fixed_at
from ....._support.records import dataclass
from ...plan.refusal import Refusal
from ...plan.scales import Ends
from ..numbers import equal
from ..product import Product


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A ``program`` whose loop goes over all of K. ``block`` is that of the tiles that ended it, or None."""

    program: Program
    block: int | None = None


def without_ends(program: Program) -> Ended:
    """Return the program with a loop over all of K, and the original one if its loop does not end with a tile."""
    unchanged = Ended(program=program)
    if len(program.roots) != 1:
        return unchanged
    (root,) = program.roots
    loops = [op for op in root.body.ops if op.kind == "for"]
    block = _ending(program, loops[0]) if len(loops) == 1 else None
    extent = program.blocks[block].extent if block is not None else None
    if block is None or not isinstance(extent, (int, Expr)) or block not in [axis.block for axis in root.axes]:
        return unchanged
    (loop,) = loops
    attrs = loop.attributes(ForAttrs)
    (axis,) = attrs.axes
    _check_covers(program, loop, axis.block, extent)
    whole = dataclasses.replace(
        loop,
        operands=loop.operands[: attrs.carried],
        attrs=dataclasses.replace(attrs, axes=(dataclasses.replace(axis, end=extent),)),
    )
    ops = tuple(whole if op is loop else op for op in root.body.ops)
    changed = dataclasses.replace(root, body=dataclasses.replace(root.body, ops=ops))
    blocks = tuple(
        dataclasses.replace(each, extent=extent) if each.id == axis.block else each for each in program.blocks
    )
    return Ended(program=drop_dead(dataclasses.replace(program, blocks=blocks, roots=(changed,))), block=block)


def _ending(program: Program, loop: Op) -> int | None:
    """Return the block of a grid whose tile ends a loop that begins at 0; None for another loop."""
    attrs = loop.attributes(ForAttrs)
    if len(attrs.axes) != 1 or len(loop.operands) != attrs.carried + 1:
        return None
    (axis,) = attrs.axes
    value = loop.operands[-1]
    if axis.end != OperandRef(attrs.carried) or not fixed_at(axis.begin, 0) or not isinstance(value, Value):
        return None
    made = next((op for op in program.walk() if value.number in [each.number for each in op.results]), None)
    if made is None or made.kind != "tile" or made.attributes(TileAttrs).field != "end":
        return None
    return made.attributes(TileAttrs).block


def _check_covers(program: Program, loop: Op, block: int, extent: Number) -> None:
    """Check that loads along K have as many elements as the tiles cover. Raises ``Refusal``."""
    for op in loop.regions[0].walk():
        for at, index in enumerate(op.attrs.indices if isinstance(op.attrs, MemoryAttrs) else ()):
            tensor = program.tensors[op.attrs.tensor]
            if index.kind == "block" and index.block == block and not equal(tensor.shape[at], extent):
                raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which tiles cover {extent} along K")


def with_ends(product: Product, ended: Ended) -> Product:
    """Return the product whose K ends with tiles. Raises ``Refusal``."""
    if ended.block is None:
        return product
    sides = dict(zip(product.blocks[:2], ("m", "n"), strict=True))
    if ended.block not in sides:
        raise Refusal("a loop over K that ends with a tile of neither rows nor columns is not implemented")
    problem = dataclasses.replace(product.problem, ends=Ends(side=sides[ended.block]))  # type: ignore[arg-type]
    return dataclasses.replace(product, problem=problem)
