"""Elements that one program reads and another writes, by the addresses of a few programs.

Positions alone determine the addresses of most accesses, as in ``x[n - 1 - i]`` or ``x[t.index // 2]``, and of views
that begin at other elements. They are computed here, for some programs of one axis of the grid, with the numbers seen when
binding. A few programs that differ along two axes are looked at too, as for a transposition in place. Subscripts from data, and tiles whose bounds depend on the program, have no addresses before the launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...._shapes import cdiv, hint_of
from ...._support.records import dataclass, field
from ...ir.grammar import (
    Bound,
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    Root,
    TileAttrs,
    Value,
)
from ...ir.pointwise import POINTWISE
from ...ir.rewrite import Makers

#: Programs at the begin, in the middle and at the end of an axis that are compared with each other.
_EACH = 3
#: Indices of a loop or a dimension that are looked at, of its begin and of its end.
_INDICES = 64
#: Lanes of one access that are looked at.
_MOST_LANES = 1 << 16


@dataclass
class Addresses:
    """Addresses of accesses in bytes from the begin of their memory.

    Values are tensors with a dimension for each block, of size 1 where they do not depend on it. So views that keep the
    blocks of a value keep its tensor.
    """

    program: Program
    makers: Makers
    #: Axes of the grid with more than one program.
    axes: Mapping[int, LoopAxis]
    sizes: Mapping[int, int]
    #: Axes of other loops, by block; those with several are not known.
    loops: Mapping[int, LoopAxis | None]
    _order: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._order = {block.id: at for at, block in enumerate(self.program.blocks)}

    @classmethod
    def of(
        cls, program: Program, root: Root, makers: Makers, several: Mapping[int, LoopAxis], sizes: Mapping[int, int]
    ) -> Addresses:
        """Return the addresses of a grid loop, of which the axes ``several`` have more than one program."""
        loops: dict[int, LoopAxis | None] = {axis.block: axis for axis in root.axes if axis.block not in several}
        for op in root.body.walk():
            for axis in op.attrs.axes if isinstance(op.attrs, ForAttrs) else ():
                loops[axis.block] = None if axis.block in loops else axis
        return cls(program, makers, several, sizes, loops)

    def meet(self, load: Op, store: Op, *blocks: int) -> bool:
        """Return whether a program loads elements that one at other indices of the axes ``blocks`` stores."""
        one, other = (self.program.tensors[op.attributes(MemoryAttrs).tensor] for op in (load, store))
        if one is not other and None in (one.begin, other.begin):
            return False
        if any(isinstance(bound, OperandRef) for axis in self.axes.values() for bound in (axis.begin, axis.end)):
            return False
        # the caller's default device, and its modes such as that of fake tensors, are not for these numbers
        with torch.device("cpu"), _disable_current_modes():
            return self._meet(load, store, blocks)

    def _meet(self, load: Op, store: Op, blocks: Sequence[int]) -> bool:
        counts = [self._count(self.axes[block]) for block in blocks]
        each = [_sample(count) if len(blocks) == 1 else range(min(count, _EACH)) for count in counts]
        programs = [dict(zip(blocks, at, strict=True)) for at in itertools.product(*each)]
        loaded = [self._of(load, at) for at in programs]
        if any(each is None for each in loaded):
            return False
        stored = [self._of(store, at) for at in programs]
        if any(each is None for each in stored):
            return False
        return any(_share(loaded[a], stored[b]) for a, b in itertools.permutations(range(len(programs)), 2))

    def _count(self, axis: LoopAxis) -> int:
        step = axis.step if axis.scalar else self.sizes[axis.block]
        return int(cdiv(_seen(axis.end) - _seen(axis.begin), max(int(hint_of(step)), 1)))

    def _of(self, op: Op, at: Mapping[int, int]) -> torch.Tensor | None:
        """Return the addresses that an op accesses in program ``at`` of some axes, and in the first one of all others."""
        attrs = op.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        found = _Lanes(self, {block: self._positions(block, at.get(block, 0)) for block in self.axes})
        total, valid = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
        for index, size, stride in zip(attrs.indices, tensor.shape, tensor.strides, strict=True):
            places = found.index(op, index)
            if places is None:
                return None
            if _lanes(total, places) > _MOST_LANES:
                return None
            total = total + places * (hint_of(stride) * tensor.dtype.itemsize)
            valid = valid & (places >= 0) & (places < hint_of(size))
        if attrs.mask is not None:
            mask = found.value(op.operands[attrs.mask])
            if mask is None or _lanes(valid, mask) > _MOST_LANES:
                return None
            valid = valid & mask.to(torch.bool)
        total, valid = torch.broadcast_tensors(total, valid)
        return total[valid].flatten() + (tensor.begin or 0)

    def _positions(self, block: int, at: int) -> torch.Tensor:
        """Return the indices of the tile of program ``at`` along an axis of the grid."""
        axis = self.axes[block]
        begin, end = _seen(axis.begin), _seen(axis.end)
        if axis.scalar:
            return torch.tensor([begin + at * int(hint_of(axis.step))])
        first = begin + at * self.sizes[block]
        return torch.arange(first, min(first + self.sizes[block], end))

    def along(self, block: int, positions: torch.Tensor) -> torch.Tensor:
        """Return positions along the dimension of their block."""
        shape = [1] * len(self._order)
        shape[self._order[block]] = positions.numel()
        return positions.reshape(shape)


@dataclass
class _Lanes:
    """Values of one program; ``grid`` are the positions of its own tile."""

    of: Addresses
    grid: Mapping[int, torch.Tensor]
    known: dict[int, torch.Tensor | None] = field(default_factory=dict)

    def index(self, op: Op, index: Index) -> torch.Tensor | None:
        """Return the indices of an access in one dimension."""
        total: torch.Tensor | None = torch.tensor(int(hint_of(index.shift)))
        if index.kind == "block":
            assert index.block is not None
            total = self.positions(index.block)
            total = None if total is None else total + int(hint_of(index.shift))
        if index.operand is not None and total is not None:
            added = self.value(op.operands[index.operand])
            total = None if added is None or added.is_floating_point() else total + added
        return total

    def positions(self, block: int) -> torch.Tensor | None:
        """Return the indices of all tiles of a block, or of this program's tile; None if they are not known."""
        if block in self.grid:
            return self.of.along(block, self.grid[block])
        begin: Bound | None = 0
        end: Any = self.of.program.blocks[block].extent
        step = 1
        if block in self.of.loops:
            axis = self.of.loops[block]
            begin, end = (None, None) if axis is None else (axis.begin, axis.end)
            step = int(hint_of(axis.step)) if axis is not None and axis.scalar else 1
        if begin is None or end is None or isinstance(begin, OperandRef) or isinstance(end, OperandRef):
            return None
        every = range(_seen(begin), _seen(end), step)
        ends = {*every[:_INDICES], *every[-_INDICES:]}
        return self.of.along(block, torch.tensor(sorted(ends), dtype=torch.int64))

    def value(self, operand: Operand) -> torch.Tensor | None:
        """Return a value of index arithmetic; None for one that depends on data."""
        if not isinstance(operand, Value):
            return torch.tensor(operand)
        if operand.number not in self.known:
            self.known[operand.number] = self._computed(operand)
        return self.known[operand.number]

    def _computed(self, operand: Value) -> torch.Tensor | None:
        op = self.of.makers.of(operand)
        match None if op is None else op.attrs:
            case NumberAttrs(expr):
                return torch.tensor(hint_of(expr))
            case IotaAttrs(block, relative, start, step):
                places = None if relative else self.positions(block)
                return places if (start, step) == (0, 1) else None
            case TileAttrs(block, name) if block in self.grid:
                return self._field(block, name)
            case PointwiseAttrs(name):
                assert op is not None
                return self._pointwise(op, name)
        if op is not None and op.kind in ("view", "mask") and _blocks(op.operands[0]) == _blocks(operand):
            return self.value(op.operands[0])
        return None

    def _field(self, block: int, name: str) -> torch.Tensor | None:
        places, axis = self.grid[block], self.of.axes[block]
        if axis.scalar or name == "begin":
            return places[0]
        if name == "end":
            return places[-1] + 1
        if name == "id":
            return places[0] // self.of.sizes[block]
        return torch.tensor(self.of.sizes[block]) if name == "block_size" else None

    def _pointwise(self, op: Op, name: str) -> torch.Tensor | None:
        values = [self.value(each) for each in op.operands]
        given = [each for each in values if each is not None]
        if len(given) < len(values):
            return None
        if name == "cast":
            return given[0].to(op.results[0].dtype)
        eager = POINTWISE[name].eager
        if eager is None or _lanes(*given) > _MOST_LANES:
            return None
        try:
            return eager(*given)
        except RuntimeError:  # a division by zero, say
            return None


def _lanes(*values: torch.Tensor) -> int:
    """Return the elements of values that broadcast together. torch's own function imports sympy, which takes 0.4 s."""
    sizes = itertools.zip_longest(*(reversed(each.shape) for each in values), fillvalue=1)
    return math.prod(next((size for size in each if size != 1), 1) for each in sizes)


def _seen(bound: Bound) -> int:
    """Return the value of a bound when binding; the caller knows that it is a number."""
    assert not isinstance(bound, OperandRef)
    return int(hint_of(bound))


def _blocks(operand: Operand) -> frozenset[int]:
    dims = operand.dims if isinstance(operand, Value) else ()
    return frozenset(block for dim in dims for block in dim.blocks)


def _sample(count: int) -> Iterator[int]:
    """Yield the numbers of a few programs: the first, middle and last ones."""
    middle = count // 2
    near = (*range(_EACH), *range(middle - 1, middle + _EACH - 1), *range(count - _EACH, count))
    yield from sorted({at for at in near if 0 <= at < count})


def _share(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is not None and other is not None and bool(torch.isin(one, other).any())


__all__ = ["Addresses"]
