"""Classification of stores of gradients, by the programs of the backward that own the elements of a gradient.

- ``direct``: each element is written by one program, in one iteration, which stores it.
- ``partial``: programs that share elements store a partial sum each, and the host adds these up.
- ``transposed``: a separate grid loop has one program for each tile of elements, and loops over everything that shares
  them. It recomputes cheap values of the first grid loop and reads others from memory.
- ``atomic``: programs add to the elements in no particular order, in at least fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..._shapes import Number, number_key
from ..ir.grammar import (
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Root,
    TileAttrs,
    Value,
)
from ..ir.rewrite import Makers, count_uses
from .prepare import access_key
from .refusal import not_supported
from .statements import Nest, Sink, Statement

Way = Literal["direct", "partial", "transposed", "atomic"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One load that receives a gradient.

    ``axes`` are those of the grid, ``loops`` those of the loops around it, outer ones first. ``missing`` are the axes
    whose programs or iterations share elements. ``covers``: each element of the tensor is written. ``nests`` are the
    loops of the backward around the sink.
    """

    sink: Sink
    op: Op
    axes: tuple[LoopAxis, ...]
    loops: tuple[tuple[LoopAxis, ...], ...]
    nests: tuple[Nest, ...]
    missing: tuple[LoopAxis, ...]
    covers: bool
    way: Way

    @property
    def tensor(self) -> int:
        return self.op.attributes(MemoryAttrs).tensor


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
        if not isinstance(index.shift, int) or index.shift != 0:
            return False
        block = self._walks(op, index)
        if block is None:
            return False
        found = self.program.blocks[block]
        if found.kind == "full":
            return index.kind == "block" and number_key(found.extent) == number_key(size)
        axis, _ = self.axes[block]
        if index.kind == "scalar" and not (axis.scalar and isinstance(axis.step, int) and axis.step == 1):
            return False
        outer = self._within(block)
        if outer is not None:
            axis = self.axes[outer][0]
        if isinstance(axis.begin, OperandRef) or isinstance(axis.end, OperandRef):
            return False
        return number_key(axis.begin) == 0 and number_key(axis.end) == number_key(size)


def is_single(axis: LoopAxis) -> bool:
    """Return whether a loop has one iteration."""
    return isinstance(axis.begin, int) and isinstance(axis.end, int) and axis.end - axis.begin == 1


def coverage(program: Program, at: int, tensor: int) -> Literal["all", "added", "part"]:
    """Return the extent of the writes of grid loop ``at`` to a tensor: all elements, only ``added`` to, or possibly a
    part.
    """
    alone = replace(program, roots=(program.roots[at],))
    places = Places(alone)
    writes = [
        op for op in alone.walk() if op.kind in ("store", "atomic") and op.attributes(MemoryAttrs).tensor == tensor
    ]
    if all(op.kind == "atomic" for op in writes):
        return "added"
    certain = {id(op) for op in _certain(alone.roots[0].body.ops)}
    covered = any(op.kind == "store" and id(op) in certain and places.covers(op) for op in writes)
    return "all" if covered else "part"


def _certain(ops: Sequence[Op]) -> Iterator[Op]:
    """Yield the ops that run in every program, in every iteration of the loops around them."""
    for op in ops:
        yield op
        if op.kind == "for":
            yield from _certain(op.regions[0].ops)


def classify(program: Program, statements: Sequence[Statement], loads: dict[int, Op]) -> list[Site]:
    """Return the site of every sink, with its way to memory."""
    (root,) = program.roots
    places = Places(program)
    loops = {op.number: op.attrs.axes for op in program.walk() if isinstance(op.attrs, ForAttrs)}
    return [
        _site(places, root, sink, loads[sink.load], nests, [loops[n.op] for n in nests if n.op is not None], in_branch)
        for sink, nests, in_branch in _sinks(statements, (), False)
    ]


def _sinks(
    statements: Sequence[Statement], nests: tuple[Nest, ...], in_branch: bool
) -> list[tuple[Sink, tuple[Nest, ...], bool]]:
    found: list[tuple[Sink, tuple[Nest, ...], bool]] = []
    for statement in statements:
        if isinstance(statement, Sink):
            found.append((statement, nests, in_branch))
        elif isinstance(statement, Nest):
            branch = in_branch or (statement.op is None and not statement.ordered)
            inner = (*nests, statement)
            found += _sinks(statement.body, inner, branch) + _sinks(statement.orelse, inner, branch)
    return found


