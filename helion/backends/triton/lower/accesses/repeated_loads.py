"""Loads of elements that neighbours along a tile share, once for all of them.

A scale of each 64 columns is loaded at ``tile.index // 64``. Triton sees indices that it cannot order. Each lane loads
its own copy, one element at a time, in a layout of its own (measurement ``repeated_loads``). Before, with tiles of ``b1`` of 1024 lanes::

    %1: [b1] = iota b1; %2: [b1] = floordiv %1, 64; %3: [b0, b1] = load scales[b0, %2]

after, with a dimension ``b2`` of 16 elements::

    %4 = floordiv (tile b1.begin), 64
    %5: [b0, b2] = load scales[b0, %4 + b2]
    %6: [b0, b2, 64] = broadcast reshape %5; %3: [b0, b1] = reshape %6

A tile inside of one group has one element for all lanes. Tiles must begin at multiples of their size and have all lanes
in range. Kernels with matmuls stay as they are, since Triton does not pipeline loads through a reshape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.grammar import (
    Block,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    PointwiseAttrs,
    Program,
    TileAttrs,
    ViewAttrs,
)
from ....._compiler.ir.rewrite import Makers, expand_ops
from ....._compiler.passes.always.simplify import drop_dead
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import ONE, Dim, Number, fixed_at
from ....._support.records import dataclass, field, replace
from ..align import is_ordered
from .runs import axes_of


def load_once(program: Program, inputs: StepInputs) -> Program:
    """Return the program with loads of one element for each group of lanes in place of one for each lane."""
    if inputs.checked or not inputs.steady or any(op.kind == "dot" for op in program.walk()):
        return program
    if not any(op.attrs == PointwiseAttrs("floordiv") for op in program.walk()) or is_ordered(program):
        return program
    loader = _Loader(
        program=program,
        boxed=inputs.block_accesses,
        sizes=inputs.sizes_in(program),
        numbers=Numbers.after(program),
        makers=Makers.among(program.walk()),
    )
    changed = expand_ops(program, loader.change)
    return program if changed is program else drop_dead(replace(changed, blocks=(*program.blocks, *loader.blocks)))


@dataclass(frozen=True, slots=True)
class _Group:
    """The lanes of ``block`` whose indices have one quotient by ``divisor``; ``shift`` is added to it."""

    block: int
    divisor: int
    shift: Number


@dataclass(kw_only=True)
class _Loader:
    program: Program
    boxed: frozenset[int]
    sizes: Mapping[int, int]
    numbers: Numbers
    makers: Makers
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        axes = axes_of(self.program)
        odd = {axis.block for axis in axes if not self._is_whole(axis)}
        self.whole = {axis.block for axis in axes} - odd

    def _is_whole(self, axis: LoopAxis) -> bool:
        """Return whether each tile of a loop begins at a multiple of its size and has all lanes in range."""
        plain = not (axis.scalar or axis.jagged or axis.merged or axis.split or axis.aligned)
        return plain and fixed_at(axis.begin, 0) and isinstance(axis.end, int) and not axis.end % self.sizes[axis.block]

    def change(self, op: Op) -> Iterator[Op]:
        """Yield the ops that take the place of ``op``."""
        attrs = op.attrs
        if op.kind == "load" and isinstance(attrs, MemoryAttrs) and attrs.mask is None and attrs.mark is None:
            for at in range(len(attrs.indices)):
                group = self._group(op, attrs, at) if attrs.slot not in self.boxed else None
                if group is not None:
                    # another index of the load may be of groups, too
                    *made, last = self._load(op, attrs, at, group)
                    for each in made:
                        yield from self.change(each) if each.kind == "load" else (each,)
                    yield last
                    return
        yield op

    def _group(self, op: Op, attrs: MemoryAttrs, at: int) -> _Group | None:
        """Return the groups of lanes that an index of a load is the same for."""
        index = attrs.indices[at]
        if index.kind != "tensor" or index.operand is None or len(index.positions) != 1:
            return None
        if sum(index.positions[0] in other.positions for other in attrs.indices) > 1:
            return None
        made, shift = self.makers.of(op.operands[index.operand]), index.shift
        if made is not None and made.attrs == PointwiseAttrs("add") and type(made.operands[1]) is int:
            shift, made = shift + made.operands[1], self.makers.of(made.operands[0])
        if made is None or made.attrs != PointwiseAttrs("floordiv"):
            return None
        counted, divisor = self.makers.of(made.operands[0]), made.operands[1]
        lanes = counted.attrs if counted is not None else None
        if not isinstance(lanes, IotaAttrs) or lanes.relative or lanes.step != 1 or type(divisor) is not int:
            return None
        whole = divisor > 1 and not divisor & (divisor - 1) and lanes.block in self.whole
        return _Group(lanes.block, divisor, shift) if whole and self.sizes[lanes.block] > 1 else None

    def _block_of(self, groups: int) -> int:
        """Return a dimension of so many groups."""
        known = next((block.id for block in self.blocks if block.size == groups), None)
        if known is not None:
            return known
        self.blocks.append(
            Block(id=len(self.program.blocks) + len(self.blocks), kind="full", extent=groups, size=groups, name="group")
        )
        return self.blocks[-1].id

    def _load(self, op: Op, attrs: MemoryAttrs, at: int, group: _Group) -> list[Op]:
        """Return a load of one element for each group of lanes, and the ops that give each lane its own."""
        (position,), size, made = attrs.indices[at].positions, self.sizes[group.block], op.result
        groups, ops, dims = max(1, size // group.divisor), list[Op](), made.dims
        out = Builder(self.numbers, op.location, ops)
        begin = out.emit("tile", (), self.program.index_dtype, (), TileAttrs(group.block, "begin"), "begin")
        first = out.pointwise("floordiv", begin, group.divisor)
        operand, lanes = len(op.operands), ONE
        if groups > 1:
            lanes = Dim(1, (self._block_of(groups),))
            read = Index("block", block=lanes.block, positions=(position,), shift=group.shift, operand=operand)
            inside, indices = (*dims[:position], lanes, *dims[position + 1 :]), attrs.indices
        else:
            read = Index("scalar", shift=group.shift, operand=operand)
            inside = (*dims[:position], *dims[position + 1 :])
            indices = tuple(_without(other, position) for other in attrs.indices)
        indices = (*indices[:at], read, *indices[at + 1 :])
        loads = replace(attrs, indices=indices, rank=len(inside))
        loaded = out.emit("load", (*op.operands, first), made.dtype, inside, loads, made.name)
        apart = out.reshape(loaded, (*dims[:position], lanes, ONE, *dims[position + 1 :]))
        wide = (*dims[:position], lanes, Dim(size // groups), *dims[position + 1 :])
        spread = out.emit("view", (apart,), made.dtype, wide, ViewAttrs("broadcast"), made.name)
        out.append("view", (spread,), (made,), ViewAttrs("reshape"))
        return ops


def _without(index: Index, position: int) -> Index:
    """Return an index of a tile that has lost the dimension at ``position``."""
    return replace(index, positions=tuple(at - (at > position) for at in index.positions))


__all__ = ["load_once"]
