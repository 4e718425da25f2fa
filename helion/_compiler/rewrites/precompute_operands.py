"""Precomputes operands of matmuls once, in an earlier grid loop, instead of in every program.

Weights of few bits are converted to 16 bits again for every row tile of the matmul. Before::

    grid b0, b1: for b2 in 0..k: %1: [b0, b2] = load x; %2: [b2, b1] = load w; %3 = cast %2; dot %1, %3

After, with tiles of the same sizes, so that each op computes the same lanes::

    grid b2 in 0..k, b1: %2: [b2, b1] = load w; %3 = cast %2; store hoisted[b2, b1] <- %3
    grid b0, b1: for b2 in 0..k: %1: [b0, b2] = load x; %3: [b2, b1] = load hoisted; dot %1, %3

``hoisted`` has whole tiles: lanes out of range hold their old values. Its contiguous dimension is that of the largest
tensor that the operand depends on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Literal

import torch

from ..._shapes import Dim, cdiv, fixed_at, next_power_of_2
from ..._support.records import dataclass, replace
from ...hardware import Target
from ..decisions import Decisions
from ..ir.build import Builder, Numbers
from ..ir.effects import written_by
from ..ir.grammar import (
    DotAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ..ir.loops import inside_loops
from ..ir.ops import OPS
from ..ir.rewrite import Makers, expand_ops
from ..passes.always.phases import insert_before
from ..passes.always.simplify import drop_dead
from ..sizes import representative_sizes
from .record import FactContext, Rewrite, RuleContext, has_matmul_of_open_sizes
from .steps import StepInputs

#: Ops with results that do not depend on their position.
_MOVED = frozenset(("number", "tile", "iota", "full", "load", "pointwise", "view", "mask", "join", "split"))
_NAME = "_helion_hoisted"


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Operand ``at`` of a matmul that can be precomputed by ``ops``, in program order, over tiles of ``axes``, one for
    each dimension.

    ``main`` is the load of the largest tensor among them, ``along`` the dimension along which its memory is contiguous.
    ``replaced``: the result of ``main`` has no other use, so a load of the operand replaces it.
    """

    dot: Op
    at: int
    value: Value
    axes: tuple[LoopAxis, ...]
    ops: tuple[Op, ...]
    main: Op
    along: int
    replaced: bool


def computed_operands(program: Program) -> tuple[Computed, ...]:
    """Return the computed operands of matmuls in loops that can be precomputed.

    They have known sizes, depend on tensors that the kernel does not write, and are the same for all tiles along some
    grid dimension.
    """
    if len(program.roots) != 1:
        return ()
    (root,) = program.roots
    places = [(op, axes) for op, axes in inside_loops(root.body, {axis.block: axis for axis in root.axes})]
    dots = [(op, axes) for op, axes in places if isinstance(op.attrs, DotAttrs) and op.attrs.scaled is None]
    if not dots:
        return ()
    search = _Search(program, root)
    found = (search.operand(op, at, axes) for op, axes in dots for at in (0, 1))
    return tuple(each for each in found if each is not None)


def may_precompute(each: Computed, sizes: Mapping[int, int]) -> bool:
    """Return whether 32-bit offsets cover all of the memory of the operand."""
    return math.prod(_whole_tiles(each, sizes)) < 2**31


def precompute_operands(program: Program, sizes: Mapping[int, int]) -> Program:
    """Return the program with earlier grid loops that compute such operands, which it then loads."""
    found = computed_operands(replace(program, roots=program.roots[:1]))
    return drop_dead(_Precomputer(program, sizes).program(found)) if found else program


# --- operands to precompute -------------------------------------------------------------------------------------------