def _site(
    places: Places,
    root: Root,
    sink: Sink,
    op: Op,
    nests: tuple[Nest, ...],
    loops: list[tuple[LoopAxis, ...]],
    in_branch: bool,
) -> Site:
    walked = places.walked_by(op)
    around = (*root.axes, *(a for axes in loops for a in axes))
    missing = tuple(a for a in around if a.block not in walked and not is_single(a))
    constant = not any(isinstance(bound, OperandRef) for a in around for bound in (a.begin, a.end))
    plain = places.is_plain(op)
    owned = len(missing) < len(around) and not any(nest.ordered for nest in nests)
    way: Way = "atomic"
    if not missing and places.is_injective(op):
        way = "direct"
    elif plain and missing and not nests:
        way = "partial"
    elif plain and missing and constant and owned and not in_branch:
        way = "transposed"
    return Site(
        sink=sink,
        op=op,
        axes=root.axes,
        loops=tuple(loops),
        nests=nests,
        missing=missing,
        covers=places.covers(op) and not in_branch,
        way=way,
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


def check_memory(program: Program) -> None:
    """Raise ``exc.AutodiffNotSupported`` where the value of an element depends on the order of stores."""
    places = Places(program)
    (root,) = program.roots
    uses = count_uses(program)
    accesses: dict[int, list[tuple[Op, tuple[int, ...]]]] = {}
    _collect(program, root.body.ops, (), accesses)
    for found in accesses.values():
        writes = [(op, path) for op, path in found if op.kind != "load"]
        for op, path in writes:
            if op.kind == "store":
                _check_owned(places, op, path)
            elif any(uses[result.number] for result in op.results):
                raise not_supported(
                    "the value that an atomic operation returns", "use the operation for its effect only", op
                )
        for at, (op, path) in enumerate(writes):
            for other, other_path in writes[:at]:
                _check_apart(places, op, path, other, other_path)
        if writes:
            for op, path in found:
                if op.kind == "load":
                    _check_before(op, path, writes, found)


def _collect(
    program: Program, ops: Sequence[Op], path: tuple[int, ...], found: dict[int, list[tuple[Op, tuple[int, ...]]]]
) -> None:
    """Collect accesses by storage, each with the loops and sides of branches around it."""
    for op in ops:
        if isinstance(op.attrs, MemoryAttrs):
            found.setdefault(program.tensors[op.attrs.tensor].storage, []).append((op, path))
        if op.kind in ("for", "while", "if"):
            for at, region in enumerate(op.regions):
                _collect(program, region.ops, (*path, op.number * 2 + at), found)


def _name(program: Program, op: Op) -> str:
    return program.tensors[op.attributes(MemoryAttrs).tensor].name


def _check_owned(places: Places, op: Op, path: tuple[int, ...]) -> None:
    """Refuse a store whose elements several programs or iterations share."""
    loops = {other.number: other.attrs.axes for other in places.program.walk() if isinstance(other.attrs, ForAttrs)}
    around = [*places.root.axes, *(a for number in path for a in loops.get(number // 2, ()))]
    used = places.depends_on(op)
    for axis in around:
        if axis.block not in used and not is_single(axis):
            raise not_supported(
                f"storing into the same elements of {_name(places.program, op)!r} in every iteration over "
                f"{places.program.blocks[axis.block].name!r}",
                "store once, after that loop, or index the tensor by it",
                op,
            )


def _check_apart(places: Places, op: Op, path: tuple[int, ...], other: Op, other_path: tuple[int, ...]) -> None:
    """Refuse two writes into one tensor that may have elements in common."""
    if op.kind == other.kind == "atomic":
        return
    exclusive = any(a != b and a // 2 == b // 2 for a in path for b in other_path)
    if op.kind == other.kind == "store" and (exclusive or places.apart(op, other)):
        return
    raise not_supported(
        f"writing {_name(places.program, op)!r} in several places that may be the same elements",
        "give each its own output, or choose with torch.where what is stored once",
        op,
    )


def _interval_apart(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is not None and b is not None and (a[1] <= b[0] or b[1] <= a[0])


def _check_before(
    op: Op,
    path: tuple[int, ...],
    writes: Sequence[tuple[Op, tuple[int, ...]]],
    found: Sequence[tuple[Op, tuple[int, ...]]],
) -> None:
    """Refuse a load of a written tensor unless it reads the value before the kernel. The same program must read an
    element and then store it.
    """
    order = [each for each, _ in found]
    for write, write_path in writes:
        same = write.kind == "store" and write_path == path and access_key(write)[:2] == access_key(op)[:2]
        if not same or order.index(write) < order.index(op):
            raise not_supported(
                "reading elements of a tensor that the same kernel writes in another place",
                "keep the value in a variable, or write into another tensor",
                op,
            )
