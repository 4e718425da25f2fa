"""Split-K partials that a later grid loop adds up, as one matmul over all of K.

::

    for part, tile_m, tile_n in hl.tile([parts, m, n], ...):      for tile_m, tile_n in hl.tile([m, n]):
        for tile_k in hl.tile(begin(part), end(part)):                for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], ..., acc=acc)                 acc = hl.dot(x[tile_m, tile_k], ..., acc=acc)
        partials[part, tile_m, tile_n] = acc                  →       out[tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = partials[:, tile_m, tile_n].sum(0)

No other code sees the partials, which are in fp32. Config keys split K again, and add the parts in one order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ....._compiler.host.analysis import hidden_names
from ....._compiler.ir.grammar import (
    Bound,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.operands import is_block
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import Dim, fixed_at, number_key
from ....._support.records import dataclass
from ..numbers import equal

MAX_PARTS = 4096
"""Parts of K whose bounds are evaluated."""
MOVED = ("pointwise", "load", "store", "full", "view", "tile", "iota", "mask", "atomic")
"""Operations of the second grid loop that keep their meaning in the first one."""
_ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "minimum": min,
    "maximum": max,
    "cast": lambda x: x,
}


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A ``program`` over all of K, or over all keys. ``blocks`` are those of the parts and of the second grid loop, which are
    gone; without any the program is the original one. ``masks``: why masks that hide all keys of a part would change the
    result; empty if they do not."""

    program: Program
    blocks: tuple[int, ...] = ()
    masks: str = ""


def with_whole_k(program: Program) -> Whole:
    """Return the program without partials in memory."""
    found = Joiner(program).joined() if has_two_phases(program) else None
    return found or Whole(program=program)


def has_two_phases(program: Program) -> bool:
    """Return whether a program is two grid loops with a barrier and no host code in between."""
    roots = program.roots
    return len(roots) == 2 and roots[0].phase != roots[1].phase and roots[0].launch == roots[1].launch


