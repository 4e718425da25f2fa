"""Detection of races between the programs of a grid loop, which run in any order and concurrently.

An element that several programs read, change and store without an atomic operation is certainly wrong, and refused. Two
cases give a warning. The first is a store to one position from several programs with different values. The second is a
load of elements that other programs store or update. Undecidable cases pass: subscripts from data, accesses under a condition
that depends on the program, and accesses after an acquire. An acquire may take a lock or wait for other programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .... import exc
from ...._shapes import cdiv, hint_of
from ...._support.records import dataclass, field, replace
from ...ir.effects import order_of
from ...ir.grammar import (
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ...ir.ops import OPS
from .accesses import Access, Accesses, Coordinate, Launched
from .collisions import Addresses

#: Axes of the grid, by block id.
_Axes = frozenset[int]
_NONE: _Axes = frozenset()
_NO_CONFIG = Launched(lanes={}, threads=0, steady=False)


def check_programs(program: Program, sizes: Mapping[int, int]) -> tuple[exc.BaseWarning, ...]:
    """Return warnings about the programs of each root under block ``sizes``. Raises ``exc.ReadModifyWriteRace``."""
    found: list[exc.BaseWarning] = []
    for root in program.roots:
        axes = {axis.block: axis for axis in root.axes if several(axis, sizes)}
        if not _are_separate(program, root, axes):
            found += Programs.of(program, root, axes, sizes).check()
    return tuple(found)


def _are_separate(program: Program, root: Root, axes: Mapping[int, LoopAxis]) -> bool:
    """Return whether every store is to elements of its own program, in a tensor without loads, as are all atomic
    operations. Nearly every kernel is so."""
    loads = {program.tensors[op.attrs.tensor].storage for op in root.body.walk() if op.kind == "load"}
    return all(
        program.tensors[op.attrs.tensor].storage not in loads
        and (op.kind == "atomic" or axes.keys() <= {i.block for i in op.attrs.indices})
        for op in root.body.walk()
        if op.kind in ("store", "atomic")
    )


def several(axis: LoopAxis, sizes: Mapping[int, int]) -> bool:
    """Return whether an axis of a grid has more than one program."""
    if isinstance(axis.begin, OperandRef) or isinstance(axis.end, OperandRef):
        return True
    extent = hint_of(axis.end) - hint_of(axis.begin)
    step = axis.step if axis.scalar else sizes[axis.block]
    return int(cdiv(extent, max(int(hint_of(step)), 1))) > 1


@dataclass
class Programs:
    """Memory effects of the programs of a root, by the axes of its grid."""

    program: Program
    accesses: Accesses
    #: Axes with more than one program.
    axes: dict[int, LoopAxis]
    addresses: Addresses
    #: Axes that values, positions of blocks, and the execution of an op depend on.
    values: dict[int, _Axes] = field(default_factory=dict)
    blocks: dict[int, _Axes] = field(default_factory=dict)
    around: dict[int, _Axes] = field(default_factory=dict)
    #: The ``guard`` of loads; the loads that already have a warning.
    guards: dict[int, _Axes] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    #: Answers of ``_is_same_value``, by the numbers of both values.
    alike: dict[tuple[int, int], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, root: Root, axes: dict[int, LoopAxis], sizes: Mapping[int, int]) -> Programs:
        accesses = Accesses.collect(program, root, _NO_CONFIG)
        made = cls(program, accesses, axes, Addresses.of(program, root, accesses.makers, axes, sizes))
        if axes:
            made.blocks = {block: frozenset((block,)) for block in axes}
            made._region(root.body, _NONE)
        return made

    # --- dependence on the program ------------------------------------------------------------------------------------

    def _of(self, operands: Iterable[Operand]) -> _Axes:
        return _NONE.union(*(self.values.get(o.number, _NONE) for o in operands if isinstance(o, Value)))

    def _region(self, region: Region, around: _Axes) -> None:
        for op in region.ops:
            self.around[op.number] = around
            found = self._own(op) | self._of(op.operands)
            if OPS[op.kind].is_loop:
                found |= self._loop(op, around | found if op.kind == "for" else around)
            elif op.kind == "if":
                for child in op.regions:
                    self._region(child, around | self._of(op.operands))
                    found |= self._of(child.results)
            for result in op.results:
                self.values[result.number] = found

    def _own(self, op: Op) -> _Axes:
        match op.attrs:
            case TileAttrs(block, name):
                return self.blocks.get(block, _NONE) if name in ("index", "begin", "end", "id") else _NONE
            case IotaAttrs(block, relative):
                return _NONE if relative else self.blocks.get(block, _NONE)
            case MaskAttrs(dims, _):
                value = next(op.values())
                return _NONE.union(*(self.blocks.get(b, _NONE) for d in dims for b in value.dims[d].blocks))
            case MemoryAttrs():
                return frozenset(self.axes) if op.kind == "atomic" else self.place(op)
            case ForAttrs(axes=axes):
                for axis in axes:
                    refs = [n.at for n in (axis.begin, axis.end, axis.jagged) if isinstance(n, OperandRef)]
                    self.blocks[axis.block] = self._of(op.operands[at] for at in refs)
        return frozenset(self.axes) if op.kind == "inline" else _NONE

    def _loop(self, op: Op, around: _Axes) -> _Axes:
        """Return the axes that the results of a loop depend on. Every carried value counts as depending on all of
        them."""
        found = self._of(op.operands)
        while True:
            for region in op.regions:
                for param in region.params:
                    self.values[param.number] = found
                self._region(region, around | (found if op.kind == "while" else _NONE))
            after = found.union(*(self._of(region.results) for region in op.regions))
            if after == found:
                return found
            found = after

    def place(self, op: Op) -> _Axes:
        """Return the axes that the address of an access depends on."""
        attrs = op.attributes(MemoryAttrs)
        blocks = (self.blocks.get(i.block, _NONE) for i in attrs.indices if i.block is not None)
        operands = [op.operands[i.operand] for i in attrs.indices if i.operand is not None]
        return _NONE.union(*blocks) | self._of(operands)

    def guard(self, op: Op) -> _Axes:
        """Return the axes that decide if an access, or some of its lanes, happens at all."""
        attrs = op.attributes(MemoryAttrs)
        mask = [op.operands[attrs.mask]] if attrs.mask is not None else []
        return self.around[op.number] | self._of(mask)

    # --- races --------------------------------------------------------------------------------------------------------

    def check(self) -> Iterator[exc.BaseWarning]:
        for access in self.accesses.all():
            if access.op.kind == "store" and access.attrs is not None and self._is_updated_by_index(access):
                yield exc.UpdateByLoadedIndex(name=self._tensor(access)).at(access.op.location)
        if not self.axes:
            return
        places = self.accesses.numbers
        acquires = (a.op for a in self.accesses.all() if order_of(a.op).acquires)
        first = min((places[op.number] for op in acquires), default=len(places))
        accesses = [a for a in self.accesses.all() if a.attrs is not None and places[a.op.number] < first]
        loads = [access for access in accesses if access.op.kind == "load"]
        self.guards = {load.op.number: self.guard(load.op) for load in loads}
        for access in accesses:
            if access.op.kind == "store":
                yield from self._check_store(access)
            if access.writes:
                yield from self._check_loads(access, loads)

    def _is_updated_by_index(self, store: Access) -> bool:
        """Return whether a store changes what was loaded from the same places, which loaded indices alone select: they
        may repeat."""
        assert store.attrs is not None
        own = [
            i for i in store.attrs.indices if i.operand is not None and self._is_loaded(store.op.operands[i.operand])
        ]
        places = [i.positions for i in store.attrs.indices if i.kind == "tensor"]
        alone = any(places.count(i.positions) == 1 if i.kind == "tensor" else bool(self.axes) for i in own)
        return alone and any(self._is_same_place(load.op, store.op) for load in self._loads_of(store.op.operands[0]))

    def _is_same_place(self, load: Op, store: Op) -> bool:
        """Return whether two accesses select the same elements; their indices may be loaded twice."""
        one, other = load.attributes(MemoryAttrs), store.attributes(MemoryAttrs)
        return one.tensor == other.tensor and all(
            replace(a, operand=None) == replace(b, operand=None)
            and (a.operand is None or self._is_same_value(load.operands[a.operand], store.operands[b.operand]))  # type: ignore[index]
            for a, b in zip(one.indices, other.indices, strict=True)
        )

    def _is_same_value(self, one: Operand, other: Operand) -> bool:
        """Return whether two values are computed alike."""
        if one == other:
            return True
        if not isinstance(one, Value) or not isinstance(other, Value):
            return False
        key = one.number, other.number
        if key not in self.alike:
            self.alike[key] = self._is_made_alike(one, other)
        return self.alike[key]

    def _is_made_alike(self, one: Value, other: Value) -> bool:
        a, b = self.accesses.makers.of(one), self.accesses.makers.of(other)
        if a is None or b is None or a.kind != b.kind or a.regions or len(a.operands) != len(b.operands):
            return False
        if a.kind == "load":
            return self._is_same_place(a, b)
        return a.attrs == b.attrs and all(map(self._is_same_value, a.operands, b.operands))

    def _is_loaded(self, index: Operand) -> bool:
        """Return whether an index is computed from loads and from nothing that differs between lanes or programs."""
        stack, seen, loaded = [index], set(), False
        while stack:
            one = stack.pop()
            if not isinstance(one, Value) or one.number in seen:
                continue
            seen.add(one.number)
            op = self.accesses.makers.of(one)
            if op is None or isinstance(op.attrs, (TileAttrs, IotaAttrs)):
                return False
            loaded |= op.kind == "load"
            stack += op.operands if op.kind != "load" else ()
        return loaded

    def _check_store(self, store: Access) -> Iterator[exc.BaseWarning]:
        op = store.op
        shared = frozenset(self.axes) - self.place(op) - self.guard(op)
        if not shared:
            return
        name, axis = self._tensor(store), self.program.blocks[min(shared)].name
        for load in self._loads_of(op.operands[0]):
            same = load.storage == store.storage and load.at == store.at
            if same and not self.guard(load.op) & shared:
                raise exc.ReadModifyWriteRace(name=name, axis=axis, location=op.location)
        if self._of(op.operands[:1]) & shared:
            yield exc.StoreFromSeveralPrograms(name=name, axis=axis).at(op.location)

    def _tensor(self, access: Access) -> str:
        assert access.attrs is not None
        return self.program.tensors[access.attrs.tensor].name

    def _loads_of(self, value: Operand) -> Iterator[Access]:
        """Yield the loads that a value depends on."""
        seen: set[int] = set()
        stack = [value]
        while stack:
            one = stack.pop()
            op = self.accesses.makers.of(one)
            if op is None or op.number in seen:
                continue
            seen.add(op.number)
            if op.kind == "load":
                yield from self.accesses.of[op.number]
            stack += op.operands
            for region in op.regions:
                stack += region.results
                stack += [v for inner in region.walk() for v in inner.values()] if op.kind != "if" else []

    def _check_loads(self, store: Access, loads: list[Access]) -> Iterator[exc.BaseWarning]:
        known: dict[tuple[Any, ...], int | None] = {}
        for load in loads:
            assert load.attrs is not None
            if load.storage != store.storage or load.op.number in self.reported:
                continue
            mask = load.attrs.mask
            key = load.attrs.tensor, load.place, self.around[load.op.number], mask and load.op.operands[mask]
            if key not in known:
                known[key] = self._axis_of_others(load, store)
            block = known[key]
            if block is not None:
                self.reported.add(load.op.number)
                name, axis = self._tensor(store), self.program.blocks[block].name
                yield exc.LoadOfOtherPrograms(name=name, axis=axis).at(load.op.location)

    def _axis_of_others(self, load: Access, store: Access) -> int | None:
        """Return an axis along which a load covers elements that other programs store, or None."""
        assert load.attrs is not None and store.attrs is not None
        same = load.attrs.tensor == store.attrs.tensor
        if same and load.differs(store):
            return None
        apart: list[int] = []
        masked = self.guards[load.op.number] | self.guard(store.op)
        for block in sorted(set(self.axes) - self.around[load.op.number] - self.around[store.op.number]):
            pairs = list(zip(load.at, store.at, strict=True)) if same else []
            if any(one == other and self._follows(one, block) for one, other in pairs):
                continue
            if same and block not in masked and self._reaches(pairs, block):
                return block
            if self.addresses.meet(load.op, store.op, block):
                return block
            apart.append(block)
        pairs_of = itertools.combinations(apart, 2)
        return next((a for a, b in pairs_of if self.addresses.meet(load.op, store.op, a, b)), None)

    def _reaches(self, pairs: list[tuple[Coordinate, Coordinate]], block: int) -> bool:
        """Return whether a load certainly covers elements that programs at other indices of the axis ``block``
        store, by the subscripts of both."""
        own = [(one, other) for one, other in pairs if other.block == block and other.value is None]
        if len(own) != 1 or not all(self._overlap(one, other) for one, other in pairs):
            return False
        one, other = own[0]
        if one.block == block and one.value is None:
            return isinstance(one.shift, int) and isinstance(other.shift, int) and one.shift != other.shift
        return not self._follows(one, block)

    def _follows(self, coordinate: Coordinate, block: int) -> bool:
        """Return whether a subscript differs between indices of the axis."""
        depends = self.blocks.get(coordinate.block, _NONE) if coordinate.block is not None else _NONE
        value = self.values.get(coordinate.value, _NONE) if coordinate.value is not None else _NONE
        return block in depends | value

    def _overlap(self, one: Coordinate, other: Coordinate) -> bool:
        """Return whether two subscripts of one dimension certainly share an index, somewhere in the grid."""
        if one == other:
            return True
        if one.span is None or other.span is None:
            return False
        (a, b), (c, d) = one.span, other.span
        if all(isinstance(n, int) for n in (a, b, c, d)):
            return bool(a < d and c < b)
        return bool(a == c or b == d)
