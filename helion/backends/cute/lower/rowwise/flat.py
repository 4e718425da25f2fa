"""``with_flat_rows``: turn a grid over several dimensions of rows into one over all rows, one after the other.

::

    for tile_b, tile_m in hl.tile([b, m]):          for tile in hl.tile(b * m):
        row = x[tile_b, tile_m, :]             →        row = x.view(b * m, n)[tile, :]

One stride has to lead from each row of a tensor to the next. The last dimension of the grid is the block of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ....._compiler.ir.grammar import (
    HostTensor,
    Index,
    IotaAttrs,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._shapes import Dim, Expr
from ...plan.refusal import Refusal
from ..numbers import equal, size
from ..product import check_axis


def with_flat_rows(program: Program) -> Program:
    """Return the program with one grid dimension. Raises ``Refusal`` if a tensor's rows have no stride."""
    if len(program.roots) != 1 or len(program.roots[0].axes) < 2:
        return program
    return _Flat(program).program()


class _Flat:
    def __init__(self, source: Program) -> None:
        (root,) = source.roots
        for axis in root.axes:
            check_axis(axis, source)
        self.source, self.root = source, root
        self.blocks = tuple(axis.block for axis in root.axes)
        self.extents = tuple(size(source.blocks[block].extent) for block in self.blocks)
        self.values: dict[int, Value] = {}
        self.tensors: dict[int, HostTensor] = {}

    def program(self) -> Program:
        """Return the rewritten program; blocks of the other grid dimensions are left without a use."""
        body, rows, last = self._region(self.root.body), self._rows(), self.root.axes[-1]
        changed = replace(self.source.blocks[last.block], extent=rows)
        blocks = tuple(changed if block.id == last.block else block for block in self.source.blocks)
        tensors = tuple(self.tensors.get(tensor.id, tensor) for tensor in self.source.tensors)
        root = replace(self.root, axes=(replace(last, end=rows),), body=body)
        return replace(self.source, blocks=blocks, tensors=tensors, roots=(root,))

    def _rows(self) -> int | Expr:
        rows = math.prod(self.extents[1:], start=self.extents[0])
        assert not isinstance(rows, float)
        return rows

    def _region(self, region: Region) -> Region:
        params = tuple(map(self._value, region.params))
        ops = tuple(map(self._op, region.ops))
        return replace(region, params=params, ops=ops, results=tuple(map(self._operand, region.results)))

    def _operand(self, operand: Operand) -> Operand:
        return self._value(operand) if isinstance(operand, Value) else operand

    def _value(self, value: Value) -> Value:
        if value.number not in self.values:
            self.values[value.number] = replace(value, dims=self._dims(value.dims))
        return self.values[value.number]

    def _dims(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        first = self._place([dim.blocks for dim in dims])
        return tuple(dims) if first is None else (*dims[:first], *dims[first + len(self.blocks) - 1 :])

    def _place(self, found: Sequence[tuple[int, ...]]) -> int | None:
        """Return the position of the grid's dimensions, which have to be all there and in order; None for none."""
        used = [at for at, blocks in enumerate(found) if set(blocks) & set(self.blocks)]
        if not used:
            return None
        if tuple(found[at] for at in used) != tuple((block,) for block in self.blocks) or used[-1] - used[0] >= len(
            used
        ):
            raise Refusal("a value has some of the grid's dimensions, or has them in another order")
        return used[0]

    def _op(self, op: Op) -> Op:
        attrs = op.attrs
        if isinstance(attrs, (IotaAttrs, TileAttrs)) and attrs.block in self.blocks:
            raise Refusal("positions of rows in a grid over several dimensions are not implemented")
        if isinstance(attrs, ViewAttrs) and attrs.name == "permute":
            raise Refusal("a permutation in a grid over several dimensions is not implemented")
        if isinstance(attrs, MemoryAttrs):
            attrs = self._access(attrs)
        if isinstance(attrs, (ReduceAttrs, MaskAttrs)):
            attrs = replace(attrs, dims=self._positions(op, attrs.dims))
        return replace(
            op,
            operands=tuple(map(self._operand, op.operands)),
            results=tuple(map(self._value, op.results)),
            attrs=attrs,
            regions=tuple(map(self._region, op.regions)),
        )

    def _positions(self, op: Op, positions: tuple[int, ...]) -> tuple[int, ...]:
        """Return the positions of dimensions after the grid's are one; a reduction over these is refused later."""
        source = op.operands[0]
        assert isinstance(source, Value)
        first = self._place([dim.blocks for dim in source.dims])
        if first is None:
            return positions
        after = first + len(self.blocks) - 1
        return tuple(dict.fromkeys(at if at < first else max(first, at - after + first) for at in positions))

    def _access(self, attrs: MemoryAttrs) -> MemoryAttrs:
        """Return an access of a tensor with the grid's dimensions as one."""
        found = [(index.block,) if index.kind == "block" and index.block is not None else () for index in attrs.indices]
        first, tensor = self._place(found), self.source.tensors[attrs.tensor]
        known = self.tensors.get(tensor.id, tensor)
        flat = tensor if first is None else self._flat(tensor, first, attrs.indices)
        if tensor.id in self.tensors and known != flat:
            raise Refusal(f"{tensor.name} is accessed in two ways")
        self.tensors[tensor.id] = flat
        if first is None:
            return attrs
        return replace(attrs, indices=(*attrs.indices[:first], *attrs.indices[first + len(self.blocks) - 1 :]))

    def _flat(self, tensor: HostTensor, first: int, indices: Sequence[Index]) -> HostTensor:
        end = first + len(self.blocks)
        shape, strides = tensor.shape[first:end], tensor.strides[first:end]
        if not all(index.shift == 0 and index.operand is None for index in indices[first:end]):
            raise Refusal(f"{tensor.name} is accessed at an offset")
        if not all(map(equal, shape, self.extents)):
            raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which the grid covers {self.extents}")
        for outer, inner, count in zip(strides, strides[1:], shape[1:], strict=False):
            if not equal(outer, inner * count):
                raise Refusal(f"no stride leads from each row of {tensor.name} to the next: {tuple(tensor.strides)}")
        return replace(
            tensor,
            shape=(*tensor.shape[:first], self._rows(), *tensor.shape[end:]),
            strides=(*tensor.strides[:first], strides[-1], *tensor.strides[end:]),
        )
