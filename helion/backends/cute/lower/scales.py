"""Scales of blocks of K, which multiply the partial sum of a block before it is accumulated, and loops over such
blocks.

::

    for tile_k in hl.tile(k, block_size=128):                for block in hl.grid(k // 128):
        part = hl.dot(a[tile_m, tile_k], b[tile_k, tile_n])      for tile_k in hl.tile(block * 128, (block + 1) * 128):
        rows = scale_a[tile_m, tile_k.id][:, None]                   part = hl.dot(..., acc=part)
        acc += part * rows * scale_b[tile_k.id, tile_n.id]       acc += part * ...
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...._compiler.ir.grammar import (
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...._shapes import dtype_name, fixed_at
from ...._support.records import dataclass
from ..plan.dtypes import FLOAT_DTYPES
from ..plan.refusal import Refusal
from ..plan.scales import BlockScales, Scale, Side
from .frame import Frame
from .names import name_of
from .numbers import known


@dataclass(frozen=True, kw_only=True)
class Nest:
    """A loop over blocks of ``size`` elements of K, with ``inner`` over the tiles of a block; ``extent`` is all of K."""

    inner: Op
    block: int
    size: int
    extent: int


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The scales of a loop over K: ``scales`` is None where there are none; ``tensors`` are the ids of the scale
    tensors."""

    scales: BlockScales | None
    tensors: tuple[int, ...]
    rounded: str = ""
    """The type that the matmul of each K tile is rounded to before it is added, if any."""


# Loops over blocks -----------------------------------------------------------------------------------------------------


def nest_of(program: Program, loop: Op) -> Nest | None:
    """Return the blocks of K that `loop` iterates over, if it has an inner loop. Raises ``Refusal`` for other nests."""
    inner = [op for op in loop.regions[0].ops if op.regions]
    if not inner:
        return None
    attrs = loop.attributes(ForAttrs)
    if len(inner) != 1 or inner[0].kind != "for" or len(attrs.axes) != 1 or not _is_plain_grid(attrs.axes[0]):
        raise Refusal(
            "loops over blocks of K, by hl.grid from 0 on with one loop over the tiles of a block, are implemented"
        )
    (outer,) = attrs.axes
    axes = inner[0].attributes(ForAttrs).axes
    size = _Bounds(loop, inner[0], outer.block).size() if len(axes) == 1 else None
    if size is None:
        raise Refusal("tiles of a block of K go from its number times a size to the next one's")
    return Nest(
        inner=inner[0], block=outer.block, size=size, extent=size * known(outer.end, "the number of blocks of K")
    )


def _is_plain_grid(axis: LoopAxis) -> bool:
    return axis.scalar and (axis.begin, axis.step) == (0, 1) and axis.jagged is None and not axis.merged


class _Bounds:
    """Bounds of a loop over the tiles of block number ``block``, as c * number + d."""

    def __init__(self, loop: Op, inner: Op, block: int) -> None:
        self.makers = {result.number: op for op in loop.regions[0].ops for result in op.results}
        self.inner, self.block = inner, block

    def size(self) -> int | None:
        """Return the elements of a block, if the tiles cover exactly one block after the other."""
        (axis,) = self.inner.attributes(ForAttrs).axes
        begin, end = self._bound(axis.begin), self._bound(axis.end)
        plain = not axis.scalar and fixed_at(axis.step, 1) and axis.jagged is None and not axis.merged
        if not plain or begin is None or end is None or begin[1] != 0 or begin[0] < 1:
            return None
        return begin[0] if end == (begin[0], begin[0]) else None

    def _bound(self, bound: object) -> tuple[int, int] | None:
        if isinstance(bound, OperandRef):
            return self._line(self.inner.operands[bound.at])
        return (0, bound) if isinstance(bound, int) else None

    def _line(self, value: Operand) -> tuple[int, int] | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return (0, value)
        op = self.makers.get(value.number) if isinstance(value, Value) else None
        if op is None:
            return None
        if op.kind == "tile":
            attrs = op.attributes(TileAttrs)
            return (1, 0) if attrs.block == self.block and attrs.field in ("index", "begin", "id") else None
        if op.kind != "pointwise" or op.attributes(PointwiseAttrs).name not in ("add", "mul"):
            return None
        x, y = (self._line(operand) for operand in op.operands)
        if x is None or y is None:
            return None
        if op.attributes(PointwiseAttrs).name == "add":
            return (x[0] + y[0], x[1] + y[1])
        factor, line = (x, y) if x[0] == 0 else (y, x)
        return (line[0] * factor[1], line[1] * factor[1]) if factor[0] == 0 else None


# Factors ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """An index where ``lines`` elements of ``block`` share a value; with ``whole``, the begin of their tile picks it."""

    block: int
    lines: int
    whole: bool


@dataclass(frozen=True, kw_only=True)
class _Factor:
    scale: Scale
    tensor: int
    k: int | None
    """Elements of K that share it; None where all do."""


