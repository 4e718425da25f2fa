"""Places in memory of the accesses of one grid loop, relative to its axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...._shapes import Expr, Number, fixed_at, number_key
from ...ir.grammar import (
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    TileAttrs,
    Value,
)
from ...ir.rewrite import Makers


class Places:
    """Relations between the accesses of a program and its axes."""

    def __init__(self, program: Program) -> None:
        (self.root,) = program.roots
        self.program = program
        self.makers = Makers.among(program.walk())
        self.axes: dict[int, tuple[LoopAxis, Op | None]] = {a.block: (a, None) for a in self.root.axes}
        for op in program.walk():
            if isinstance(op.attrs, ForAttrs):
                self.axes.update((a.block, (a, op)) for a in op.attrs.axes)

    def walked_by(self, op: Op) -> set[int]:
        """Return the blocks that an access indexes: it has other elements in each of their iterations."""
        found = {block for index in op.attributes(MemoryAttrs).indices if (block := self._walks(op, index)) is not None}
        return found | {outer for block in found if (outer := self._within(block)) is not None}

    def _walks(self, op: Op, index: Index) -> int | None:
        if index.kind == "block" and index.operand is None:
            return index.block
        maker = self.makers.of(op.operands[index.operand]) if index.operand is not None else None
        if index.kind == "tensor" and maker is not None and isinstance(maker.attrs, IotaAttrs):
            whole = self.program.blocks[maker.attrs.block].kind == "full"
            return maker.attrs.block if whole or not maker.attrs.relative else None
        if index.kind == "scalar" and maker is not None and isinstance(maker.attrs, TileAttrs):
            return maker.attrs.block if maker.attrs.field in ("index", "id", "begin") else None
        return None

    def owner(self, op: Op) -> tuple[object, ...]:
        """Return the grid axis and the shift of each index of a plain access; None for indices that vary over no grid
        axis.
        """
        grid = {a.block for a in self.root.axes}
        found: list[object] = []
        for index in op.attributes(MemoryAttrs).indices:
            block = self._walks(op, index)
            outer = self._within(block) if block is not None else None
            block = outer if outer is not None else block
            found.append((block, number_key(index.shift)) if block in grid else None)
        return tuple(found)

    def _within(self, block: int) -> int | None:
        """Return the block whose tiles a loop subdivides."""
        axis, op = self.axes.get(block, (None, None))
        if axis is None or op is None or not isinstance(axis.begin, OperandRef) or not isinstance(axis.end, OperandRef):
            return None
        ends = [self.makers.of(op.operands[ref.at]) for ref in (axis.begin, axis.end)]
        attrs = [maker.attrs if maker is not None else None for maker in ends]
        begin, end = attrs
        if isinstance(begin, TileAttrs) and isinstance(end, TileAttrs) and begin.block == end.block:
            return begin.block if (begin.field, end.field) == ("begin", "end") else None
        return None

    def is_plain(self, op: Op) -> bool:
        """Return whether all indices are blocks or constants."""
        attrs = op.attributes(MemoryAttrs)
        return all(
            (i.operand is None and i.kind != "tensor") or (i.kind == "scalar" and self._walks(op, i) is not None)
            for i in attrs.indices
        )

    def may_leave(self, op: Op) -> tuple[bool, ...]:
        """Return, for each index of a masked access, whether lanes that the mask leaves out may be outside of the tensor."""
        attrs = op.attributes(MemoryAttrs)
        shape = self.program.tensors[attrs.tensor].shape
        return tuple(not self._stays(op, index, size) for index, size in zip(attrs.indices, shape, strict=True))

    def _stays(self, op: Op, index: Index, size: Number) -> bool:
        if index.kind == "scalar" and index.operand is None:
            return isinstance(size, int) and isinstance(index.shift, int) and 0 <= index.shift < size
        block = self._walks(op, index) if index.kind != "tensor" else None
        if block is None or not fixed_at(index.shift, 0):
            return False
        axis, _ = self.axes.get(block, (None, None))
        begin, end = (0, self.program.blocks[block].extent) if axis is None else (axis.begin, axis.end)
        if not isinstance(begin, int) or begin < 0:
            return False
        if isinstance(end, int) and isinstance(size, int):
            return end <= size
        return isinstance(end, Expr) and isinstance(size, Expr) and end.key == size.key

    def is_injective(self, op: Op) -> bool:
        """Return whether the lanes of an access certainly have distinct elements."""
        indices = op.attributes(MemoryAttrs).indices
        return all(i.kind != "tensor" or self._walks(op, i) is not None for i in indices)

    def depends_on(self, op: Op) -> set[int]:
        """Return the blocks that the indices of an access depend on, directly or through values."""
        attrs = op.attributes(MemoryAttrs)
        found = {i.block for i in attrs.indices if i.kind == "block" and i.block is not None}
        seen: set[int] = set()
        pending = [op.operands[i.operand] for i in attrs.indices if i.operand is not None]
        pending += [first for block in found if (first := self._first(block)) is not None]
        while pending:
            value = pending.pop()
            maker = self.makers.of(value)
            if not isinstance(value, Value) or value.number in seen:
                continue
            seen.add(value.number)
            found.update(b for d in value.dims for b in d.blocks)
            if maker is None:
                found.update(self.axes)  # carried by a loop: may depend on anything
                continue
            if isinstance(maker.attrs, TileAttrs):
                found.add(maker.attrs.block)
            if maker.kind == "load":
                found |= self.depends_on(maker)
            pending += maker.operands
        return found | {outer for block in found if (outer := self._within(block)) is not None}

    def _first(self, block: int) -> Operand | None:
        """Return the value that the tiles of a loop begin at, such as the first row of a group."""
        axis, op = self.axes.get(block, (None, None))
        return op.operands[axis.begin.at] if op is not None and axis and isinstance(axis.begin, OperandRef) else None

    def apart(self, op: Op, other: Op) -> bool:
        """Return whether two accesses of one tensor certainly have no element in common."""
        attrs, others = op.attributes(MemoryAttrs), other.attributes(MemoryAttrs)
        if attrs.tensor != others.tensor:
            return False
        pairs = zip(attrs.indices, others.indices, strict=True)
        return any(_interval_apart(self._interval(a), self._interval(b)) for a, b in pairs)

    def _interval(self, index: Index) -> tuple[int, int] | None:
        """Return the range of positions along a dimension over all iterations, if it is constant."""
        if not isinstance(index.shift, int) or index.operand is not None:
            return None
        if index.kind == "scalar":
            return index.shift, index.shift + 1
        if index.kind != "block" or index.block is None:
            return None
        begin, end = 0, self.program.blocks[index.block].extent
        if index.block in self.axes:
            axis, _ = self.axes[index.block]
            begin, end = axis.begin, axis.end  # type: ignore[assignment]
        if not isinstance(begin, int) or not isinstance(end, int):
            return None
        return begin + index.shift, end + index.shift

    def covers(self, op: Op) -> bool:
        """Return whether all iterations together access each element of the tensor."""
        attrs = op.attributes(MemoryAttrs)
        shape = self.program.tensors[attrs.tensor].shape
        return (
            attrs.mask is None
            and all(self._covers(op, index, size) for index, size in zip(attrs.indices, shape, strict=True))
            and self._walks_freely(op)
        )

    def _walks_freely(self, op: Op) -> bool:
        """Return whether each dimension follows another axis, unlike ``x[i, i]``, so that all combinations of indices
        occur.
        """
        walked = [
            block for index in op.attributes(MemoryAttrs).indices if (block := self._walks(op, index)) is not None
        ]
        axes = [block if (outer := self._within(block)) is None else outer for block in walked]
        return len(set(axes)) == len(axes)

    def _covers(self, op: Op, index: Index, size: Number) -> bool:
        if isinstance(size, int) and size == 1:
            return True
        if not fixed_at(index.shift, 0):
            return False
        block = self._walks(op, index)
        if block is None:
            return False
        found = self.program.blocks[block]
        if found.kind == "full":
            return index.kind == "block" and number_key(found.extent) == number_key(size)
        axis, _ = self.axes[block]
        single = axis.scalar or (found.kind == "tile" and fixed_at(found.size, 1))
        if index.kind == "scalar" and not (single and fixed_at(axis.step, 1)):
            return False
        outer = self._within(block)
        if outer is not None:
            axis = self.axes[outer][0]
        if isinstance(axis.begin, OperandRef) or isinstance(axis.end, OperandRef) or axis.jagged is not None:
            return False
        return number_key(axis.begin) == 0 and number_key(_length(axis.end)) == number_key(size)


def is_single(axis: LoopAxis) -> bool:
    """Return whether a loop has one iteration."""
    return isinstance(axis.begin, int) and isinstance(axis.end, int) and axis.end - axis.begin == 1


def _interval_apart(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is not None and b is not None and (a[1] <= b[0] or b[1] <= a[0])


def _length(end: Number) -> Number:
    """Return the number of iterations from 0 to ``end``: a size that is at least 0 as it is, not as ``max(0, size)``."""
    return end.args[1] if isinstance(end, Expr) and end.op == "max" and fixed_at(end.args[0], 0) else end


def is_covered(program: Program, tensor: int) -> bool:
    """Return whether a store of a program of one grid loop certainly writes each element of a tensor."""
    places = Places(program)
    (root,) = program.roots
    for op, around in _certain(root.body.ops, root.axes):
        if op.kind == "store" and op.attributes(MemoryAttrs).tensor == tensor and places.covers(op):
            walked = places.walked_by(op)
            if all(axis.block in walked or _runs(axis) for axis in around):
                return True
    return False


def _runs(axis: LoopAxis) -> bool:
    """Return whether a loop certainly has an iteration."""
    return isinstance(axis.begin, int) and isinstance(axis.end, int) and axis.end > axis.begin


def _certain(ops: Sequence[Op], around: tuple[LoopAxis, ...]) -> Iterator[tuple[Op, tuple[LoopAxis, ...]]]:
    """Yield the ops outside of branches, with the loops around them."""
    for op in ops:
        yield op, around
        if isinstance(op.attrs, ForAttrs):
            yield from _certain(op.regions[0].ops, (*around, *op.attrs.axes))
