"""``whole_number``: arithmetic of small integers, such as codes of 4 bits, as arithmetic of fp32.

A range is known for each value: from comparisons, clamps and constants. Only results that fp32 holds, and that do not
overflow their type, are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from ....._compiler.ir.grammar import Op, Operand, PointwiseAttrs, Value
from ....._support.records import dataclass
from ...plan.epilogue import PARTNER, Constant, EpilogueOperand, constant
from ..chain import COMPARISONS, EXACT_INTEGERS, Reference, Step, Steps

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OF_OPERANDS = {"bool": (0, 1), "uint8": (0, 255), "int8": (-128, 127)}
"""The least and the largest element, by type."""
ROUNDED = ("round", "floor", "ceil", "trunc")
ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum", "where", "neg", "abs")


@dataclass(frozen=True)
class Range:
    """The integers from ``low`` to ``high``, if they are multiples of ``step``."""

    low: float
    high: float
    step: int = 1

    def within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


class Ranges:
    """Ranges of the values of a chain. ``steps`` are its steps, ``operands`` its operands by name."""

    def __init__(self, steps: Sequence[Step], operands: Mapping[str, tuple[EpilogueOperand, object]]) -> None:
        self.steps, self.operands = steps, operands
        self.known: dict[int, Range | None] = {}

    def of(self, value: Reference) -> Range | None:
        """Return the range of an integer; None for values that are no integers."""
        if isinstance(value, Constant):
            number = float(value.text)
            return Range(number, number, _step(number)) if number.is_integer() else None
        if isinstance(value, str):
            ends = OF_OPERANDS.get(self.operands[value][0].dtype) if value in self.operands else None
            return None if ends is None else Range(*ends)
        if value not in self.known:
            self.known[value] = self._made(self.steps[value])
        return self.known[value]

    def _made(self, step: Step) -> Range | None:
        if step.op in COMPARISONS:
            return Range(0, 1)
        if step.op in ROUNDED:
            return Range(-math.inf, math.inf)
        arguments = step.arguments[1:] if step.op == "where" else step.arguments
        ranges = [self.of(argument) for argument in arguments]
        known = [each for each in ranges if each is not None]
        if step.op == "where" and (found := self._wrapped(*step.arguments)) is not None:
            return found
        if step.op not in RULES or len(known) < len(ranges):
            return None
        return RULES[step.op](*known)

    def _wrapped(self, condition: Reference, one: Reference, other: Reference) -> Range | None:
        """Return the range of x + n where x is below 0, and x elsewhere."""
        asked, added = (self.steps[x] if isinstance(x, int) else None for x in (condition, one))
        if asked != Step("lt", (other, constant(0.0))) or added is None or added.op != "add":
            return None
        x, (first, more) = self.of(other), added.arguments
        if x is None or first != other or not isinstance(more, Constant):
            return None
        number = float(more.text)
        return Range(min(x.low + number, max(x.low, 0)), max(number - 1, x.high))


def _step(number: float) -> int:
    """Return the largest power of two that divides a number; for 0, one beyond all numbers that fp32 holds."""
    size = abs(int(number))
    return size & -size if size else 2 * EXACT_INTEGERS


def _ends(low: float, high: float, step: int) -> Range:
    return Range(-math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high, step)


def _product(x: Range, y: Range) -> Range:
    ends = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    ends = [0.0 if math.isnan(end) else end for end in ends]
    return Range(min(ends), max(ends), x.step * y.step)


RULES: Mapping[str, Callable[..., Range]] = {
    "add": lambda x, y: _ends(x.low + y.low, x.high + y.high, min(x.step, y.step)),
    "sub": lambda x, y: _ends(x.low - y.high, x.high - y.low, min(x.step, y.step)),
    "mul": _product,
    "maximum": lambda x, y: Range(max(x.low, y.low), max(x.high, y.high), min(x.step, y.step)),
    "minimum": lambda x, y: Range(min(x.low, y.low), min(x.high, y.high), min(x.step, y.step)),
    "where": lambda x, y: Range(min(x.low, y.low), max(x.high, y.high), min(x.step, y.step)),
    "neg": lambda x: Range(-x.high, -x.low, x.step),
    PARTNER: lambda x: x,
    "abs": lambda x: Range(max(0, x.low, -x.high), max(abs(x.low), abs(x.high)), x.step),
}
"""The range of a result from those of the arguments; steps are powers of two."""


class Trace(Steps, Protocol):
    """A trace that knows the ranges of its values."""

    @property
    def ranges(self) -> Ranges: ...

    def read(self, value: Operand) -> Reference: ...


def whole_number(chain: Trace, op: Op, dtype: torch.dtype) -> Reference | None:
    """Return the value of an op whose result is an integer, or None if ranges do not show that fp32 holds it."""
    name = op.attributes(PointwiseAttrs).name
    if name == "cast":
        found = _cast(chain, op)
    elif name in ("lshift", "bitwise_or", "bitwise_and"):
        found = _bits(chain, name, [chain.read(operand) for operand in op.operands])
    elif name in ARITHMETIC:
        arguments = tuple(chain.read(operand) for operand in op.operands)
        numbers = arguments[1:] if name == "where" else arguments
        known = all(chain.ranges.of(each) is not None for each in numbers)
        found = chain.step(name, arguments) if known else None
    else:
        found = None
    limits = torch.iinfo(dtype)
    low, high = max(limits.min, -EXACT_INTEGERS), min(limits.max, EXACT_INTEGERS)
    ends = None if found is None else chain.ranges.of(found)
    return found if ends is not None and ends.within(low, high) else None


def _cast(chain: Trace, op: Op) -> Reference | None:
    """Return a cast value: numbers that may have a fraction lose it."""
    source = op.operands[0]
    if not isinstance(source, Value):
        return None
    value = chain.read(source)
    if source.dtype.is_floating_point and chain.ranges.of(value) is None:
        return None
    return value


def _bits(chain: Trace, name: str, arguments: Sequence[Reference]) -> Reference | None:
    """Return an operation on bits as one on numbers."""
    x, y = arguments
    ranges = chain.ranges.of(x), chain.ranges.of(y)
    if ranges[0] is None or ranges[1] is None:
        return None
    number = int(ranges[1].low) if isinstance(y, Constant) else None
    if name == "lshift":
        return None if number is None or not 0 <= number < 24 else chain.step("mul", (x, constant(2.0**number)))
    if name == "bitwise_or":
        for one, other in (ranges, ranges[::-1]):
            if one.low >= 0 and other.low >= 0 and one.high < other.step:  # type: ignore[union-attr]
                return chain.step("add", (x, y))
        return None
    if number is None or number < 0 or number & (number + 1) or not ranges[0].within(-number - 1, number):
        return None
    if ranges[0].low >= 0:
        return x
    return chain.step("where", (chain.step("lt", (x, constant(0.0))), chain.step("add", (x, constant(number + 1))), x))
