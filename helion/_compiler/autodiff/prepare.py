"""Normalization of a grid loop before differentiation: each element is loaded once, and loads of elements that the
program has just stored are replaced by the stored values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..._shapes import number_key
from ..ir.build import Numbers
from ..ir.grammar import (
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Value,
)

Key = tuple[object, ...]


def access_key(op: Op) -> Key:
    """Return a key that is equal for accesses of one tensor with the same elements in the same lanes."""
    attrs = op.attributes(MemoryAttrs)

    def operand(at: int | None) -> object:
        if at is None:
            return None
        value = op.operands[at]
        return value.number if isinstance(value, Value) else ("number", value)

    indices = tuple((i.kind, i.block, i.positions, number_key(i.shift), operand(i.operand)) for i in attrs.indices)
    return attrs.tensor, indices, operand(attrs.mask)


def _value_key(load: Op) -> Key:
    """Return a key that is equal for loads of equal values: ``x[tile, 1]`` and ``x[tile, 1:2]`` have other dimensions."""
    return (*access_key(load), load.result.dims)


@dataclass
class _Scope:
    """Known loads and stores of a region: loads of tensors that are never written, and the last stores."""

    loads: dict[Key, Value]
    stored: dict[Key, Op] = field(default_factory=dict)
    #: Values and blocks defined by the loop around the region, and whether its body certainly runs.
    inside: frozenset[int] = frozenset()
    blocks: frozenset[int] = frozenset()
    runs: bool = False


class _Preparation:
    def __init__(self, program: Program, written: frozenset[int]) -> None:
        self.program = program
        self.written = written
        self.numbers = Numbers.after(program)
        self.renamed: dict[int, Operand] = {}

    def storage(self, op: Op) -> int:
        return self.program.tensors[op.attributes(MemoryAttrs).tensor].storage

    def operand(self, operand: Operand) -> Operand:
        return self.renamed.get(operand.number, operand) if isinstance(operand, Value) else operand

    def region(self, region: Region, scope: _Scope) -> tuple[Region, list[Op]]:
        """Return the region in its new form, and the loads to hoist out of the loop that it is the body of."""
        made: list[Op] = []
        hoisted: list[Op] = []
        for op in region.ops:
            op = replace(op, operands=tuple(map(self.operand, op.operands)))
            if op.kind == "load" and self._known(op, scope, made):
                continue
            if op.kind == "load" and self._is_outside(op, scope):
                hoisted.append(op)
                continue
            if op.kind == "store":
                self._overwrite(op, scope, made)
            elif op.kind == "atomic":
                self._forget(op, scope)
            if op.regions and op.kind in ("for", "while", "if"):
                *before, op = self._nest(op, scope)
                for load in before:
                    (hoisted if self._is_outside(load, scope) else made).append(load)
            made.append(op)
        results = tuple(map(self.operand, region.results))
        return Region(region.params, tuple(made), results), hoisted

    def _nest(self, op: Op, scope: _Scope) -> list[Op]:
        """Rewrite an op with regions; return the loads hoisted out of it, then the op."""
        before: list[Op] = []
        regions = []
        inside = _defined(op)
        own = frozenset(a.block for a in op.attrs.axes) if isinstance(op.attrs, ForAttrs) else frozenset()
        runs = isinstance(op.attrs, ForAttrs) and all(_has_iterations(a) for a in op.attrs.axes)
        for region in op.regions:
            inner = _Scope(dict(scope.loads), inside=frozenset(inside) if own else frozenset(), blocks=own, runs=runs)
            made, hoisted = self.region(region, inner)
            regions.append(made)
            before += hoisted
            scope.loads.update((_value_key(load), load.result) for load in hoisted)
        for inner_op in op.walk():
            if inner_op.kind in ("store", "atomic"):
                self._forget(inner_op, scope)
        return [*before, replace(op, regions=tuple(regions))]

    def _is_outside(self, op: Op, scope: _Scope) -> bool:
        """Return whether a load is independent of the loop around it."""
        if not scope.blocks or self.storage(op) in self.written or (op.operands and not scope.runs):
            return False
        used = {i.block for i in op.attributes(MemoryAttrs).indices if i.kind == "block"}
        blocks = {b for d in op.result.dims for b in d.blocks}
        return not (used | blocks) & scope.blocks and not any(v.number in scope.inside for v in op.values())

    def _known(self, op: Op, scope: _Scope, made: list[Op]) -> bool:
        """Replace a loaded value by an equal one that is known; return whether there is one."""
        key = access_key(op)
        if self.storage(op) not in self.written:
            found = scope.loads.setdefault(_value_key(op), op.result)
            if found is not op.result:
                self.renamed[op.result.number] = found
            return found is not op.result
        store = scope.stored.get(key)
        if store is None or op.attributes(MemoryAttrs).mask is not None:
            return False
        value = store.operands[0]
        if not isinstance(value, Value) or value.dims != op.result.dims:
            return False
        if value.dtype != op.result.dtype:
            cast = self.numbers.value(op.result.dtype, value.dims, value.name)
            made.append(Op(self.numbers.op(), "pointwise", (value,), (cast,), PointwiseAttrs("cast"), (), op.location))
            value = cast
        self.renamed[op.result.number] = value
        return True

    def _overwrite(self, op: Op, scope: _Scope, made: list[Op]) -> None:
        """Remove the previous store to the same elements if nothing has read it since, and record this one."""
        # the key does not depend on the position of the stored value among the operands
        key = access_key(op)
        before = scope.stored.get(key)
        if before is not None:
            at = next((i for i, other in enumerate(made) if other is before), None)
            since = made[at + 1 :] if at is not None else made
            if at is not None and not any(
                inner.kind in ("load", "atomic", "store") and self.storage(inner) == self.storage(op)
                for each in since
                for inner in each.walk()
            ):
                del made[at]
        self._forget(op, scope)
        scope.stored[key] = op

    def _forget(self, op: Op, scope: _Scope) -> None:
        storage = self.storage(op)
        scope.stored = {k: s for k, s in scope.stored.items() if self.storage(s) != storage}


def _has_iterations(axis: LoopAxis) -> bool:
    return isinstance(axis.begin, int) and isinstance(axis.end, int) and axis.begin < axis.end


def _defined(op: Op) -> set[int]:
    """Return the numbers of the values that an op with regions defines inside of them."""
    found: set[int] = set()
    for inner in op.walk():
        if inner is not op:
            found.update(v.number for v in inner.results)
        for region in inner.regions:
            found.update(v.number for v in region.params)
    return found


def prepare(program: Program, at: int) -> Program:
    """Return the prepared program that consists of root ``at`` only."""
    root = program.roots[at]
    written = frozenset(
        program.tensors[op.attrs.tensor].storage
        for op in root.body.walk()
        if isinstance(op.attrs, MemoryAttrs) and op.kind != "load"
    )
    body, _ = _Preparation(program, written).region(root.body, _Scope({}))
    return replace(program, roots=(replace(root, body=body),))
