"""Values carried by loops: accumulators have one gradient for all iterations, other values are stored for each
iteration.

The backward of a loop that does more than accumulate reads the carried values as they were before each iteration, in
reverse order. They are stored in buffers: the carried values have fewer bytes than the data that they are computed
from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ... import exc
from ..._shapes import Dims, fixed_at
from ..ir.grammar import (
    ForAttrs,
    Index,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    Region,
    TileAttrs,
    Value,
)
from ..ir.rewrite import Makers
from .refusal import not_supported
from .spelling import Spelling, dtype_text


@dataclass(frozen=True, kw_only=True)
class Tape:
    """A buffer for one carried value. ``allocation`` is its statement for a device, ``index`` the subscripts of a
    program.
    """

    name: str
    sizes: tuple[str, ...]
    dtype: torch.dtype
    index: tuple[str, ...]

    def allocation(self, device: str) -> str:
        return f"{self.name} = torch.empty([{', '.join(self.sizes)}], dtype={dtype_text(self.dtype)}, device={device})"

    def place(self, iteration: str) -> str:
        return f"{self.name}[{', '.join([*self.index, iteration])}]"


@dataclass(frozen=True, kw_only=True)
class Reversal:
    """A plan to run the backward of a loop in reverse.

    ``size`` is the expression of its block size, "" for a loop over indices. ``tapes`` are the buffers of its params,
    in order. ``iteration`` numbers an iteration of the forward, ``count`` is their number, from ``begin`` to ``end``.
    """

    axis: LoopAxis
    size: str
    begin: str
    end: str
    count: str
    iteration: str
    tapes: tuple[Tape, ...]


def is_sum(param: Value, result: object, region: Region) -> bool:
    """Return whether a loop only adds to a carried value."""
    if result is param:
        return True
    inner = [op for op in region.walk()]
    uses: dict[int, list[Op]] = {}
    for op in inner:
        for value in op.values():
            uses.setdefault(value.number, []).append(op)
    yielded = [r.number for nested in _regions(region) for r in nested.results if isinstance(r, Value)]
    own = {op.number for op in region.ops}
    value = param
    while True:
        users = uses.get(value.number, [])
        if value is result:
            return not users and yielded.count(value.number) == 1
        if len(users) != 1 or users[0].number not in own or value.number in yielded:
            return False
        (user,) = users
        if not _passes(user, value) or user.result.dims != param.dims:
            return False
        value = user.result


def _regions(region: Region) -> list[Region]:
    found = [region]
    for op in region.ops:
        for inner in op.regions:
            found += _regions(inner)
    return found


def _passes(op: Op, value: Value) -> bool:
    """Return whether an op adds something to a value and results in the sum."""
    if op.kind == "dot":
        return value is op.operands[-1] and len(op.operands) == 3 and op.operands[0] is not value
    if not isinstance(op.attrs, PointwiseAttrs):
        return op.kind == "mask"
    if op.attrs.name == "add":
        return op.operands[0] is not op.operands[1]
    return op.attrs.name == "cast" or (op.attrs.name == "sub" and op.operands[0] is value is not op.operands[1])


def needs_iterations(
    op: Op, name: str, why: str = "its value in each iteration is unknown in the backward", remedy: str = ""
) -> exc.Base:
    """Return the refusal of a loop: ``why`` its iterations cannot be kept, and what to do."""
    return not_supported(
        f"a loop that carries {name or 'a value'!r} other than as a sum",
        f"{why}: {remedy or 'compute over the whole dimension with `:`'}",
        op,
    )


class Reversals:
    """The reversals of the loops of a program. ``count_of`` gives the number of programs of an axis of the grid."""

    def __init__(
        self, program: Program, spelling: Spelling, active: frozenset[int], count_of: Callable[[LoopAxis], str]
    ) -> None:
        (self.root,) = program.roots
        self.program = program
        self.spelling = spelling
        self.active = active
        self.count_of = count_of
        self.registered: list[str] = []
        self.tapes: list[Tape] = []
        self.known: dict[int, Reversal] = {}
        self.makers = Makers.among(program.walk())
        self.loops = {a.block: op for op in program.walk() if isinstance(op.attrs, ForAttrs) for a in op.attrs.axes}
        inner = (a for op in program.walk() if isinstance(op.attrs, ForAttrs) for a in op.attrs.axes)
        self.ends = {a.block: a.end for a in (*self.root.axes, *inner)}
        self.axes: dict[int, tuple[LoopAxis, ...]] = {}
        self._collect(self.root.body, self.root.axes)

    def _collect(self, region: Region, axes: tuple[LoopAxis, ...]) -> None:
        """Record the axes around each loop, those of the grid first."""
        for op in region.ops:
            self.axes[op.number] = axes
            own = op.attrs.axes if isinstance(op.attrs, ForAttrs) else ()
            for inner in op.regions:
                self._collect(inner, (*axes, *own))

    def needed(self, op: Op) -> bool:
        """Return whether a gradient goes through a loop that does more than accumulate."""
        (region,) = op.regions
        pairs = list(zip(region.params, region.results, strict=True))
        return not all(is_sum(p, r, region) for p, r in pairs) and any(p.number in self.active for p in region.params)

    def of(self, op: Op, operand: Callable[[Operand], str]) -> Reversal | None:
        """Return the reversal of a loop; None for one that only accumulates, or that no gradient goes through.
        ``operand`` gives the texts of its bounds.
        """
        if not self.needed(op):
            return None
        if op.number not in self.known:
            self.known[op.number] = self._plan(op, op.regions[0], operand)
        return self.known[op.number]

    def _plan(self, op: Op, region: Region, operand: Callable[[Operand], str]) -> Reversal:
        axes = op.attributes(ForAttrs).axes
        changed = next(p for p, r in zip(region.params, region.results, strict=True) if not is_sum(p, r, region))
        (axis, *others) = axes
        if others:
            raise needs_iterations(op, changed.name, "it has several axes", "write a loop for each of them")
        if axis.jagged is not None:
            raise needs_iterations(op, changed.name, "its rows have different lengths")
        if axis.scalar and not fixed_at(axis.step, 1):
            raise needs_iterations(op, changed.name, "it has a step", "use steps of 1 and multiply the index")
        most = self._most(axis, op, changed)
        begin, end = (self.spelling.bound(b, op, operand) for b in (axis.begin, axis.end))
        tile = self.spelling.tile(axis.block)
        plain = begin == "0" and not isinstance(axis.end, OperandRef)
        if axis.scalar:
            size, count, iteration = (
                "",
                end if plain else f"{end} - ({begin})",
                tile if plain else f"{tile} - ({begin})",
            )
        else:
            size = self._size(axis, most, tile)
            count = f"helion.cdiv({end}, {size})" if plain else f"({end} - ({begin}) + {size} - 1) // {size}"
            iteration = f"{tile}.id" if begin == "0" else f"({tile}.begin - ({begin})) // {size}"
            most = f"helion.cdiv({most}, {size})"
        tapes = tuple(self._tape(p, op, most) for p in region.params)
        return Reversal(axis=axis, size=size, begin=begin, end=end, count=count, iteration=iteration, tapes=tapes)

    def _most(self, axis: LoopAxis, op: Op, param: Value) -> str:
        """Return an upper bound of the end of a loop as a host number. ``op`` is the loop, or one inside of it."""
        if not isinstance(axis.end, OperandRef):
            return self.spelling.number(axis.end)
        found = self._bound(self.loops[axis.block].operands[axis.end.at]) or self._accessed(axis.block)
        if found is None:
            raise needs_iterations(
                op, param.name, "its bound is known on the device only", "use a bound of a tile or of host code"
            )
        return found

    def _bound(self, value: Operand) -> str | None:
        """Return a host number that a bound of a loop does not exceed, or None."""
        maker = self.makers.of(value)
        if not isinstance(value, Value):
            return str(value) if isinstance(value, int) else None
        if maker is None:
            return None
        match maker.attrs:
            case NumberAttrs(expr):
                return self.spelling.number(expr)
            case TileAttrs(block, "begin" | "end") if block in self.ends:
                end = self.ends[block]
                return (
                    self._bound(self.loops[block].operands[end.at])
                    if isinstance(end, OperandRef)
                    else self.spelling.number(end)
                )
            case PointwiseAttrs("cast"):
                return self._bound(maker.operands[0])
            case PointwiseAttrs("add" | "minimum" | "maximum" as name):
                bounds = [self._bound(operand) for operand in maker.operands]
                known = [bound for bound in bounds if bound is not None]
                if not known or (name != "minimum" and len(known) < len(bounds)):
                    return None
                return (
                    f"({' + '.join(known)})"
                    if name == "add"
                    else f"{name[:3]}({', '.join(known)})"
                    if len(known) > 1
                    else known[0]
                )
        return None

    def _accessed(self, block: int) -> str | None:
        """Return the size of a dimension that a loop covers."""
        for op in self.program.walk():
            if op.kind != "load" or not isinstance(op.attrs, MemoryAttrs) or op.attrs.mask is not None:
                continue
            for dim, index in enumerate(op.attrs.indices):
                if fixed_at(index.shift, 0) and self._walked(op, index) == block:
                    return self.spelling.number(self.program.tensors[op.attrs.tensor].shape[dim])
        return None

    def _walked(self, op: Op, index: Index) -> int | None:
        """Return the block that an index follows element by element."""
        if index.operand is None:
            return index.block if index.kind == "block" else None
        maker = self.makers.of(op.operands[index.operand])
        attrs = maker.attrs if maker is not None else None
        return (
            attrs.block if index.kind == "scalar" and isinstance(attrs, TileAttrs) and attrs.field == "index" else None
        )

    def _size(self, axis: LoopAxis, end: str, tile: str) -> str:
        given = self.spelling.size_of(axis.block)
        if given is not None:
            return given
        name = self.spelling.names.fresh(f"block_{tile}")
        self.registered.append(f"{name} = hl.register_block_size({end})")
        return name

    def _tape(self, param: Value, op: Op, count: str) -> Tape:
        """Allocate the buffer of a carried value, with a dimension for each grid axis that the value does not have.

        An iteration of an enclosing loop overwrites the entries of the previous one, which are no longer read.
        """
        if not all(d.is_one or d.block is not None for d in param.dims):
            raise needs_iterations(op, param.name, "one of its dimensions merges several", "carry it unreshaped")
        blocks = {b for d in param.dims for b in d.blocks}
        around = {a.block: a for a in self.axes[op.number]}
        apart = [a for a in self.root.axes if a.scalar or a.block not in blocks]
        sizes = [self.count_of(a) for a in apart]
        index = [self.spelling.tile(a.block) + ("" if a.scalar else ".id") for a in apart]
        for dim in without_ones(param.dims):
            assert dim.block is not None
            block = self.program.blocks[dim.block]
            whole = block.kind == "full"
            if not whole and block.id not in around:
                raise needs_iterations(op, param.name, f"no loop around it has the tile {block.name!r}")
            sizes.append(self.spelling.number(block.extent or 0) if whole else self._most(around[block.id], op, param))
            index.append(":" if whole else self.spelling.tile(block.id))
        name = self.spelling.names.fresh(f"each_{param.name or 'carried'}")
        tape = Tape(name=name, sizes=(*sizes, count), dtype=param.dtype, index=tuple(index))
        self.tapes.append(tape)
        return tape


def without_ones(dims: Dims) -> Dims:
    """Return the dimensions that the tape of a value has."""
    return tuple(d for d in dims if not d.is_one)


__all__ = ["Reversal", "Reversals", "Tape", "is_sum", "needs_iterations", "without_ones"]
