"""``with_flat_rows``: turn a grid over several dimensions of rows into one over all rows, one after the other.

::

    for tile_b, tile_m in hl.tile([b, m]):          for tile in hl.tile(b * m):
        row = x[tile_b, tile_m, :]             →        row = x.view(b * m, n)[tile, :]

One stride has to lead from each row of a tensor to the next. The last dimension of the grid is the block of the rows.
A vector over one dimension of the grid, as the weight of each channel, is one over rows with repeated elements. So is a
matrix of one of them and columns, as a mask that heads share. A load at the indices of all dimensions of the grid and a
number of each row, as ``x[tile_b.index[:, None], tile_m.index[None, :], labels]``, reads one element of each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
from ....._shapes import ONE, Dim, Expr, Number, fixed_at
from ....._support.records import dataclass, field, replace
from ...plan.epilogue import MAX_NUMBERED
from ...plan.refusal import Refusal
from ...plan.rowwise.operands import Repeat
from ..numbers import equal, factors, size
from ..product import check_axis


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """Values with one of several dimensions of rows: row r has number (r // divisor) % modulus, given in this order.

    ``tensors`` are vectors and matrices by number, ``places`` are indices of such a dimension, by value.
    """

    tensors: Mapping[int, tuple[Number, Number]] = field(default_factory=dict)
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def of(self, tensor: int, label: str) -> tuple[Repeat, dict[str, Expr]]:
        """Return which elements rows have of a tensor, and the numbers of it that only the launch knows, by name."""
        given = dict(zip((f"divisor_{label}", f"modulus_{label}"), self.tensors[tensor], strict=True))
        counts = {name: number for name, number in given.items() if isinstance(number, Expr)}
        divisor, modulus = (name if name in counts else int(number) for name, number in given.items())
        return Repeat(operand=label, divisor=divisor, modulus=modulus), counts


def with_flat_rows(program: Program) -> tuple[Program, Repeated]:
    """Return the program with one grid dimension, and its vectors over one of several. Raises ``Refusal`` if a tensor's
    rows have no stride."""
    if len(program.roots) != 1 or len(program.roots[0].axes) < 2:
        return program, Repeated()
    flat = _Flat(program)
    return flat.program(), Repeated(tensors=flat.repeated, places=flat.places)


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
        self.repeated: dict[int, tuple[Number, Number]] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.makers = {result.number: op for op in source.walk() for result in op.results}
        self.positions = self._positions_of_gathers()

    def _positions_of_gathers(self) -> frozenset[int]:
        """Return the values that only give loads the indices of the grid's dimensions."""
        found: set[int] = set()
        gathers = [op for op in self.source.walk() if op.kind == "load" and self._gathers(op)]
        for op in gathers:
            left = [operand for operand in op.operands[: len(self.blocks)] if isinstance(operand, Value)]
            while left:
                value = left.pop()
                found.add(value.number)
                left += [each for each in self.makers[value.number].operands if isinstance(each, Value)]
        known = {op.number for op in gathers}
        for op in self.source.walk():
            inner = any(result.number in found for result in op.results)
            if op.number not in known and not inner:
                found -= {operand.number for operand in op.operands if isinstance(operand, Value)}
        return frozenset(found)

    def _gathers(self, op: Op) -> bool:
        """Return whether a load reads one element of each row, at the indices of all dimensions of the grid."""
        indices, count = op.attributes(MemoryAttrs).indices, len(self.blocks)
        plain = len(indices) == count + 1 == len(op.operands)
        if not plain or any(each.kind != "tensor" or each.operand != at for at, each in enumerate(indices)):
            return False
        return [self._index(operand) for operand in op.operands[:count]] == [*self.blocks]

    def _index(self, operand: Operand) -> int | None:
        """Return the block whose indices a value is, with other dimensions of 1; None for other values."""
        made = self.makers.get(operand.number) if isinstance(operand, Value) else None
        while made is not None and isinstance(made.attrs, ViewAttrs) and made.attrs.name != "permute":
            source = made.operands[0]
            made = self.makers.get(source.number) if isinstance(source, Value) else None
        if made is None or not isinstance(made.attrs, IotaAttrs):
            return None
        attrs = made.attrs
        return attrs.block if not attrs.relative and (attrs.start, attrs.step) == (0, 1) else None

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
        kept = (op for op in region.ops if not any(result.number in self.positions for result in op.results))
        ops = tuple(map(self._op, kept))
        return replace(region, params=params, ops=ops, results=tuple(map(self._operand, region.results)))

    def _operand(self, operand: Operand) -> Operand:
        return self._value(operand) if isinstance(operand, Value) else operand

    def _value(self, value: Value) -> Value:
        if value.number not in self.values:
            self.values[value.number] = replace(value, dims=self._dims(value.dims))
        return self.values[value.number]

    def _dims(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        slot = self._slot(dims)
        if slot is None:
            return tuple(dims)
        rows = Dim(blocks=(self.blocks[-1],)) if any(dim.blocks for dim in dims[slot[0] : slot[1]]) else ONE
        return (*dims[: slot[0]], rows, *dims[slot[1] :])

    def _slot(self, dims: Sequence[Dim]) -> tuple[int, int] | None:
        """Return the first and last position of the grid's dimensions, some of which may be 1 or missing; None for
        none of them."""
        used = [at for at, dim in enumerate(dims) if {*dim.blocks} & {*self.blocks}]
        if not used:
            ones = len(dims) > len(self.blocks) and all(dim.is_one for dim in dims[: len(self.blocks)])
            return (0, len(self.blocks)) if ones else None
        before = next(at for at, block in enumerate(self.blocks) if block in dims[used[0]].blocks)
        first, end = max(0, used[0] - before), min(len(dims), used[0] - before + len(self.blocks))
        while end - 1 > used[-1] and not dims[end - 1].is_one:
            end -= 1
        for at, dim in enumerate(dims):
            wanted = self.blocks[at - used[0] + before] if first <= at < end else None
            known = at not in used if wanted is None else dim.is_one or dim.block == wanted
            if not known:
                raise Refusal("a value has some of the grid's dimensions, or has them in another order")
        return first, end

    def _op(self, op: Op) -> Op:
        attrs = op.attrs
        if isinstance(attrs, TileAttrs) and attrs.block in self.blocks:
            raise Refusal(
                f"the {attrs.field} of a tile in a grid over several dimensions is not implemented; use its index"
            )
        if isinstance(attrs, IotaAttrs) and attrs.block in self.blocks:
            return self._place(op, attrs)
        if isinstance(attrs, ViewAttrs) and attrs.name == "permute":
            raise Refusal("a permutation in a grid over several dimensions is not implemented")
        if isinstance(attrs, MemoryAttrs) and op.kind == "load" and self._gathers(op):
            return self._gathered(op, attrs)
        if isinstance(attrs, MemoryAttrs):
            attrs = self._access(attrs, op.kind == "load")
        if isinstance(attrs, (ReduceAttrs, MaskAttrs)):
            attrs = replace(attrs, dims=self._positions(op, attrs.dims))
        return replace(
            op,
            operands=tuple(map(self._operand, op.operands)),
            results=tuple(map(self._value, op.results)),
            attrs=attrs,
            regions=tuple(map(self._region, op.regions)),
        )

    def _place(self, op: Op, attrs: IotaAttrs) -> Op:
        """Return the indices of a dimension of the grid as those of all rows, whose places are noted."""
        at = self.blocks.index(attrs.block)
        count, later = self.extents[at], self.extents[at + 1 :]
        if attrs.relative or (attrs.start, attrs.step) != (0, 1):
            raise Refusal("indices relative to a tile of a grid over several dimensions are not implemented")
        if not isinstance(count, int) or not all(isinstance(each, int) for each in later):
            raise Refusal("indices of a dimension of a grid of several, whose extents only the launch knows")
        if count > MAX_NUMBERED:
            raise Refusal(f"indices of {count} rows; up to {MAX_NUMBERED} are exact in float32")
        result = self._value(op.result)
        self.places[result.number] = (math.prod(each for each in later if isinstance(each, int)), count)
        return replace(op, results=(result,), attrs=replace(attrs, block=self.blocks[-1]))

    def _gathered(self, op: Op, attrs: MemoryAttrs) -> Op:
        """Return a load of one element of each row as one at the row and a number of it."""
        tensor, place = self.source.tensors[attrs.tensor], op.operands[-1]
        flat = self._flat(tensor, 0, [Index(kind="block", block=block) for block in self.blocks])
        if self.tensors.setdefault(tensor.id, flat) != flat:
            raise Refusal(f"{tensor.name} is accessed in two ways")
        row = Index(kind="block", block=self.blocks[-1], positions=(0,))
        column = replace(attrs.indices[-1], operand=0, positions=(0,))
        return replace(
            op,
            operands=(self._operand(place),),
            results=tuple(map(self._value, op.results)),
            attrs=replace(attrs, indices=(row, column), rank=1),
        )

    def _positions(self, op: Op, positions: tuple[int, ...]) -> tuple[int, ...]:
        """Return the positions of dimensions after the grid's are one; a reduction over these is refused later."""
        source = op.operands[0]
        assert isinstance(source, Value)
        slot = self._slot(source.dims)
        if slot is None:
            return positions
        first, end = slot
        return tuple(dict.fromkeys(at if at < first else max(first, at - end + 1 + first) for at in positions))

    def _access(self, attrs: MemoryAttrs, loads: bool) -> MemoryAttrs:
        """Return an access of a tensor with the grid's dimensions as one."""
        blocks = [index.block if index.kind == "block" else None for index in attrs.indices]
        used, tensor = (
            [at for at, block in enumerate(blocks) if block in self.blocks],
            self.source.tensors[attrs.tensor],
        )
        known, first = self.tensors.get(tensor.id, tensor), used[0] if used else None
        repeats = loads and len(used) == 1 and used == [0] and len(blocks) <= 2
        if not used:
            flat = tensor
        elif repeats:
            flat = self._repeating(tensor, attrs.indices[0])
        elif [blocks[at] for at in used] == [*self.blocks] and used[-1] - used[0] < len(used):
            flat = self._flat(tensor, used[0], attrs.indices)
        else:
            raise Refusal(f"{tensor.name} has some of the grid's dimensions, or has them in another order")
        if tensor.id in self.tensors and known != flat:
            raise Refusal(f"{tensor.name} is accessed in two ways")
        self.tensors[tensor.id] = flat
        if first is None:
            return attrs
        if repeats:
            return replace(attrs, indices=(replace(attrs.indices[0], block=self.blocks[-1]), *attrs.indices[1:]))
        return replace(attrs, indices=(*attrs.indices[:first], *attrs.indices[first + len(self.blocks) - 1 :]))

    def _repeating(self, tensor: HostTensor, index: Index) -> HostTensor:
        """Return a tensor over one dimension of the grid as one over rows, whose elements or rows repeat."""
        assert index.block is not None
        at = self.blocks.index(index.block)
        later, count = self.extents[at + 1 :], self.extents[at]
        if not fixed_at(index.shift, 0) or index.operand is not None or not equal(tensor.shape[0], count):
            raise Refusal(f"{tensor.name} is accessed at an offset")
        self.repeated[tensor.id] = (math.prod(later), count)
        return replace(tensor, shape=(self._rows(), *tensor.shape[1:]))

    def _flat(self, tensor: HostTensor, first: int, indices: Sequence[Index]) -> HostTensor:
        end = first + len(self.blocks)
        shape, strides = tensor.shape[first:end], tensor.strides[first:end]
        if not all(fixed_at(index.shift, 0) and index.operand is None for index in indices[first:end]):
            raise Refusal(f"{tensor.name} is accessed at an offset")
        if not all(map(equal, shape, self.extents)):
            raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which the grid covers {self.extents}")
        for outer, inner, count in zip(strides, strides[1:], shape[1:], strict=False):
            fixed = self.source.host.specialized
            if not equal(count, 0) and factors(outer, fixed) != factors(inner * count, fixed):
                raise Refusal(f"no stride leads from each row of {tensor.name} to the next: {tuple(tensor.strides)}")
        return replace(
            tensor,
            shape=(*tensor.shape[:first], self._rows(), *tensor.shape[end:]),
            strides=(*tensor.strides[:first], strides[-1], *tensor.strides[end:]),
        )
