"""Checks of checked mode, as assertions on the device."""

from __future__ import annotations

from ....._compiler.ir.grammar import CheckAttrs, Op, Value
from ....._shapes import Dim
from .....language._unwritten import PATTERNS
from ..addresses import index_text
from ..emission import Emission
from .literals import TRITON_DTYPES


def check(e: Emission, op: Op) -> None:
    attrs = op.attributes(CheckAttrs)
    condition = _in_range(e, op, attrs) if attrs.index is not None else _written(e, op)
    masks = [e.mask_of(attrs.dims, range(len(attrs.dims)))]
    if attrs.mask is not None:
        masks.append(e.operand(op.operands[attrs.mask]))
    mask = " & ".join(filter(None, masks))
    condition = f"{condition} | ~({mask})" if mask else condition
    e.lines.add(f"tl.device_assert({condition}, {attrs.message!r})")


def _in_range(e: Emission, op: Op, attrs: CheckAttrs) -> str:
    assert attrs.index is not None
    text = index_text(e, op, attrs.index, len(attrs.dims))
    index = e.names.fresh("place")
    # for a constant known at compile time the condition would be one too, without ~ of lanes
    e.lines.add(f"{index} = tl.cast({text}, tl.int64)")
    size = e.size(attrs.size) if isinstance(attrs.size, Dim) else e.number(attrs.size)
    return f"(({index} >= 0) & ({index} < {size}))"


def _written(e: Emission, op: Op) -> str:
    (value, *_) = op.operands
    assert isinstance(value, Value)
    integer, pattern = PATTERNS[value.dtype]
    bits = f"{e.operand(value)}.to({TRITON_DTYPES[integer]}, bitcast=True)"
    return f"({bits} != {pattern})"


OPS = {"check": check}
