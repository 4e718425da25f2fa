"""Removal of the batch dimension of a program whose batch tiles are one matrix.

Operands of ``[1, M, K]`` and ``[1, K, N]`` would be loaded in three dimensions and reshaped, and Triton does not
pipeline loads through a reshape. Before::

    %1: [b0, b1, b3] = load x[b0, b1, b3]; %2: [b0, b1, b2] = dot %1, ..

after::

    %9: [] = tile b0.begin; %1: [b1, b3] = load x[%9, b1, b3]; %2: [b1, b2] = dot %1, ..
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...._compiler.ir.build import Builder, Numbers
from ...._compiler.ir.grammar import (
    FoldAttrs,
    GatherAttrs,
    Index,
    IotaAttrs,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    ReduceAttrs,
    Region,
    Root,
    ScanAttrs,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...._compiler.ir.ops import OPS
from ...._compiler.rewrites.steps import StepInputs
from ...._compiler.source import Location


def squeeze_batches(program: Program, inputs: StepInputs) -> Program:
    """Return the program without the batch dimensions whose tiles are of size 1."""
    for batch in sorted(batch_blocks(program)):
        if inputs.sizes_in(program)[batch] == 1:
            program = squeeze(program, batch)
    return program


def batch_blocks(program: Program) -> frozenset[int]:
    """Return the blocks that are the batch dimension of a matmul."""
    return frozenset(
        value.dims[0].block
        for op in program.walk()
        if op.kind == "dot"
        for value in op.values()
        if len(value.dims) == 3 and value.dims[0].block is not None
    )


def squeeze(program: Program, block: int) -> Program:
    """Return the program without the dimension ``block``, whose tiles are of size 1.

    Return the same program where some op does more with it than pass through a leading dimension.
    """
    values = {v.number: v for v in _values(program)}.values()
    if any(block in d.blocks for v in values for d in v.dims[1:]):
        return program
    ranks = frozenset(len(v.dims) for v in values if v.dims and v.dims[0].block == block)
    squeezer = _Squeezer(program, block, ranks)
    if not ranks or not all(squeezer.is_plain(op) for op in program.walk()):
        return program
    return replace(program, roots=tuple(squeezer.root(root) for root in program.roots))


def _values(program: Program) -> Iterator[Value]:
    for op in program.walk():
        yield from op.results
        for region in op.regions:
            yield from region.params


class _Squeezer:
    def __init__(self, program: Program, block: int, ranks: frozenset[int]) -> None:
        self.program = program
        self.block = block
        self.ranks = ranks
        self.numbers = Numbers.after(program)
        self.renamed: dict[int, Value] = {}
        self.begin: Value | None = None

    def loses(self, value: Value) -> bool:
        """Return whether the leading dimension of a value is removed: the batch, or a 1 in its place."""
        if not value.dims:
            return False
        return value.dims[0].block == self.block or (value.dims[0].is_one and len(value.dims) in self.ranks)

    def is_plain(self, op: Op) -> bool:
        """Return whether the op passes the leading dimension through."""
        lost = [v for v in op.values() if self.loses(v)]
        match op.attrs:
            case ReduceAttrs(_, dims) | MaskAttrs(dims, _):
                return not lost or 0 not in dims
            case ViewAttrs("permute", order):
                return not lost or order[0] == 0
            case ScanAttrs(dim, _, _) | FoldAttrs(dim, _) | GatherAttrs(dim):
                return not lost or (dim != 0 and len(lost) == len(list(op.values())))
            case MemoryAttrs():
                return not any(i.block == self.block and i.operand is not None for i in op.attrs.indices)
        if op.kind == "dot":
            return len(lost) in (0, len(list(op.values())))
        return not lost or bool(op.regions) or "subtile" in OPS[op.kind].divided_by

    def root(self, root: Root) -> Root:
        if all(axis.block != self.block for axis in root.axes):
            # the batch loop is inside the program: its begin is read at each use
            return replace(root, body=self.region(root.body))
        first: list[Op] = []
        self.begin = self.read_begin(root.location, first)
        body = self.region(root.body)
        self.begin = None
        return replace(root, body=replace(body, ops=(*first, *body.ops)))

    def value(self, value: Value) -> Value:
        if not self.loses(value):
            return value
        if value.number not in self.renamed:
            self.renamed[value.number] = replace(value, dims=value.dims[1:])
        return self.renamed[value.number]

    def operand(self, operand: Operand) -> Operand:
        return self.value(operand) if isinstance(operand, Value) else operand

    def region(self, region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            made = replace(
                op,
                operands=tuple(map(self.operand, op.operands)),
                results=tuple(map(self.value, op.results)),
                regions=tuple(map(self.region, op.regions)),
            )
            wide = any(self.loses(v) for v in (*op.values(), *op.results))
            ops.append(self.shifted(op, made, ops) if wide else made)
        return Region(tuple(map(self.value, region.params)), tuple(ops), tuple(map(self.operand, region.results)))

    def shifted(self, op: Op, made: Op, before: list[Op]) -> Op:
        match op.attrs:
            case MemoryAttrs():
                return self.access(made, op.attrs, before)
            case IotaAttrs(of, relative, start, _) if of == self.block:
                if relative:
                    return replace(made, kind="full", operands=(start,), attrs=None)
                return replace(made, kind="tile", attrs=TileAttrs(of, "begin"))
            case ReduceAttrs(name, dims):
                return replace(made, attrs=ReduceAttrs(name, tuple(d - 1 for d in dims)))
            case MaskAttrs(dims, fill):
                return replace(made, attrs=MaskAttrs(tuple(d - 1 for d in dims), fill))
            case ViewAttrs("permute", order):
                return replace(made, attrs=ViewAttrs("permute", tuple(i - 1 for i in order[1:])))
            case ScanAttrs(dim, reverse, identity):
                return replace(made, attrs=ScanAttrs(dim - 1, reverse, identity))
            case FoldAttrs(dim, other):
                return replace(made, attrs=FoldAttrs(dim - 1, other))
            case GatherAttrs(dim):
                return replace(made, attrs=replace(op.attrs, dim=dim - 1))
        return made

    def access(self, op: Op, attrs: MemoryAttrs, before: list[Op]) -> Op:
        """Return the access with a scalar as batch subscript and the other dimensions one position further to the
        front.
        """
        operands = list(op.operands)
        indices: list[Index] = []
        for index in attrs.indices:
            positions = tuple(p - 1 for p in index.positions if p > 0)
            if index.kind == "block" and index.block == self.block:
                operands.append(self.begin_value(op, before))
                indices.append(Index("scalar", shift=index.shift, operand=len(operands) - 1))
            elif index.kind == "tensor" and not positions:
                indices.append(Index("scalar", shift=index.shift, operand=index.operand))
            else:
                indices.append(replace(index, positions=positions))
        return replace(op, operands=tuple(operands), attrs=replace(attrs, indices=tuple(indices), rank=attrs.rank - 1))

    def begin_value(self, op: Op, before: list[Op]) -> Value:
        if self.begin is not None:
            return self.begin
        return self.read_begin(op.location, before)

    def read_begin(self, location: Location | None, ops: list[Op]) -> Value:
        out, attrs = Builder(self.numbers, location, ops), TileAttrs(self.block, "begin")
        return out.emit("tile", (), self.program.index_dtype, (), attrs, "batch")
