"""Integers that are added to an accumulator in int32, before it is converted to fp32."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....._compiler.ir.grammar import Op, Operand, Value
from ...plan.epilogue import EpilogueOperand
from ...plan.refusal import Refusal
from ..frame import Frame, place_of, upright
from ..names import name_of
from ..numbers import known


def added_integers(frame: Frame, op: Op, is_sums: Callable[[Value], bool]) -> tuple[int, EpilogueOperand] | None:
    """Return the tensor that an addition in int32 adds to the accumulator, and its operand in the epilogue; None for other
    additions. Raises ``Refusal``."""
    if op.result.dtype != torch.int32:
        return None
    sides = [_plain(frame, each) for each in op.operands]
    sums = [at for at, each in enumerate(sides) if isinstance(each, Value) and is_sums(each)]
    if len(sums) != 1:
        return None
    other = frame.maker(sides[1 - sums[0]])
    if other is None or other.kind != "load" or other.result.dtype != torch.int32:
        raise Refusal("integers other than loaded ones in int32 that are added to an accumulator are not implemented")
    place = upright(frame, place_of(frame, other))
    strides = dict(zip(place.blocks, place.strides, strict=True))
    if not set(strides) <= {frame.m, frame.n}:
        raise Refusal(f"{place.tensor.name} is added to an accumulator, and has other dimensions than rows and columns")
    pitch, column_pitch = (
        known(strides.get(block, 0), f"a stride of {place.tensor.name}") for block in (frame.m, frame.n)
    )
    name = f"{name_of(place.tensor)}_integers"
    return place.tensor.id, EpilogueOperand(
        name=name, kind="integers", dtype="int32", pitch=pitch, column_pitch=column_pitch
    )


def _plain(frame: Frame, value: Operand) -> Operand:
    """Return a value without views and masks."""
    made = frame.maker(value)
    while made is not None and (made.kind == "mask" or (made.kind == "view" and made.attrs.name != "permute")):
        value = made.operands[0]
        made = frame.maker(value)
    return value
