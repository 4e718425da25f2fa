"""Operands of one number per row that another one picks, and those whose elements repeat."""

from __future__ import annotations

from ....._support.records import dataclass
from ..epilogue import Constant


@dataclass(frozen=True, kw_only=True)
class Gather:
    """A ``column`` operand, by its label, whose place in a row is an integer per row, the operand of label ``index``.

    With ``comparison``, the place is that integer where it compares so with ``other``, and ``otherwise`` elsewhere.
    ``other`` is a number, or the label of one that each launch passes.
    """

    operand: str
    index: str
    comparison: str = ""
    other: Constant | str = ""
    otherwise: int = 0


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A ``column`` operand, by its label, of whose elements row r has number (r // ``divisor``) % ``modulus``.

    Numbers that only the launch knows are names among ``RowProblem.runtime``.
    """

    operand: str
    divisor: int | str
    modulus: int | str
