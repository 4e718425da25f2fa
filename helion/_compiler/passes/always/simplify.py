"""Common subexpression elimination, loop-invariant carried values, and dead code elimination."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ir.effects import stays
from ...ir.grammar import (
    ForAttrs,
    LoopAxis,
    MaskAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Region,
    Value,
    ViewAttrs,
)
from ...ir.ops import OPS

_RESHAPE = ViewAttrs("reshape")


def merge_common(program: Program) -> Program:
    """Merge common subexpressions.

    ``%1 = exp %0; %2 = exp %0`` becomes one op. A carried value that its loop never changes becomes its initial value.
    A value that is reshaped and reshaped back becomes the original value.
    """
    return program.map_regions(lambda body: _Merger().region(body, {}))


class _Merger:
    def __init__(self) -> None:
        self.replaced: dict[int, Operand] = {}
        self.reshaped: dict[int, Value] = {}

    def operand(self, operand: Operand) -> Operand:
        while isinstance(operand, Value) and operand.number in self.replaced:
            operand = self.replaced[operand.number]
        return operand

    def region(self, region: Region, outer: dict[Any, Value]) -> Region:
        seen = dict(outer)
        ops = []
        for op in region.ops:
            op = replace(op, operands=tuple(map(self.operand, op.operands)))
            if self.is_reshaped_back(op):
                continue
            if OPS[op.kind].mergeable:
                key = _key(op)
                known = seen.get(key)
                if known is not None:
                    self.replaced[op.result.number] = known
                    continue
                seen[key] = op.result
            if op.kind == "for":
                op = self.drop_invariant(op)
            if op.regions:
                op = replace(op, regions=tuple(self.region(r, seen) for r in op.regions))
            ops.append(op)
        return Region(region.params, tuple(ops), tuple(map(self.operand, region.results)))

    def is_reshaped_back(self, op: Op) -> bool:
        """Return whether ``op`` undoes reshapes, and map its result to the original value.

        A backend may move every element through shared memory for a reshape.
        """
        if op.attrs != _RESHAPE or not isinstance(op.operands[0], Value):
            return False
        before = op.operands[0]
        source = self.reshaped[op.result.number] = self.reshaped.get(before.number, before)
        if source.dims != op.result.dims:
            return False
        self.replaced[op.result.number] = source
        return True

    def drop_invariant(self, op: Op) -> Op:
        (region,) = op.regions
        keep = []
        for at, (param, after) in enumerate(zip(region.params, region.results, strict=True)):
            if after is param:
                self.replaced[param.number] = self.replaced[op.results[at].number] = op.operands[at]
            else:
                keep.append(at)
        return keep_carried(op, region, keep)


def keep_carried(op: Op, region: Region, keep: list[int]) -> Op:
    """Return the loop ``op`` with body ``region``, carrying only the values at positions ``keep``."""
    attrs = op.attributes(ForAttrs)
    shift = len(keep) - attrs.carried
    axes = tuple(
        replace(a, begin=_shifted(a.begin, shift), end=_shifted(a.end, shift), jagged=_shifted(a.jagged, shift))
        for a in attrs.axes
    )
    body = Region(tuple(region.params[i] for i in keep), region.ops, tuple(region.results[i] for i in keep))
    return replace(
        op,
        operands=(*(op.operands[i] for i in keep), *op.operands[attrs.carried :]),
        results=tuple(op.results[i] for i in keep),
        attrs=replace(attrs, axes=axes, carried=len(keep)),
        regions=(body,),
    )


def _shifted(bound: Any, by: int) -> Any:
    return OperandRef(bound.at + by) if isinstance(bound, OperandRef) else bound


def _key(op: Op) -> Any:
    attrs: Any = op.attrs.expr.key if isinstance(op.attrs, NumberAttrs) else op.attrs
    # numbers by type and text: 0, 0.0, -0.0 and False are equal in Python
    operands = tuple(o.number if isinstance(o, Value) else (type(o), repr(o)) for o in op.operands)
    if isinstance(op.attrs, MaskAttrs):
        attrs = (op.attrs.dims, type(op.attrs.fill), repr(op.attrs.fill))
    return (op.kind, operands, attrs, op.result.dtype, op.result.dims)


def drop_dead(program: Program) -> Program:
    """Remove ops without effects or uses, and loop-carried values that only feed themselves."""
    return program.map_regions(lambda body: _drop(body, set())[0])


def _drop(region: Region, live: set[int]) -> tuple[Region, set[int]]:
    """Return the region without dead ops, and the values it reads (its own included)."""
    live = live | {v.number for v in region.results if isinstance(v, Value)}
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.kind == "for":
            op, reads = _drop_loop(op, live)
        elif op.kind == "if":
            op, reads = _drop_if(op, live)
        elif op.regions:
            reads = {v.number for inner in op.walk() for v in inner.reads()}
        else:
            reads = set()
        if not (stays(op) or any(r.number in live for r in op.results) or _has_effect(op)):
            continue
        live |= reads
        live.update(v.number for v in op.values())
        kept.append(op)
    return Region(region.params, tuple(reversed(kept)), region.results), live


def _has_effect(op: Op) -> bool:
    return any(stays(inner) for region in op.regions for inner in region.walk())


def _drop_loop(op: Op, live: set[int]) -> tuple[Op, set[int]]:
    (region,) = op.regions
    keep = {i for i, result in enumerate(op.results) if result.number in live}
    while True:
        body = Region(region.params, region.ops, tuple(region.results[i] for i in sorted(keep)))
        body, reads = _drop(body, set())
        more = {i for i, param in enumerate(region.params) if param.number in reads} - keep
        if not more:
            break
        keep |= more
    order = sorted(keep)
    full = Region(region.params, body.ops, region.results)
    return keep_carried(op, full, order), reads


def _drop_if(op: Op, live: set[int]) -> tuple[Op, set[int]]:
    keep = [i for i, result in enumerate(op.results) if result.number in live]
    reads: set[int] = set()
    regions = []
    for region in op.regions:
        body, inner = _drop(Region(region.params, region.ops, tuple(region.results[i] for i in keep)), set())
        regions.append(body)
        reads |= inner
    return replace(op, results=tuple(op.results[i] for i in keep), regions=tuple(regions)), reads


__all__ = ["LoopAxis", "drop_dead", "keep_carried", "merge_common"]
