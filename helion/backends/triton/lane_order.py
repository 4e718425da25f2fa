"""Order of lanes in accesses to elements of which no two are known to be neighbors.

Triton gives the lanes of a warp to the dimension along which addresses are known to be neighbors. Where it knows none, as
in every third element of a row or in gathered columns, Triton 3.6 takes the first dimension of the tile. Lanes then lie
across rows, and each has a line of memory of its own (measurement ``lanes_along_steps``). The access is made with the
dimension of the shortest step first, and the value permuted, which moves no register. Triton 3.7 takes the last
dimension, where that of the shortest step mostly is. A known run shorter than a line leaves the same choice among the
other dimensions. Before, with 3 elements between the columns::

    %1: [b0, b1] = load x[b0, b1, 0]

After::

    %2: [b1, b0] = load x[b0, b1, 0]
    %1: [b0, b1] = permute (1, 0) %2

Stores permute their value first. Lanes of memory that a kernel also writes stay where they are: programs rely on them
for their order.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..._compiler.ir.build import Builder, Numbers
from ..._compiler.ir.grammar import (
    Index,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Value,
    ViewAttrs,
)
from ..._compiler.ir.ops import OPS
from ..._compiler.ir.rewrite import Makers, expand_ops
from ..._compiler.rewrites.steps import StepInputs
from ..._shapes import Dim, Number, fixed_at, hint_of
from ..._support.records import dataclass, replace

#: Pointwise ops through which Triton still knows that lanes are neighbors, and their operands that matter.
_KEEPING = {"add": 2, "sub": 1, "cast": 1, "mod": 1, "fmod": 1, "where": 3, "bitwise_or": 2, "bitwise_and": 1}
#: Elements that a step is at least where an integer known only at launch multiplies it, such as a stride.
_FAR = 1024.0
#: Bytes of a line of memory. Lanes with a longer step share none, in whatever order.
_LINE_BYTES = 128


def order_lanes(program: Program, inputs: StepInputs) -> Program:
    """Return the program with its accesses of unknown neighbors made along their shortest step."""
    ops = [op for op in program.walk() if isinstance(op.attrs, MemoryAttrs) and op.kind in ("load", "store")]
    if not any(op.attrs.rank > 1 for op in ops) or any(op.kind.endswith("_at") for op in program.walk()):
        return program
    order = _Order(program, inputs)
    return expand_ops(program, order.change)


@dataclass
class _Order:
    program: Program
    inputs: StepInputs

    def __post_init__(self) -> None:
        program = self.program
        self.sizes = self.inputs.sizes_in(program)
        self.makers = Makers.among(program.walk())
        self.numbers = Numbers.after(program)
        self.read: set[int | None] = set()
        self.written: set[int | None] = set()
        #: The shapes of subscripts of stores, by storage: stores of one shape get the same lanes.
        self.stored: dict[int | None, set[object]] = {}
        for op in program.walk():
            spec = OPS[op.kind]
            if not isinstance(op.attrs, MemoryAttrs):
                continue
            storage = program.tensors[op.attrs.tensor].storage
            self.read |= {storage} if spec.reads else set()
            self.written |= {storage} if spec.writes else set()
            if op.kind == "store":
                shape = (op.attrs.tensor, op.results[0].dims, *((i.kind, i.positions) for i in op.attrs.indices))
                self.stored.setdefault(storage, set()).add(shape)

    def change(self, op: Op) -> Iterable[Op]:
        if op.kind not in ("load", "store") or not isinstance(op.attrs, MemoryAttrs):
            return (op,)
        order = self.order(op, op.attrs)
        if order is None:
            return (op,)
        return self.loaded(op, op.attrs, order) if op.kind == "load" else self.kept(op, op.attrs, order)

    def order(self, op: Op, attrs: MemoryAttrs) -> tuple[int, ...] | None:
        """Return the dimensions by increasing step; None for an access that stays as it is."""
        dims, storage = op.results[0].dims, self.program.tensors[attrs.tensor].storage
        wide = [at for at, dim in enumerate(dims) if dim.lanes(self.sizes) > 1]
        special = attrs.padded or attrs.aligned or attrs.run or attrs.mark is not None
        special = special or attrs.slot in self.inputs.block_accesses
        moved = storage in self.written if op.kind == "load" else storage in self.read or len(self.stored[storage]) > 1
        if len(wide) < 2 or len(dims) != attrs.rank or special or moved:
            return None
        itemsize = self.program.tensors[attrs.tensor].dtype.itemsize
        runs = [at for at in wide if self.has_neighbors(op, attrs, at)]
        if any(dims[at].lanes(self.sizes) * itemsize >= _LINE_BYTES or not self.is_run(attrs, at) for at in runs):
            return None
        steps = {at: self.step(op, attrs, at) for at in wide if at not in runs}
        # a later dimension is the more likely one to be a row
        near, *more = sorted(steps, key=lambda at: (steps[at], -at)) or [0]
        place = min(steps) if self.inputs.first_lanes and steps else max(steps, default=0)
        if not more or near == place or steps[near] * itemsize >= _LINE_BYTES:
            return None
        rest = [at for at in range(len(dims)) if at not in steps]
        return (near, *more, *rest) if self.inputs.first_lanes else (*rest, *reversed(more), near)

    def indices(self, attrs: MemoryAttrs, at: int) -> Iterable[tuple[Index, Number]]:
        """Yield the indices along a dimension of the value, with the strides of theirs."""
        tensor = self.program.tensors[attrs.tensor]
        for index, stride in zip(attrs.indices, tensor.strides, strict=True):
            if at in index.positions:
                yield index, stride

    def has_neighbors(self, op: Op, attrs: MemoryAttrs, at: int) -> bool:
        """Return whether Triton may know that lanes along a dimension are neighbors."""
        dim = op.results[0].dims[at]
        for index, stride in self.indices(attrs, at):
            operand = None if index.operand is None else op.operands[index.operand]
            near = not isinstance(stride, int) or abs(stride) == 1
            if near and (index.kind == "block" or self.counts(operand, dim)):
                return True
        return False

    def is_run(self, attrs: MemoryAttrs, at: int) -> bool:
        """Return whether Triton knows that lanes along a dimension are neighbors: those of a tile, with a stride of 1."""
        return any(index.kind == "block" and fixed_at(stride, 1) for index, stride in self.indices(attrs, at))

    def counts(self, operand: Operand | None, dim: Dim) -> bool:
        """Return whether Triton may know that a number grows by one from lane to lane."""
        op = self.makers.of(operand)
        if op is None:
            return isinstance(operand, Value) and _has(operand, dim)
        if not _has(op.results[0], dim):
            return False
        if isinstance(op.attrs, PointwiseAttrs):
            given = op.operands[: _KEEPING.get(op.attrs.name, 0)]
            floats = any(isinstance(value, Value) and value.dtype.is_floating_point for value in given)
            return not floats and any(self.counts(value, dim) for value in given)
        if op.kind == "view":
            return self.counts(op.operands[0], dim)
        return op.kind not in ("load", "load_at", "gather", "reduce", "scan")

    def step(self, op: Op, attrs: MemoryAttrs, at: int) -> float:
        """Return the elements between two lanes along a dimension, where it is known; else the least."""
        dim, total = op.results[0].dims[at], 0.0
        for index, stride in self.indices(attrs, at):
            operand = None if index.operand is None or index.kind == "block" else op.operands[index.operand]
            total += abs(float(hint_of(stride))) * (1.0 if operand is None else abs(self.slope(operand, dim)))
        return total

    def slope(self, operand: Operand, dim: Dim) -> float:
        """Return by how much an index grows from lane to lane along a dimension; 1 where that depends on data."""
        if not isinstance(operand, Value) or not _has(operand, dim):
            return 0.0
        op = self.makers.of(operand)
        if op is not None and op.kind == "view":
            return self.slope(op.operands[0], dim)
        if op is None or not isinstance(op.attrs, PointwiseAttrs):
            return 1.0
        slopes = [self.slope(value, dim) for value in op.operands]
        name = op.attrs.name
        if name in ("add", "sub"):
            return slopes[0] + slopes[1] if name == "add" else slopes[0] - slopes[1]
        if name == "mul":
            (slope, other), *_ = sorted(zip(slopes, reversed(op.operands), strict=True), key=lambda pair: -abs(pair[0]))
            unknown = _FAR if isinstance(other, Value) and not other.dtype.is_floating_point else 1.0
            return slope * (unknown if isinstance(other, Value) else float(other))
        if name in ("floordiv", "truncdiv") and not isinstance(op.operands[1], Value):
            return slopes[0] / float(op.operands[1] or 1)
        return max(slopes, key=abs, default=1.0)

    def loaded(self, op: Op, attrs: MemoryAttrs, order: tuple[int, ...]) -> Iterable[Op]:
        made = Builder(self.numbers, op.location, [])
        operands, turned = self.turned(made, op, attrs, order)
        (result,) = op.results
        first = made.emit("load", operands, result.dtype, tuple(result.dims[at] for at in order), turned)
        back = tuple(order.index(at) for at in range(len(order)))
        view = Op(self.numbers.op(), "view", (first,), (result,), ViewAttrs("permute", back), (), op.location)
        return (*made.ops, view)

    def kept(self, op: Op, attrs: MemoryAttrs, order: tuple[int, ...]) -> Iterable[Op]:
        made = Builder(self.numbers, op.location, [])
        value, dims = op.operands[0], op.results[0].dims
        if not isinstance(value, Value) or value.dims != dims:
            return (op,)
        operands, turned = self.turned(made, op, attrs, order)
        to = tuple(dims[at] for at in order)
        operands[0] = made.emit("view", (value,), value.dtype, to, ViewAttrs("permute", order))
        stored = replace(op.results[0], dims=to)
        return (*made.ops, replace(op, operands=tuple(operands), attrs=turned, results=(stored,)))

    def turned(
        self, made: Builder, op: Op, attrs: MemoryAttrs, order: tuple[int, ...]
    ) -> tuple[list[Operand], MemoryAttrs]:
        """Return operands and attributes of the access with its dimensions in another order."""
        operands, indices = list(op.operands), []
        for index in attrs.indices:
            to = tuple(order.index(at) for at in index.positions)
            if len(to) > 1 and list(to) != sorted(to):
                assert index.operand is not None
                operands[index.operand] = _permuted(made, operands[index.operand], _ranks(to))
            indices.append(replace(index, positions=tuple(sorted(to))))
        if attrs.mask is not None:
            operands[attrs.mask] = _permuted(made, operands[attrs.mask], order)
        return operands, replace(attrs, indices=tuple(indices))


def _ranks(to: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(to)), key=lambda at: to[at]))


def _permuted(made: Builder, value: Operand, order: tuple[int, ...]) -> Operand:
    """Return a value with its dimensions in another order; one without dimensions stays as it is."""
    if not isinstance(value, Value) or not value.dims:
        return value
    dims = tuple(value.dims[at] for at in order)
    return made.emit("view", (value,), value.dtype, dims, ViewAttrs("permute", order))


def _has(value: Value, dim: Dim) -> bool:
    """Return whether a value changes along a dimension."""
    return any(set(each.blocks) & set(dim.blocks) or (not dim.blocks and each == dim) for each in value.dims)
