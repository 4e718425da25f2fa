"""Attention in several passes over its keys, as one online softmax.

::

    for tile_n in hl.tile(n):                                      for tile_n in hl.tile(n):
        highest = maximum(highest, amax(scores))                       raised = maximum(highest, amax(scores))
    for tile_n in hl.tile(n):                                          weights = exp(scores - raised)
        weights = exp(scores - highest)                     →          shrink = exp(highest - raised)
        total = total + sum(weights)                                   total = total * shrink + sum(weights)
        acc = acc + weights @ v                                        acc = acc * shrink + weights @ v
    out = acc / total                                                  highest = raised
                                                                   out = acc / total

The first pass may compute the sum as well. Later ones may divide weights by it, or subtract its logarithm from scores: then
the accumulator is divided after the loop. One loop loads keys once (measurement ``attention_forms``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ....._compiler.ir.grammar import (
    ForAttrs,
    LoopAxis,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.rewrite import Declined, Makers, count_uses
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import ONE
from ....._support.records import dataclass, replace
from ..numbers import equal
from .partials import key_of, moved

MAXIMUM, TOTAL, INVERSE = "maximum", "total", "1 / total"
"""What passes have computed of a row."""
LOG, LOG2, LOGSUM, LOGSUM2 = "log", "log2", "maximum + log", "maximum + log2"
EXPONENT, REDUCED, REDUCED2 = "score - maximum", "score - logsum", "score - logsum2"
WEIGHT, DIVIDED, CARRIED = "weight", "weight / total", "carried"
"""Values that are linear in the weights, and a carried sum of them."""
_RULES: Mapping[tuple[str, ...], str] = {
    ("log", TOTAL): LOG,
    ("log2", TOTAL): LOG2,
    ("add", MAXIMUM, LOG): LOGSUM,
    ("add", LOG, MAXIMUM): LOGSUM,
    ("add", MAXIMUM, LOG2): LOGSUM2,
    ("add", LOG2, MAXIMUM): LOGSUM2,
    ("reciprocal", TOTAL): INVERSE,
    ("div", "1", TOTAL): INVERSE,
    ("sub", "", MAXIMUM): EXPONENT,
    ("sub", "", LOGSUM): REDUCED,
    ("sub", "", LOGSUM2): REDUCED2,
    ("mul", EXPONENT, "number"): EXPONENT,
    ("mul", "number", EXPONENT): EXPONENT,
    ("div", EXPONENT, "number"): EXPONENT,
    ("exp", EXPONENT): WEIGHT,
    ("exp2", EXPONENT): WEIGHT,
    ("exp", REDUCED): DIVIDED,
    ("exp2", REDUCED2): DIVIDED,
    ("div", WEIGHT, TOTAL): DIVIDED,
    ("mul", WEIGHT, INVERSE): DIVIDED,
    ("mul", INVERSE, WEIGHT): DIVIDED,
}
"""What an operation computes, by its name and what its operands are: `""` is a value that does not depend on passes."""
_LINEAR: tuple[tuple[str, ...], ...] = (
    ("cast", WEIGHT),
    ("mul", WEIGHT, ""),
    ("mul", "", WEIGHT),
    ("div", WEIGHT, ""),
    ("mul", WEIGHT, "number"),
    ("mul", "number", WEIGHT),
    ("div", WEIGHT, "number"),
    ("where", "", WEIGHT, "0"),
    ("where", "", "0", WEIGHT),
    ("sum", WEIGHT),
    ("dot", WEIGHT, ""),
    ("dot", WEIGHT, "", CARRIED),
    ("add", CARRIED, WEIGHT),
    ("add", WEIGHT, CARRIED),
)
"""Operations whose result is linear in the weights, divided or not."""
_UNWRITTEN = (TOTAL, INVERSE, LOG, LOG2)
"""Values that the one loop does not compute."""
_PLAIN = ("", "0", "1", "number")
"""Values that do not depend on passes, and numbers."""
_PURE = ("tile", "number", "pointwise", "load", "reduce", "full", "iota", "view", "mask", "dot")
"""Operations that a pass may have."""


def with_one_pass(program: Program) -> Program:
    """Return the program with one loop for passes over the same keys, or the same one."""
    if len(program.roots) != 1:
        return program
    loops = [op for op in program.roots[0].body.ops if op.regions]
    if len(loops) < 2 or any(loop.kind != "for" for loop in loops):
        return program
    try:
        return _Passes(program, loops).joined()
    except Declined:
        return program


def _named(op: Op) -> str:
    return op.attrs.name if isinstance(op.attrs, (PointwiseAttrs, ReduceAttrs)) else op.kind


@dataclass(frozen=True, kw_only=True)
class _Carried:
    """A value that the loop carries: its initial value, the parameter and the result of a step, and its final value."""

    begin: Operand
    param: Value
    step: Value
    result: Value


class _Passes:
    """The passes of a program, ``loops``, and the body of the one loop that they become."""

    def __init__(self, program: Program, loops: Sequence[Op]) -> None:
        self.program, self.loops = program, loops
        self.makers, self.uses = Makers.among(program.walk()), count_uses(program)
        ops = [(op.number, *(x.number for x in op.results)) for op in program.walk()]
        params = (x.number for loop in loops for x in loop.regions[0].params)
        self.next = itertools.count(max(*itertools.chain(*ops), *params) + 1)
        self.axes = [self._axis(loop) for loop in loops]
        self.dims = {axis.block: self.axes[-1].block for axis in self.axes}
        self.ops: list[Op] = []
        self.after: list[Op] = []
        self.values: dict[int, Value] = {}
        self.kinds: dict[int, str] = {}
        self.steps: dict[int, tuple[Op, ...]] = {}
        """Products of a score less the maximum with numbers, by the value."""
        self.power: tuple[Op, ...] = ()
        """The exponential of all weights, after these."""
        self.carried: list[_Carried] = []
        self.highest: _Carried | None = None
        self.total: Value | None = None

    def joined(self) -> Program:
        """Return the program with one loop. Raises ``Declined``."""
        first, *others = self.loops
        self._first(first)
        for loop in others:
            self._later(loop)
        (root,) = self.program.roots
        results = {value.number for loop in self.loops for value in loop.results}
        before, after = list[Op](), list[Op]()
        for op in (op for op in root.body.ops if op not in self.loops):
            depends = any(x.number in results for x in op.reads())
            results |= {x.number for x in op.results} if depends else set()
            (after if depends or op.kind == "store" else before).append(op)
        ops = (*before, self._loop(), *self.after, *after)
        return drop_dead(replace(self.program, roots=(replace(root, body=replace(root.body, ops=ops)),)))

    def _loop(self) -> Op:
        """Return the one loop."""
        last, axis = self.loops[-1], self.axes[-1]
        attrs = last.attributes(ForAttrs)
        moved_by = len(self.carried) - attrs.carried
        begin, end = (
            OperandRef(each.at + moved_by) if isinstance(each, OperandRef) else each for each in (axis.begin, axis.end)
        )
        params, steps = tuple(each.param for each in self.carried), tuple(each.step for each in self.carried)
        return replace(
            last,
            operands=(*(each.begin for each in self.carried), *last.operands[attrs.carried :]),
            results=tuple(each.result for each in self.carried),
            attrs=replace(attrs, axes=(replace(axis, begin=begin, end=end),), carried=len(self.carried)),
            regions=(replace(last.regions[0], params=params, ops=tuple(self.ops), results=steps),),
        )

    # Loops ---------------------------------------------------------------------------------------------------------------

    def _axis(self, loop: Op) -> LoopAxis:
        """Return the axis of a pass over the same keys as the last one. Raises ``Declined``."""
        last = self.loops[-1]
        (axis, *others), (wanted, *_) = (op.attributes(ForAttrs).axes for op in (loop, last))
        plain = not (axis.scalar or axis.merged or axis.split or axis.backwards) and axis.jagged is None
        plain = plain and not others and loop.attributes(ForAttrs).carried == len(loop.results)
        if not plain or any(op.regions for op in loop.regions[0].ops) or not equal(axis.step, wanted.step):
            raise Declined("a pass that is no plain loop over one tile")
        for one, other in ((axis.begin, wanted.begin), (axis.end, wanted.end)):
            bounds = (
                op.operands[each.at] if isinstance(each, OperandRef) else each
                for op, each in ((loop, one), (last, other))
            )
            if not self._is_same(*bounds):
                raise Declined("passes over different keys")
        return axis

    def _is_same(self, one: Any, other: Any) -> bool:
        """Return whether two values before the loops are made by the same operations."""
        if not isinstance(one, Value) or not isinstance(other, Value):
            return not isinstance(one, Value) and not isinstance(other, Value) and equal(one, other)
        made, found = self.makers.of(one), self.makers.of(other)
        if one.number == other.number or made is None or found is None:
            return one.number == other.number
        alike = made.kind == found.kind and len(made.operands) == len(found.operands) and not made.regions
        alike = alike and made.kind in _PURE and key_of(made.attrs) == key_of(found.attrs)
        return alike and all(map(self._is_same, made.operands, found.operands))

    def _first(self, loop: Op) -> None:
        """Take over the pass with the maximum, and the sum if it has that."""
        body = loop.regions[0]
        for op in body.ops:
            self._write(op)
        for begin, param, step, result in zip(loop.operands, body.params, body.results, loop.results, strict=False):
            if not isinstance(step, Value):
                raise Declined("a pass that carries a number")
            self.carried.append(_Carried(begin=begin, param=param, step=self._new(step), result=result))
            made = self.makers.of(step)
            if made is not None and _named(made) == "maximum" and param.number in [x.number for x in made.values()]:
                self.highest = self.carried[-1]
                self.values[result.number], self.kinds[result.number] = self.highest.step, MAXIMUM
            else:
                self.total, self.kinds[result.number] = result, TOTAL
        if self.highest is None or len(self.carried) > 2:
            raise Declined("a first pass without a maximum")

    def _later(self, loop: Op) -> None:
        """Add a pass that carries sums of weights relative to the final maximum."""
        body = loop.regions[0]
        for begin, param in zip(loop.operands, body.params, strict=False):
            made = self.makers.of(begin)
            if made is None or made.kind != "full" or made.operands[0] != 0 or self.uses[param.number] != 1:
                raise Declined("a pass that begins with another number than 0")
            self.kinds[param.number] = CARRIED
        for op in body.ops:
            self._read(op)
        for begin, param, step, result in zip(loop.operands, body.params, body.results, loop.results, strict=False):
            kind = self._kind(step)
            if not isinstance(step, Value) or kind not in (WEIGHT, DIVIDED):
                raise Declined("a pass that carries another value than a sum of weights")
            final = result
            if kind == DIVIDED:
                final = replace(result, number=next(self.next))
                self._divide(final, result)
            elif len(result.dims) == 1:
                self.kinds[result.number] = TOTAL
                if self.total is not None:
                    raise Declined("two sums")
                self.total = result
            self.carried.append(_Carried(begin=begin, param=param, step=self._new(step), result=final))

    def _divide(self, value: Value, result: Value) -> None:
        """Add the division of a value by the sum, after the loop."""
        if self.total is None or self.total.dims != result.dims[:1]:
            raise Declined("a division by other sums")
        total: Operand = self.total
        if len(result.dims) > 1:
            wide = replace(self.total, number=next(self.next), dims=(*self.total.dims, *[ONE] * (len(result.dims) - 1)))
            self.after.append(Op(next(self.next), "view", (total,), (wide,), ViewAttrs("reshape")))
            total = wide
        self.after.append(Op(next(self.next), "pointwise", (value, total), (result,), PointwiseAttrs("div")))

    # Values --------------------------------------------------------------------------------------------------------------

    def _kind(self, operand: Operand) -> str:
        """Return what an operand is, after the ops between passes that it depends on are read."""
        if not isinstance(operand, Value):
            return str(int(operand)) if operand in (0, 1) else "number"
        if operand.number in self.kinds:
            return self.kinds[operand.number]
        made = self.makers.of(operand)
        if made is None or operand.number in self.values:
            return ""
        if made in self.loops:
            raise Declined("a result of a pass that is no maximum, and no sum")
        if made.kind == "full" and made.operands[0] == 0:
            return "0"
        if any(self._kind(each) not in _PLAIN for each in made.operands):
            self._read(made)
        return self.kinds.get(operand.number, "")

    def _read(self, op: Op) -> None:
        """Add an op of a later pass, or one between passes that depends on their results. Raises ``Declined``."""
        kinds = [self._kind(each) for each in op.operands]
        if all(kind in _PLAIN for kind in kinds):
            self._write(op)
            return
        kind = kinds[0] if op.kind in ("view", "mask") else _rule(op, kinds)
        if kind == CARRIED:
            raise Declined("a view of a carried sum")
        self.kinds[op.result.number] = kind
        for operand, each in zip(op.operands, kinds, strict=True):
            if each == CARRIED and isinstance(operand, Value):
                self.values[operand.number] = self._shrunk(operand)
        kept = [x for x, each in zip(op.operands, kinds, strict=True) if each in (MAXIMUM, WEIGHT)]
        joins = kind in (LOGSUM, LOGSUM2) or (kind == DIVIDED and not {TOTAL, INVERSE}.isdisjoint(kinds))
        if joins and op.kind not in ("view", "mask"):
            (value,) = kept  # the sum is left out
            self._check_row(op)
            assert isinstance(value, Value)
            self.values[op.result.number] = self._new(value)
        elif kind not in _UNWRITTEN:
            self._write(op)
            self._follow(op, kind)

    def _check_row(self, op: Op) -> None:
        """Check that a sum that is left out is that of the row."""
        for value in op.values():
            met = op.result.dims[len(op.result.dims) - len(value.dims) :]
            if any(not one.is_one and one != other for one, other in zip(value.dims, met, strict=True)):
                raise Declined("sums of other rows")

    def _follow(self, op: Op, kind: str) -> None:
        """Keep the operations from a score less the maximum to the exponential of it."""
        former = next((self.steps[x.number] for x in op.values() if x.number in self.steps), ())
        if kind == EXPONENT:
            own = () if _named(op) == "sub" or op.kind in ("view", "mask") else (op,)
            self.steps[op.result.number] = (*former, *own)
        elif _named(op) in ("exp", "exp2"):
            power = (*former, op)
            texts = [
                [(each.attrs, *(x for x in each.operands if not isinstance(x, Value))) for each in ops]
                for ops in (power, self.power or power)
            ]
            if texts[0] != texts[1]:
                raise Declined("two exponentials of weights")
            self.power = power

    def _shrunk(self, carried: Value) -> Value:
        """Return a carried sum times the factor of a new maximum."""
        assert self.highest is not None
        if not self.power:
            raise Declined("a sum before the weights")
        former, raised = self.highest.param, self.highest.step
        factor = self._add("pointwise", PointwiseAttrs("sub"), (former, raised), raised)
        for op in self.power:
            operands = tuple(factor if isinstance(x, Value) else x for x in op.operands)
            factor = self._add(op.kind, op.attrs, operands, raised)
        if len(carried.dims) > 1:
            dims = (*raised.dims, *[ONE] * (len(carried.dims) - 1))
            factor = self._add("view", ViewAttrs("reshape"), (factor,), replace(raised, dims=dims))
        return self._add("pointwise", PointwiseAttrs("mul"), (carried, factor), carried)

    def _new(self, value: Value) -> Value:
        return self.values.get(value.number, value)

    def _add(self, kind: str, attrs: object, operands: tuple[Operand, ...], like: Value) -> Value:
        result = replace(like, number=next(self.next), name="")
        self._write(Op(next(self.next), kind, operands, (result,), attrs))
        return self._new(result)

    def _write(self, op: Op) -> None:
        """Add an op to the loop, unless it has an equal one."""
        if op.kind not in _PURE:
            raise Declined(f"{op.kind} in a pass")
        made = moved(op, self.dims, self.values)
        same = next((each for each in self.ops if _is_equal(each, made)), None)
        if same is None:
            self.ops.append(made)
        else:
            self.values[op.result.number] = same.result


def _rule(op: Op, kinds: Sequence[str]) -> str:
    """Return what an op computes of what passes have computed. Raises ``Declined``."""
    for names in (kinds, ["number" if each in ("0", "1") else each for each in kinds]):
        found = _RULES.get((_named(op), *names))
        if found is not None:
            return found
        if (_named(op), *(WEIGHT if each == DIVIDED else each for each in names)) in _LINEAR:
            return DIVIDED if DIVIDED in names else WEIGHT
    raise Declined(f"{_named(op)} of {' and '.join(kinds)}")


def _is_equal(one: Op, other: Op) -> bool:
    alike = one.kind == other.kind and len(one.operands) == len(other.operands)
    return (
        alike
        and key_of(one.attrs) == key_of(other.attrs)
        and (one.result.dims, one.result.dtype) == (other.result.dims, other.result.dtype)
        and all(map(_is_operand, one.operands, other.operands))
    )


def _is_operand(one: Operand, other: Operand) -> bool:
    if isinstance(one, Value) and isinstance(other, Value):
        return one.number == other.number
    return type(one) is type(other) and one == other
