"""Accesses of a part of a tensor, as accesses of a whole tensor that begins within it: a window.

::

    w[1, tile_k, tile_n]                        →   window[tile_k, tile_n], from w[1] on
    w[tile_n.index + n, tile_k]                 →   window[tile_n, tile_k], from w[n] on
    w[2 * tile_n.index + 1, tile_k]             →   window[tile_n, tile_k], every second row from w[1] on
    w[head.begin * 128 + hl.arange(64), tile_k] →   window[head.begin, :, tile_k], whose heads are 128 rows apart
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from ...._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    TileAttrs,
    Value,
)
from ...._compiler.passes.always.simplify import drop_dead
from ...._shapes import Number, fixed_at
from ...._support.records import dataclass, field
from ....hardware import TMA_ALIGNMENT_BYTES
from .chain import INDICES
from .numbers import is_known

POSITION = ("begin", "id", "index")
"""Fields of a one-element tile that give its index."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The first element of a window: ``elements`` after that of tensor ``tensor``."""

    tensor: int
    elements: int


@dataclass(frozen=True, kw_only=True)
class Windowed:
    """A ``program`` that accesses windows. ``starts`` has those of the windows, by their ids; it is empty where the
    program is the original one."""

    program: Program
    starts: Mapping[int, Start] = field(default_factory=dict)


def with_windows(program: Program) -> Windowed:
    """Return the program with a window in place of each known part of a tensor that it accesses."""
    cutter = _Cutter(program)
    roots = tuple(dataclasses.replace(root, body=cutter.region(root.body)) for root in program.roots)
    if not cutter.windows:
        return Windowed(program=program)
    tensors = (*program.tensors, *cutter.apart())
    starts = {window.id: Start(tensor=key[0], elements=first) for key, (window, first) in cutter.windows.items()}
    return Windowed(program=drop_dead(dataclasses.replace(program, tensors=tensors, roots=roots)), starts=starts)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """An index: ``constant``, plus each position of ``terms`` times its factor, plus ``factor`` times the indices of
    block ``along``, if there is one.

    ``positions`` are values of one-element tiles, by block. A ``kept`` index is that of the window as well.
    """

    constant: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    along: int | None = None
    factor: int = 1
    positions: tuple[Value, ...] = ()
    kept: bool = False

    def added(self, other: _Line) -> _Line | None:
        """Return the sum; None if both have indices of a block."""
        if self.along is not None and other.along is not None:
            return None
        blocks = [block for block, _ in self.terms]
        if any(block in blocks for block, _ in other.terms):
            return None
        indexed = self if self.along is not None else other
        return _Line(
            constant=self.constant + other.constant,
            terms=(*self.terms, *other.terms),
            along=indexed.along,
            factor=indexed.factor,
            positions=(*self.positions, *other.positions),
        )

    def times(self, number: int) -> _Line:
        return dataclasses.replace(
            self,
            constant=self.constant * number,
            terms=tuple((block, factor * number) for block, factor in self.terms),
            factor=self.factor * number,
        )

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """Blocks and their factors, those of ``terms`` first."""
        return self.terms if self.along is None else (*self.terms, (self.along, self.factor))

    @property
    def is_plain(self) -> bool:
        """True for 0, a position, or the indices of a block."""
        return self.constant == 0 and [factor for _, factor in self.steps] in ([], [1])


#: The original tensor of a window, and its index along each dimension.
_Key = tuple[int, tuple[_Line | None, ...]]


