"""Lookups in small tables in loops that multiply: the table is loaded once, and lanes take elements of registers.

Triton copies operands of matmuls to shared memory ahead, with what they are computed from. A lookup in a table has an
address for each lane. As a copy of 4 bytes for each of them it takes many times as long as a load (measurement
``tables_in_loops``). Before::

    for b2 in 0..k: %1: [b2, b1] = load codes; %2: [b2, b1] = load table[%1]; dot %2

After, with a dimension ``b3`` of all elements of the table, such as 16::

    %3: [b3] = load table[b3]
    for b2 in 0..k: %1: [b2, b1] = load codes; %4: [b2 * b1] = reshape %1 & 15; %5 = gather %3, %4; %2 = reshape %5; dot %2

Elements of 2 bytes and less are not copied ahead. A table has a power of two of elements, which lie next to each other,
and the kernel stores to none of them.
Checked kernels keep their lookups, and report places out of range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.effects import written_by
from ....._compiler.ir.grammar import (
    Block,
    ForAttrs,
    GatherAttrs,
    Index,
    MemoryAttrs,
    Op,
    Program,
    Region,
    Root,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.rewrite import Makers, expand_region, map_regions
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import Dim, fixed_at, is_power_of_2
from ....._support.records import dataclass, field, replace
from ...lookups import COPIED_BYTES, MOST_LOOKED_UP


def look_up_tables(program: Program, inputs: StepInputs) -> Program:
    """Return the program with the tables of lookups that feed matmuls loaded before their loops."""
    if not inputs.copied_ahead or inputs.checked or not any(op.kind == "dot" for op in program.walk()):
        return program
    tables = _Tables(program=program, boxed=inputs.block_accesses, numbers=Numbers.after(program))
    roots = tuple(tables.root(root) for root in program.roots)
    if all(new is old for new, old in zip(roots, program.roots, strict=True)):
        return program
    return replace(program, roots=roots, blocks=(*program.blocks, *tables.blocks))


@dataclass(frozen=True, kw_only=True)
class _Tables:
    program: Program
    boxed: frozenset[int]
    numbers: Numbers
    blocks: list[Block] = field(default_factory=list)

    def root(self, root: Root) -> Root:
        """Return a grid loop with its tables loaded before its loops."""
        written, ops = written_by(self.program, root.body.walk()), list[Op]()
        for op in root.body.ops:
            found = {load.number: load for load in self._lookups(op, written)}
            out = Builder(self.numbers, op.location, ops)
            tables: dict[int, Value] = {}
            for load in found.values():
                tensor = load.attributes(MemoryAttrs).tensor
                tables[tensor] = tables[tensor] if tensor in tables else self._table(out, load)

            def change(inner: Op, found: Mapping[int, Op] = found, tables: Mapping[int, Value] = tables) -> list[Op]:
                return self._looked_up(inner, tables) if inner.number in found else [inner]

            ops.append(map_regions(op, lambda region: expand_region(region, change)) if found else op)
        return replace(root, body=replace(root.body, ops=tuple(ops))) if len(ops) > len(root.body.ops) else root

    def _lookups(self, op: Op, written: frozenset[int | None]) -> Iterator[Op]:
        """Yield the lookups in loops that the matmuls of these loops are computed from."""
        for loop in op.walk():
            if isinstance(loop.attrs, ForAttrs):
                fed = _fed(loop.regions[0])
                yield from (
                    each for each in loop.regions[0].ops if each.number in fed and self._is_lookup(each, written)
                )

    def _is_lookup(self, op: Op, written: frozenset[int | None]) -> bool:
        """Return whether an op loads lanes of a small table that a value numbers, and nothing stores to the table."""
        attrs = op.attrs
        if op.kind != "load" or not isinstance(attrs, MemoryAttrs) or len(attrs.indices) != 1 or not attrs.rank:
            return False
        tensor, (index,) = self.program.tensors[attrs.tensor], attrs.indices
        places = op.operands[index.operand] if index.operand is not None else None
        extent = tensor.shape[0]
        plain = attrs.mask is None and attrs.mark is None and not attrs.padded and attrs.slot not in self.boxed
        ordered = index.kind == "tensor" and index.positions == tuple(range(attrs.rank)) and fixed_at(index.shift, 0)
        small = (
            isinstance(extent, int)
            and extent <= MOST_LOOKED_UP
            and is_power_of_2(extent)
            and fixed_at(tensor.strides[0], 1)
        )
        kept = tensor.storage not in written and None not in written
        same = isinstance(places, Value) and places.dims == op.result.dims
        return plain and ordered and small and kept and same and tensor.dtype.itemsize >= COPIED_BYTES

    def _table(self, out: Builder, load: Op) -> Value:
        """Return all elements of the table of a lookup."""
        attrs = load.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        number = len(self.program.blocks) + len(self.blocks)
        extent = int(tensor.shape[0])
        self.blocks.append(Block(id=number, kind="full", extent=extent, size=extent, name=tensor.name))
        whole = replace(attrs, indices=(Index("block", block=number, positions=(0,)),), rank=1, aligned=0)
        return out.emit("load", (), load.result.dtype, (Dim(1, (number,)),), whole, tensor.name)

    def _looked_up(self, load: Op, tables: Mapping[int, Value]) -> list[Op]:
        """Return the ops in place of a lookup. Places out of range, which no lane in range has, are brought into it."""
        made: list[Op] = []
        attrs, out = load.attributes(MemoryAttrs), Builder(self.numbers, load.location, made)
        table, at = tables[attrs.tensor], attrs.indices[0].operand
        assert at is not None
        places = load.operands[at]
        assert isinstance(places, Value)
        within = out.pointwise("bitwise_and", places, int(self.program.tensors[attrs.tensor].shape[0]) - 1)
        if len(places.dims) == 1:
            out.append("gather", (table, within), (load.result,), GatherAttrs(0))
            return made
        lanes = (Dim(math.prod(dim.const for dim in places.dims), tuple(b for dim in places.dims for b in dim.blocks)),)
        found = out.emit("gather", (table, out.reshape(within, lanes)), load.result.dtype, lanes, GatherAttrs(0))
        out.append("view", (found,), (load.result,), ViewAttrs("reshape"))
        return made


def _fed(body: Region) -> set[int]:
    """Return the ops of a loop, by number, that the operands of its matmuls are computed from."""
    makers, found = Makers.among(body.ops), set[int]()
    ahead = [operand for op in body.ops if op.kind == "dot" for operand in list(op.values())[:2]]
    while ahead:
        op = makers.of(ahead.pop())
        if op is not None and op.number not in found:
            found.add(op.number)
            ahead += op.values()
    return found