class ScaleReader:
    """A parser of the update in `loop`: ``part``, the matmul of a K tile or of a block, times scales."""

    def __init__(self, frame: Frame, loop: Op, part: Value, nest: Nest | None) -> None:
        self.frame, self.loop, self.part, self.nest = frame, loop, part, nest
        self.sides = tuple(frame.block(dim) for dim in part.dims)

    def read(self, line: int) -> Scaled:
        """Read the scales. `line` is the size of a K tile where no scale depends on K. Raises ``Refusal``."""
        body = self.loop.regions[0]
        added = self._pointwise(body.results[0], "add")
        terms = [] if added is None else [each for each in added.operands if each is not body.params[0]]
        if len(terms) != 1:
            raise Refusal("a loop over K that adds products, times factors, to its accumulator is implemented")
        leaves = list(self._leaves(terms[0]))
        if sum(leaf is self.part for leaf in leaves) != 1:
            raise Refusal("a loop over K that adds the result of one dot, times factors, is implemented")
        loads = [self.frame.maker(leaf) for leaf in leaves if leaf is not self.part]
        found = [self._factor(load) for load in loads if load is not None]
        if not found:
            return Scaled(scales=None, tensors=())
        sizes = {each.k for each in found if each.k is not None} | ({self.nest.size} if self.nest else set())
        if len(sizes) > 1:
            raise Refusal(f"factors of blocks of {' and of '.join(map(str, sorted(sizes)))} along K")
        k = sizes.pop() if sizes else self._fixed(self.frame.k) or line
        factors = _on_sides(found)
        return Scaled(scales=BlockScales(k=k, factors=factors), tensors=tuple(each.tensor for each in found))

    # Arithmetic ----------------------------------------------------------------------------------------------------------

    def _pointwise(self, value: Operand, name: str) -> Op | None:
        op = self.frame.maker(value)
        if op is None or op.kind != "pointwise" or op.attributes(PointwiseAttrs).name != name:
            return None
        if op.result.dtype != torch.float32:
            raise Refusal(
                f"{name} of {dtype_name(op.result.dtype)} among the factors of a product; float32 is implemented"
            )
        return op

    def _leaves(self, value: Operand) -> Iterator[Value]:
        """Yield the factors of a product, through views and widening casts."""
        if not isinstance(value, Value):
            raise Refusal("a product is multiplied by tensors of factors within the loop over K, not by numbers")
        self._check_dims(value)
        op = self.frame.maker(value)
        if value is self.part or op is None or op.kind == "load":
            yield value
        elif self._passes_on(op):
            yield from self._leaves(op.operands[0])
        elif (product := self._pointwise(value, "mul")) is not None:
            self._check_ranks(product)
            for operand in product.operands:
                yield from self._leaves(operand)
        else:
            name = op.attributes(PointwiseAttrs).name if op.kind == "pointwise" else op.kind
            raise Refusal(
                f"{name} of the partial sums of a K tile, or of their factors, is not implemented; products are"
            )

    def _passes_on(self, op: Op) -> bool:
        """Return whether an op keeps the numbers of a value: a view without transposition, or a widening cast."""
        if op.kind == "view":
            return op.attributes(ViewAttrs).name != "permute"
        if op.kind != "pointwise" or op.attributes(PointwiseAttrs).name != "cast":
            return False
        source = op.operands[0]
        kept = isinstance(source, Value) and (source is self.part or dtype_name(source.dtype) in FLOAT_DTYPES)
        return kept and op.result.dtype == torch.float32

    def _check_dims(self, value: Value) -> None:
        """Check that no dimension is transposed or merged with another."""
        frame, (first, second) = self.frame, self.sides
        allowed = {2: ({first, None}, {second, None}), 1: ({first, second, None},), 0: ()}.get(len(value.dims))
        if allowed is None or not all(frame.block(d) in each for d, each in zip(value.dims, allowed, strict=True)):
            raise Refusal("factors within the loop over K have the dimensions of the output's tile, or some of them")

    def _check_ranks(self, product: Op) -> None:
        """Check that a vector along the first dimension has its second one: with a two-dimensional value it would be read
        along that."""
        values = [operand for operand in product.operands if isinstance(operand, Value)]
        first = any(len(value.dims) == 1 and self.frame.block(value.dims[0]) == self.sides[0] for value in values)
        if first and any(len(value.dims) > 1 for value in values):
            raise Refusal("a vector of factors along M without its second dimension")

    # Memory --------------------------------------------------------------------------------------------------------------

    def _factor(self, load: Op) -> _Factor:
        tensor, attrs = self.frame.tensor(load), load.attributes(MemoryAttrs)
        if load.kind != "load" or attrs.mask is not None or not tensor.aligned:
            raise Refusal(
                f"{tensor.name} is read with a mask, or may begin at an address that is no multiple of 16 bytes"
            )
        place: _Lines | None = None
        pitch = k_pitch = 0
        k: int | None = None
        for index, extent, stride in zip(attrs.indices, tensor.shape, tensor.strides, strict=True):
            lines = self._lines(load, index, tensor.name)
            if lines is None:
                continue
            self._check_extent(tensor.name, lines, extent)
            if lines.block == self.frame.k:
                k_pitch, k = known(stride, f"the stride of {tensor.name}"), lines.lines
            elif place is None and lines.block in (self.frame.m, self.frame.n):
                place, pitch = lines, known(stride, f"the stride of {tensor.name}")
            else:
                raise Refusal(
                    f"{tensor.name} has a factor for each row and column; one per row or per column is implemented"
                )
        side: Side = "row" if place is not None and place.block == self.frame.m else "column"
        scale = Scale(
            name=name_of(tensor),
            side=side,
            dtype=dtype_name(tensor.dtype),
            pitch=pitch,
            k_pitch=k_pitch,
            lines=place.lines if place is not None else 1,
            whole=place is not None and place.whole,
        )
        return _Factor(scale=scale, tensor=tensor.id, k=k)

    def _check_extent(self, name: str, lines: _Lines, extent: object) -> None:
        read = -(
            -known(self.frame.extent(lines.block), f"the size of the dimension that {name} has factors for")
            // lines.lines
        )
        if known(extent, f"the size of {name}") < read:
            raise Refusal(f"{name} has {extent} factors along a dimension of which {read} are read")

    def _lines(self, load: Op, index: Index, name: str) -> _Lines | None:
        """Return the elements that `index` picks; None for the one element of a dimension."""
        if not fixed_at(index.shift, 0) or (index.kind == "block" and index.operand is not None):
            raise Refusal(f"{name} is read with an offset")
        if index.kind == "block":
            assert index.block is not None
            found = _Lines(block=self.frame.named(index.block), lines=1, whole=False)
        elif index.operand is None:
            return None
        else:
            found = self._position(load.operands[index.operand], name)
        if found.block == self.frame.k and not found.whole:
            raise Refusal(f"{name} has factors of single elements of K, or of another dimension")
        return found

    def _position(self, value: Operand, name: str) -> _Lines:
        op = self.frame.maker(value)
        while op is not None and op.kind == "pointwise" and op.attributes(PointwiseAttrs).name == "cast":
            op = self.frame.maker(op.operands[0])
        found = None
        if op is not None and op.kind == "tile":
            found = self._of_tile(op, name)
        elif op is not None and op.kind == "iota":
            found = self._of_iota(op, 1)
        elif op is not None and op.kind == "pointwise" and op.attributes(PointwiseAttrs).name == "floordiv":
            found = self._quotient(op)
        if found is None:
            raise Refusal(
                f"{name} is picked by something else than tile.id, tile.begin // number, tile.index // number"
                " or the number of a block of K"
            )
        return found

    def _of_tile(self, op: Op, name: str) -> _Lines | None:
        attrs = op.attributes(TileAttrs)
        if self.nest is not None and attrs.block == self.nest.block:
            return _Lines(block=self.frame.k, lines=self.nest.size, whole=True)
        if attrs.field != "id":
            return None
        size = self._fixed(attrs.block)
        if size is None:
            block = self.frame.program.blocks[attrs.block].name or attrs.block
            raise Refusal(
                f"{name} is picked by {block}.id, whose tile's size a config decides; give hl.tile the block_size that"
                " shares a factor"
            )
        return _Lines(block=self.frame.named(attrs.block), lines=size, whole=True)

    def _of_iota(self, op: Op, lines: int) -> _Lines | None:
        attrs = op.attributes(IotaAttrs)
        whole = self.frame.program.blocks[attrs.block].kind == "full"
        if (attrs.relative and not whole) or (attrs.start, attrs.step) != (0, 1):
            return None
        return _Lines(block=self.frame.named(attrs.block), lines=lines, whole=False)

    def _quotient(self, op: Op) -> _Lines | None:
        """Return the lines of a tile's begin, or of its indices, divided by a number."""
        dividend, by = self.frame.maker(op.operands[0]), op.operands[1]
        if dividend is None or not isinstance(by, int) or isinstance(by, bool) or by < 1:
            return None
        if dividend.kind == "iota":
            return self._of_iota(dividend, by)
        if dividend.kind == "tile" and dividend.attributes(TileAttrs).field == "begin":
            return _Lines(block=self.frame.named(dividend.attributes(TileAttrs).block), lines=by, whole=True)
        return None

    def _fixed(self, block: int) -> int | None:
        """Return the size of its tiles, if the program sets it."""
        size = self.frame.program.blocks[block].size
        return size if isinstance(size, int) else None


def _on_sides(found: list[_Factor]) -> tuple[Scale, ...]:
    """Assign at most one scale per side; one that is the same for all rows and columns takes the free side."""
    fixed = {each.scale.side for each in found if each.scale.pitch}
    factors: list[Scale] = []
    for each in found:
        scale = each.scale
        if not scale.pitch:
            taken = {*fixed, *(other.side for other in factors)}
            side: Side = "column" if "column" not in taken else "row"
            scale = Scale(name=scale.name, side=side, dtype=scale.dtype, pitch=0, k_pitch=scale.k_pitch)
        factors.append(scale)
    if len({scale.side for scale in factors}) < len(factors):
        raise Refusal("several factors per row, or per column, of a block of K; one of each is implemented")
    return tuple(factors)
