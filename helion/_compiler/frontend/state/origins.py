"""How scalars and indices of device code were made, as far as subscripts ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...._shapes import Expr, Number
from ...ir.grammar import Block, TileAttrs, Value
from ..journal import Part
from ..values import DeviceValue


@dataclass(frozen=True)
class Affine:
    """An integer value that is the indices of ``block`` plus ``shift`` plus the scalar ``operand``."""

    block: Block
    shift: Number = 0
    operand: DeviceValue | None = None


class Origins(Part):
    def __init__(self) -> None:
        self._affine: dict[Value, Affine] = {}
        self._fields: dict[Value, TileAttrs] = {}
        #: Scalars that are another scalar plus a number, which may be the bounds of a slice.
        self._sums: dict[Value, tuple[Value, Number]] = {}

    def field_of(self, value: DeviceValue) -> TileAttrs | None:
        """What a value reads off a tile, if it was made so."""
        return self._fields.get(value.value)

    def affine(self, value: DeviceValue) -> Affine | None:
        return self._affine.get(value.value)

    def distance(self, start: DeviceValue, stop: DeviceValue) -> Number | None:
        """By how much ``stop`` is greater, if it was made as ``start`` plus a number."""
        base, number = self._sums.get(stop.value, (None, None))
        return number if base is start.value else None

    def is_index(self, result: DeviceValue, block: Block) -> None:
        """``result`` is the indices of a tile."""
        self._affine[result.value] = Affine(block)

    def is_field(self, result: DeviceValue, field: TileAttrs) -> None:
        self._fields[result.value] = field

    def is_sum(self, name: str, operands: Sequence[Any], result: DeviceValue) -> None:
        """``result`` is the sum or the difference of two operands."""
        self._note_affine(name, operands, result)
        if name == "add" and not result.dims:
            self._note_sum(operands, result)

    def _note_affine(self, name: str, operands: Sequence[Any], result: DeviceValue) -> None:
        base, other = operands
        if name == "add" and not (isinstance(base, DeviceValue) and base.value in self._affine):
            base, other = other, base
        known = self._affine.get(base.value) if isinstance(base, DeviceValue) else None
        if known is None:
            return
        if isinstance(other, DeviceValue) and other.number is not None:
            other = other.number
        if isinstance(other, (int, Expr)):
            shift = known.shift + other if name == "add" else known.shift - other
            self._affine[result.value] = replace(known, shift=shift)
        elif isinstance(other, DeviceValue) and not other.dims and known.operand is None and name == "add":
            self._affine[result.value] = replace(known, operand=other)

    def _note_sum(self, operands: Sequence[Any], result: DeviceValue) -> None:
        for base, other in (operands, operands[::-1]):
            number = other.number if isinstance(other, DeviceValue) else other
            if isinstance(base, DeviceValue) and isinstance(number, (int, Expr)):
                self._sums[result.value] = (base.value, number)
                return
