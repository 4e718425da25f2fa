"""Vector alignment of chunks of long rows, for rows at any offset.

Rows of 50257 16-bit elements begin anywhere in a 16-byte vector, so that each element has a scalar access. A loop over
the tiles of such a row, one row per program, begins up to a vector before it instead. Before::

    for b1 in 0..50257: %1: [b0, b1] = load x[b0, b1]; ..

after, with tiles of b0 of one row and rows of 50257 elements::

    %2: [] = -((b0.begin * 1) & 7)
    for b1 in %2..50257, aligned to 8: %1: [b0, b1] = load x[b0, b1], aligned to 8; ..

All accesses of the loop along the row must have the same alignment: mixed vector and scalar tiles would convert their
layout in shared memory. In the first and the last tile lanes are out of range. The printed code has the body twice: for
tiles whose lanes are all in range, unmasked and vectorized, and for the others. A loop that sums a load directly stays
as it is: Triton moves such a sum after the loop, but not out of a branch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from ...._compiler.ir.build import Builder, Numbers
from ...._compiler.ir.effects import apart_by_numbers
from ...._compiler.ir.grammar import (
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    OperandRef,
    PointwiseAttrs,
    Program,
    TileAttrs,
    Value,
)
from ...._compiler.ir.operands import is_block, unaddressed
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers, expand_ops
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import fixed_at
from ...._support.records import dataclass, replace
from ....hardware import VECTOR_BYTES
from .pin_reductions import is_moved

#: Least tiles of a row: the first and the last are slower.
_LEAST_TILES = 4
#: Least elements of a tile, so that the first one has lanes in range.
_LEAST_TILE = 2 * VECTOR_BYTES
#: Kinds of ops that a loop may contain.
_KINDS = frozenset(("number", "tile", "iota", "full", "load", "store", "pointwise", "reduce", "view", "mask"))


def align_rows(program: Program, inputs: StepInputs) -> Program:
    """Return the program with its loops over tiles of unaligned rows aligned."""
    if inputs.checked or inputs.unrolled or not inputs.steady or inputs.block_accesses:
        return program
    if not any(isinstance(op.attrs, ForAttrs) for op in program.walk()):
        return program
    if is_ordered(program):
        return program
    aligner = _Aligner(program, inputs.sizes_in(program))
    return expand_ops(program, aligner.change)


def is_long(extent: int, size: int) -> bool:
    """Return whether rows of ``extent`` elements take enough tiles of ``size`` to be aligned."""
    return size >= _LEAST_TILE and extent >= _LEAST_TILES * size


def is_ordered(program: Program) -> bool:
    """Return whether the assignment of lanes to threads matters: several places may access an element that is written."""
    accesses = [op for op in program.walk() if OPS[op.kind].reads or OPS[op.kind].writes]
    if not all(isinstance(op.attrs, MemoryAttrs) for op in accesses):
        return True
    groups: dict[int, list[Op]] = {}
    for op in accesses:
        groups.setdefault(program.tensors[op.attributes(MemoryAttrs).tensor].storage, []).append(op)
    written = (group for group in groups.values() if any(OPS[op.kind].writes for op in group))
    return any(not apart_by_numbers(program, a, b) for group in written for a, b in itertools.combinations(group, 2))


@dataclass(frozen=True)
class _Term:
    """A scalar in the offset of a row, times ``factor`` elements: ``begin`` of the grid's tiles of a block, a value, or
    1.
    """

    factor: int
    block: int | None = None
    value: int | None = None


#: The offset of an access's row, in elements, modulo a vector.
_Row = frozenset[_Term]


class _Aligner:
    def __init__(self, program: Program, sizes: Mapping[int, int]) -> None:
        self.program = program
        self.sizes = sizes
        self.numbers = Numbers.after(program)

    def change(self, op: Op) -> Iterator[Op]:
        aligned = self.aligned(op)
        yield from (op,) if aligned is None else aligned

    def aligned(self, op: Op) -> list[Op] | None:
        """Return the loop ``op`` over aligned tiles, after the ops that compute its begin; None if it stays
        as it is.
        """
        block = self.walked(op)
        if block is None:
            return None
        loop = _Loop.of(op)
        accesses = [o for o in op.regions[0].ops if isinstance(o.attrs, MemoryAttrs) and _has(o, block)]
        if not accesses or not all(self.is_along(o, block, loop) for o in accesses):
            return None
        vector = VECTOR_BYTES // min(self.itemsize(o) for o in accesses)
        rows = {self.row(o, block, vector) for o in accesses}
        if vector == 1 or len(rows) > 1 or all(_is_one(term) for row in rows for term in row):
            return None
        made: list[Op] = []
        begin = self.begin(rows.pop(), vector, loop, Builder(self.numbers, op.location, made))
        return [*made, _aligned_loop(op, begin, vector, frozenset(o.number for o in accesses))]

    # --- what is aligned
    # -----------------------------------------------------------------------------------------------------

    def walked(self, op: Op) -> int | None:
        """Return the block whose tiles ``op`` iterates over, if it is a plain loop over enough of them."""
        if not isinstance(op.attrs, ForAttrs) or len(op.attrs.axes) != 1 or len(op.operands) != op.attrs.carried:
            return None
        (axis,) = op.attrs.axes
        if not _is_plain(axis) or any(block.part is not None for block in self.program.blocks):
            return None
        assert isinstance(axis.end, int)
        if not is_long(axis.end, self.sizes[axis.block]):
            return None
        ops = op.regions[0].ops
        makers = Makers.among(ops)
        if not all(_may_begin_before(o, axis.block) and not is_moved(o, makers) for o in ops):
            return None
        return axis.block

    def is_along(self, op: Op, block: int, loop: _Loop) -> bool:
        """Return whether a load or a store has the lanes of ``block`` along contiguous memory, and no others."""
        attrs = op.attributes(MemoryAttrs)
        indices, strides = attrs.indices, self.program.tensors[attrs.tensor].strides
        fixed = all(isinstance(n, int) for n in (*strides, *(index.shift for index in indices)))
        if not fixed:  # a size that differs from call to call gives no alignment
            return False
        along = [stride for index, stride in zip(indices, strides, strict=True) if index.block == block]
        bare = all(is_block(index) for index in indices if index.block == block)
        others = [index for index in indices if index.block != block]
        if attrs.padded or along != [1] or not bare or unaddressed(indices, op.operands, op.result.dims):
            return False
        return all(self.is_single(index) and loop.knows(op, index) for index in others)

    def is_single(self, index: Index) -> bool:
        if index.kind == "scalar":
            return True
        return index.kind == "block" and index.operand is None and self.sizes[index.block] == 1  # type: ignore[index]

    def itemsize(self, op: Op) -> int:
        return self.program.tensors[op.attributes(MemoryAttrs).tensor].dtype.itemsize

    def row(self, op: Op, block: int, vector: int) -> _Row:
        attrs = op.attributes(MemoryAttrs)
        factors: Counter[_Term] = Counter()
        for index, stride in zip(attrs.indices, self.program.tensors[attrs.tensor].strides, strict=True):
            if index.block == block:
                continue
            assert isinstance(stride, int) and isinstance(index.shift, int)
            factors[_Term(0)] += index.shift * stride
            value = None if index.operand is None else op.operands[index.operand]
            if isinstance(value, Value):
                factors[_Term(0, value=value.number)] += stride
            elif value is not None:
                factors[_Term(0)] += int(value) * stride
            if index.block is not None:
                factors[_Term(0, block=index.block)] += stride
        return frozenset(replace(term, factor=n % vector) for term, n in factors.items() if n % vector)

    # --- where it begins
    # -----------------------------------------------------------------------------------------------------

    def begin(self, row: _Row, vector: int, loop: _Loop, out: Builder) -> Value:
        """Return the last multiple of a vector at or before the row's begin, relative to that begin."""
        dtype = self.program.index_dtype
        total: Value | None = None
        for term in sorted(row, key=lambda term: (_is_one(term), term.block or 0, term.value or 0)):
            if _is_one(term):
                assert total is not None, "a row has terms that differ between programs"
                total = out.pointwise("add", total, term.factor)
                continue
            if term.block is not None:
                place = out.emit("tile", (), dtype, (), TileAttrs(term.block, "begin"))
            else:
                assert term.value is not None
                place = out.cast(loop.outside(term.value, out), dtype)
            part = out.pointwise("mul", place, term.factor)
            total = part if total is None else out.pointwise("add", total, part)
        assert total is not None
        rest = out.pointwise("bitwise_and", total, vector - 1)
        return out.emit("pointwise", (0, rest), dtype, (), PointwiseAttrs("sub"))


