"""Left operands that are computed from products of a tile and a block, and the bands out of which they are 0."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import torch

from ....._compiler.ir.grammar import Op, Operand, Value
from ....._support.records import dataclass, field
from ...plan.attention.records import Band, Formula
from ...plan.epilogue import Constant, constant
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from .band import band_of, joined
from .formula import FormulaReader, Sums
from .loops import Loops
from .ranges import LoadedRange, needed_terms, range_of
from .values import by_number, is_minus_infinity, is_number, name_of_op

EXPONENTIALS = ("exp", "exp2")


@dataclass(frozen=True, kw_only=True)
class Visible:
    """The elements that masks do not hide: a band of positions, and those between integers that are loaded for a row."""

    band: Band = field(default_factory=Band)
    range: LoadedRange = field(default_factory=LoadedRange)

    def joined(self, loops: Loops, other: Visible) -> Visible:
        """Return the elements of both. Raises ``Refusal`` if both have the same loaded bound."""
        loaded = self.range if self.range == other.range else self.range.joined(other.range)
        if loaded is None:
            raise Refusal(
                "several masks that bound a row's elements on one side by loaded integers are not implemented"
            )
        return Visible(band=joined(loops, self.band, other.band), range=loaded)


class Lefts:
    """The formula of left operands that start from ``products``, by their names in the formula.

    Where a band of positions makes all of them 0, its masks are no part of it. Nor are those of ``loaded`` bounds. ``rest``
    names the formula in messages. Products are multiplied by ``factors``; ``sums`` are those of ``FormulaReader``.
    """

    def __init__(
        self,
        loops: Loops,
        products: Mapping[str, Op],
        rest: str,
        loaded: bool = False,
        factors: Sequence[float] | None = None,
        sums: Sums | None = None,
    ) -> None:
        self.loops, self.starts, self.rest, self.loaded = loops, tuple(products), rest, loaded
        self.reader = FormulaReader(loops, self.starts, loops.keys, rest, sums)
        for (start, product), factor in zip(products.items(), factors or itertools.repeat(1.0), strict=False):
            made = start if factor == 1.0 else self.reader.step("mul", (start, constant(factor)))
            self.reader.known[product.result.number] = self.reader.rounded(made, product.result.dtype)

    def visible(self, lefts: Sequence[Operand]) -> Visible:
        """Return the elements out of which all left operands are 0, and leave their masks out of the formula."""
        hidden: dict[int, Operand] = {}
        found = [self._zero(each, hidden) for each in lefts]
        if found[0] is None or any(each != found[0] for each in found):
            return Visible()
        for number, value in reversed(hidden.items()):
            self.reader.known[number] = self.reader.read(value)
        return found[0]

    def _masked(self, made: Op, hidden: dict[int, Operand], is_mask: str) -> Visible | None:
        """Return what a selection between a value and minus infinity, or 0, does not hide."""
        condition, one, other = made.operands
        tests = {
            "zero": lambda value: is_number(self.loops, value, 0.0),
            "low": lambda v: is_minus_infinity(self.loops, v),
        }
        seen = not tests[is_mask](one)
        if not seen:
            one, other = other, one
        if not tests[is_mask](other):
            return None
        parts = [self._shown(*term) for term in needed_terms(self.loops, condition, seen)]
        known = [each for each in parts if each is not None]
        if len(known) < len(parts):
            return None
        hidden[made.result.number] = one
        further = (self._zero if is_mask == "zero" else self._low)(one, hidden)
        return self._joined([*known, *([] if further is None else [further])])

    def _shown(self, condition: Operand, seen: bool) -> Visible | None:
        """Return the elements for which a condition is ``seen``, or None."""
        band = band_of(self.loops, condition, seen)
        if band is not None:
            return Visible(band=band)
        loaded = range_of(self.loops, condition, seen) if self.loaded else None
        return None if loaded is None else Visible(range=loaded)

    def _joined(self, parts: Sequence[Visible]) -> Visible:
        return functools.reduce(lambda one, other: one.joined(self.loops, other), parts, Visible())

    def _zero(self, value: Operand, hidden: dict[int, Operand]) -> Visible | None:
        """Return the elements out of which a value is 0, or None."""
        made = self.loops.stripped(value)
        name = name_of_op(made)
        if made is None:
            return None
        if name == "where":
            return self._masked(made, hidden, "zero")
        if name in EXPONENTIALS:
            return self._low(made.operands[0], hidden)
        if name in ("cast", "neg"):
            return self._zero(made.operands[0], hidden)
        if name == "div":
            return self._zero(made.operands[0], hidden)
        if name == "mul":
            known = [found for each in made.operands if (found := self._zero(each, hidden)) is not None]
            return self._joined(known) if known else None
        return None

    def _low(self, value: Operand, hidden: dict[int, Operand]) -> Visible | None:
        """Return the elements out of which a value is minus infinity, or None."""
        made = self.loops.stripped(value)
        name = name_of_op(made)
        if made is None:
            return None
        if name == "where":
            return self._masked(made, hidden, "low")
        if name == "cast" and (made.result.dtype in ROUNDED or made.result.dtype == torch.float32):
            return self._low(made.operands[0], hidden)
        if name in ("mul", "div"):
            one, number = by_number(made)
            return self._low(one, hidden) if not isinstance(number, Value) and number > 0 else None
        if name in ("add", "sub"):
            terms = made.operands[:1] if name == "sub" else made.operands
            return next((found for each in terms if (found := self._low(each, hidden)) is not None), None)
        return None

    def formula(self, lefts: Sequence[Operand], others: Sequence[Operand] = ()) -> tuple[Formula, list[int]]:
        """Return the formula, and the numbers of the left operands in it, and of ``others``."""
        wanted = [*map(self._unrounded, lefts), *others]
        read = {str(at): self.reader.read(each) for at, each in enumerate(wanted)}
        for value in read.values():
            if isinstance(value, Constant) or not any(self.reader.reads(value, start) for start in self.starts):
                raise Refusal(f"{self.rest} whose left operand does not depend on a product are not implemented")
        formula, numbers = self.reader.formula(read)
        return formula, [numbers[str(at)] for at in range(len(wanted))]

    def _unrounded(self, left: Operand) -> Operand:
        """Return a left operand without the cast to the operand type, which every one has."""
        made = self.loops.stripped(left)
        if made is not None and name_of_op(made) == "cast" and made.result.dtype in ROUNDED:
            return made.operands[0]
        return left
