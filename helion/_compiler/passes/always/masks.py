"""Masks lanes out of range before an op reads them.

Tiles are padded. The last tile of a loop, and whole dimensions whose extent is not a power of two, have lanes without
an element. Loads read 0 there, but ``exp`` of 0 is 1, and a sum must not include it. For every value and every
*dimension* this pass tracks the contents of the lanes out of range. They are a constant, the same as in another value,
or unknown. The pass inserts a ``mask`` op where a reduction, a matmul or a loop-carried value needs other contents.

The analysis is per dimension. Broadcasting ``mean[:, None]`` against a row gives no information about lanes beyond the
row's end. That holds even if the mean is known to be 0 for rows out of range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...._support.records import dataclass, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import (
    DotAttrs,
    FoldAttrs,
    ForAttrs,
    MaskAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    ScanAttrs,
    Value,
    ViewAttrs,
)
from ...ir.pointwise import POINTWISE, fold_cast, fold_typed
from ...ir.reductions import identity


@dataclass(frozen=True)
class SameAs:
    """Lanes out of range hold the same as those of ``value``."""

    value: Value


#: Contents of the lanes out of range along one dimension; None is unknown.
Tail = int | float | bool | SameAs | None
Tails = tuple[Tail, ...]


def mask_tails(program: Program) -> Program:
    """Insert masks: ``reduce sum (exp %x)`` becomes ``reduce sum (mask (exp %x) with 0)`` if lanes out of range are not
    0."""
    masker = _Masker(program)
    roots = []
    for root in program.roots:
        active = frozenset(axis.block for axis in root.axes)
        roots.append(replace(root, body=masker.region(root.body, active)))
    return replace(program, roots=tuple(roots))


class _Masker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers = Numbers.after(program)
        self.tails: dict[int, Tails] = {}

    def tail(self, operand: Operand, position: int, rank: int) -> Tail:
        """Return the contents of ``operand`` out of range along dimension ``position`` of a result with ``rank``
        dimensions."""
        if not isinstance(operand, Value):
            return operand
        at = position - rank + len(operand.dims)
        if at < 0 or operand.dims[at].is_one:
            return None
        return self.tails[operand.number][at]

    def maskable(self, value: Value, position: int, active: frozenset[int]) -> bool:
        block = value.dims[position].block
        if block is None:
            return False
        return self.program.blocks[block].kind == "full" or block in active

    def region(self, region: Region, active: frozenset[int]) -> Region:
        for param in region.params:
            self.tails[param.number] = tuple(SameAs(param) for _ in param.dims)
        ops: list[Op] = []
        for op in region.ops:
            match op.kind:
                case "reduce":
                    op = self.before_reduce(op, active, ops)
                case "dot":
                    op = self.before_dot(op, active, ops)
                case "fold" | "scan":
                    op = self.before_combine(op, active, ops)
                case "for":
                    op = self.loop(op, active)
                case "if" | "while":
                    op = replace(op, regions=tuple(self.region(r, active) for r in op.regions))
            ops.append(op)
            for at, result in enumerate(op.results):
                self.tails[result.number] = self.result_tails(op, at, result)
        return Region(region.params, tuple(ops), region.results)

    # --- masks before ops ---------------------------------------------------------------------------------------------

    def masked(
        self, value: Value, dims: list[int], fill: int | float | bool, ops: list[Op], other: Value | None = None
    ) -> Value:
        """Return ``value`` with its lanes out of range along ``dims`` filled; the op goes to ``ops``."""
        if not dims:
            return value
        result = Builder(self.numbers, ops=ops).mask(value, tuple(dims), fill, other)
        self.tails[result.number] = self.result_tails(ops[-1], 0, result)
        return result

    def before_reduce(self, op: Op, active: frozenset[int], ops: list[Op]) -> Op:
        attrs = op.attributes(ReduceAttrs)
        (value,) = op.values()
        fill = identity(attrs.name, value.dtype)
        dims = [d for d in attrs.dims if self.maskable(value, d, active) and self.tails[value.number][d] != fill]
        return replace(op, operands=(self.masked(value, dims, fill, ops),))

    def before_combine(self, op: Op, active: frozenset[int], ops: list[Op]) -> Op:
        """Mask the operands of a fold with ``other``, and those of a reversed scan, which begins out of range, with its
        identity."""
        assert isinstance(op.attrs, (FoldAttrs, ScanAttrs))
        if isinstance(op.attrs, ScanAttrs) and (not op.attrs.reverse or op.attrs.identity is None):
            return op
        fills = op.attrs.other if isinstance(op.attrs, FoldAttrs) else op.attrs.identity or ()
        operands = []
        for value, fill in zip(op.values(), fills, strict=True):
            wrong = self.maskable(value, op.attrs.dim, active) and self.tails[value.number][op.attrs.dim] != fill
            operands.append(self.masked(value, [op.attrs.dim] if wrong else [], fill, ops))
        return replace(op, operands=tuple(operands))

    def before_dot(self, op: Op, active: frozenset[int], ops: list[Op]) -> Op:
        attrs = op.attributes(DotAttrs)
        scales = attrs.scaled.scales if attrs.scaled is not None else ()
        operands: list[Operand] = []
        for at, value in enumerate(op.operands):
            if not isinstance(value, Value) or (at >= 2 and at not in scales):
                operands.append(value)
                continue
            position = len(value.dims) - (2 if at == 1 else 1)
            # both operands, and their scales, must be 0: 0 times an infinity or a NaN out of range is NaN
            dims = (
                [position] if self.maskable(value, position, active) and self.tails[value.number][position] != 0 else []
            )
            fill = 0.0 if value.dtype.is_floating_point else 0
            operands.append(self.masked(value, dims, fill, ops))
        return replace(op, operands=tuple(operands))

    def loop(self, op: Op, active: frozenset[int]) -> Op:
        attrs = op.attributes(ForAttrs)
        own = frozenset(axis.block for axis in attrs.axes)
        (region,) = op.regions
        region = self.region(region, active | own)
        results: list[Operand] = []
        ops = list(region.ops)
        for param, after in zip(region.params, region.results, strict=True):
            if isinstance(after, Value):
                # the last tile of this loop must not change lanes that earlier tiles filled
                dims = [
                    d
                    for d, dim in enumerate(after.dims)
                    if dim.block in own and not self.is_same(self.tails[after.number][d], param)
                ]
                after = self.masked(after, dims, 0, ops, other=param)
            results.append(after)
        return replace(op, regions=(Region(region.params, tuple(ops), tuple(results)),))

    def is_same(self, tail: Tail, value: Value) -> bool:
        return isinstance(tail, SameAs) and tail.value is value

    # --- contents of results ------------------------------------------------------------------------------------------

    def result_tails(self, op: Op, at: int, result: Value) -> Tails:
        rank = len(result.dims)
        unknown: Tails = (None,) * rank
        match op.kind:
            case "load":
                return tuple(None if d.is_one else 0 for d in result.dims)
            case "full":
                (fill,) = op.operands
                return (None if isinstance(fill, Value) else fold_cast(fill, result.dtype),) * rank
            case "pointwise":
                return tuple(self.pointwise_tail(op, position, rank) for position in range(rank))
            case "reduce":
                return self.reduce_tails(op)
            case "view":
                return self.view_tails(op, result)
            case "mask":
                return self.mask_tails_of(op, rank)
            case "for":
                return self.loop_tails(op, at, rank)
            case "if":
                pairs = [r.results[at] for r in op.regions]
                tails = [self.tails[v.number] if isinstance(v, Value) else (v,) * rank for v in pairs]
                return tuple(a if _equal(a, b) else None for a, b in zip(*tails, strict=True))
        return unknown

    def pointwise_tail(self, op: Op, position: int, rank: int) -> Tail:
        attrs = op.attributes(PointwiseAttrs)
        name = attrs.name
        tails = [self.tail(operand, position, rank) for operand in op.operands]
        if any(tail is None for tail in tails):
            return None
        if any(isinstance(tail, SameAs) for tail in tails):
            return self.unchanged(name, tails, op)
        if name == "cast":
            return fold_cast(tails[0], op.result.dtype)  # type: ignore[arg-type]
        if op.result.dtype.is_floating_point and op.result.dtype.itemsize < 4:
            # a half-precision op rounds its result; only values that survive the rounding stay known
            fold = POINTWISE[name].fold
            value = None if fold is None else fold(*tails)
            return value if value is not None and fold_cast(value, op.result.dtype) == value else None
        dtypes = tuple(operand.dtype if isinstance(operand, Value) else None for operand in op.operands)
        return fold_typed(name, tails, dtypes, op.result.dtype)  # type: ignore[arg-type]

    def unchanged(self, name: str, tails: list[Tail], op: Op) -> Tail:
        """Return the tail of ops such as ``acc + 0`` and ``max(acc, -inf)``, which keep lanes out of range
        unchanged."""
        neutral: Mapping[str, float] = {"add": 0, "sub": 0, "mul": 1, "maximum": -math.inf, "minimum": math.inf}
        if name == "where" and len(tails) == 3 and not isinstance(tails[0], SameAs):
            return tails[1] if tails[0] else tails[2]
        if name not in neutral or len(tails) != 2:
            return None
        first, second = tails
        for kept, other, operand in ((first, second, op.operands[0]), (second, first, op.operands[1])):
            same_type = isinstance(operand, Value) and operand.dtype == op.result.dtype
            if isinstance(kept, SameAs) and same_type and not isinstance(other, SameAs) and other == neutral[name]:
                return None if name == "sub" and kept is second else kept
        return None

    def reduce_tails(self, op: Op) -> Tails:
        attrs = op.attributes(ReduceAttrs)
        (value,) = op.values()
        kept = [t for d, t in enumerate(self.tails[value.number]) if d not in attrs.dims]
        if attrs.name in ("max", "min"):
            return tuple(None if isinstance(t, SameAs) else t for t in kept)
        if attrs.name == "sum":
            return tuple(0 if not isinstance(t, SameAs) and t == 0 and t is not None else None for t in kept)
        return (None,) * len(kept)

    def view_tails(self, op: Op, result: Value) -> Tails:
        attrs = op.attributes(ViewAttrs)
        (value,) = op.values()
        tails = self.tails[value.number]
        if attrs.name == "permute":
            return tuple(_detached(tails[i]) for i in attrs.order)
        if attrs.name == "broadcast":
            return tuple(None if d.is_one else _detached(t) for d, t in zip(value.dims, tails, strict=True))
        known = [(d, t) for d, t in zip(value.dims, tails, strict=True) if not d.is_one]
        if [d for d, _ in known] != [d for d in result.dims if not d.is_one]:
            return (None,) * len(result.dims)
        remaining = iter(known)
        return tuple(None if d.is_one else _detached(next(remaining)[1]) for d in result.dims)

    def mask_tails_of(self, op: Op, rank: int) -> Tails:
        attrs = op.attributes(MaskAttrs)
        value, *other = op.values()
        fills: list[Tail] = [SameAs(other[0]) if other else attrs.fill] * rank
        before = self.tails[value.number]
        return tuple(
            fills[d] if d in attrs.dims else before[d] if _equal(before[d], fills[d]) else None for d in range(rank)
        )

    def loop_tails(self, op: Op, at: int, rank: int) -> Tails:
        (region,) = op.regions
        initial, param, after = op.operands[at], region.params[at], region.results[at]
        first = self.tails[initial.number] if isinstance(initial, Value) else (initial,) * rank
        last = self.tails[after.number] if isinstance(after, Value) else (after,) * rank
        return tuple(a if self.is_same(b, param) or _equal(a, b) else None for a, b in zip(first, last, strict=True))


def _detached(tail: Tail) -> Tail:
    """Return the tail after a view, which moves lanes: they are no longer the same as in another value."""
    return None if isinstance(tail, SameAs) else tail


def _equal(a: Tail, b: Tail) -> bool:
    if isinstance(a, SameAs) or isinstance(b, SameAs):
        return isinstance(a, SameAs) and isinstance(b, SameAs) and a.value is b.value
    return a is not None and a == b