@dataclass(frozen=True)
class _Loop:
    """The scalars that accesses of a loop use: those defined in it, by number, and all by number."""

    made: Mapping[int, Op]
    used: Mapping[int, Value]

    @classmethod
    def of(cls, op: Op) -> _Loop:
        body = op.regions[0]
        used = {value.number: value for o in body.ops for value in o.values() if not value.dims}
        made = {result.number: o for o in body.ops for result in o.results}
        return cls(made, used)

    def knows(self, op: Op, index: Index) -> bool:
        """Return whether the scalar of an index is available before the loop."""
        value = None if index.operand is None else op.operands[index.operand]
        if not isinstance(value, Value):
            return True
        maker = self.made.get(value.number)
        return value.number in self.used and (maker is None or maker.kind == "tile")

    def outside(self, number: int, out: Builder) -> Value:
        """Return the scalar before the loop."""
        maker = self.made.get(number)
        if maker is None:
            return self.used[number]
        return out.emit("tile", (), maker.result.dtype, (), maker.attrs)


def _has(op: Op, block: int) -> bool:
    """Return whether a load or a store has lanes of ``block``, or reads any in its indices."""
    values = (*op.results, *op.values())
    return any(block in dim.blocks for value in values for dim in value.dims)


def _is_one(term: _Term) -> bool:
    return term.block is None and term.value is None


def _is_plain(axis: LoopAxis) -> bool:
    whole = not axis.scalar and axis.jagged is None and axis.split is None and not axis.merged
    return whole and fixed_at(axis.begin, 0) and isinstance(axis.end, int)


def _may_begin_before(op: Op, block: int) -> bool:
    """Return whether an op computes the same for tiles that begin elsewhere."""
    match op.attrs:
        case TileAttrs(block=other):
            return other != block
        case IotaAttrs(block=other, relative=relative):
            return other != block or not relative
    return op.kind in _KINDS


def _aligned_loop(op: Op, begin: Value, vector: int, accesses: frozenset[int]) -> Op:
    attrs, (body,) = op.attributes(ForAttrs), op.regions
    axis = replace(attrs.axes[0], begin=OperandRef(len(op.operands)), aligned=vector)
    ops = tuple(replace(o, attrs=replace(o.attrs, aligned=vector)) if o.number in accesses else o for o in body.ops)
    return replace(
        op,
        operands=(*op.operands, begin),
        attrs=replace(attrs, axes=(axis,)),
        regions=(replace(body, ops=ops),),
    )
