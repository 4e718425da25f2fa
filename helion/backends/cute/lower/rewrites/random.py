"""Random numbers of an epilogue, at offsets that are sums of multiples of the indices of rows and columns."""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import IotaAttrs, NumberAttrs, Op, Operand, PointwiseAttrs, RandomAttrs, Value
from ....._shapes import Expr, dtype_name
from ...plan.epilogue import EpilogueOperand
from ...plan.refusal import Refusal
from ..frame import Frame

INTEGERS = (torch.int32, torch.int64)
#: A sum: the factor of each block's index, and under None a constant.
_Sum = dict[int | None, int]


def random_numbers(frame: Frame, op: Op) -> tuple[Expr, EpilogueOperand]:
    """Return the seed of random numbers, and their operand in the epilogue. Raises ``Refusal``."""
    if op.attributes(RandomAttrs).name != "uniform":
        raise Refusal("random numbers in an epilogue that are not uniform are not implemented")
    offset = op.operands[1]
    steps = {block: step for block, step in _sum(frame, offset).items() if step}
    rows, columns = (steps.pop(block, 0) for block in (frame.m, frame.n))
    if steps:
        raise Refusal("random numbers in an epilogue depend on the indices of rows and columns, and nothing else")
    assert isinstance(offset, Value)
    operand = EpilogueOperand(
        name=f"random_{op.result.number}",
        kind="uniform",
        dtype=dtype_name(offset.dtype),
        pitch=rows,
        column_pitch=columns,
    )
    return _seed(frame, op.operands[0]), operand


def _seed(frame: Frame, value: Operand) -> Expr:
    made = _plain(frame, value)
    expr = made.attributes(NumberAttrs).expr if made is not None and made.kind == "number" else None
    if not isinstance(expr, Expr) or expr.kind is not int:
        raise Refusal("seeds of random numbers in an epilogue other than integers of the launch are not implemented")
    return expr


def _plain(frame: Frame, value: Operand) -> Op | None:
    """Return the op that makes a value, without views and casts to integers."""
    made = frame.maker(value)
    while made is not None and (made.kind in ("view", "mask") or made.attrs == PointwiseAttrs("cast")):
        if made.result.dtype not in INTEGERS:
            return None
        made = frame.maker(made.operands[0])
    return made


def _sum(frame: Frame, value: Operand) -> _Sum:
    """Return an integer as a sum of multiples of indices. Raises ``Refusal``."""
    if isinstance(value, int):
        return {None: value}
    made = frame.maker(value)
    if made is not None and made.kind in ("view", "mask"):
        return _sum(frame, made.operands[0])
    if made is not None and made.kind == "full":
        return _sum(frame, made.operands[0])
    if made is not None and made.kind == "iota":
        attrs = made.attributes(IotaAttrs)
        block = frame.named(attrs.block)
        from_first = not attrs.relative or (block == frame.n and frame.whole_rows)
        if from_first and (attrs.start, attrs.step) == (0, 1):
            return {block: 1}
    name = made.attributes(PointwiseAttrs).name if made is not None and made.kind == "pointwise" else ""
    if made is not None and name in ("cast", "add", "mul") and made.result.dtype in INTEGERS:
        parts = [_sum(frame, each) for each in made.operands]
        if name == "add":
            return {block: sum(part.get(block, 0) for part in parts) for part in parts for block in part}
        if name == "mul" and any(set(part) <= {None} for part in parts):
            one, other = parts if set(parts[1]) <= {None} else parts[::-1]
            return {block: factor * other.get(None, 0) for block, factor in one.items()}
        if name == "cast" and (_is_wide(value) == _is_wide(made.operands[0]) or len(parts[0]) == 1):
            return parts[0]
    raise Refusal(
        "offsets of random numbers in an epilogue other than sums of multiples of indices, in one integer type, are not"
        " implemented"
    )


def _is_wide(value: Operand) -> bool:
    return isinstance(value, Value) and value.dtype == torch.int64
