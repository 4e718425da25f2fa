"""``with_single_rows``: turn a program over blocks of rows, which sums values over the rows of each, into one over rows.

::

    for block in hl.tile(m, block_size=size):
        acc = hl.zeros([n])                                  for tile in hl.tile(m):
        for tile in hl.tile(block.begin, block.end):             row = x[tile, :]
            row = x[tile, :]                             →
            acc += row.sum(0)                                parts[i, :] = sum of the rows of block i
        parts[block.id, :] = acc
"""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import (
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ....._compiler.ir.operands import is_block
from ....._shapes import dtype_name, fixed_at
from ....._support.records import dataclass, replace
from ...plan.refusal import Refusal
from ..product import check_axis


@dataclass(frozen=True, kw_only=True)
class RowSum:
    """A sum of ``value``, which has an element for each row and column, that ``store`` writes for each block of rows."""

    value: Value
    store: Op


@dataclass(frozen=True, kw_only=True)
class BlockSums:
    """The sums over the rows of each tile of ``block``."""

    block: int
    sums: tuple[RowSum, ...]


def with_single_rows(program: Program) -> tuple[Program, BlockSums | None]:
    """Return the program over rows and its sums, or the program itself and None. Raises ``Refusal`` for other work of a
    block after its rows than the stores of their sums. Work before them is done for each row."""
    loop = _loop_over_tile(program)
    if loop is None:
        return program, None
    root = program.roots[0]
    check_axis(root.axes[0], program)
    found = _Blocks(program, root, loop).sums()
    outer, (inner,) = root.axes[0].block, loop.attributes(ForAttrs).axes
    rows = replace(program.blocks[inner.block], extent=program.blocks[outer].extent)
    blocks = tuple(rows if block.id == inner.block else block for block in program.blocks)
    first = root.body.ops[: root.body.ops.index(loop)]
    body = replace(loop.regions[0], params=(), ops=(*first, *loop.regions[0].ops), results=())
    single = replace(root, axes=(replace(root.axes[0], block=inner.block),), body=body)
    return replace(program, blocks=blocks, roots=(single,)), BlockSums(block=outer, sums=found)


def _loop_over_tile(program: Program) -> Op | None:
    """Return the loop from the first to the last row of a tile of the grid, if there is one."""
    if len(program.roots) != 1 or len(program.roots[0].axes) != 1:
        return None
    (root,) = program.roots
    makers = {result.number: op for op in root.body.ops for result in op.results}
    for op in root.body.ops:
        if op.kind != "for" or len(axes := op.attributes(ForAttrs).axes) != 1:
            continue
        ends = [op.operands[end.at] for end in (axes[0].begin, axes[0].end) if isinstance(end, OperandRef)]
        made = [makers[end.number].attrs for end in ends if isinstance(end, Value) and end.number in makers]
        block = root.axes[0].block
        if made == [TileAttrs(block, "begin"), TileAttrs(block, "end")]:
            return op
    return None


class SumReader:
    """A reader of sums over the tiles of a loop, which begin at 0."""

    def __init__(self, program: Program, root: Root, loop: Op) -> None:
        self.program, self.root, self.loop = program, root, loop
        self.region: Region = loop.regions[0]
        self.makers = {result.number: op for op in program.walk() for result in op.results}

    @property
    def axis(self) -> LoopAxis:
        """The axis of the loop."""
        return self.loop.attributes(ForAttrs).axes[0]

    def _summed(self, value: Operand, name: str) -> Value:
        """Return the terms of a value that is such a sum, of which tensor ``name`` is to have the result."""
        final = self._through_views(value)
        at = next((at for at, result in enumerate(self.loop.results) if result is final), None)
        if at is None or not self._is_zero(self.loop.operands[at]):
            raise Refusal(f"{name} is no sum over the rows of a block that begins at 0")
        return self._term(at, name)

    def _term(self, at: int, name: str) -> Value:
        """Return the values whose sum over the rows of a tile is added to carried value number ``at``."""
        param = self.region.params[at]
        made = self._made(self.region.results[at])
        if made is not None and made.attrs == PointwiseAttrs("add"):
            terms = [each for each in map(self._through_views, made.operands) if each is not param]
            reduced = self._made(terms[0]) if len(terms) == 1 else None
            source = reduced.operands[0] if reduced is not None and reduced.kind == "reduce" else None
            if reduced is not None and isinstance(source, Value) and self._is_read_once(param):
                attrs = reduced.attributes(ReduceAttrs)
                rows = self.loop.attributes(ForAttrs).axes[0].block
                if attrs.name == "sum" and [source.dims[dim].block for dim in attrs.dims] == [rows]:
                    return source
        raise Refusal(f"{name} is no sum over the rows of a block, one term for each tile of rows")

    def _is_zero(self, start: Operand) -> bool:
        made = self._made(start)
        return made is not None and made.kind == "full" and made.operands[0] == 0

    def _is_read_once(self, value: Value) -> bool:
        return sum(operand is value for op in self.region.walk() for operand in op.operands) == 1

    def _made(self, value: Operand) -> Op | None:
        value = self._through_views(value)
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def _through_views(self, value: Operand) -> Operand:
        made = self.makers.get(value.number) if isinstance(value, Value) else None
        while made is not None and made.kind == "view":
            value = made.operands[0]
            made = self.makers.get(value.number) if isinstance(value, Value) else None
        return value


class _Blocks(SumReader):
    """The reader of what a block of rows computes."""

    def sums(self) -> tuple[RowSum, ...]:
        """Return the sums that are stored after the loop."""
        stores, at = [], self.root.body.ops.index(self.loop)
        for number, op in enumerate(self.root.body.ops):
            if op.kind == "store" and number > at:
                stores.append(op)
            elif number > at and op.kind not in ("tile", "pointwise", "view"):
                raise Refusal(f"{op.kind} after the loop over the rows of a block is not implemented")
        return tuple(RowSum(value=self._stored(store), store=store) for store in stores)

    def _stored(self, store: Op) -> Value:
        tensor = self.program.tensors[store.attributes(MemoryAttrs).tensor]
        if not self._stores_block(store):
            raise Refusal(f"{tensor.name} is not stored at the index of a block of rows")
        if tensor.dtype != torch.float32:
            raise Refusal(f"sums over rows are stored as {dtype_name(tensor.dtype)}; float32 is implemented")
        return self._summed(store.operands[0], tensor.name)

    def _stores_block(self, store: Op) -> bool:
        """Return whether a store writes line ``block.id`` of a matrix, or its only line for the only block."""
        attrs = store.attributes(MemoryAttrs)
        if attrs.mask is not None or len(attrs.indices) != 2:
            return False
        line, columns = attrs.indices
        number = store.operands[line.operand] if line.operand is not None else None
        made = self.makers.get(number.number) if isinstance(number, Value) else None
        one = number is None and self._is_one_block()
        if not one and (made is None or made.attrs != TileAttrs(self.root.axes[0].block, "id")):
            return False
        plain = line.kind == "scalar" and fixed_at(line.shift, 0)
        return plain and is_block(columns)

    def _is_one_block(self) -> bool:
        block = self.program.blocks[self.root.axes[0].block]
        return isinstance(block.extent, int) and isinstance(block.size, int) and block.extent <= block.size
