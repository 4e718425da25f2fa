"""Copies of the operands of matmuls in the tiles of separate grid loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...._shapes import ONE, Dim, Dims, Expr, Number, fixed_at
from ...._support.records import dataclass, field, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import (
    Block,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    Program,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...ir.rewrite import Declined, Makers
from ...passes.analysis.matmuls import Product


@dataclass
class OperandCopy:
    """A copy of the ops that compute a matmul, in other tiles. It has each op once per required result shape."""

    program: Program
    product: Product
    makers: Makers
    written: frozenset[int | None]
    numbers: Numbers
    #: Blocks of the tiles of the matmul, along its own dimensions and along K.
    tiles: tuple[int, ...]
    depth: int
    apart: Callable[[LoopAxis], int]
    front: list[Op] = field(default_factory=list)
    body: list[Op] = field(default_factory=list)
    made: dict[tuple[int, Dims], Value] = field(default_factory=dict)
    #: Values that differ between tiles along K.
    inside: set[int] = field(default_factory=set)
    #: Axes around the matmul that its operands depend on, besides those of its dimensions: the new block of each.
    axes: dict[int, int] = field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return tuple(Dim(1, (block,)) for block in self.tiles)

    def operands(self) -> tuple[Operand, Operand]:
        """Return the operands of the dot."""
        k = Dim(1, (self.depth,))
        *batch, m, n = self.dims
        lhs, rhs = list(self.product.dot.values())[:2]
        return self.copy(lhs, (*batch, m, k)), self.copy(rhs, (*batch, k, n))

    def copy(self, operand: Operand, dims: Dims) -> Operand:
        if not isinstance(operand, Value):
            return operand
        dims = tuple(ONE if old.is_one else new for old, new in zip(operand.dims, dims, strict=True))
        key = operand.number, dims
        if key not in self.made:
            op = self.makers.of(operand)
            if op is None:
                raise Declined("an operand of a matmul depends on a value that a loop carries")
            self.made[key] = self.again(op, operand, dims)
        return self.made[key]

    def again(self, op: Op, value: Value, dims: Dims) -> Value:
        operands, attrs = self.rewritten(op, value, dims)
        result = self.numbers.value(value.dtype, dims, value.name)
        along = any(self.depth in dim.blocks for dim in dims)
        if along or any(isinstance(o, Value) and o.number in self.inside for o in operands):
            self.inside.add(result.number)
        ops = self.body if result.number in self.inside else self.front
        Builder(self.numbers, op.location, ops).repeat(op, operands=operands, results=(result,), attrs=attrs)
        return result

    def rewritten(self, op: Op, value: Value, dims: Dims) -> tuple[tuple[Operand, ...], Any]:
        """Return operands and attributes of an op whose new result has the dimensions ``dims``."""
        match op.attrs:
            case NumberAttrs(expr=expr) if not measures(expr):
                return (), op.attrs
            case TileAttrs():
                return (), self.place(op.attrs)
            case IotaAttrs(relative=False):
                (block,) = dims[0].blocks
                return (), replace(op.attrs, block=block)
            case MemoryAttrs() if op.kind == "load":
                return self.load(op, op.attrs, dims)
            case ViewAttrs():
                (source,) = op.values()
                return (self.copy(source, _before(op.attrs, source.dims, value.dims, dims)),), op.attrs
        if op.kind in ("full", "pointwise", "mask"):
            return tuple(self.copy(o, _aligned(o, dims)) for o in op.operands), op.attrs
        raise Declined(f"an operand of a matmul is the result of {op.kind}")

    def place(self, attrs: TileAttrs) -> TileAttrs:
        """Return the index along an axis that has one program for each."""
        axis = self.product.around.get(attrs.block)
        own = dict(zip((axis.block for axis in self.product.axes), self.tiles, strict=True))
        single = axis is not None and _is_single(self.program.blocks[attrs.block], axis)
        if not single or attrs.field not in ("index", "begin"):
            raise Declined("an operand of a matmul depends on the begin of a tile")
        assert axis is not None
        if attrs.block in own:
            return TileAttrs(own[attrs.block], attrs.field)
        self.axes.setdefault(attrs.block, self.apart(axis))
        return TileAttrs(self.axes[attrs.block], "index")

    def load(self, op: Op, attrs: MemoryAttrs, dims: Dims) -> tuple[tuple[Operand, ...], MemoryAttrs]:
        tensor = self.program.tensors[attrs.tensor]
        if None in self.written or tensor.storage in self.written:
            raise Declined(f"a matmul reads {tensor.name}, which the kernel writes")
        wanted: dict[int, Dims] = {} if attrs.mask is None else {attrs.mask: dims}
        indices = []
        for index in attrs.indices:
            if measures(index.shift):
                raise Declined("an operand of a matmul depends on tile sizes")
            along = tuple(dims[at] for at in index.positions)
            if index.operand is not None:
                wanted[index.operand] = along if index.kind == "tensor" else ()
            indices.append(replace(index, block=along[0].block) if index.kind == "block" else index)
        operands = (self.copy(o, _aligned(o, wanted[at])) for at, o in enumerate(op.operands))
        return tuple(operands), replace(attrs, indices=tuple(indices))


def _is_single(block: Block, axis: LoopAxis) -> bool:
    """Return whether an axis has one program for each index from 0."""
    one = fixed_at(axis.step, 1) if axis.scalar else fixed_at(block.size, 1) or fixed_at(block.max_size, 1)
    known = isinstance(axis.end, (int, Expr)) and fixed_at(axis.begin, 0)
    return one and known and axis.jagged is None and not axis.merged and axis.split is None


def _aligned(operand: Operand, dims: Dims) -> Dims:
    """Return the last of ``dims``, as many as an operand has that broadcasts to them."""
    rank = len(operand.dims) if isinstance(operand, Value) else 0
    return dims[len(dims) - rank :]


def _before(attrs: ViewAttrs, source: Dims, result: Dims, dims: Dims) -> Dims:
    """Return the new dimensions of the source of a view, given the ``dims`` of its result, which were ``result``."""
    if attrs.name == "permute":
        return tuple(dims[attrs.order.index(at)] for at in range(len(source)))
    if attrs.name == "broadcast":
        return dims[len(dims) - len(source) :]
    lanes = [new for old, new in zip(result, dims, strict=True) if not old.is_one]
    if [dim for dim in source if not dim.is_one] != [dim for dim in result if not dim.is_one]:
        raise Declined("a reshape moves lanes of a matmul operand to another dimension")
    remaining = iter(lanes)
    return tuple(ONE if dim.is_one else next(remaining) for dim in source)


def measures(number: Number) -> bool:
    """Return whether a number depends on tile sizes."""
    return isinstance(number, Expr) and any(leaf.op == "block" for leaf in number.leaves())
