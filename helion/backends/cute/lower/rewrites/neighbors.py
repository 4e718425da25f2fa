"""Products with the even and with the odd columns of one matrix, as one product with all columns.

::

    for tile_m, pair in hl.tile([m, n // 2]):                     for tile_m, tile_n in hl.tile([m, n]):
        even += x[tile_m, :] @ w[:, 2 * pair.index]                   acc += x[tile_m, :] @ w[:, tile_n]
        odd += x[tile_m, :] @ w[:, 2 * pair.index + 1]       →        even, odd = hl.split(acc.reshape(tile_m, pair, 2))
        out[tile_m, 2 * pair.index] = f(even, odd)                    both = hl.join(f(even, odd), g(even, odd))
        out[tile_m, 2 * pair.index + 1] = g(even, odd)                out[tile_m, tile_n] = both.reshape(tile_m, tile_n)

A thread has both columns of a pair, so that operands and outputs are whole rows, which TMA moves. Windows of one tensor
are neighbors if one begins half of its stride of columns after the other. So are views that the host makes. The
dimension of pairs becomes that of columns, so that a config has the columns of a tile, and all pairs have a new one.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.grammar import (
    Block,
    Bound,
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    TileAttrs,
    Value,
)
from ....._compiler.ir.rewrite import Declined, Makers
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import Dim, Dims, fixed_at
from ....._support.records import dataclass
from ..epilogue.column_pairs import PAIR, name_of_pairs
from ..numbers import equal, is_known
from ..windows import Start, Windowed
from .partials import is_plain, key_of, moved

_KEPT = frozenset(("dot", "full", "iota", "load", "number", "pointwise", "store", "tile", "view"))
"""Ops of a program whose pairs become columns."""


def with_neighbors(windowed: Windowed) -> Windowed:
    """Return the program with products of all columns in place of those of even and of odd ones; the original one without
    such products."""
    program = windowed.program
    if len(program.roots) != 1:
        return windowed
    loops = [op for op in program.roots[0].body.ops if op.regions]
    if len(loops) != 1 or loops[0].kind != "for" or len(loops[0].results) < PAIR:
        return windowed
    try:
        return _Pairs(windowed, loops[0]).joined()
    except Declined:
        return windowed


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """The accumulators of even and of odd columns, by their positions, and the loads of even columns, with their matrices."""

    even: int
    odd: int
    loads: tuple[tuple[Op, int], ...]


class _Pairs:
    """A rewrite of a program with one loop over K, all of whose accumulators are of even or of odd columns."""

    def __init__(self, windowed: Windowed, loop: Op) -> None:
        self.windowed, self.program, self.loop = windowed, windowed.program, loop
        (self.root,) = self.program.roots
        self.makers = Makers.among(self.program.walk())
        self.axis = self._axis()
        self.pairs = len(self.program.blocks)
        """The block of all pairs; that of the axis becomes one of columns."""
        self.tensors: dict[tuple[int, int], HostTensor] = {}
        """Matrices of all columns, by those of the even and of the odd ones."""
        self.builder = Builder(Numbers.after(self.program), ops=[])
        self.values: dict[int, Value] = {}

    def joined(self) -> Windowed:
        """Return the program with all columns. Raises ``Declined``."""
        self._check()
        pairs = self._pairs()
        before, late = self._before()
        loop = self._loop(pairs)
        self.builder.ops.append(loop)
        for whole, pair in zip(loop.results, pairs, strict=True):
            self._split(whole, self.loop.results[pair.even], self.loop.results[pair.odd])
        self._epilogue([*late, *self.root.body.ops[self.root.body.ops.index(self.loop) + 1 :]])
        block = self.program.blocks[self.axis.block]
        extent = self._extent()
        size = PAIR * block.size if isinstance(block.size, int) else None
        columns = dataclasses.replace(block, extent=PAIR * extent, size=size)
        blocks = tuple(columns if each is block else each for each in self.program.blocks)
        axis = dataclasses.replace(self.axis, end=PAIR * extent)
        root = dataclasses.replace(
            self.root,
            axes=tuple(axis if each is self.axis else each for each in self.root.axes),
            body=dataclasses.replace(self.root.body, ops=(*before, *self.builder.ops)),
        )
        program = dataclasses.replace(
            self.program,
            blocks=(*blocks, Block(id=self.pairs, kind="tile", extent=extent, name=name_of_pairs(block.id))),
            tensors=(*self.program.tensors, *self.tensors.values()),
            roots=(root,),
        )
        starts = dict(self.windowed.starts)
        for (even, _), tensor in self.tensors.items():
            starts[tensor.id] = starts.get(even, Start(tensor=even, elements=0))
        return Windowed(program=drop_dead(program), starts=starts)

    # Conditions -----------------------------------------------------------------------------------------------------------

    def _axis(self) -> LoopAxis:
        """Return the axis of pairs: the one that the last dimension of all accumulators is of. Raises ``Declined``."""
        blocks = {value.dims[-1].block if value.dims else None for value in self.loop.results}
        found = [axis for axis in self.root.axes if {axis.block} == blocks]
        if len(found) != 1 or not is_plain(found[0]):
            raise Declined("accumulators of no one axis of columns")
        block, axis = self.program.blocks[found[0].block], found[0]
        of_size = block.size is None or isinstance(block.size, int)
        if (
            block.kind != "tile"
            or not of_size
            or not isinstance(block.extent, int)
            or not equal(axis.end, block.extent)
        ):
            raise Declined("columns whose number is not known")
        return axis

    def _extent(self) -> int:
        extent = self.program.blocks[self.axis.block].extent
        assert isinstance(extent, int)
        return extent

    def _check(self) -> None:
        """Check that no op needs more of the pairs of a tile than their values. Raises ``Declined``."""
        block = self.axis.block
        if any(op.kind == "store" for op in self.loop.walk()):
            raise Declined("stores in the loop")
        for op in self.program.walk():
            if op is not self.loop and op.kind not in _KEPT:
                raise Declined(f"{op.kind} next to products")
            if isinstance(op.attrs, TileAttrs) and op.attrs.block == block:
                raise Declined("the place of a tile of pairs")
            if any(block in dim.blocks and dim.block is None for value in op.results for dim in value.dims):
                raise Declined("pairs that are a part of a dimension")
            if isinstance(op.attrs, IotaAttrs) and op.attrs.block == block and op.attrs != IotaAttrs(block, False):
                raise Declined("indices of pairs that are relative to a tile")

        accesses = [op for op in self.program.walk() if isinstance(op.attrs, MemoryAttrs)]
        stored = {self._tensor(op).storage for op in accesses if op.kind != "load"}
        if any(self._tensor(op).storage in stored for op in accesses if op.kind == "load"):
            raise Declined("memory that is read and stored")
        stores = [op.attrs.tensor for op in accesses if op.kind != "load"]
        if len({*stores}) < len(stores):
            raise Declined("several stores to the same elements")

    def _before(self) -> tuple[Sequence[Op], Sequence[Op]]:
        """Return the ops before the loop, and those of them that compute with pairs, which follow it. Raises ``Declined``."""
        ops = self.root.body.ops[: self.root.body.ops.index(self.loop)]
        needed = {value.number for op in self.loop.walk() for value in op.reads()}
        kept, late = list[Op](), list[Op]()
        for op in reversed(ops):
            of_pairs, read = any(map(self._is_of_pairs, op.results)), any(x.number in needed for x in op.results)
            if read and of_pairs and op.kind != "full":
                raise Declined("pairs that the loop reads and does not load")
            if of_pairs:
                late.append(op)
            if read or not of_pairs:
                kept.append(op)
                needed |= {value.number for value in op.reads()}
        return kept[::-1], late[::-1]

    def _is_of_pairs(self, value: Value) -> bool:
        return any(dim.block == self.axis.block for dim in value.dims)

    def _tensor(self, op: Op) -> HostTensor:
        return self.program.tensors[op.attributes(MemoryAttrs).tensor]

    def _pairs(self) -> list[_Pair]:
        """Return the accumulators in pairs, in the order of even ones. Raises ``Declined``."""
        body, found, left = self.loop.regions[0], list[_Pair](), [*range(len(self.loop.results))]
        attrs = self.loop.attributes(ForAttrs)
        if attrs.carried != len(self.loop.results):
            raise Declined("a loop that returns more than it carries")
        while left:
            for pair in itertools.permutations(left, PAIR):
                loads = list[tuple[Op, int]]()
                one, other = (body.results[at] for at in pair)
                if left[0] in pair and self._are_alike(one, other, (pair[0], pair[1]), loads) and loads:
                    break
            else:
                raise Declined("an accumulator without a neighbor")
            if not self._start_alike(*(self.loop.operands[at] for at in pair)):
                raise Declined("accumulators that start from other numbers than 0")
            found.append(_Pair(even=pair[0], odd=pair[1], loads=tuple(loads)))
            left = [each for each in left if each not in pair]
        return found

    def _start_alike(self, *starts: Operand) -> bool:
        made = [self.makers.of(start) for start in starts]
        return all(op is not None and op.kind == "full" and op.operands[0] == 0 for op in made)

    def _are_alike(self, one: Operand, other: Operand, pair: tuple[int, int], loads: list[tuple[Op, int]]) -> bool:
        """Return whether two values of the loop are computed alike, from even and from odd columns, and add the loads of
        the former."""
        if not isinstance(one, Value) or not isinstance(other, Value):
            return not isinstance(one, Value) and not isinstance(other, Value) and bool(one == other)
        params = self.loop.regions[0].params
        if one is params[pair[0]]:
            return other is params[pair[1]]
        if one is other:
            return not self._is_of_pairs(one)
        made, found = self.makers.of(one), self.makers.of(other)
        if made is None or found is None or made.kind != found.kind or made.regions or one.dims != other.dims:
            return False
        if made.kind == "load":
            return self._loads_alike(made, found, loads)
        same = key_of(made.attrs) == key_of(found.attrs) and one.dtype == other.dtype and made.kind != "iota"
        return (
            same
            and len(made.operands) == len(found.operands)
            and all(self._are_alike(a, b, pair, loads) for a, b in zip(made.operands, found.operands, strict=True))
        )

    def _loads_alike(self, one: Op, other: Op, loads: list[tuple[Op, int]]) -> bool:
        """Return whether loads are of even and of odd columns of one matrix, or the same without columns."""
        if not self._is_of_pairs(one.result):
            operands = zip(one.operands, other.operands, strict=False)
            same = len(one.operands) == len(other.operands) and all(a is b or a == b for a, b in operands)
            return same and key_of(one.attrs) == key_of(other.attrs)
        tensor = self._neighbors(one, other)
        loads += [] if tensor is None else [(one, tensor)]
        return tensor is not None

    # Matrices -------------------------------------------------------------------------------------------------------------

    def _neighbors(self, one: Op, other: Op) -> int | None:
        """Return the matrix of all columns of which two accesses are of the even and of the odd ones; None for others."""
        first, second = (op.attributes(MemoryAttrs) for op in (one, other))
        indices = _without_zeros(first.indices)
        places = [at for at, index in enumerate(indices) if index.block == self.axis.block]
        alike = one.kind == other.kind and indices == _without_zeros(second.indices) and first.tensor != second.tensor
        if not alike or len(places) != 1 or first.mask is not None or second.mask is not None:
            return None
        (at,) = places
        operands = [index.operand for index in indices if index.operand is not None]
        plain = indices[at].kind == "block" and indices[at].operand is None and fixed_at(indices[at].shift, 0)
        if not plain or any(one.operands[each] is not other.operands[each] for each in operands):
            return None
        key = first.tensor, second.tensor
        if key not in self.tensors:
            tensor = self._whole(self._without_zeros(one), self._without_zeros(other), at)
            if tensor is None:
                return None
            self.tensors[key] = tensor
        return self.tensors[key].id

    def _without_zeros(self, op: Op) -> HostTensor:
        """Return the tensor of an access without dimensions whose index is 0."""
        tensor, indices = self._tensor(op), op.attributes(MemoryAttrs).indices
        kept = [at for at, index in enumerate(indices) if index in _without_zeros(indices)]
        shape, strides = (tuple(each[at] for at in kept) for each in (tensor.shape, tensor.strides))
        return dataclasses.replace(tensor, shape=shape, strides=strides)

    def _whole(self, even: HostTensor, odd: HostTensor, at: int) -> HostTensor | None:
        """Return the matrix of the even and the odd columns, dimension ``at``; None if these are no neighbors."""
        step, alike = even.strides[at], even.dtype == odd.dtype and even.ndim == odd.ndim
        if not is_known(step) or step <= 0 or step % PAIR or not alike:
            return None
        if not all(map(equal, (*even.shape, *even.strides), (*odd.shape, *odd.strides))):
            return None
        if not equal(even.shape[at], self._extent()) or self._after(even, odd) != step // PAIR:
            return None
        return dataclasses.replace(
            even,
            id=len(self.program.tensors) + len(self.tensors),
            shape=(*even.shape[:at], PAIR * self._extent(), *even.shape[at + 1 :]),
            strides=(*even.strides[:at], step // PAIR, *even.strides[at + 1 :]),
        )

    def _after(self, one: HostTensor, other: HostTensor) -> int | None:
        """Return the elements from the begin of one tensor to that of the other in each launch; None if not known."""
        starts = [self.windowed.starts.get(each.id) for each in (one, other)]
        first, second = starts
        if first is not None and second is not None:
            return second.elements - first.elements if first.tensor == second.tensor else None
        if any(starts) or one.storage != other.storage or not self._is_view(one) or not self._is_view(other):
            return None
        if one.begin is None or other.begin is None:
            return None
        return (other.begin - one.begin) // one.dtype.itemsize

    def _is_view(self, tensor: HostTensor) -> bool:
        """Return whether the host makes a tensor at the same place of its memory in each launch."""
        host = self.program.host
        given = {each.arg for each in ast.walk(host.function.args) if isinstance(each, ast.arg)}
        return (
            not host.symbols and tensor.member is None and tensor.source.isidentifier() and tensor.source not in given
        )

    # The program ----------------------------------------------------------------------------------------------------------

    def _loop(self, pairs: Sequence[_Pair]) -> Op:
        """Return the loop with one accumulator for each pair."""
        body, attrs = self.loop.regions[0], self.loop.attributes(ForAttrs)
        loads = {op.number: tensor for pair in pairs for op, tensor in pair.loads}
        kept = [pair.even for pair in pairs]
        removed = attrs.carried - len(kept)
        ops = tuple(_of_tensor(op, loads[op.number]) if op.number in loads else op for op in body.ops)
        axes = tuple(
            dataclasses.replace(axis, begin=_moved_by(axis.begin, removed), end=_moved_by(axis.end, removed))
            for axis in attrs.axes
        )
        inner = dataclasses.replace(
            body,
            params=tuple(body.params[at] for at in kept),
            ops=ops,
            results=tuple(body.results[at] for at in kept),
        )
        results = tuple(self.builder.value(value.dtype, value.dims) for value in (self.loop.results[at] for at in kept))
        return dataclasses.replace(
            self.loop,
            operands=(*(self.loop.operands[at] for at in kept), *self.loop.operands[attrs.carried :]),
            results=results,
            attrs=dataclasses.replace(attrs, axes=axes, carried=len(kept)),
            regions=(inner,),
        )

    def _split(self, whole: Value, even: Value, odd: Value) -> None:
        """Add the ops that divide all columns into pairs, which are the values of the even and of the odd ones."""
        dims = tuple(map(self._of_pairs, whole.dims))
        shaped = self.builder.reshape(whole, (*dims, Dim(PAIR)))
        halves = tuple(dataclasses.replace(each, dims=dims) for each in (even, odd))
        self.builder.append("split", (shaped,), halves)
        self.values |= {each.number: each for each in halves}

    def _of_pairs(self, dim: Dim) -> Dim:
        return Dim(blocks=(self.pairs,)) if dim.block == self.axis.block else dim

    def _epilogue(self, ops: Sequence[Op]) -> None:
        """Add the ops after the loop, with accesses of all columns in place of those of even and of odd ones."""
        couples, met = self._couples(ops), set[int]()
        for op in ops:
            if op.number not in couples:
                self.builder.ops.append(moved(op, {self.axis.block: self.pairs}, self.values))
                continue
            even, odd, tensor = couples[op.number]
            met ^= {even.number}
            if op.kind == "load" and even.number in met:
                self._load(even, odd, tensor)
            elif op.kind == "store" and even.number not in met:
                self._store(even, odd, tensor)

    def _couples(self, ops: Sequence[Op]) -> Mapping[int, tuple[Op, Op, int]]:
        """Return accesses of even and of odd columns with the matrix of all, by the number of either."""
        accesses = [op for op in ops if op.kind in ("load", "store") and self._ends_in_pairs(op)]
        found = dict[int, tuple[Op, Op, int]]()
        for even, odd in itertools.permutations(accesses, PAIR):
            if found.keys().isdisjoint((even.number, odd.number)) and self._shape(even) == self._shape(odd):
                tensor = self._neighbors(even, odd)
                found |= {} if tensor is None else dict.fromkeys((even.number, odd.number), (even, odd, tensor))
        return found

    def _ends_in_pairs(self, op: Op) -> bool:
        """Return whether the last dimension of what is loaded or stored is that of the pairs."""
        dims = self._shape(op)
        return bool(dims) and dims[-1].block == self.axis.block and len(dims) == op.attributes(MemoryAttrs).rank

    def _shape(self, op: Op) -> Dims:
        """Return the dimensions of what is loaded or stored; none for a number."""
        value = op.operands[0] if op.kind == "store" else op.result
        return value.dims if isinstance(value, Value) else ()

    def _operands(self, op: Op, first: int = 0) -> tuple[Operand, ...]:
        return tuple(self.values.get(x.number, x) if isinstance(x, Value) else x for x in op.operands[first:])

    def _load(self, even: Op, odd: Op, tensor: int) -> None:
        """Add the load of all columns, and divide it into pairs."""
        whole = self.builder.value(even.result.dtype, even.result.dims)
        self.builder.ops.append(
            dataclasses.replace(_of_tensor(even, tensor), operands=self._operands(even), results=(whole,))
        )
        self._split(whole, even.result, odd.result)

    def _store(self, even: Op, odd: Op, tensor: int) -> None:
        """Add the store of all columns. Where both halves are casts, all columns are cast."""
        stored = [op.operands[0] for op in (even, odd)]
        first, second = (value for value in stored if isinstance(value, Value))
        sources = [each for each in map(self._cast_from, (first, second)) if each is not None]
        same = len({source.dtype for source in sources}) == 1 and len(sources) == PAIR
        halves = tuple(self.values[each.number] for each in (sources if same else (first, second)))
        both = self.builder.emit("join", halves, halves[0].dtype, (*halves[0].dims, Dim(PAIR)))
        whole = self.builder.cast(self.builder.reshape(both, first.dims), first.dtype)
        result = self.builder.value(first.dtype, first.dims)
        operands = (whole, *self._operands(even, 1))
        self.builder.ops.append(dataclasses.replace(_of_tensor(even, tensor), operands=operands, results=(result,)))

    def _cast_from(self, value: Value) -> Value | None:
        """Return the value that another one is a cast of, both of pairs; None for others."""
        made = self.makers.of(value)
        source = made.operands[0] if made is not None and made.attrs == PointwiseAttrs("cast") else None
        return (
            source if isinstance(source, Value) and source.dims == value.dims and source.number in self.values else None
        )


def _without_zeros(indices: Sequence[Index]) -> tuple[Index, ...]:
    """Return the indices of an access that are not 0."""
    return tuple(
        index
        for index in indices
        if index.kind != "scalar" or index.operand is not None or not fixed_at(index.shift, 0)
    )


def _of_tensor(op: Op, tensor: int) -> Op:
    """Return an access of a matrix of all columns."""
    attrs = op.attributes(MemoryAttrs)
    attrs = dataclasses.replace(attrs, tensor=tensor, indices=_without_zeros(attrs.indices))
    return dataclasses.replace(op, attrs=attrs)


def _moved_by(bound: Bound, removed: int) -> Bound:
    return OperandRef(bound.at - removed) if isinstance(bound, OperandRef) else bound