class _Cutter:
    """A rewrite that cuts windows, access by access."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.makers = {result.number: op for op in program.walk() for result in op.results}
        self.axes = {axis.block: axis for root in program.roots for axis in root.axes}
        self.whole: set[int | None] = {*_whole_blocks(program)}
        self.windows: dict[_Key, tuple[HostTensor, int]] = {}
        accesses = [op for op in program.walk() if isinstance(op.attrs, MemoryAttrs)]
        #: Tensors of which some access is a part that begins within it. Those of positions, such as the offsets of
        #: groups, stay whole.
        self.cut = {
            op.attrs.tensor
            for op in accesses
            if program.tensors[op.attrs.tensor].dtype not in INDICES
            and not all(line is None or line.kept for line in self._lines(op))
        }

    def region(self, region: Region) -> Region:
        return dataclasses.replace(region, ops=tuple(map(self._op, region.ops)))

    def _op(self, op: Op) -> Op:
        if op.regions:
            return dataclasses.replace(op, regions=tuple(map(self.region, op.regions)))
        if not self._is_of_window(op):
            return op
        lines, operands, indices, replaced = self._lines(op), [*op.operands], list[Index](), set[int | None]()
        for index, line in zip(op.attrs.indices, lines, strict=True):
            if line is None or line.kept:
                indices.append(index)
                continue
            replaced.add(index.operand)
            for position in line.positions:
                indices.append(Index("scalar", operand=len(operands)))
                operands.append(position)
            if line.along is not None:
                indices.append(Index("block", line.along, index.positions))
        for at in replaced.difference({None, op.attrs.mask}, (index.operand for index in indices)):
            operands[at or 0] = 0
        window = self._window(self.program.tensors[op.attrs.tensor], lines)
        attrs = dataclasses.replace(op.attrs, tensor=window.id, indices=tuple(indices))
        return dataclasses.replace(op, attrs=attrs, operands=tuple(operands))

    def _is_of_window(self, op: Op) -> bool:
        cut = isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor in self.cut
        return cut and self._is_inside(self.program.tensors[op.attrs.tensor], self._lines(op))

    # Indices --------------------------------------------------------------------------------------------------------------

    def _lines(self, op: Op) -> tuple[_Line | None, ...]:
        """Return the index of each dimension that an access has; None for one that is no line."""
        attrs = op.attributes(MemoryAttrs)
        return tuple(map(functools.partial(self._line_of, op), attrs.indices, self.program.tensors[attrs.tensor].shape))

    def _line_of(self, op: Op, index: Index, extent: Number) -> _Line | None:
        if not is_known(index.shift):
            return None
        line: _Line | None = _Line(constant=index.shift)
        if index.kind == "block":
            line = _Line(constant=index.shift, along=index.block)
        if line is not None and index.operand is not None:
            picked = self._line(op.operands[index.operand])
            line = line.added(picked) if picked is not None else None
        if line is None or not line.is_plain or index.kind == "tensor" or self._is_part(line, extent):
            return line
        return dataclasses.replace(line, kept=True)

    def _is_part(self, line: _Line, extent: Number) -> bool:
        """Return whether loops cover the first indices of a dimension, and not all."""
        along = line.terms[0][0] if line.along is None and len(line.terms) == 1 else line.along
        covered = self._extent(along) if along in self.whole else 0
        return is_known(extent) and 0 < covered < extent

    def _line(self, value: Operand) -> _Line | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return _Line(constant=value)
        op = self.makers.get(value.number) if isinstance(value, Value) else None
        if op is None or not isinstance(value, Value) or len(value.dims) > 1:
            return None
        if isinstance(op.attrs, IotaAttrs):
            whole = self.program.blocks[op.attrs.block].kind == "full"
            if op.attrs.relative and not whole:
                return None
            return _Line(constant=op.attrs.start, along=op.attrs.block, factor=op.attrs.step)
        if isinstance(op.attrs, TileAttrs):
            return self._position(op.attrs, value)
        return self._made(op) if isinstance(op.attrs, PointwiseAttrs) else None

    def _position(self, attrs: TileAttrs, value: Value) -> _Line | None:
        """Return the index of a grid dimension of one element."""
        axis = self.axes.get(attrs.block)
        single = axis is not None and (axis.scalar or fixed_at(self.program.blocks[attrs.block].size, 1))
        if not single or axis is None or attrs.field not in POSITION or not _is_whole(axis):
            return None
        return _Line(terms=((attrs.block, 1),), positions=(value,))

    def _made(self, op: Op) -> _Line | None:
        name = op.attributes(PointwiseAttrs).name
        if name == "cast" and not op.result.dtype.is_floating_point:
            return self._line(op.operands[0])
        if name not in ("add", "sub", "mul") or op.result.dtype.is_floating_point:
            return None
        first, second = map(self._line, op.operands)
        if first is None or second is None:
            return None
        if name == "mul":
            known, other = (first, second) if not first.terms and first.along is None else (second, first)
            return other.times(known.constant) if not known.terms and known.along is None else None
        return first.added(second if name == "add" else second.times(-1))

    # Windows --------------------------------------------------------------------------------------------------------------

    def _extent(self, block: int | None) -> int:
        """Return the extent of a block; 0 if there is none, or it is known only at launch."""
        extent = None if block is None else self.program.blocks[block].extent
        return extent if isinstance(extent, int) and not isinstance(extent, bool) else 0

    def _span(self, line: _Line) -> tuple[int, int]:
        """Return the first and the last index of a line; the last is -1 where an extent is not known."""
        if any(factor < 1 or self._extent(block) < 1 for block, factor in line.steps):
            return 0, -1
        return line.constant, line.constant + sum(factor * (self._extent(block) - 1) for block, factor in line.steps)

    def _is_inside(self, tensor: HostTensor, lines: Sequence[_Line | None]) -> bool:
        """Return whether all that a window has is in the tensor, whose sizes and strides are known where it begins."""
        for line, extent, stride in zip(lines, tensor.shape, tensor.strides, strict=True):
            if line is None or line.kept:
                continue
            first, last = self._span(line)
            if not (is_known(extent) and is_known(stride) and 0 <= first <= last < extent):
                return False
        return True

    def _window(self, tensor: HostTensor, lines: Sequence[_Line | None]) -> HostTensor:
        key = tensor.id, tuple(lines)
        if key not in self.windows:
            shape, strides, start = [], [], 0
            for line, extent, stride in zip(lines, tensor.shape, tensor.strides, strict=True):
                if line is None or line.kept:
                    shape.append(extent)
                    strides.append(stride)
                    continue
                assert is_known(stride)
                start += line.constant * stride
                shape += [self._extent(block) for block, _ in line.steps]
                strides += [factor * stride for _, factor in line.steps]
            window = dataclasses.replace(
                tensor,
                id=len(self.program.tensors) + len(self.windows),
                shape=tuple(shape),
                strides=tuple(strides),
                aligned=tensor.aligned and start * tensor.dtype.itemsize % TMA_ALIGNMENT_BYTES == 0,
            )
            self.windows[key] = window, start
        return self.windows[key][0]

    # Memory ---------------------------------------------------------------------------------------------------------------

    def apart(self) -> list[HostTensor]:
        """Return the windows. Each has memory of its own if it shares no element with another access of the tensor."""
        accessed = self._accessed_whole()
        found, free = list[HostTensor](), 1 + max(tensor.storage for tensor in self.program.tensors)
        for key, (window, _) in self.windows.items():
            others = [
                other for other, (each, _) in self.windows.items() if other != key and each.storage == window.storage
            ]
            alone = window.storage not in accessed and all(self._are_apart(key, other) for other in others)
            found.append(dataclasses.replace(window, storage=free + len(found)) if alone else window)
        return found

    def _accessed_whole(self) -> set[int]:
        """Return the memory of tensors that are accessed without a window."""
        accesses = [op for op in self.program.walk() if isinstance(op.attrs, MemoryAttrs)]
        return {self.program.tensors[op.attrs.tensor].storage for op in accesses if not self._is_of_window(op)}

    def _are_apart(self, one: _Key, other: _Key) -> bool:
        """Return whether two windows of one tensor have no element in common."""
        if one[0] != other[0]:
            return False
        pairs = zip(one[1], other[1], strict=True)
        return any(first is not None and second is not None and self._differ(first, second) for first, second in pairs)

    def _differ(self, one: _Line, other: _Line) -> bool:
        """Return whether two lines have no index in common: ranges that do not overlap, in each period if they repeat."""
        (first, last), (begin, end) = self._span(one), self._span(other)
        if last < first or end < begin:
            return False
        if last < begin or end < first:
            return True
        period = math.gcd(*(factor for line in (one, other) for _, factor in line.terms))
        steps = [line.factor for line in (one, other) if line.along is not None]
        every = math.gcd(period, *steps)
        if every > 1 and (one.constant - other.constant) % every:
            return True
        if not period:
            return False
        spans = [self._within(line, period) for line in (one, other)]
        return all(spans) and any(a[1] < b[0] for a, b in itertools.permutations(filter(None, spans), 2))

    def _within(self, line: _Line, period: int) -> tuple[int, int] | None:
        """Return the indices of a line in each period, first and last; None if they go on in the next one."""
        first = line.constant % period
        last = first + (line.factor * (self._extent(line.along) - 1) if line.along is not None else 0)
        return (first, last) if last < period else None


def _whole_blocks(program: Program) -> set[int]:
    """Return the blocks that every loop covers from 0 to their extents, which are known."""
    loops = [op.attrs for op in program.walk() if isinstance(op.attrs, ForAttrs)]
    axes = [axis for root in program.roots for axis in root.axes] + [axis for loop in loops for axis in loop.axes]
    partly = {axis.block for axis in axes if not _is_whole(axis) or axis.jagged is not None}
    ends = {axis.block: program.blocks[axis.block].extent for axis in axes}
    partly |= {axis.block for axis in axes if not isinstance(axis.end, int) or axis.end != ends[axis.block]}
    return {block.id for block in program.blocks} - partly


def _is_whole(axis: LoopAxis) -> bool:
    return fixed_at(axis.begin, 0) and fixed_at(axis.step, 1) and not axis.merged