class _Search:
    def __init__(self, program: Program, root: Root) -> None:
        self.program, self.root = program, root
        self.ops = list(root.body.walk())
        self.makers = Makers.among(self.ops)
        self.order = {op.number: at for at, op in enumerate(self.ops)}
        self.written = written_by(program, self.ops)

    def operand(self, dot: Op, at: int, around: Mapping[int, LoopAxis]) -> Computed | None:
        value = dot.operands[at]
        if not isinstance(value, Value) or not self.is_computed(value):
            return None
        own = {axis.block for axis in self.root.axes}
        if not all(block in own or _runs(axis) for block, axis in around.items()):
            return None
        axes = [[around[block] for block in dim.blocks if block in around] for dim in value.dims]
        if (turn := self.turn(value, axes, around)) is not None:
            axes = [each or [turn] for each in axes]
        whole = tuple(each[0] for each in axes if len(each) == 1 and _is_whole(each[0]))
        blocks = frozenset(axis.block for axis in whole)
        if not len(axes) == len(whole) == len(blocks) == 2:
            return None
        ops = self.slice(value, blocks, around)
        if ops is None:
            return None
        free = any(axis.block not in blocks and not axis.scalar for axis in self.root.axes)
        loads = [op for op in ops if op.kind == "load"]
        if not free or not loads:
            return None
        main = max(loads, key=lambda op: (len(op.result.dims), -self.order[op.number]))
        inside = {op.number for op in ops}
        readers = [op for op in self.ops if any(v is main.result for v in op.reads())]
        return Computed(
            dot=dot,
            at=at,
            value=value,
            axes=whole,
            ops=ops,
            main=main,
            along=self.along(main, value),
            replaced=all(op.number in inside for op in readers),
        )

    def is_computed(self, value: Value) -> bool:
        """Return whether ops other than views and masks are between a load and ``value``, or an index for each element."""
        maker = self.makers.of(value)
        while maker is not None and OPS[maker.kind].is_view:
            maker = self.makers.of(maker.operands[0])
        return maker is not None and (maker.kind != "load" or gathers_elements(maker))

    def turn(self, value: Value, axes: list[list[LoopAxis]], around: Mapping[int, LoopAxis]) -> LoopAxis | None:
        """Return the loop whose steps each have all lanes of one dimension, as those that a view joins to a constant.

        That dimension has no block of a loop. The loop has steps of a known size that divides the lanes, or is divided.
        """
        if [len(each) for each in axes].count(0) != 1:
            return None
        found = self.slice(value, frozenset(around), around)
        own = {axis.block for each in axes for axis in each}
        walked = {block for op in found or () for block in _walked(op, around)} - own
        (dim,) = [dim for dim, each in zip(value.dims, axes, strict=True) if not each]
        if len(walked) != 1 or len(dim.blocks) > 1:
            return None
        (block,) = walked
        size, lanes = self.program.blocks[block].size, self.lanes(dim)
        known = isinstance(size, int) and lanes is not None and lanes % size == 0
        return around[block] if known and self.program.blocks[block].kind == "tile" else None

    def lanes(self, dim: Dim) -> int | None:
        """Return the lanes of a dimension without tiles, if they are known."""
        blocks = [self.program.blocks[block] for block in dim.blocks]
        extents = [block.extent for block in blocks if block.kind == "full" and isinstance(block.extent, int)]
        if len(extents) != len(blocks):
            return None
        lanes = dim.const * math.prod(extents)
        return lanes if lanes == next_power_of_2(lanes) else None

    def slice(self, value: Value, own: frozenset[int], around: Mapping[int, LoopAxis]) -> tuple[Op, ...] | None:
        """Return the ops that compute ``value``; None if they depend on more than tiles of ``own``, or cannot be
        repeated."""
        found: dict[int, Op] = {}
        waiting: list[Operand] = [value]
        while waiting:
            operand = waiting.pop()
            if not isinstance(operand, Value):
                continue
            op = self.makers.of(operand)
            if op is None or not self.moves(op, own, around):
                return None
            if op.number not in found:
                found[op.number] = op
                waiting += op.operands
        return tuple(sorted(found.values(), key=lambda op: self.order[op.number]))

    def moves(self, op: Op, own: frozenset[int], around: Mapping[int, LoopAxis]) -> bool:
        if op.kind not in _MOVED or not _walked(op, around) <= own:
            return False
        if not isinstance(op.attrs, MemoryAttrs):
            return True
        return None not in self.written and self.program.tensors[op.attrs.tensor].storage not in self.written

    def along(self, main: Op, value: Value) -> int:
        """Return the dimension of ``value`` along which memory of ``main`` is contiguous; else the last one."""
        attrs = main.attributes(MemoryAttrs)
        strides = self.program.tensors[attrs.tensor].strides
        unit = {
            i.block for i, stride in zip(attrs.indices, strides, strict=True) if isinstance(stride, int) and stride == 1
        }
        return 0 if unit & set(value.dims[0].blocks) else 1


def gathers_elements(op: Op) -> bool:
    """Return whether a load has an index of its own for each element of a matrix."""
    indices = op.attributes(MemoryAttrs).indices
    return any(index.kind == "tensor" and len(index.positions) > 1 for index in indices)


def _walked(op: Op, around: Mapping[int, LoopAxis]) -> set[int]:
    """Return the blocks of the axes around a matmul that an op depends on."""
    blocks = {block for result in op.results for dim in result.dims for block in dim.blocks}
    match op.attrs:
        case TileAttrs(block=block) | IotaAttrs(block=block):
            blocks.add(block)
        case MemoryAttrs(indices=indices):
            blocks |= {index.block for index in indices if index.block is not None}
    return {block for block in blocks if block in around}


