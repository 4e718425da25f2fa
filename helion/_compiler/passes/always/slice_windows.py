"""Sums over rows of windows as sums of loads, one for each place of a row.

A tile of windows has a lane for each place, and lanes without one where a row has no power of two of them. Threads
exchange the places of each row in steps (measurement ``sliced_windows``). Before, with rows of ``b3``, which has 3 places::

    %1: [b0, b1, b2, b1, b3] = load x[b0, b1, b2, b1, b3]
    %2: [b0, b1, b2, b1] = reduce sum %1 over 4

after::

    %3: [b0, b1, b2, b1] = load x[b0, b1, b2, b1, 0]; %4: .. = load x[b0, b1, b2, b1, 1]; %5: .. = load x[b0, b1, b2, b1, 2]
    %6 = add %3, %4; %2 = add %6, %5

Rows of 2, 4 and 8 places stay lanes, which a thread loads at once. So do the rows of a window: lanes of consecutive rows are
near each other in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ...._shapes import Dims, fixed_at
from ...._support.records import dataclass, field, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import Index, MemoryAttrs, Op, Operand, Program, ReduceAttrs, Region, Value, ViewAttrs
from ...ir.reductions import REDUCTIONS
from ...ir.rewrite import Declined, Makers
from .simplify import drop_dead

#: Most places along an axis of a window, and most loads of tiles in the place of windows.
_LONGEST, _MOST = 8, 32


def slice_windows(program: Program) -> Program:
    """Return the program with a load for each place of a row of the windows that it only reduces."""
    numbers: Numbers | None = None
    roots = list(program.roots)
    for at, root in enumerate(roots):
        windows = {op.number for op in root.body.ops if _is_window(program, op)}
        if not windows:
            continue
        numbers = numbers or Numbers.after(program)
        body = _Slicer(program, numbers, Makers.among(root.body.ops)).sliced(root.body)
        made = drop_dead(replace(program, roots=(replace(root, body=body),))).roots[0]
        loads = [op for op in made.body.ops if op.kind == "load" and op.result.dims]
        if not windows.intersection(op.number for op in loads) and len(loads) <= _MOST:
            # the loads have the slot of the source's, so that lists of a config keep their entries
            roots[at] = replace(made, sliced=True)
    if all(new is old for new, old in zip(roots, program.roots, strict=True)):
        return program
    return replace(program, roots=tuple(roots))


def _is_window(program: Program, op: Op) -> bool:
    """Return whether an op loads windows: tiles with at least two short dimensions as a whole."""
    dims = op.result.dims if op.kind == "load" else ()
    return len(dims) > 2 and sum(_places(program, dims, at) > 0 for at in range(len(dims))) > 1


def _places(program: Program, dims: Dims, at: int) -> int:
    """Return the elements of a short whole dimension; 0 for any other."""
    block = dims[at].block
    if block is None or program.blocks[block].kind != "full":
        return 0
    extent = program.blocks[block].extent
    return extent if isinstance(extent, int) and 1 < extent <= _LONGEST else 0


def _without(dims: Dims, at: int) -> Dims:
    return (*dims[:at], *dims[at + 1 :])


@dataclass
class _Slicer:
    """The ops of a region with places of reduced dimensions as values of their own.

    ``slices`` has those made, by the number of the whole value, the position of the dimension and the place. A slice is
    made right after the value that it is of, so that memory is accessed in the same order: ``after`` has such ops by
    the number of the op before them.
    """

    program: Program
    numbers: Numbers
    makers: Makers
    slices: dict[tuple[int, int, int], Operand] = field(default_factory=dict)
    after: dict[int, list[Op]] = field(default_factory=dict)

    def sliced(self, region: Region) -> Region:
        ops = [each for op in region.ops for each in self.reduced(op)]
        return replace(region, ops=tuple(each for op in ops for each in self.followed(op)))

    def followed(self, op: Op) -> Iterator[Op]:
        """Yield an op and the slices made of its result."""
        yield op
        for each in self.after.get(op.number, ()):
            yield from self.followed(each)

    def made(self, ops: list[Op], location: Op) -> Builder:
        return Builder(self.numbers, location.location, ops)

    def reduced(self, op: Op) -> list[Op]:
        """Return the ops in place of one: a reduction combines the places of the dimensions that allow it."""
        attrs = op.attrs
        if not isinstance(attrs, ReduceAttrs) or REDUCTIONS[attrs.name].combine is None:
            return [op]
        (value,) = op.values()
        if value.dtype != op.result.dtype:
            return [op]
        combine, ops, left = str(REDUCTIONS[attrs.name].combine), list[Op](), list(attrs.dims)
        for at in reversed(attrs.dims):
            try:
                count = _places(self.program, value.dims, at)
                places: list[Operand] = [self.slice(value, at, place) for place in range(count)]
            except Declined:
                continue
            if not places:
                continue
            value = self.combined(combine, places, ops, op)
            left = [each - (each > at) for each in left if each != at]
        if value is op.operands[0]:
            return [op]
        if left:
            ops.append(replace(op, operands=(value,), attrs=replace(attrs, dims=tuple(left))))
        else:
            ops[-1] = replace(ops[-1], results=op.results)
        self.makers.ops.update((each.result.number, each) for each in ops)
        return ops

    def combined(self, name: str, places: list[Operand], ops: list[Op], op: Op) -> Value:
        """Return the values of all places as one, two at a time."""
        out, first = self.made(ops, op), len(ops)
        while len(places) > 1:
            pairs = itertools.zip_longest(places[::2], places[1::2])
            places = [one if two is None else out.pointwise(name, one, two, like=op.result.name) for one, two in pairs]
        self.makers.ops.update((each.result.number, each) for each in ops[first:])
        (only,) = places
        assert isinstance(only, Value)
        return only

    # --- slices ---------------------------------------------------------------------------------------------------------

    def slice(self, value: Value, at: int, place: int) -> Value:
        """Return one place along a dimension of a value. Raises ``Declined`` if its op has no slices."""
        key = (value.number, at, place)
        if key not in self.slices:
            op = self.makers.of(value)
            slicer = {"load": self.load, "pointwise": self.pointwise, "view": self.view, "reduce": self.reduce}.get(
                op.kind if op is not None else ""
            )
            if op is None or slicer is None:
                raise Declined("a value without slices")
            ops: list[Op] = []
            found = slicer(op, at, place, self.made(ops, op))
            self.after.setdefault(op.number, []).extend(ops)
            self.makers.ops.update((each.result.number, each) for each in ops)
            self.slices[key] = found
        made = self.slices[key]
        assert isinstance(made, Value)
        return made

    def of(self, operand: Operand, at: int, place: int, rank: int, out: Builder) -> Operand:
        """Return the place of an operand that broadcasts to ``rank`` dimensions."""
        if not isinstance(operand, Value) or (mine := at - rank + len(operand.dims)) < 0:
            return operand
        if operand.dims[mine].is_one:
            return out.reshape(operand, _without(operand.dims, mine))
        return self.slice(operand, mine, place)

    def load(self, op: Op, at: int, place: int, out: Builder) -> Value:
        attrs, operands = op.attributes(MemoryAttrs), list(op.operands)
        if attrs.mark is not None:
            raise Declined("a load that waits")
        strides = self.program.tensors[attrs.tensor].strides
        indices = []
        for index, stride in zip(attrs.indices, strides, strict=True):
            if at in index.positions:
                places = _places(self.program, op.result.dims, at)
                if index.kind != "block" or not isinstance(index.shift, int):
                    raise Declined("places by an index")
                if not fixed_at(stride, 1) or not places & (places - 1):
                    raise Declined("places that fill a vector, or a row of lanes")
                index = Index("scalar", shift=index.shift + place, operand=index.operand)
            indices.append(replace(index, positions=tuple(each - (each > at) for each in index.positions)))
        if attrs.mask is not None:
            operands[attrs.mask] = self.of(operands[attrs.mask], at, place, len(op.result.dims), out)
        made = out.value(op.result.dtype, _without(op.result.dims, at), op.result.name)
        out.repeat(
            op,
            operands=tuple(operands),
            results=(made,),
            attrs=replace(attrs, indices=tuple(indices), rank=attrs.rank - 1),
        )
        return made

    def pointwise(self, op: Op, at: int, place: int, out: Builder) -> Value:
        rank = len(op.result.dims)
        operands = [self.of(operand, at, place, rank, out) for operand in op.operands]
        return out.emit("pointwise", operands, op.result.dtype, _without(op.result.dims, at), op.attrs, op.result.name)

    def view(self, op: Op, at: int, place: int, out: Builder) -> Value:
        (value,), dims, attrs = op.values(), _without(op.result.dims, at), op.attributes(ViewAttrs)
        if attrs.name == "permute":
            mine = attrs.order[at]
            order = tuple(each - (each > mine) for each in attrs.order if each != mine)
            sliced = self.slice(value, mine, place)
            return out.emit("view", (sliced,), value.dtype, dims, ViewAttrs("permute", order), value.name)
        if attrs.name == "broadcast":
            whole = self.of(value, at, place, len(op.result.dims), out)
            assert isinstance(whole, Value)
            return whole if whole.dims == dims else out.emit("view", (whole,), value.dtype, dims, attrs, value.name)
        kept = [mine for mine, dim in enumerate(value.dims) if not dim.is_one]
        if [value.dims[mine] for mine in kept] != [dim for dim in op.result.dims if not dim.is_one]:
            raise Declined("a reshape of places")
        number = sum(not dim.is_one for dim in op.result.dims[:at])
        return out.reshape(self.slice(value, kept[number], place), dims)

    def reduce(self, op: Op, at: int, place: int, out: Builder) -> Value:
        (value,), attrs = op.values(), op.attributes(ReduceAttrs)
        mine = [each for each in range(len(value.dims)) if each not in attrs.dims][at]
        dims = tuple(each - (each > mine) for each in attrs.dims)
        sliced, left = self.slice(value, mine, place), _without(op.result.dims, at)
        return out.emit("reduce", (sliced,), op.result.dtype, left, replace(attrs, dims=dims), op.result.name)