class Joiner:
    """A rewrite of two grid loops to one."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.first, self.second = program.roots
        self.makers = {result.number: op for op in program.walk() for result in op.results}

    def joined(self) -> Whole | None:
        loops = [op for op in self.first.body.ops if op.regions]
        stores = [op for op in self.first.body.ops if op.kind in ("store", "atomic")]
        if len(loops) != 1 or loops[0].kind != "for" or len(stores) != 1 or stores[0].kind != "store":
            return None
        (loop,), (store,) = loops, stores
        if len(loop.attributes(ForAttrs).axes) != 1 or self.made(store.operands[0]) is not loop:
            return None
        part, sums = self._part(store), self._sums(store.attrs.tensor)
        if part is None or sums is None or not self.is_hidden(store.attrs.tensor, store):
            return None
        k = self._whole_k(loop, part)
        dims = self._same_tiles(store, sums[0], part)
        if k is None or dims is None or not _fits(sums[1], loop, dims):
            return None
        return self._rewritten(loop, store, sums[1], part, k, dims)

    # Reading -------------------------------------------------------------------------------------------------------------

    def made(self, value: Operand | None) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def _part(self, store: Op) -> LoopAxis | None:
        """Return the axis of the grid whose number picks the first matrix of what is stored."""
        attrs, tensor = store.attributes(MemoryAttrs), self.program.tensors[store.attrs.tensor]
        if len(attrs.indices) != 3 or attrs.mask is not None or tensor.dtype != torch.float32:
            return None
        first, *others = attrs.indices
        made = self.made(store.operands[first.operand]) if first.operand is not None else None
        if first.kind != "scalar" or not fixed_at(first.shift, 0) or not all(map(is_block, others)):
            return None
        if made is None or not isinstance(made.attrs, TileAttrs):
            return None
        axis = next((each for each in self.first.axes if each.block == made.attrs.block), None)
        if axis is None or not isinstance(axis.end, int) or axis.merged or axis.backwards or axis.jagged is not None:
            return None
        counted = made.attrs.field == "id" or (
            made.attrs.field in ("begin", "index") and self.part_size(axis.block) == 1
        )
        parts = self.parts(axis)
        return axis if counted and parts is not None and equal(tensor.shape[0], parts) else None

    def part_size(self, block: int) -> int | None:
        """Return the fixed size of a block."""
        found = self.program.blocks[block]
        size = 1 if found.kind == "grid" else found.size
        return size if isinstance(size, int) else None

    def parts(self, axis: LoopAxis) -> int | None:
        """Return the number of parts, if it is fixed."""
        size = self.part_size(axis.block)
        if size is None or not isinstance(axis.end, int) or not fixed_at(axis.begin, 0) or not fixed_at(axis.step, 1):
            return None
        parts = -(-axis.end // size)
        return parts if 1 <= parts <= MAX_PARTS else None

    def _sums(self, tensor: int) -> tuple[Op, Op] | None:
        """Return a load of the partials, and the op whose result is their sum: a reduction over the parts, or additions."""
        parts = self.program.tensors[tensor].shape[0]
        loads = [op for op in self.second.body.ops if op.kind == "load" and op.attrs.tensor == tensor]
        if not loads or any(op.attributes(MemoryAttrs).mask is not None for op in loads):
            return None
        for op in reversed(self.second.body.ops):
            if self._is_reduced(op, loads[0], parts) or self._terms(op, tensor) == [*range(int(parts))]:
                return loads[0], op
        return None

    def _is_reduced(self, op: Op, load: Op, parts: object) -> bool:
        """Return whether an op is the sum of what a load reads of all parts."""
        first, *_ = load.attributes(MemoryAttrs).indices
        if not isinstance(op.attrs, ReduceAttrs) or op.operands[0] is not load.result or first.block is None:
            return False
        whole = self.program.blocks[first.block]
        full = whole.kind == "full" and equal(whole.extent, parts) and is_block(first)
        return full and op.attrs.name == "sum" and op.attrs.dims == first.positions and len(op.result.dims) == 2

    def _terms(self, op: Op | None, tensor: int) -> list[int]:
        """Return the numbers of the parts that an op adds up, in ascending order; none for other ops."""
        if op is None or op.kind == "full":
            return []
        if op.kind == "load" and op.attrs.tensor == tensor:
            first = op.attributes(MemoryAttrs).indices[0]
            counted = first.kind == "scalar" and first.operand is None and isinstance(first.shift, int)
            return [int(first.shift)] if counted else [-1]
        if op.attrs == ViewAttrs("reshape"):
            return self._terms(self.made(op.operands[0]), tensor) if len(op.result.dims) == 2 else [-1]
        if op.attrs != PointwiseAttrs("add") or op.result.dtype != torch.float32:
            return [-1]
        zeros = [x for x in map(self.made, op.operands) if x is not None and x.kind == "full"]
        numbers = [x for x in op.operands if not isinstance(x, Value)]
        if any(each != 0 for each in (*numbers, *(made.operands[0] for made in zeros))):
            return [-1]
        return sorted(part for x in op.operands for part in self._terms(self.made(x), tensor))

    def is_hidden(self, tensor: int, store: Op) -> bool:
        """Return whether no other operation, and no code of the host, accesses the memory of a tensor."""
        storage, tensors = self.program.tensors[tensor].storage, self.program.tensors
        for op in self.program.walk():
            touched = isinstance(op.attrs, MemoryAttrs) and tensors[op.attrs.tensor].storage == storage
            if touched and op is not store and (op.kind != "load" or op.attrs.tensor != tensor):
                return False
        return tensors[tensor].source in hidden_names(self.program.host.function)

    def _whole_k(self, loop: Op, part: LoopAxis) -> int | None:
        """Return the extent of K whose parts the loop goes over, one after the other."""
        ends = self.ends(loop, part)
        known = [(begin, end) for begin, end in ends if begin < end]
        if not known or known[0][0] != 0:
            return None
        adjacent = all(one[1] == other[0] for one, other in itertools.pairwise(known))
        return known[-1][1] if adjacent else None

    def ends(self, loop: Op, part: LoopAxis) -> list[tuple[int, int]]:
        """Return the bounds of each part of a loop; none if one is unknown."""
        (axis,) = loop.attributes(ForAttrs).axes
        plain = not (axis.scalar or axis.merged or axis.split or axis.backwards) and axis.jagged is None
        parts, found = self.parts(part), list[tuple[int, int]]()
        if not plain or parts is None or not fixed_at(axis.step, 1):
            return []
        for number in range(parts):
            begin, end = (self.bound(loop, bound, part, number) for bound in (axis.begin, axis.end))
            if begin is None or end is None:
                return []
            found.append((begin, end))
        return found

    def bound(self, loop: Op, bound: Bound, part: LoopAxis, number: int) -> int | None:
        value = loop.operands[bound.at] if isinstance(bound, OperandRef) else bound
        return self.evaluated(value, part, number)

    def evaluated(self, value: object, part: LoopAxis, number: int) -> int | None:
        """Return an integer in the part of a number; None if it depends on anything else."""
        if isinstance(value, int):
            return value
        op = self.made(value) if isinstance(value, Value) else None
        if op is None:
            return None
        if isinstance(op.attrs, TileAttrs) and op.attrs.block == part.block and isinstance(part.end, int):
            size = self.part_size(part.block) or 1
            fields = {"begin": number * size, "end": min((number + 1) * size, part.end), "id": number}
            return {**fields, **({"index": number} if size == 1 else {})}.get(op.attrs.field)
        compute = _ARITHMETIC.get(op.attrs.name) if isinstance(op.attrs, PointwiseAttrs) else None
        given = [self.evaluated(each, part, number) for each in op.operands]
        return None if compute is None or None in given or op.result.dtype.is_floating_point else compute(*given)

    def _same_tiles(self, store: Op, load: Op, part: LoopAxis) -> dict[int, int] | None:
        """Return the tile of the first grid loop for each one of the second, which cover the same elements."""
        others = [axis for axis in self.first.axes if axis is not part]
        if len(others) != 2 or len(self.second.axes) != 2 or not all(map(is_plain, (*others, *self.second.axes))):
            return None
        sides = zip(store.attributes(MemoryAttrs).indices[1:], load.attributes(MemoryAttrs).indices[1:], strict=True)
        found: dict[int, int] = {}
        for stored, loaded in sides:
            if stored.block is None or loaded.block is None or stored.positions[0] != len(found):
                return None
            extents = (self.program.blocks[each].extent for each in (stored.block, loaded.block))
            if not equal(*extents) or self.program.blocks[loaded.block].kind != "tile":
                return None
            found[loaded.block] = stored.block
        walked = {axis.block for axis in self.second.axes} == {*found} and len(found) == 2
        return found if walked and {axis.block for axis in others} == {*found.values()} else None

    # Writing -------------------------------------------------------------------------------------------------------------

    def _rewritten(
        self, loop: Op, store: Op, total: Op, part: LoopAxis, k: int, dims: Mapping[int, int]
    ) -> Whole | None:
        if any((op.kind not in MOVED and op is not total) or op.regions for op in self.second.body.ops):
            return None
        (inner,) = loop.attributes(ForAttrs).axes
        whole = dataclasses.replace(inner, begin=0, end=k)
        attrs = dataclasses.replace(loop.attributes(ForAttrs), axes=(whole,))
        joined = dataclasses.replace(loop, attrs=attrs, operands=loop.operands[: attrs.carried])
        values = {total.result.number: loop.result}
        after = [moved(op, dims, values) for op in self.second.body.ops if op is not total]
        before = [joined if op is loop else op for op in self.first.body.ops if op is not store]
        body = dataclasses.replace(self.first.body, ops=(*before, *after))
        axes = tuple(axis for axis in self.first.axes if axis is not part)
        blocks = tuple(
            dataclasses.replace(each, extent=k) if each.id == inner.block else each for each in self.program.blocks
        )
        root = dataclasses.replace(self.first, axes=axes, body=body)
        changed = drop_dead(dataclasses.replace(self.program, blocks=blocks, roots=(root,)))
        if any(block == part.block for op in changed.walk() for block in blocks_of(op)):
            return None
        if any(isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor == store.attrs.tensor for op in changed.walk()):
            return None
        return Whole(program=changed, blocks=(part.block, *dims))


def moved(op: Op, dims: Mapping[int, int], values: dict[int, Value]) -> Op:
    """Return an operation with the blocks ``dims`` and the operands ``values`` for others, and add its results to ``values``."""
    results = tuple(
        dataclasses.replace(
            each, dims=tuple(Dim(dim.const, tuple(dims.get(b, b) for b in dim.blocks)) for dim in each.dims)
        )
        for each in op.results
    )
    values.update(zip((each.number for each in op.results), results, strict=True))
    attrs = op.attrs
    if isinstance(attrs, MemoryAttrs):
        indices = (
            index if index.block is None else dataclasses.replace(index, block=dims.get(index.block, index.block))
            for index in attrs.indices
        )
        attrs = dataclasses.replace(attrs, indices=tuple(indices))
    elif isinstance(attrs, (TileAttrs, IotaAttrs)):
        attrs = dataclasses.replace(attrs, block=dims.get(attrs.block, attrs.block))
    operands = tuple(values.get(x.number, x) if isinstance(x, Value) else x for x in op.operands)
    return dataclasses.replace(op, operands=operands, results=results, attrs=attrs)


def key_of(attrs: Any) -> Any:
    """Return what attributes of ops that do the same in any launch have in common: not their slots."""
    if isinstance(attrs, NumberAttrs):
        return "number", number_key(attrs.expr)
    if not isinstance(attrs, MemoryAttrs):
        return attrs
    indices = tuple(dataclasses.replace(index, shift=0) for index in attrs.indices)
    shifts = tuple(number_key(index.shift) for index in attrs.indices)
    return dataclasses.replace(attrs, slot=0, load_slot=None, indices=indices), shifts


def _fits(total: Op, loop: Op, dims: Mapping[int, int]) -> bool:
    """Return whether a total has the dimensions of a loop's result, in its order."""
    blocks = [dims.get(dim.block, -1) if dim.block is not None else -1 for dim in total.result.dims]
    return blocks == [dim.block for dim in loop.result.dims]


def is_plain(axis: LoopAxis) -> bool:
    return not axis.scalar and is_counter(axis)


def is_counter(axis: LoopAxis) -> bool:
    """Return whether an axis goes over all of its elements or tiles, in their order."""
    plain = not (axis.merged or axis.split or axis.backwards) and axis.jagged is None
    return plain and fixed_at(axis.begin, 0) and fixed_at(axis.step, 1)


def blocks_of(op: Op) -> Iterator[int | None]:
    """Yield the blocks whose position or indices an op has."""
    if isinstance(op.attrs, (TileAttrs, IotaAttrs)):
        yield op.attrs.block
    elif isinstance(op.attrs, MemoryAttrs):
        yield from (index.block for index in op.attrs.indices)
