"""Values that are known before anything is computed: where a tile lies, and whether a column is one of the row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch

from ...._compiler.ir.grammar import IotaAttrs, Op, Operand, PointwiseAttrs, Value
from ...._compiler.ir.pointwise import POINTWISE
from ..plan.epilogue import Constant, constant
from .frame import Frame

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}

Read = Callable[[Operand], object]


def known_number(op: Op, read: Read) -> Constant | None:
    """An operation on known numbers, rounded as eager torch does it."""
    eager = POINTWISE[op.attributes(PointwiseAttrs).name].eager
    values = [read(operand) for operand in op.operands] if eager is not None else []
    known = [value for value in values if isinstance(value, Constant)]
    if eager is None or len(known) < len(values) or not known:
        return None
    return constant(float(eager(*map(_given, op.operands, known)).to(op.result.dtype)))


def _given(operand: Operand, value: Constant) -> torch.Tensor | bool | int | float:
    number = float(value.text)
    if isinstance(operand, Value):
        return torch.tensor(number if operand.dtype.is_floating_point else int(number), dtype=operand.dtype)
    return type(operand)(number)


def known_of_columns(frame: Frame, op: Op, read: Read) -> Constant | None:
    """A comparison of the number of a column with a known number, where it gives the same in all columns."""
    name = op.attributes(PointwiseAttrs).name
    if name not in _COMPARE:
        return None
    first, second = op.operands
    for number, other, compared in ((first, second, name), (second, first, _MIRRORED[name])):
        ends = _first_and_last(frame, number)
        if ends is not None and (limit := _limit(frame, other, read)) is not None:
            found = {_COMPARE[compared](end, limit) for end in ends}
            inside = compared in ("eq", "ne") and ends[0] < limit < ends[1]
            return None if inside or len(found) > 1 else constant(float(found.pop()))
    return None


def _limit(frame: Frame, value: Operand, read: Read) -> float | None:
    made = _behind_views(frame, value)
    if made is not None and made.kind not in ("tile", "full", "pointwise"):
        return None
    if isinstance(value, Value) and value.dims:
        return None
    known = read(value)
    return float(known.text) if isinstance(known, Constant) else None


def _first_and_last(frame: Frame, value: Operand) -> tuple[int, int] | None:
    """Numbers of the first and the last column that a value may count, behind views and casts; None where it counts none."""
    made = _behind_views(frame, value)
    while made is not None and made.attrs == PointwiseAttrs("cast"):
        made = _behind_views(frame, made.operands[0])
    if made is None or made.kind != "iota":
        return None
    attrs = made.attributes(IotaAttrs)
    if frame.named(attrs.block) != frame.n:
        return None
    last = frame.columns - 1
    if not attrs.relative:
        return 0, last
    first, last = sorted((attrs.start, attrs.start + attrs.step * last))
    return first, last


def _behind_views(frame: Frame, value: Operand) -> Op | None:
    made = frame.maker(value)
    while made is not None and made.kind in ("view", "mask"):
        made = frame.maker(made.operands[0])
    return made
