"""``without_factors``: take numbers of a row out of a product that is summed over its columns.

::

    sum(slope * (row * scale))   →   sum(slope * row) * scale

The sum then needs no exchange after that of ``scale``, which is a reduction of the row as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.epilogue import REDUCTIONS, ROW_NUMBER, ROW_PLACE, Constant
from ..chain import Reference, Step, Steps


class Factors:
    """The factors of products among ``steps``. ``numbers`` are the operands of one number per row."""

    def __init__(self, steps: Sequence[Step], numbers: frozenset[str]) -> None:
        self.steps, self.numbers = steps, numbers
        self._levels: dict[int, int] = {}
        self._per_row: dict[int, bool] = {}

    def per_row(self, value: Reference) -> bool:
        """Return whether a value is the same in all columns of a row."""
        if not isinstance(value, int):
            return isinstance(value, Constant) or value in self.numbers
        if value not in self._per_row:
            step = self.steps[value]
            alone = step.op in REDUCTIONS or step.op in (ROW_NUMBER, ROW_PLACE)
            self._per_row[value] = alone or (bool(step.arguments) and all(map(self.per_row, step.arguments)))
        return self._per_row[value]

    def level(self, value: Reference) -> int:
        """Return the longest chain of reductions that a value depends on."""
        if not isinstance(value, int):
            return 0
        if value not in self._levels:
            step = self.steps[value]
            self._levels[value] = max(map(self.level, step.arguments), default=0) + (step.op in REDUCTIONS)
        return self._levels[value]

    def parted(self, chain: Steps, value: Reference) -> tuple[Reference | None, Reference | None]:
        """Return a product as one of elements and one of numbers of the row that reductions have made; None for one
        that is missing."""
        if self.per_row(value) and self.level(value):
            return None, value
        step = self.steps[value] if isinstance(value, int) else None
        if step is None or step.op != "mul":
            return value, None
        parts = [self.parted(chain, argument) for argument in step.arguments]
        if all(number is None for _, number in parts):
            return value, None
        elements, numbers = ([each for each in side if each is not None] for side in zip(*parts, strict=True))
        return _product(chain, elements), _product(chain, numbers)


def _product(chain: Steps, factors: Sequence[Reference]) -> Reference | None:
    if len(factors) < 2:
        return factors[0] if factors else None
    first, second = factors
    return chain.step("mul", (first, second))


def without_factors(chain: Steps, steps: Sequence[Step], numbers: frozenset[str], value: Reference) -> Reference:
    """Return the sum of a value over the columns of a row, times the factors that are numbers of the row."""
    factors = Factors(steps, numbers)
    elements, number = factors.parted(chain, value)
    if (
        elements is None
        or number is None
        or factors.level(elements) >= factors.level(value)
        or factors.per_row(elements)
    ):
        return chain.step("row_sum", (value,))
    return chain.step("mul", (chain.step("row_sum", (elements,)), number))
