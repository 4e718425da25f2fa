"""Rolls whole dimensions: a program that holds a row at once becomes one that walks over it in chunks.

Before::

    %1 = load x[b0, b1]; %2 = reduce max %1; %3 = exp (%1 - %2); %4 = reduce sum %3; store out <- %3 / %4

After rolling b1::

    for b1 chunked: acc = max(acc, load)          stage 0
    %2 = reduce max acc
    for b1 chunked: acc = acc + exp(load - %2)    stage 1, which loads and computes again
    %4 = reduce sum acc
    for b1 chunked: store exp(load - %2) / %4     stage 2

Chunks keep the block's id; only its size differs between the two programs, so every mask and every memory slot stays
what it was.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from ..._shapes import Expr
from ..ir.grammar import (
    EFFECTS,
    MEMORY,
    Block,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Value,
)
from .masks import identity
from .simplify import drop_dead

#: How two partial results combine.
_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_ALLOWED = frozenset(("load", "store", "pointwise", "reduce", "view", "mask", "iota", "full"))


class _Declined(Exception):
    """Why a block cannot be rolled."""


def rollable_blocks(program: Program) -> tuple[tuple[int, ...], dict[int, str]]:
    """Blocks that can be walked in chunks, in order, and why the other whole dimensions cannot."""
    good: list[int] = []
    reasons: dict[int, str] = {}
    for block in program.blocks:
        if block.kind == "full" and _is_used(program, block.id):
            try:
                _roll_block(program, block)
            except _Declined as reason:
                reasons[block.id] = str(reason)
            else:
                good.append(block.id)
    return tuple(good), reasons


def roll(program: Program, blocks: frozenset[int]) -> Program:
    """Walk ``blocks``, each from ``rollable_blocks``, in chunks."""
    for block in sorted(blocks):
        program = _roll_block(program, program.blocks[block])
    return drop_dead(program) if blocks else program


def _is_used(program: Program, block: int) -> bool:
    return any(_carries(value, block) for op in program.walk() for value in op.results)


def _carries(value: Value, block: int) -> bool:
    return any(block in dim.blocks for dim in value.dims)


def _roll_block(program: Program, block: Block) -> Program:
    numbers = itertools.count(1 + max((r.number for op in program.walk() for r in op.results), default=0))
    return program.map_regions(lambda body: _Roller(program, block, numbers).region(body))


@dataclass(frozen=True)
class _Stage:
    """The reductions and stores of one pass over the row."""

    sinks: tuple[Op, ...]


class _Roller:
    def __init__(self, program: Program, block: Block, numbers: itertools.count[int]) -> None:
        self.program = program
        self.block = block.id
        self.extent = block.extent
        self.numbers = numbers

    def is_wide(self, op: Op) -> bool:
        """Whether the op itself touches the block's dimension."""
        return any(_carries(v, self.block) for v in (*op.values(), *op.results))

    def region(self, region: Region) -> Region:
        """The region with its uses of the block rolled; nested regions roll by themselves."""
        ops = [replace(op, regions=tuple(map(self.region, op.regions))) if op.regions else op for op in region.ops]
        wide = [op for op in ops if self.is_wide(op)]
        if not wide:
            return Region(region.params, tuple(ops), region.results)
        defined = {id(r) for op in ops for r in op.results}
        for op in wide:
            self.check(op, defined)
        crossing = [
            v for op in ops for r in op.regions for inner in r.walk() for v in inner.values() if id(v) in defined
        ]
        if any(_carries(v, self.block) for v in (*region.params, *crossing)):
            raise _Declined("a value that spans the dimension crosses a loop or a branch")
        if any(isinstance(v, Value) and _carries(v, self.block) for v in region.results):
            raise _Declined("a loop carries a value that spans the dimension")
        levels = self.levels(ops)
        self.check_memory(ops, levels)
        return Region(region.params, tuple(self.staged(ops, levels)), region.results)

    def check(self, op: Op, defined: set[int]) -> None:
        if op.kind not in _ALLOWED:
            raise _Declined(f"a {op.kind} uses the dimension")
        if isinstance(op.attrs, ReduceAttrs) and op.attrs.name not in _COMBINE:
            (value,) = op.values()
            if any(self.block in value.dims[d].blocks for d in op.attrs.dims):
                raise _Declined(f"{op.attrs.name} over the dimension")
        if isinstance(op.attrs, IotaAttrs) and op.attrs.block != self.block:
            raise _Declined("an index mixes dimensions")
        for value in (*op.values(), *op.results):
            places = [d for d in value.dims if self.block in d.blocks]
            if len(places) > 1:
                raise _Declined("a value has the dimension twice")
            if any(d.block is None for d in places):
                raise _Declined("a reshape merges the dimension with another")
        for value in op.values():
            if _carries(value, self.block) and id(value) not in defined:
                raise _Declined("a value that spans the dimension comes from outside of a loop")

    def levels(self, ops: list[Op]) -> dict[int, int]:
        """For wide ops the stage that computes them, for others the first stage before which they can run."""
        ready: dict[int, int] = {}
        levels: dict[int, int] = {}
        for op in ops:
            reads = [*op.values(), *(v for r in op.regions for inner in r.walk() for v in inner.values())]
            level = max((ready.get(id(v), 0) for v in reads), default=0)
            levels[id(op)] = level
            for result in op.results:
                narrow = op.kind == "reduce" and self.is_wide(op) and not _carries(result, self.block)
                ready[id(result)] = level + 1 if narrow else level
        return levels

    def check_memory(self, ops: list[Op], levels: dict[int, int]) -> None:
        """A row that is stored and loaded again must be the same elements, stored in the last pass that loads them."""
        stored = {self.storage(inner) for op in ops for inner in op.walk() if inner.kind in EFFECTS}
        last = max((levels[id(op)] for op in ops if self.is_wide(op)), default=0)
        for storage in stored:
            accesses = [
                op for op in ops for inner in op.walk() if inner.kind in MEMORY and self.storage(inner) == storage
            ]
            if len(accesses) == 1:
                continue
            if not all(self.is_wide(op) and op.kind in ("load", "store") for op in accesses):
                raise _Declined("a tensor is stored and loaded in different shapes")
            first_store = next(i for i, op in enumerate(accesses) if op.kind == "store")
            same = all(op.attrs.indices == accesses[0].attrs.indices for op in accesses)
            if not same or any(op.kind == "load" for op in accesses[first_store:]):
                raise _Declined("a tensor is loaded after it is stored")
            if levels[id(accesses[first_store])] < last:
                raise _Declined("a tensor is stored before the last pass that loads it")

    def storage(self, op: Op) -> int:
        assert isinstance(op.attrs, MemoryAttrs)
        return self.program.tensors[op.attrs.tensor].storage

    def staged(self, ops: list[Op], levels: dict[int, int]) -> list[Op]:
        makers = {id(r): op for op in ops for r in op.results}
        result: list[Op] = []
        last = max(levels.values(), default=0)
        for level in range(last + 1):
            result += [op for op in ops if not self.is_wide(op) and levels[id(op)] == level]
            sinks = [op for op in ops if self.is_wide(op) and levels[id(op)] == level and self.is_sink(op)]
            if sinks:
                result += self.loop(_Stage(tuple(sinks)), ops, makers)
        return result

    def is_sink(self, op: Op) -> bool:
        return op.kind == "store" or (op.kind == "reduce" and not _carries(op.result, self.block))

    # --- one pass over the row -------------------------------------------------------------------------------------------

    def loop(self, stage: _Stage, ops: list[Op], makers: dict[int, Op]) -> list[Op]:
        needed = self.closure(stage, makers)
        renamed: dict[int, Value] = {}
        params, initials, results, finals = [], [], [], []
        before: list[Op] = []
        body: list[Op] = []
        for op in ops:
            if id(op) not in needed:
                continue
            if op.kind == "reduce" and self.is_sink(op):
                value = self.rename(next(op.values()), renamed)
                carried = self.accumulate(op, value, before, body)
                params.append(carried[0])
                initials.append(carried[1])
                results.append(carried[2])
                total = Value(next(self.numbers), value.dtype, value.dims, op.result.name)
                finals.append((total, replace(op, operands=(total,))))
                continue
            operands = tuple(self.rename(o, renamed) if isinstance(o, Value) else o for o in op.operands)
            clones = tuple(self.clone(r, renamed) for r in op.results)
            body.append(replace(op, operands=operands, results=clones))
        assert isinstance(self.extent, (int, Expr))
        attrs = ForAttrs((LoopAxis(self.block, 0, self.extent),), len(params), chunked=True)
        region = Region(tuple(params), tuple(body), tuple(results))
        totals = tuple(total for total, _ in finals)
        loop = Op("for", tuple(initials), totals, attrs, (region,), stage.sinks[0].location)
        return [*before, loop, *(op for _, op in finals)]

    def closure(self, stage: _Stage, makers: dict[int, Op]) -> set[int]:
        """The wide ops this pass computes: its sinks and all they are made of."""
        needed: set[int] = set()
        stack = list(stage.sinks)
        while stack:
            op = stack.pop()
            if id(op) in needed:
                continue
            needed.add(id(op))
            stack += [makers[id(v)] for v in op.values() if _carries(v, self.block)]
        return needed

    def rename(self, value: Value, renamed: dict[int, Value]) -> Value:
        return renamed.get(id(value), value)

    def clone(self, value: Value, renamed: dict[int, Value]) -> Value:
        renamed[id(value)] = copy = Value(next(self.numbers), value.dtype, value.dims, value.name)
        return copy

    def accumulate(self, op: Op, value: Value, before: list[Op], body: list[Op]) -> tuple[Value, Operand, Value]:
        """An accumulator of the chunk's shape: its param, its initial value and its value after one chunk."""
        assert isinstance(op.attrs, ReduceAttrs)
        name = f"{op.result.name or op.attrs.name}_acc"
        param = Value(next(self.numbers), value.dtype, value.dims, name)
        initial = Value(next(self.numbers), value.dtype, value.dims, name)
        before.append(Op("full", (identity(op.attrs.name, value.dtype),), (initial,), None, (), op.location))
        after = Value(next(self.numbers), value.dtype, value.dims, name)
        combine = PointwiseAttrs(_COMBINE[op.attrs.name])
        body.append(Op("pointwise", (param, value), (after,), combine, (), op.location))
        return param, initial, after
