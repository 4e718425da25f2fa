"""Ranges of integers of device code that are computed from indices and numbers, and the bits that they need.

An index has 32 bits where the program's offsets do. So has arithmetic on it while its result fits, and 64 bits where it may
not: an index is like an integer of Python, and wraps around nowhere. Integers that are loaded keep their dtype, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...._shapes import WIDE, Expr, Number, fixed_at, hint_of, next_power_of_2, positive_part
from ...ir.grammar import TileField, Value
from ...ir.host_module import GREATEST, LEAST, Narrow
from ...ir.pointwise import POINTWISE
from ..journal import Part
from ..values import DeviceValue, Tile
from .host_numbers import HostNumbers
from .tensors import HostTensors

#: The least and the greatest value.
Range = tuple[Number, Number]
#: Lanes of the largest tile.
MOST_LANES = 2**20
#: Numbers in the bound of a range, beyond which it is not compared at the launch.
_MOST_LEAVES = 16


class Ranges(Part):
    """The ranges of values of a trace."""

    def __init__(self, numbers: HostNumbers, tensors: HostTensors) -> None:
        self.numbers = numbers
        self.tensors = tensors
        self._of: dict[Value, Range] = {}

    def note(self, value: DeviceValue, found: Range | None) -> None:
        if found is not None:
            self._of[value.value] = found

    def of(self, operand: Any) -> Range | None:
        """Return the range of an integer; None if it is no integer, or not computed from indices and numbers alone."""
        if isinstance(operand, DeviceValue):
            if operand.number is None:
                return self._of.get(operand.value)
            operand = operand.number
        kind = operand.kind if isinstance(operand, Expr) else type(operand)
        return (operand, operand) if kind is int else None

    def of_op(self, name: str, operands: Sequence[Any]) -> Range | None:
        """Return the range of a pointwise op; None if it is unknown."""
        each = operands[1:] if name == "where" else operands
        found = [known for known in map(self.of, each) if known is not None]
        if name not in _RULES or len(found) < len(each):
            return None
        if name == "mul" and all(self.numbers.is_never_negative(least) for least, _ in found):
            (a, b), (c, d) = found
            return _times(a, c), _times(b, d)
        return _RULES[name](*found)

    def exceeds(self, name: str, operands: Sequence[Any]) -> bool:
        """Return whether an op of int32, or a comparison, needs 64 bits: its operands or its result may not fit 32.

        A number that fits in this call, and may not in others, is compared at the launch.
        """
        values = operands[1:] if name == "where" else operands
        dtypes = {o.dtype for o in values if isinstance(o, DeviceValue) and o.number is None}
        if dtypes != {torch.int32} or POINTWISE[name].result not in ("same", "bool") or any(map(_is_float, values)):
            return False
        found = [self.of(each) for each in values]
        if None in found:  # a loaded value, which keeps its dtype as in torch
            return False
        known = [each for each in (*found, self.of_op(name, operands)) if each is not None]
        fitting = [self.fits(each) for each in known]
        if False in fitting:
            return True
        for least, greatest in (each for each, fits in zip(known, fitting, strict=True) if fits is None):
            for each in _parts("min", least):
                if bounds(self.numbers, each)[0] < LEAST:
                    self.tensors.keep_narrow(Narrow(least=each))
            for each in _parts("max", greatest):
                if bounds(self.numbers, each)[1] > GREATEST:
                    self.tensors.keep_narrow(Narrow(greatest=each))
        return False

    def fits(self, found: Range) -> bool | None:
        """Return whether a range certainly fits int32; None if that is known at the launch only."""
        least, greatest = found
        if hint_of(least) < LEAST or hint_of(greatest) > GREATEST:
            return False
        if bounds(self.numbers, least)[0] >= LEAST and bounds(self.numbers, greatest)[1] <= GREATEST:
            return True
        leaves = [leaf for end in found if isinstance(end, Expr) for leaf in end.leaves()]
        compared = len(leaves) <= _MOST_LEAVES and all(self.numbers.is_known_at_launch(leaf) for leaf in leaves)
        return None if compared else False


def of_field(tile: Tile, field: TileField) -> Range | None:
    """Return the range of a field of a tile; None for a loop whose bounds the device knows."""
    if tile.range is None:
        return None
    begin, end = tile.range[0], positive_part(tile.range[1])
    counts = {
        "end": (begin, end),
        "id": (_least(begin, 0), end),
        "count": (0, end - begin),
    }  # a tile has one lane or more
    return counts.get(field, (begin, end - 1))


def _is_float(operand: Any) -> bool:
    operand = operand.number if isinstance(operand, DeviceValue) else operand
    return isinstance(operand, float) or (isinstance(operand, Expr) and operand.kind is float)


def _parts(name: str, number: Number) -> tuple[Number, ...]:
    """Return the numbers of which one is the least, or the greatest."""
    return number.args if isinstance(number, Expr) and number.op == name else (number,)


def _least(*numbers: Number) -> Number:
    return _chosen("min", min, numbers)


def _greatest(*numbers: Number) -> Number:
    return _chosen("max", max, numbers)


def _chosen(name: str, choose: Callable[..., Any], numbers: Sequence[Number]) -> Number:
    known = [number for number in numbers if not isinstance(number, Expr)]
    others = {number.key: number for number in numbers if isinstance(number, Expr)}
    each = [*([choose(known)] if known else []), *others.values()]
    return each[0] if len(each) == 1 else Expr(name, tuple(each), choose(map(hint_of, each)))


def _is_natural(found: Range) -> bool:
    return isinstance(found[0], int) and found[0] >= 0


def _times(a: Number, b: Number) -> Number:
    return 0 if fixed_at(a, 0) or fixed_at(b, 0) else a * b


def _product(a: Range, b: Range) -> Range:
    if _is_natural(a) and _is_natural(b):
        return _times(a[0], b[0]), _times(a[1], b[1])
    each = [found[:1] if found[0] is found[1] else found for found in (a, b)]
    corners = [_times(first, second) for first in each[0] for second in each[1]]
    return _least(*corners), _greatest(*corners)


def _constant(found: Range, most: int) -> int | None:
    """Return the number that a range consists of, if it is a constant from 0 to ``most``."""
    number = found[0]
    return number if isinstance(number, int) and found[1] is number and 0 <= number <= most else None


def _magnitude(a: Range) -> Number:
    return _greatest(a[1], -a[0])


def _shifted(a: Range, b: Range) -> Range:
    bits = _constant(b, 63)
    return (-(2**63), 2**63) if bits is None else _product(a, (2**bits, 2**bits))


def _right(a: Range, b: Range) -> Range:
    bits = _constant(b, 63)
    return (_least(0, a[0]), _greatest(0, a[1])) if bits is None else (a[0] // 2**bits, a[1] // 2**bits)


def _quotient(a: Range, b: Range) -> Range:
    divisor = _constant(b, 2**63)
    return (a[0] // divisor, a[1] // divisor) if divisor else (-_magnitude(a) - 1, _magnitude(a) + 1)


def _common_bits(a: Range, b: Range) -> Range:
    natural = [found for found in (a, b) if _is_natural(found)]
    return (0, natural[-1][1]) if natural else (LEAST, GREATEST)


def _all_bits(a: Range, b: Range) -> Range:
    known = [end for end in (*a, *b) if isinstance(end, int) and end >= 0]
    return (0, next_power_of_2(max(known) + 1) - 1) if len(known) == 4 else (LEAST, GREATEST)


def _power(a: Range, b: Range) -> Range:
    exponent = _constant(b, 63)
    if exponent is None:
        return -(2**63), 2**63
    if _is_natural(a):
        return a[0] ** exponent, a[1] ** exponent
    return -(_magnitude(a) ** exponent), _magnitude(a) ** exponent


_RULES: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (0, _magnitude(a)),
    "sign": lambda a: (-1, 1),
    "relu": lambda a: (_greatest(0, a[0]), _greatest(0, a[1])),
    "pow": _power,
    "floordiv": _quotient,
    "truncdiv": _quotient,
    "remainder": lambda a, b: (_least(0, b[0] + 1), _greatest(0, b[1] - 1)),
    "fmod": lambda a, b: (-_magnitude(a), _magnitude(a)),
    "maximum": lambda a, b: (_greatest(a[0], b[0]), _greatest(a[1], b[1])),
    "minimum": lambda a, b: (_least(a[0], b[0]), _least(a[1], b[1])),
    "fmax": lambda a, b: (_greatest(a[0], b[0]), _greatest(a[1], b[1])),
    "fmin": lambda a, b: (_least(a[0], b[0]), _least(a[1], b[1])),
    "where": lambda a, b: (_least(a[0], b[0]), _greatest(a[1], b[1])),
    "lshift": _shifted,
    "rshift": _right,
    "bitwise_and": _common_bits,
    "bitwise_or": _all_bits,
    "bitwise_xor": _all_bits,
    "bitwise_not": lambda a: (-a[1] - 1, -a[0] - 1),
}


def bounds(numbers: HostNumbers, number: Number) -> tuple[float, float]:
    """Return limits of a host number that hold for all arguments of the specialization, which may be infinite."""
    if not isinstance(number, Expr):
        return number, number
    if number.op == "host":
        return _of_symbol(numbers, number)
    if number.op == "block":
        return 1, MOST_LANES
    each = [bounds(numbers, arg) for arg in number.args] if number.op != "tunable" else []
    rule = _BOUNDS.get(number.op)
    return (-math.inf, math.inf) if rule is None else rule(*each)


def _of_symbol(numbers: HostNumbers, number: Expr) -> tuple[float, float]:
    known = numbers.symbols.get(number.args[0])
    least = 0 if numbers.is_never_negative(number) else -WIDE
    if known is None or not -WIDE <= number.hint < WIDE:
        return (-math.inf, math.inf) if least else (0, math.inf)
    return least, WIDE


def _corners(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    each = [0 if 0 in (first, second) else first * second for first in a for second in b]
    return min(each), max(each)


def _divided(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    if b[0] <= 0:
        return -math.inf, math.inf
    return min(a[0], 0), max(a[1], 0)


#: Limits of operators of host numbers.
_BOUNDS: dict[str, Callable[..., tuple[float, float]]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "neg": lambda a: (-a[1], -a[0]),
    "mul": _corners,
    "floordiv": _divided,
    "mod": lambda a, b: (0, b[1]) if b[0] > 0 else (-math.inf, math.inf),
    "min": lambda *each: (min(a[0] for a in each), min(a[1] for a in each)),
    "max": lambda *each: (max(a[0] for a in each), max(a[1] for a in each)),
    "lt": lambda a, b: (0, 1),
}
