"""Comparisons of integers in epilogues, which compute in fp32.

Conversion to fp32 keeps the order of integers, so that a loaded one compares with a column's number as it is. A label less the
first class of a shard does so too, where fp32 holds that number and those of its columns::

    label = labels[tile_m] - first                          →    label = float(labels[tile_m]) - float(first)
    hit = tile_n.index[None, :] == label[:, None]                hit = column == label

If fp32 does not hold a label, the result is no number of a column: the label exceeds all of these by more than ``first``, or
is below ``-first``. The numbers of each launch are checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....._compiler.ir.grammar import Op, Operand, PointwiseAttrs, Value
from ...plan.epilogue import COLUMN_NUMBER, MAX_NUMBERED, Constant
from ..chain import COMPARISONS, INDICES, Reference, is_integer
from ..frame import Frame
from ..numbers import exact_in_fp32
from .row_blocks import BlockChain

_EQUALITIES = ("eq", "ne")


class ProductChain(BlockChain):
    """A trace of the epilogue. Loaded integers may be compared with numbers of the launch that fp32 holds, ``exact``."""

    def __init__(self, frame: Frame, sums: Value) -> None:
        super().__init__(frame, sums)
        self.exact: dict[str, range] = {}

    def _pointwise(self, op: Op, dtype: torch.dtype) -> Reference:
        if op.attributes(PointwiseAttrs).name in _EQUALITIES:
            for label, other in (op.operands, op.operands[::-1]):
                made = self._of_difference(label)
                if made is not None and isinstance(other, Value) and is_integer(other):
                    return self._compared(op, made, other, first=label is op.operands[0])
        return super()._pointwise(op, dtype)

    def _of_difference(self, value: Operand) -> Op | None:
        """Return the op that subtracts a number from loaded integers, of which ``value`` is a view."""
        made = self.frame.maker(value) if isinstance(value, Value) else None
        while made is not None and made.kind == "view":
            source = made.operands[0]
            made = self.frame.maker(source) if isinstance(source, Value) else None
        if made is None or not isinstance(made.attrs, PointwiseAttrs) or made.attrs.name != "sub":
            return None
        loaded, number = made.operands
        of_load = isinstance(loaded, Value) and (maker := self.frame.maker(loaded)) is not None and maker.kind == "load"
        scalar = not number.dims and is_integer(number) if isinstance(number, Value) else isinstance(number, int)
        return made if of_load and scalar and made.result.dtype in INDICES else None

    def _compared(self, op: Op, difference: Op, other: Value, *, first: bool) -> Reference:
        """Return the comparison of a difference with the number of a column."""
        column = self.read(other)
        is_column = isinstance(column, int) and self.steps[column].op == COLUMN_NUMBER
        columns = self.frame.extent(self.frame.n)
        label, number = map(self.read, difference.operands)
        if not is_column or not isinstance(columns, int) or not isinstance(label, str):
            return super()._pointwise(op, op.result.dtype)
        if self.loads[label][0].kind != "column" or not self._is_held(number, MAX_NUMBERED - columns):
            return super()._pointwise(op, op.result.dtype)
        found = self.step("sub", (label, number))
        return self.step(op.attributes(PointwiseAttrs).name, (found, column) if first else (column, found))

    def _is_held(self, number: Reference, below: int) -> bool:
        """Return whether fp32 holds an integer below a limit; one of the launch is limited."""
        if isinstance(number, Constant):
            return -MAX_NUMBERED < float(number.text) < below
        operand, source = self.loads[number] if isinstance(number, str) else (None, 0)
        if operand is None or operand.kind != "number":
            return False
        self._limit(exact_in_fp32(self.frame.program, source, below))
        return True

    def _check_integers(self, op: Op, name: str, arguments: Sequence[Reference]) -> None:
        loaded = [self.loads[x] for x in arguments if isinstance(x, str) and x in self.loads]
        sources = {operand.kind: source for operand, source in loaded}
        if name in COMPARISONS and {*sources} == {"column", "number"} and all(map(is_integer, op.operands)):
            self._limit(exact_in_fp32(self.frame.program, sources["number"]))
        else:
            super()._check_integers(op, name, arguments)

    def _limit(self, numbers: dict[str, range]) -> None:
        """Add limits of numbers of the launch, by name, to those that are known."""
        for name, values in numbers.items():
            known = self.exact.get(name, values)
            self.exact[name] = range(max(values.start, known.start), min(values.stop, known.stop))


__all__ = ["ProductChain"]
