"""Bounds of the numbers that formulas of scores compute.

Exponents ``unit * (score - maximum)`` take one fused multiply-add where the maximum times the unit is rounded once for a
row. The rounding error is one factor of all weights of a block, as long as scores are ordinary numbers. At -1e30, as masks
without infinities have it, it is larger than all exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant
from .operands import RandomNumbers, Source

if TYPE_CHECKING:
    from .records import Formula

#: Assumed of elements of q @ k.T.
ORDINARY = 1024.0
#: Scores from which exponents subtract before they multiply: half an ulp of the product with log2(e) is 5e-4.
LARGE = 8192.0
LARGEST_FLOAT = 2.0**128 - 2.0**104

_RULES: Mapping[str, Callable[[list[float]], float]] = {
    **dict.fromkeys(("add", "sub"), sum),
    "mul": math.prod,
    **dict.fromkeys(("maximum", "minimum"), max),
    "where": lambda x: max(x[1:]),
    **dict.fromkeys(
        ("neg", "abs", "relu", "silu", "gelu", "gelu_tanh", "floor", "trunc", "round_float16", "round_bfloat16"), max
    ),
    **dict.fromkeys(("round", "ceil"), lambda x: x[0] + 1.0),
    **dict.fromkeys(("tanh", "sigmoid", "erf", "sin", "cos", "isnan", "isinf", "isfinite"), lambda x: 1.0),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), lambda x: 1.0),
    "one_plus_tanh": lambda x: 2.0,
}


def largest(formula: Formula, position: float, of_heads: float = math.inf) -> float:
    """Return a bound of the magnitude of a formula's finite results; infinity where nothing is known.

    ``position`` bounds the indices of queries and keys, and ``of_heads`` the numbers of a launch or of a head.
    """
    known = [ORDINARY] * formula.starts
    known += [of_heads if source.kind in ("number", "head") else _of_source(source) for source in formula.sources]
    for made in formula.instructions:
        if made.op in (ROW_NUMBER, COLUMN_NUMBER):
            known.append(position)
            continue
        values = [_constant(each) if isinstance(each, Constant) else known[each] for each in made.arguments]
        divisor = made.arguments[-1] if made.op == "div" else None
        if isinstance(divisor, Constant) and float(divisor.text):
            known.append(values[0] / abs(float(divisor.text)))
        else:
            known.append(_RULES[made.op](values) if made.op in _RULES else math.inf)
    found = known[formula.value]
    return math.inf if math.isnan(found) else found


def _of_source(source: Source) -> float:
    return 1.0 if isinstance(source, RandomNumbers) else LARGEST_OF.get(source.dtype, math.inf)


#: The largest finite numbers of types of sources. Those of other types may be as low as any mask.
LARGEST_OF: Mapping[str, float] = {"bool": 1.0, "int8": 128.0, "float16": 65504.0}


def _constant(constant: Constant) -> float:
    """Return the magnitude of a constant; 0 for an infinite one, which hides a score."""
    number = abs(float(constant.text))
    return number if math.isfinite(number) else 0.0


__all__ = ["LARGE", "LARGEST_FLOAT", "ORDINARY", "largest"]
