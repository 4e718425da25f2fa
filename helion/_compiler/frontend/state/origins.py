"""Origins of scalars and indices of device code, as far as subscripts need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...._shapes import Expr, Number
from ...._support.records import dataclass, replace
from ...ir.grammar import Block, TileAttrs, Value
from ..journal import Part
from ..polynomials import Polynomial, atom, combine, of_number
from ..values import DeviceValue

#: Pointwise ops of integer scalars that are tracked.
_FOLLOWED = frozenset(("add", "sub", "mul", "floordiv", "neg", "cast"))


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
        #: Integer scalars computed from others: the operator and its operands.
        self._made: dict[Value, tuple[str, tuple[Any, ...]]] = {}

    def field_of(self, value: DeviceValue) -> TileAttrs | None:
        """Return the field of a tile that a value is, if it is one."""
        return self._fields.get(value.value)

    def affine(self, value: DeviceValue) -> Affine | None:
        return self._affine.get(value.value)

    def polynomial(self, number: Any) -> Polynomial | None:
        """Return an integer of the host or an integer scalar of the device as a polynomial; None for anything else."""
        if isinstance(number, (int, Expr)):
            kind = number.kind if isinstance(number, Expr) else type(number)
            return of_number(number) if kind is int else None
        if not isinstance(number, DeviceValue) or number.dims or number.dtype.is_floating_point:
            return None
        if number.number is not None:
            return self.polynomial(number.number)
        name, operands = self._made.get(number.value, ("", ()))
        parts = [part for part in map(self.polynomial, operands) if part is not None]
        if not name or len(parts) < len(operands):
            return self._scalar(number)
        return parts[0] if name == "cast" else combine(name, parts) or self._scalar(number)

    def _scalar(self, value: DeviceValue) -> Polynomial:
        field = self._fields.get(value.value)
        return atom(("value", value.value.number) if field is None else ("tile", field.block, field.field))

    def is_index(self, result: DeviceValue, block: Block) -> None:
        """Record that ``result`` is the indices of a tile."""
        self._affine[result.value] = Affine(block)

    def is_field(self, result: DeviceValue, field: TileAttrs) -> None:
        self._fields[result.value] = field

    def is_made(self, name: str, operands: Sequence[Any], result: DeviceValue) -> None:
        """Record that ``result`` is a pointwise op of operands."""
        if name in ("add", "sub"):
            self._note_affine(name, operands, result)
        if name in _FOLLOWED and not result.dims and not result.dtype.is_floating_point:
            self._made[result.value] = (name, tuple(operands))

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
