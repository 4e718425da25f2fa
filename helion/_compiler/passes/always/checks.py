"""Checked mode: bounds checks before accesses, and checks for uninitialized memory after loads.

Before::

    %3: [b0] = load x[%2@0] slot 0

After::

    check 0 <= %2@0 < 1000
    %3: [b0] = load x[%2@0] slot 0
    check written %3

An index that is in range by construction, such as a tile of a loop over the dimension, needs no check. Accesses in the
user's inline source cannot be checked. The index of ``torch.gather`` is checked like that of an access.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ...._shapes import Dim, Expr, Number, fixed_at
from ....language._unwritten import PATTERNS
from ...ir.build import Numbers
from ...ir.grammar import CheckAttrs, ForAttrs, GatherAttrs, Index, LoopAxis, MemoryAttrs, Op, Program
from ...ir.rewrite import expand_ops

_VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}


def insert_checks(program: Program) -> Program:
    """Return the program with a check for every property of its accesses that is not certain."""
    inserter = _Inserter(program)
    return expand_ops(program, inserter.checked)


class _Inserter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.axes: dict[int, list[LoopAxis]] = {}
        for axis in _axes(program):
            self.axes.setdefault(axis.block, []).append(axis)
        self.watched = _made_by_host(program)
        self.numbers = Numbers.after(program)

    def checked(self, op: Op) -> Iterator[Op]:
        """Yield an op with the checks before and after it."""
        if isinstance(op.attrs, MemoryAttrs):
            yield from self.ranges(op)
        elif isinstance(op.attrs, GatherAttrs) and op.attrs.given:
            yield self.picked(op, op.attrs.dim)
        yield op
        if isinstance(op.attrs, MemoryAttrs):
            yield from self.written(op)

    def ranges(self, op: Op) -> Iterator[Op]:
        attrs = op.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        for dim, (index, size) in enumerate(zip(attrs.indices, tensor.shape, strict=True)):
            if self.is_inside(index, size):
                continue
            what = f"{_VERBS[op.kind]} {tensor.source!r} out of range in dimension {dim}{_size_text(size)}"
            yield self.check(op, what, index=index, size=size)

    def written(self, op: Op) -> Iterator[Op]:
        """Yield the check of a loaded value, if the host code may have allocated the tensor without filling it."""
        attrs = op.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        if op.kind == "store" or tensor.dtype not in PATTERNS or tensor.source not in self.watched:
            return
        what = f"{_VERBS[op.kind]} uninitialized elements of {tensor.source!r}"
        check = self.check(op, what)
        mask = () if attrs.mask is None else (op.operands[attrs.mask],)
        yield replace(
            check, operands=(op.result, *mask), attrs=replace(check.attrs, mask=1 if attrs.mask is not None else None)
        )

    def picked(self, op: Op, dim: int) -> Op:
        """Return the check of the index of a gather, which counts through all lanes of a dimension."""
        value, index = op.values()
        along = value.dims[dim]
        block = None if along.block is None else self.program.blocks[along.block]
        extent = block.extent if block is not None and block.kind == "full" else None
        size = along if extent is None else extent
        what = f"gathers out of range along dimension {dim}{_size_text(size)}"
        positions = tuple(range(len(index.dims)))
        return self.check(op, what, index=Index("tensor", positions=positions, operand=1), size=size)

    def check(self, op: Op, what: str, index: Index | None = None, size: Number | Dim = 0) -> Op:
        place = "" if op.location is None else f"{op.location.short()}: "
        line = "" if op.location is None else f", in `{op.location.text}`"
        attrs = CheckAttrs(
            message=f"{place}kernel {self.program.host.name!r} {what}{line}",
            dims=op.results[0].dims,
            index=index,
            size=size,
            mask=op.attrs.mask if isinstance(op.attrs, MemoryAttrs) else None,
        )
        return Op(self.numbers.op(), "check", op.operands, (), attrs, (), op.location)

    def is_inside(self, index: Index, size: Number) -> bool:
        """Return whether an index is certainly in range, in the valid lanes."""
        if index.operand is not None or index.kind == "tensor":
            return False
        if index.kind == "scalar":
            return isinstance(index.shift, int) and isinstance(size, int) and 0 <= index.shift < size
        assert index.block is not None
        block = self.program.blocks[index.block]
        block = block if block.part is None else self.program.blocks[block.part.block]
        axes = self.axes.get(block.id, ())
        if block.kind == "full":
            return (fixed_at(index.shift, 0) and _within(block.extent, size)) or _fits(block.extent, index.shift, size)
        if not axes:
            return False
        return all(_is_natural(axis.begin) and self.ends_inside(axis, index.shift, size) for axis in axes)

    def ends_inside(self, axis: LoopAxis, shift: Number, size: Number) -> bool:
        end = axis.end
        if not isinstance(end, (int, Expr)):
            return False
        return (fixed_at(shift, 0) and _within(end, size)) or _fits(end, shift, size)


def _axes(program: Program) -> Iterator[LoopAxis]:
    for root in program.roots:
        yield from root.axes
    for op in program.walk():
        if isinstance(op.attrs, ForAttrs):
            yield from op.attrs.axes


def _made_by_host(program: Program) -> frozenset[str]:
    """Return host expressions of the tensors that are not unchanged arguments."""
    function = program.host.function
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    given = {a.arg for a in (*function.args.posonlyargs, *function.args.args)} - stored
    return frozenset(tensor.source for tensor in program.tensors if tensor.source not in given)


def _is_natural(number: object) -> bool:
    return isinstance(number, int) and number >= 0


def _within(extent: Number | None, size: Number) -> bool:
    if isinstance(extent, Expr) and extent.op == "max" and extent.args[0] == 0:  # no size is below 0
        return _within(extent.args[1], size)
    if isinstance(extent, Expr) and isinstance(size, Expr):
        return extent.key == size.key
    return isinstance(extent, int) and isinstance(size, int) and extent <= size


def _fits(extent: Number | None, shift: Number, size: Number) -> bool:
    """Return whether ``shift`` to ``shift + extent`` are constants within ``size``."""
    if not (isinstance(extent, int) and isinstance(shift, int) and isinstance(size, int)):
        return False
    return shift >= 0 and shift + extent <= size


def _size_text(size: Number | Dim) -> str:
    return f", which has {size} elements" if isinstance(size, int) else ""


__all__ = ["insert_checks"]
