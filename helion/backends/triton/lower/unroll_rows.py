"""Rows of a tile as values of their own, where they share the elements that they load.

A filter loads a tile once for each of its taps. Triton keeps no load for another one, so that each element is loaded
and converted once for each tap along the rows. Before, with tiles of two rows of ``b0``::

    %1: [b0, b1] = load x[b0, b1]; %2: [b0, b1] = load x[b0 + 1, b1]; %3: [b0, b1] = add %1, %2

after::

    %4 = tile b0.begin
    %5: [b1] = load x[%4, b1]; %6: [b1] = load x[%4 + 1, b1]; %7: [b1] = load x[%4 + 2, b1]
    %8: [b1] = add %5, %6; %9: [b1] = add %6, %7

The rows of a program are in the same thread before, too, if the other dimensions have an element for each thread. Rows
out of range are computed, but not stored. They load elements that a row in range loads, or none.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

import torch

from ...._compiler.ir.build import Builder, Numbers
from ...._compiler.ir.effects import storages_of
from ...._compiler.ir.grammar import (
    Index,
    IotaAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...._compiler.ir.rewrite import Declined
from ...._compiler.passes.always.simplify import drop_dead, merge_common
from ...._compiler.passes.analysis import row_windows as windows
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import ONE, Dim, Dims, broadcast_dims
from ...._support.records import dataclass, field, replace
from ..row_windows import MOST_ROWS, is_unrolled, saves_loads

#: Rows that are nearer to 0 have sums without overflow.
_FARTHEST = 2**30
#: Comparisons that hold between two numbers if they hold for both.
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}


def unroll_rows(program: Program, inputs: StepInputs) -> Program:
    """Return the program with separate rows in the grids where that saves loads."""
    if inputs.checked:
        return program
    sizes, tried = inputs.sizes_in(program), set[int]()
    for at in range(len(program.roots)):
        while (block := _next(program, program.roots[at], sizes, inputs, tried)) is not None:
            tried.add(block)
            try:
                program = _unrolled(program, at, block, sizes[block])
            except Declined:
                continue
    return program


def _unrolled(program: Program, at: int, block: int, rows: int) -> Program:
    root = _Unroller(program, program.roots[at], block, rows).unrolled()
    roots = (*program.roots[:at], root, *program.roots[at + 1 :])
    return drop_dead(merge_common(replace(program, roots=roots)))


def _next(program: Program, root: Root, sizes: Mapping[int, int], inputs: StepInputs, tried: set[int]) -> int | None:
    """Return a block of a grid whose rows are in one thread each, and that no access has special means for."""
    ops = root.body.ops
    axes = [axis for axis in root.axes[::-1] if axis.block not in tried and 2 <= sizes[axis.block] <= MOST_ROWS]
    if not axes or not all(windows.is_plain(op) and _is_plain(op, inputs) for op in ops):
        return None
    read, written = storages_of(program, root)
    if read & written:
        return None
    tiles = [value.dims for op in ops for value in op.results if value.dims]
    for axis in axes:
        rows, own = sizes[axis.block], Dim(1, (axis.block,))
        if not windows.is_simple(axis):
            continue
        over = [dims for dims in tiles if any(axis.block in dim.blocks for dim in dims)]
        if any(dims.count(own) != 1 or sum(axis.block in dim.blocks for dim in dims) != 1 for dims in over):
            continue
        lanes = max((math.prod(dim.lanes(sizes) for dim in dims) // rows for dims in over), default=0)
        if is_unrolled(rows, lanes, inputs.threads):
            return axis.block
    return None


def _is_plain(op: Op, inputs: StepInputs) -> bool:
    if isinstance(op.attrs, MemoryAttrs):
        own = op.attrs.mark is None and not (op.attrs.padded or op.attrs.aligned or op.attrs.run)
        return own and op.attrs.slot not in inputs.block_accesses
    return True


def _key(operand: Operand) -> object:
    # numbers by type and text: 0, 0.0, -0.0 and False are equal in Python
    return operand.number if isinstance(operand, Value) else (type(operand), repr(operand))


def _after_removal(index: Index, removed: int) -> Index:
    """Return an index after the removal of an operand."""
    later = index.operand is not None and index.operand > removed
    return replace(index, operand=index.operand - 1) if later else index  # type: ignore[operator]


@dataclass
class _Unroller:
    """Replaces each op of a grid that has the dimension ``block`` by one for each row."""

    program: Program
    root: Root
    block: int
    rows: int
    ops: list[Op] = field(default_factory=list)
    #: The values of the rows in place of a value, by its number.
    row_values: dict[int, tuple[Operand, ...]] = field(default_factory=dict)
    #: Numbers of rows: the value that they are added to, and the constant, by number of the value.
    sums: dict[int, tuple[Value, int]] = field(default_factory=dict)
    known: dict[tuple[object, ...], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = Numbers.after(self.program)
        (self.axis,) = [axis for axis in self.root.axes if axis.block == self.block]
        whole = isinstance(self.axis.begin, int) and isinstance(self.axis.end, int)
        self.whole = self.axis.whole or (whole and (self.axis.end - self.axis.begin) % self.rows == 0)  # type: ignore[operator]
        #: The least and the greatest first row of a tile, if they are known.
        self.bounds: tuple[int, int] | None = None
        if isinstance(self.axis.begin, int) and isinstance(self.axis.end, int) and self.axis.end > self.axis.begin:
            tiles = -(-(self.axis.end - self.axis.begin) // self.rows)
            self.bounds = self.axis.begin, self.axis.begin + (tiles - 1) * self.rows
        self.out = Builder(self.numbers, self.root.location, self.ops)
        self.begin = self.out.emit("tile", (), self.program.index_dtype, (), TileAttrs(self.block, "begin"), "begin")
        self.insides = {} if self.whole else {row: self.inside(row) for row in range(1, self.rows)}
        self.begins: dict[torch.dtype, Value] = {}
        #: The first row that has the element of each load of the result, by number of the value.
        self.first: dict[int, int] = {}
        self.asked = 0

    def unrolled(self) -> Root:
        """Return the grid with separate rows; raise ``Declined`` if that saves too few loads."""
        for op in self.root.body.ops:
            self.out.location = op.location
            if any(map(self.has_rows, (*op.values(), *op.results))):
                self.expand(op)
            else:
                self.ops.append(op)
        made = len(self.first)
        if not saves_loads(self.asked, made):
            raise Declined("rows share few loads")
        ops = [each for op in self.ops for each in self.masked(op)]
        return replace(self.root, body=Region((), tuple(ops), ()))

    def inside(self, row: int) -> Value:
        """Return the condition that a row is in range."""
        end = self.out.emit("tile", (), self.program.index_dtype, (), TileAttrs(self.block, "end"), "end")
        return self.out.pointwise("lt", self.number(self.begin, row), end)

    def has_rows(self, value: Value) -> bool:
        return any(dim.block == self.block for dim in value.dims)

    def expand(self, op: Op) -> None:
        if op.kind == "store":
            for row in range(self.rows):
                self.store(op, row)
            return
        at = self.place(op.result)
        if at is None:
            # one result of all rows, such as a reshape of one
            raise Declined(f"{op.kind} of all rows")
        made = {
            "iota": self.index,
            "full": self.full,
            "load": self.load,
            "pointwise": self.pointwise,
            "view": self.view,
        }[op.kind]
        self.row_values[op.result.number] = tuple(made(op, row) for row in range(self.rows))

    def place(self, value: Value) -> int | None:
        """Return the position of the rows of a value, from the right."""
        return next((len(value.dims) - at for at, dim in enumerate(value.dims) if dim.block == self.block), None)

    def without(self, dims: Dims) -> Dims:
        """Return the dimensions without the rows, and without dimensions of size 1 before the first other one."""
        left = tuple(dim for dim in dims if dim.block != self.block)
        while left and left[0].is_one:
            left = left[1:]
        return left

    def of_row(self, operand: Operand, row: int, place: int) -> Operand:
        """Return an operand of a tile with rows at ``place`` from the right, for one of them."""
        if not isinstance(operand, Value):
            return operand
        if operand.number in self.row_values:
            if self.place(operand) != place:
                raise Declined("rows of two dimensions meet")
            return self.row_values[operand.number][row]
        dims = operand.dims
        if len(dims) < place:
            return operand
        assert dims[-place].is_one
        left = (*dims[: len(dims) - place], *dims[len(dims) - place + 1 :])
        while left and left[0].is_one:
            left = left[1:]
        return self.reshape(operand, left)

    def reshape(self, value: Value, dims: Dims) -> Value:
        if value.dims == dims:
            return value
        if not dims:
            raise Declined("a value of one element has dimensions")
        key = ("reshape", value.number, dims)
        if key not in self.known:
            self.known[key] = self.out.reshape(value, dims)
        return self.known[key]

    def whole_tile(self, operand: Operand, dims: Dims, dtype: torch.dtype) -> Value:
        """Return an operand with all of ``dims``."""
        if isinstance(operand, Value) and operand.dims == dims:
            return operand
        if not isinstance(operand, Value) or not operand.dims:
            return self.out.emit("full", (operand,), dtype, dims)
        wide = self.out.reshape(operand, (*(ONE,) * (len(dims) - len(operand.dims)), *operand.dims))
        return self.out.emit("view", (wide,), operand.dtype, dims, ViewAttrs("broadcast"), operand.name)

    # --- ops ----------------------------------------------------------------------------------------------------------

    def number(self, base: Value, constant: int) -> Value:
        """Return a sum of a number of all rows and a constant, each once."""
        key = ("add", base.number, constant)
        if key not in self.known:
            self.known[key] = self.out.pointwise("add", base, constant) if constant else base
        made = self.known[key]
        self.sums[made.number] = base, constant
        return made

    def derived(self, name: str, base: Value, number: int) -> Value:
        """Return a product or quotient of a number of all rows, once."""
        key = (name, base.number, number)
        if key not in self.known:
            self.known[key] = self.out.pointwise(name, base, number)
        return self.known[key]

    def index(self, op: Op, row: int) -> Operand:
        attrs = op.attributes(IotaAttrs)
        if attrs.relative or attrs.step != 1 or attrs.start:
            raise Declined("indices from another start")
        dtype = op.result.dtype
        if dtype not in self.begins:
            self.begins[dtype] = self.out.cast(self.begin, dtype)
        return self.number(self.begins[dtype], row)

    def linear(self, op: Op, first: Operand, other: Operand) -> Value | None:
        """Return a sum, product or quotient of a row's number and a constant; None for anything else."""
        if not isinstance(first, Value) or type(other) is not int or first.number not in self.sums:
            return None
        (base, constant), name = self.sums[first.number], op.attributes(PointwiseAttrs).name
        if first.dtype != op.result.dtype:
            return None
        if name in ("add", "sub"):
            return self.number(base, constant + (other if name == "add" else -other))
        if name == "mul":
            return self.number(self.derived(name, base, other), constant * other)
        if name == "floordiv" and other > 0 and base in self.begins.values() and self.begins_at_multiples(other):
            return self.number(self.derived(name, base, other), constant // other)
        return None

    def condition(self, name: str, operands: tuple[Operand, ...]) -> Operand | None:
        """Return a comparison of a row's number that is the same in all tiles, or a conjunction without such; else None."""
        if name in _COMPARED and len(operands) == 2:
            first, other = operands
            if isinstance(first, Value) and type(other) is int and first.number in self.sums:
                base, constant = self.sums[first.number]
                if base in self.begins.values() and self.bounds is not None:
                    compare, ends = _COMPARED[name], [bound + constant for bound in self.bounds]
                    found = {compare(end, other) for end in ends}
                    return found.pop() if len(found) == 1 and max(map(abs, ends)) < _FARTHEST else None
        if name in ("logical_and", "bitwise_and") and any(isinstance(each, bool) for each in operands):
            rest = [each for each in operands if each is not True]
            return False if False in [each for each in rest if isinstance(each, bool)] else rest[0] if rest else True
        return None

    def materialized(self, operand: Operand, given: Operand) -> Operand:
        """Return a known condition that takes the place of a value as a value."""
        if not isinstance(operand, bool) or not isinstance(given, Value):
            return operand
        key = ("full", _key(operand))
        if key not in self.known:
            self.known[key] = self.out.emit("full", (operand,), torch.bool, ())
        return self.known[key]

    def begins_at_multiples(self, number: int) -> bool:
        """Return whether each tile begins at a multiple of a number."""
        return isinstance(self.axis.begin, int) and self.axis.begin % number == 0 == self.rows % number

    def full(self, op: Op, row: int) -> Operand:
        (fill,) = op.operands
        dims = self.without(op.result.dims)
        key = ("full", _key(fill), op.result.dtype, dims)
        if key not in self.known:
            self.known[key] = self.out.emit("full", (fill,), op.result.dtype, dims)
        return self.known[key]

    def pointwise(self, op: Op, row: int) -> Operand:
        place = self.place(op.result)
        assert place is not None
        operands = tuple(self.of_row(operand, row, place) for operand in op.operands)
        attrs = op.attributes(PointwiseAttrs)
        if len(operands) == 2 and (made := self.linear(op, *operands)) is not None:
            return made
        if (known := self.condition(attrs.name, operands)) is not None:
            return known
        operands = tuple(self.materialized(each, given) for each, given in zip(operands, op.operands, strict=True))
        dims = broadcast_dims([each.dims for each in operands if isinstance(each, Value)])
        assert dims is not None
        key = ("pointwise", attrs.name, tuple(map(_key, operands)), op.result.dtype)
        if key not in self.known:
            self.known[key] = self.out.emit("pointwise", operands, op.result.dtype, dims, attrs, op.result.name)
        return self.known[key]

    def view(self, op: Op, row: int) -> Operand:
        (value,) = op.values()
        place = self.place(op.result)
        assert place is not None
        if op.attributes(ViewAttrs).name == "broadcast":
            return self.of_row(value, row, place)
        if not self.has_rows(value):
            raise Declined("a reshape to rows")
        mine = self.row_values[value.number][row]
        if not isinstance(mine, Value) or not mine.dims:
            return mine
        kept = [dim for dim in value.dims if not dim.is_one]
        if mine.dims != self.without(value.dims) or kept != [dim for dim in op.result.dims if not dim.is_one]:
            raise Declined("a reshape of a part of a tile")
        return self.reshape(mine, self.without(op.result.dims))

    def load(self, op: Op, row: int) -> Operand:
        operands, attrs, dims = self.access(op, op.result, row)
        self.asked += 1
        places = tuple(
            (i.kind, i.block, i.positions, repr(i.shift), _key(operands[i.operand]) if i.operand is not None else None)
            for i in attrs.indices
        )
        mask = _key(operands[attrs.mask]) if attrs.mask is not None else None
        key = ("load", attrs.tensor, attrs.eviction, places, mask, dims)
        if key not in self.known:
            made = self.known[key] = self.out.value(op.result.dtype, dims, op.result.name)
            self.out.repeat(op, operands=operands, results=(made,), attrs=attrs)
        loaded = self.known[key]
        self.first[loaded.number] = min(row, self.first.get(loaded.number, row))
        return loaded

    def masked(self, op: Op) -> list[Op]:
        """Return a load with a mask of the first row that has its element, if no tile has the row out of range."""
        inside = self.insides.get(self.first.get(op.result.number, 0)) if op.kind == "load" else None
        if inside is None:
            return [op]
        ops: list[Op] = []
        self.out = Builder(self.numbers, op.location, ops)
        ops.append(self.with_mask(op, inside))
        return ops

    def with_mask(self, op: Op, inside: Value) -> Op:
        """Return the access with one more condition on its lanes."""
        attrs, operands, dims = op.attributes(MemoryAttrs), op.operands, op.result.dims
        at = attrs.mask if attrs.mask is not None else len(operands)
        mask: Operand = inside if attrs.mask is None else self.out.pointwise("logical_and", operands[at], inside)
        operands = (*operands[:at], self.whole_tile(mask, dims, torch.bool), *operands[at + 1 :])
        return replace(op, operands=operands, attrs=replace(attrs, mask=at))

    def store(self, op: Op, row: int) -> None:
        value, *_ = op.operands
        place = self.place(op.result)
        assert isinstance(value, Value)
        if place is None:
            raise Declined("a store of all rows")
        operands, attrs, dims = self.access(op, op.result, row)
        stored = self.whole_tile(self.row_values[value.number][row], dims, value.dtype)
        made = self.out.value(op.result.dtype, dims, op.result.name)
        each = replace(op, number=self.numbers.op(), operands=(stored, *operands[1:]), results=(made,), attrs=attrs)
        inside = self.insides.get(row)
        self.ops.append(each if inside is None else self.with_mask(each, inside))

    def access(self, op: Op, selected: Value, row: int) -> tuple[tuple[Operand, ...], MemoryAttrs, Dims]:
        """Return the operands, attributes and dimensions of one row of an access."""
        attrs, operands = op.attributes(MemoryAttrs), list(op.operands)
        at = next((at for at, dim in enumerate(selected.dims) if dim.block == self.block), None)
        if at is None:
            raise Declined("an access of all rows")
        dims = (*selected.dims[:at], *selected.dims[at + 1 :])
        indices = []
        for index in attrs.indices:
            positions = tuple(p - (p > at) for p in index.positions if p != at)
            if index.kind == "block" and index.block == self.block:
                indices.append(self.row_index(index, operands, row))
            elif index.kind == "tensor" and at in index.positions:
                assert index.operand is not None
                indices.append(self.tensor_index(index, operands, positions, dims, row, len(selected.dims) - at))
            else:
                indices.append(replace(index, positions=positions))
        if (masked := attrs.mask) is not None:
            mask = self.of_row(operands[masked], row, len(selected.dims) - at)
            if mask is True:
                del operands[masked]
                indices = [_after_removal(index, masked) for index in indices]
                attrs = replace(attrs, mask=None)
            else:
                key = ("mask", _key(mask), dims)
                if key not in self.known:
                    self.known[key] = self.whole_tile(mask, dims, torch.bool)
                operands[masked] = self.known[key]
        made = replace(attrs, indices=tuple(indices), rank=attrs.rank - 1)
        return tuple(operands), made, dims

    def row_index(self, index: Index, operands: list[Operand], row: int) -> Index:
        if not isinstance(index.shift, int):
            raise Declined("a row by an expression")
        number = self.number(self.begin, row + index.shift)
        if index.operand is not None:
            number = self.out.pointwise("add", number, operands[index.operand])
            operands[index.operand] = number
            return Index("scalar", operand=index.operand)
        operands.append(number)
        return Index("scalar", operand=len(operands) - 1)

    def tensor_index(
        self, index: Index, operands: list[Operand], positions: tuple[int, ...], dims: Dims, row: int, place: int
    ) -> Index:
        assert index.operand is not None
        value = operands[index.operand]
        assert isinstance(value, Value)
        mine = self.row_values[value.number][row] if value.number in self.row_values else None
        if not isinstance(mine, Value):
            raise Declined("a row by a number")
        operands[index.operand] = mine
        if not positions:
            if mine.dims:
                raise Declined("a row by a tile")
            return replace(index, kind="scalar", positions=())
        wanted = tuple(dim for dim in value.dims if dim.block != self.block)
        if mine.dims != wanted:
            operands[index.operand] = self.whole_tile(mine, wanted, value.dtype)
        return replace(index, positions=positions)
