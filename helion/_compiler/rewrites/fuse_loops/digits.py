"""Numbers that differ between loops, as linear forms of the digits of the pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...._support.records import dataclass
from ...ir.grammar import Operand, PointwiseAttrs, Value
from ...ir.rewrite import Makers


@dataclass(frozen=True)
class Digit:
    """The term ``factor * (pass // divisor % modulus)``."""

    divisor: int
    modulus: int
    factor: int


def digits_of(numbers: Sequence[int]) -> tuple[Digit, ...] | None:
    """Return the digits of the position that ``numbers`` are linear in, relative to the first one; None if they are
    not."""
    found = _digits([number - numbers[0] for number in numbers], 1)
    return None if found is None else tuple(digit for digit in found if digit.factor)


def _digits(offsets: Sequence[int], divisor: int) -> list[Digit] | None:
    count = len(offsets)
    for period in (count, *(p for p in range(2, count) if count % p == 0)):
        step = offsets[1] - offsets[0] if period > 1 else 0
        if all(offsets[at] - offsets[at - at % period] == step * (at % period) for at in range(count)):
            rest = [] if period == count else _digits(offsets[::period], divisor * period)
            if rest is not None:
                return [Digit(divisor, period, step), *rest]
    return None


@dataclass(frozen=True)
class Linear:
    """Linear form: ``constant`` plus values times numbers."""

    factors: Mapping[int, int]
    constant: int


@dataclass(frozen=True)
class Sums:
    """Analysis of integers of ``dtype`` as linear forms; sums and products wrap around."""

    makers: Makers
    dtype: torch.dtype

    def of(self, operand: Operand) -> Linear | None:
        if not isinstance(operand, Value):
            return Linear({}, operand) if type(operand) is int else None
        op = self.makers.of(operand) if operand.dtype == self.dtype else None
        if op is None or not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name not in ("add", "sub", "mul"):
            return Linear({operand.number: 1}, 0)
        left, right = map(self.of, op.operands)
        if left is None or right is None:
            return None
        if op.attrs.name == "mul":
            scaled = _scaled(left, right)
            return Linear({operand.number: 1}, 0) if scaled is None else scaled
        return _sum(left, right, -1 if op.attrs.name == "sub" else 1)


def _scaled(left: Linear, right: Linear) -> Linear | None:
    if left.factors and right.factors:
        return None
    value, number = (left, right.constant) if left.factors else (right, left.constant)
    return Linear({at: factor * number for at, factor in value.factors.items()}, value.constant * number)


def _sum(left: Linear, right: Linear, sign: int) -> Linear:
    factors = dict(left.factors)
    for at, factor in right.factors.items():
        factors[at] = factors.get(at, 0) + sign * factor
    return Linear({at: f for at, f in factors.items() if f}, left.constant + sign * right.constant)


def totals(found: Mapping[int, list[int]]) -> list[int]:
    return [sum(each) for each in zip(*found.values(), strict=True)]