def _runs(axis: LoopAxis) -> bool:
    """Return whether a loop is known to run at least once."""
    known = isinstance(axis.begin, int) and isinstance(axis.end, int)
    return known and axis.jagged is None and axis.begin < axis.end  # type: ignore[operator]


def _is_whole(axis: LoopAxis) -> bool:
    """Return whether an axis covers tiles from 0 to a constant."""
    known = isinstance(axis.end, int) and axis.end > 0 and fixed_at(axis.begin, 0)
    return known and axis.jagged is None and not axis.merged and not axis.scalar


def _whole_tiles(each: Computed, sizes: Mapping[int, int]) -> tuple[int, ...]:
    pairs = zip(each.axes, each.value.dims, strict=True)
    return tuple(cdiv(axis.end, sizes[axis.block]) * dim.lanes(sizes) for axis, dim in pairs)  # type: ignore[arg-type]


# --- the earlier grid loops -------------------------------------------------------------------------------------------


class _Precomputer:
    def __init__(self, program: Program, sizes: Mapping[int, int]) -> None:
        self.before, self.sizes = program, sizes
        self.numbers = Numbers.after(program)
        self.tensors = list(program.tensors)
        taken = (op.attrs.slot for op in program.walk() if isinstance(op.attrs, MemoryAttrs))
        self.slots = itertools.count(1 + max(taken))
        #: Slot of the loads of each tensor.
        self.read_at: dict[int, int] = {}

    def program(self, found: tuple[Computed, ...]) -> Program:
        made: dict[int, HostTensor] = {}
        roots: list[Root] = []
        for each in found:
            if each.value.number not in made:
                made[each.value.number] = self.tensor(each)
                roots.append(self.computing(each, made[each.value.number]))
        reading = {
            number: [(each, made[each.value.number]) for each in group]
            for number, group in itertools.groupby(found, key=lambda each: each.dot.number)
        }
        changed = expand_ops(self.before, lambda op: self.loading(op, reading.get(op.number, [])))
        changed = replace(changed, tensors=tuple(self.tensors))
        return replace(changed, roots=insert_before(changed, changed.roots[0], roots))

    def tensor(self, each: Computed) -> HostTensor:
        shape = _whole_tiles(each, self.sizes)
        main = self.before.tensors[each.main.attributes(MemoryAttrs).tensor]
        made = replace(
            main,
            id=len(self.tensors),
            name=f"hoisted_{main.name}",
            source=f"{_NAME}_{len(self.tensors)}",
            dtype=each.value.dtype,
            shape=shape,
            strides=(shape[1], 1) if each.along else (1, shape[0]),
            storage=1 + max(tensor.storage for tensor in self.tensors),
            aligned=True,
            made=True,
        )
        self.tensors.append(made)
        return made

    def computing(self, each: Computed, to: HostTensor) -> Root:
        """Return the grid loop that computes an operand."""
        ops: list[Op] = []
        out = Builder(self.numbers, each.dot.location, ops)
        renamed: dict[int, Value] = {}
        for op in each.ops:
            results = tuple(self.numbers.value(r.dtype, r.dims, r.name) for r in op.results)
            operands = tuple(renamed.get(o.number, o) if isinstance(o, Value) else o for o in op.operands)
            renamed.update((old.number, new) for old, new in zip(op.results, results, strict=True))
            attrs = replace(op.attrs, slot=next(self.slots)) if isinstance(op.attrs, MemoryAttrs) else op.attrs
            out.repeat(op, operands=operands, results=results, attrs=attrs)
        value = renamed[each.value.number]
        indices, access = self.access(out, each, to, next(self.slots), first=1)
        out.emit("store", (value, *indices), to.dtype, value.dims, access)
        axes = tuple(replace(axis, split=None) for axis in each.axes)
        return replace(self.before.roots[0], axes=axes, body=Region((), tuple(ops), ()))

    def loading(self, op: Op, found: list[tuple[Computed, HostTensor]]) -> tuple[Op, ...]:
        """Return a matmul, and before it the loads of its precomputed operands."""
        if not found:
            return (op,)
        ops: list[Op] = []
        out = Builder(self.numbers, op.location, ops)
        given = list(op.operands)
        for each, tensor in found:
            indices, attrs = self.access(out, each, tensor, self.reading_slot(each, tensor), first=0)
            given[each.at] = out.emit("load", indices, tensor.dtype, each.value.dims, attrs, each.value.name)
        return (*ops, replace(op, operands=tuple(given)))

    def access(
        self, out: Builder, each: Computed, tensor: HostTensor, slot: int, *, first: int
    ) -> tuple[list[Operand], MemoryAttrs]:
        """Return the access to the current tile of ``tensor``, and its index operands. The first of these is operand
        ``first`` of the op."""
        operands: list[Operand] = []
        indices = []
        for at, (axis, dim) in enumerate(zip(each.axes, each.value.dims, strict=True)):
            if dim.block == axis.block:
                indices.append(Index("block", block=axis.block, positions=(at,)))
                continue
            if axis.block not in dim.blocks and dim.block is not None:
                turn = out.emit("tile", (), self.before.index_dtype, (), TileAttrs(axis.block, "id"))
                operands.append(out.pointwise("mul", turn, dim.lanes(self.sizes)))
                place = first + len(operands) - 1
                indices.append(Index("block", block=dim.block, positions=(at,), operand=place))
                continue
            begin = out.emit("tile", (), self.before.index_dtype, (), TileAttrs(axis.block, "begin"))
            first_lane = out.pointwise("mul", begin, dim.lanes(self.sizes) // self.sizes[axis.block])
            lanes = out.emit("iota", (), self.before.index_dtype, (dim,), IotaAttrs(axis.block, True))
            operands.append(out.pointwise("add", first_lane, lanes))
            indices.append(Index("tensor", positions=(at,), operand=first + len(operands) - 1))
        return operands, MemoryAttrs(tensor.id, tuple(indices), slot, 2, padded=True)

    def reading_slot(self, each: Computed, tensor: HostTensor) -> int:
        """Return the slot of the load that an operand's load replaces, or a new slot if that one is in use."""
        own = each.main.attributes(MemoryAttrs).slot
        if tensor.id not in self.read_at:
            free = each.replaced and own not in self.read_at.values()
            self.read_at[tensor.id] = own if free else next(self.slots)
        return self.read_at[tensor.id]


# --- the record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecomputableFact:
    """An operand of dot number ``dot`` that an earlier grid loop may precompute.

    It has ``shape`` elements of ``dtype`` in tiles of ``axes``, with ``lanes`` of them for each element of an axis.
    ``gathered`` is the slot of its load, if that has an index for each element.
    """

    dot: int
    role: Literal["lhs", "rhs"]
    dtype: torch.dtype
    axes: tuple[int, int]
    lanes: tuple[int, int]
    shape: tuple[int, int]
    gathered: int | None = None

    @property
    def numel(self) -> int:
        return self.shape[0] * self.shape[1]


def _facts(context: FactContext) -> tuple[PrecomputableFact, ...]:
    found = computed_operands(context.program) if context.dots else ()
    return tuple(_fact(each, context) for each in found)


def _fact(each: Computed, context: FactContext) -> PrecomputableFact:
    (row, column), dims = each.axes, each.value.dims
    own = (row.block, column.block)
    inner = [[context.padded[block] for block in dim.blocks if block not in own] for dim in dims]
    lanes = [math.prod(sizes, start=dim.const) for sizes, dim in zip(inner, dims, strict=True)]
    for at, (axis, dim) in enumerate(zip(each.axes, dims, strict=True)):
        if axis.block not in dim.blocks:  # of each step, not of each element
            lanes[at] //= int(context.program.blocks[axis.block].size or 1)
    rows, columns = (context.extents[axis.block] or 1 for axis in each.axes)
    return PrecomputableFact(
        dot=context.dots[each.dot.number],
        role="rhs" if each.at else "lhs",
        dtype=each.value.dtype,
        axes=own,
        lanes=(lanes[0], lanes[1]),
        shape=(rows * lanes[0], columns * lanes[1]),
        gathered=each.main.attributes(MemoryAttrs).slot if gathers_elements(each.main) else None,
    )


def _applies(program: Program, target: Target) -> str:
    if not computed_operands(program):
        return "no operand of a matmul in a loop is computed from tiles of known sizes that several programs share"
    return ""


def _fit(context: RuleContext, value: bool, decisions: Decisions) -> bool:
    """Return False for flattened grids, and where offsets need more than 32 bits."""
    found = computed_operands(context.program)
    flattened = any(decisions.entries["flatten_loops"].values())
    return not flattened and all(may_precompute(each, decisions.sizes) for each in found)


def _apply(program: Program, value: bool, inputs: StepInputs) -> Program:
    return precompute_operands(program, inputs.sizes_in(program))


PRECOMPUTE_OPERANDS = Rewrite(
    key="precompute_operands",
    doc="Precompute operands of a matmul, such as dequantized weights, in a kernel that runs first, instead of once per tile of the output.",
    applies=_applies,
    varies=has_matmul_of_open_sizes,
    fit=_fit,
    needs="precomputed operands need fewer than 2**31 elements, no flatten_loops and a pid_type other than 'xyz'",
    removes=frozenset(("accesses",)),
    numbered=True,
    after=("split_k",),  # the reduction of partials reads no operands
    fact=_facts,
    model=lambda program: precompute_operands(program, representative_sizes(program)),
    apply=_apply,
)
