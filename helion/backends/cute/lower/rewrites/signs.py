"""Dots that are subtracted from an accumulator, as dots that are added to it.

::

    acc = y[tile_m, tile_n]                                  acc = -y[tile_m, tile_n]
    for tile_k in hl.tile(k):                                for tile_k in hl.tile(k):
        acc = acc - hl.dot(a[...], b[...])         →             acc = acc + hl.dot(a[...], b[...])
    out[...] = acc                                           out[...] = -acc

Signs are exact, but a dot of 0 that is subtracted from 0 makes -0.0. Where other terms are added, as in products of complex
numbers, the first operand of the dot has the other sign instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ....._compiler.ir.grammar import ForAttrs, Op, Operand, PointwiseAttrs, Program, Region, Value
from ....._compiler.ir.rewrite import Makers, count_uses, expand_ops

_ADD, _SUB, _NEG = PointwiseAttrs("add"), PointwiseAttrs("sub"), PointwiseAttrs("neg")


def with_added_dots(program: Program) -> Program:
    """Return the program without subtractions from accumulators; the original one without them."""
    if not any(op.attrs == _SUB for loop in _loops(program) for op in loop.regions[0].ops):
        return program
    return _Signs(program).program()


def _loops(program: Program) -> Iterator[Op]:
    """Yield the loops that carry something and have a dot of their own."""
    for op in program.walk():
        carries = isinstance(op.attrs, ForAttrs) and op.attrs.carried == len(op.results) > 0
        if carries and any(each.kind == "dot" for each in op.regions[0].ops):
            yield op


class _Signs:
    """A rewrite of a program, with new values after those that it has."""

    def __init__(self, program: Program) -> None:
        self.whole = program
        self.makers, self.uses = Makers.among(program.walk()), count_uses(program)
        numbers = (number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
        params = (each.number for op in program.walk() for region in op.regions for each in region.params)
        self.free = 1 + max((*numbers, *params))
        self.added: dict[int, list[Op]] = {}
        """What takes the place of a subtraction, by its number."""
        self.changed: dict[int, tuple[int, ...]] = {}
        """The accumulators that change their sign, by the number of the loop."""

    def program(self) -> Program:
        loops = [*_loops(self.whole)]
        goes_on = {value.number for loop in loops for value in loop.values()}
        for loop in loops:
            links = [self._links(loop.regions[0], at) for at in range(len(loop.results))]
            self.changed[loop.number] = tuple(
                at
                for at, each in enumerate(links)
                if each
                and all(op.attrs == _SUB for op in each)
                and loop.results[at].number not in goes_on
                and (made := self.makers.of(loop.operands[at])) is not None
                and not made.regions
            )
            for at, each in enumerate(links):
                for op in each:
                    if op.attrs == _SUB:
                        self.added[op.number] = self._sum(op, at in self.changed[loop.number])
        return expand_ops(self.whole, self._expanded)

    def _links(self, body: Region, at: int) -> Sequence[Op]:
        """Return what adds to, or subtracts from, carried value number `at`; nothing if it is used for anything else."""
        value, found = body.results[at], list[Op]()
        while value is not body.params[at]:
            made = self.makers.of(value)
            if made is None or (found and self.uses[made.result.number] > 1):
                return ()
            if made.kind == "dot" and len(made.operands) == 3:
                value = made.operands[2]
            elif made.attrs in (_ADD, _SUB):
                value = made.operands[0]
            else:
                return ()
            found.append(made)
        return found if self.uses[body.params[at].number] == 1 else ()

    def _sum(self, op: Op, flipped: bool) -> list[Op]:
        """Return the addition in place of a subtraction, of a dot with another sign unless the accumulator is ``flipped``."""
        dot = self.makers.of(op.operands[1])
        if flipped:
            return [dataclasses.replace(op, attrs=_ADD)]
        left = None if dot is None or dot.kind != "dot" or len(dot.operands) != 2 else dot.operands[0]
        if dot is None or not isinstance(left, Value) or not left.dtype.is_floating_point:
            return [op]
        other = self._negated(left)
        product = dataclasses.replace(dot.result, number=self._number())
        again = dataclasses.replace(
            dot, number=product.number, operands=(other.result, *dot.operands[1:]), results=(product,)
        )
        return [other, again, dataclasses.replace(op, attrs=_ADD, operands=(op.operands[0], product))]

    def _number(self) -> int:
        self.free += 1
        return self.free - 1

    def _negated(self, value: Value, result: Value | None = None) -> Op:
        """Return the negation of a value, as ``result``."""
        made = result or dataclasses.replace(value, number=self._number())
        return Op(number=made.number, kind="pointwise", operands=(value,), results=(made,), attrs=_NEG)

    def _expanded(self, op: Op) -> Iterator[Op]:
        if op.number in self.added:
            yield from self.added[op.number]
            return
        operands, results, after = list[Operand](op.operands), list(op.results), list[Op]()
        for at in self.changed.get(op.number, ()):
            start, result = op.operands[at], op.results[at]
            results[at] = dataclasses.replace(result, number=self._number())
            after.append(self._negated(results[at], result))
            if not self._is_zero(start):
                assert isinstance(start, Value)
                first = self._negated(start)
                yield first
                operands[at] = first.result
        changed = bool(after)
        yield dataclasses.replace(op, operands=tuple(operands), results=tuple(results)) if changed else op
        yield from after

    def _is_zero(self, start: Operand) -> bool:
        made = self.makers.of(start)
        return made is not None and made.kind == "full" and made.operands[0] in (0, 0.0)
