"""Values that are known at compile time: positions of tiles, and comparisons of columns with the extent."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...._compiler.ir.grammar import IotaAttrs, NumberAttrs, Op, Operand, PointwiseAttrs, Value
from ...._compiler.ir.pointwise import POINTWISE
from ...._shapes import Number
from ..plan.epilogue import Constant, constant
from ..plan.refusal import Refusal
from .frame import Frame
from .numbers import equal

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}

Read = Callable[[Operand], object]


def known_number(op: Op, read: Read) -> Constant | None:
    """Evaluate an operation on known numbers, rounded as in eager torch."""
    eager = POINTWISE[op.attributes(PointwiseAttrs).name].eager
    values = [read(operand) for operand in op.operands] if eager is not None else []
    known = [value for value in values if isinstance(value, Constant)]
    if eager is None or len(known) < len(values) or not known:
        return None
    return constant(float(eager(*map(_given, op.operands, known)).to(op.result.dtype)))


def _given(operand: Operand, value: Constant) -> torch.Tensor | bool | int | float:
    number = float(value.text)
    if isinstance(operand, Value):
        return torch.tensor(
            number if operand.dtype.is_floating_point else int(number), dtype=operand.dtype, device="cpu"
        )
    return type(operand)(number)


def known_of_positions(frame: Frame, op: Op, read: Read) -> Constant | None:
    """Fold a comparison of a row or column index with a known number, or with the extent, if it is the same for all
    indices."""
    name = op.attributes(PointwiseAttrs).name
    if name not in _COMPARE:
        return None
    first, second = op.operands
    for number, other, compared in ((first, second, name), (second, first, _MIRRORED[name])):
        counted = _counted(frame, number)
        if counted is not None:
            extent, start, step = counted
            found = _of_all(extent, start, step, _COMPARE[compared], _limit(frame, other, read))
            return found if found is not None or (start, step) != (0, 1) else _of_extent(frame, extent, compared, other)
    return None


def _of_all(
    extent: Number, start: int, step: int, compare: Callable[[float, float], bool], limit: float | None
) -> Constant | None:
    """Fold the comparison for all indices from ``start`` on, if they agree."""
    if limit is None or not isinstance(extent, int):
        return None
    ends = sorted((start, start + step * (extent - 1)))
    found = {compare(end, limit) for end in ends}
    inside = compare in (operator.eq, operator.ne) and ends[0] < limit < ends[1]
    return None if inside or len(found) > 1 else constant(float(found.pop()))


def _of_extent(frame: Frame, extent: Number, compared: str, other: Operand) -> Constant | None:
    """Fold a comparison with an extent known only at launch."""
    made = _without_views(frame, other)
    if made is None or made.kind != "number" or not equal(made.attributes(NumberAttrs).expr, extent):
        return None
    return constant(float(compared in ("lt", "le", "ne")))


def _limit(frame: Frame, value: Operand, read: Read) -> float | None:
    made = _without_views(frame, value)
    if (made is not None and made.kind not in ("tile", "full", "pointwise")) or (
        isinstance(value, Value) and value.dims
    ):
        return None
    known = read(value)
    return float(known.text) if isinstance(known, Constant) else None


def _counted(frame: Frame, value: Operand) -> tuple[Number, int, int] | None:
    """Return the range of a row or column index through views and casts: extent, start and step."""
    made = _without_views(frame, value)
    while made is not None and made.attrs == PointwiseAttrs("cast"):
        made = _without_views(frame, made.operands[0])
    if made is None or made.kind != "iota":
        return None
    attrs = made.attributes(IotaAttrs)
    block = frame.named(attrs.block)
    if block not in (frame.m, frame.n):
        return None
    return (frame.extent(block), attrs.start, attrs.step) if attrs.relative else (frame.extent(block), 0, 1)


def _without_views(frame: Frame, value: Operand) -> Op | None:
    made = frame.maker(value)
    while made is not None and made.kind in ("view", "mask"):
        made = frame.maker(made.operands[0])
    return made


def power(step: Callable[[str, tuple[Any, ...]], Any], base: Any, exponent: object) -> Any:
    """Return a power as products and roots, as eager computes it; ``step`` adds an instruction. Raises ``Refusal``."""
    known = float(exponent.text) if isinstance(exponent, Constant) else None
    if known == 2:
        return step("mul", (base, base))
    if known == 3:
        return step("mul", (step("mul", (base, base)), base))
    if known == 1:
        return base
    if known == 0.5:
        return step("sqrt", (base,))
    if known == -0.5:
        return step("rsqrt", (base,))
    if known == -1:
        return step("div", (constant(1.0), base))
    if known == -2:
        return step("div", (constant(1.0), step("mul", (base, base))))
    raise Refusal(
        f"powers of {'an exponent that varies' if known is None else known} in an epilogue are not implemented"
    )
