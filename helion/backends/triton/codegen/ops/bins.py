"""Atomics that count or sum up: a histogram or sums of a tile by bins, and one atomic for each of its bins."""

from __future__ import annotations

from collections.abc import Callable

from ....._compiler.ir.grammar import MemoryAttrs, Op
from ....._shapes import Expr
from ...plan.bins import Counted
from ..addresses import index_text
from ..emission import Emission
from .literals import TRITON_DTYPES


def count(e: Emission, op: Op, attrs: MemoryAttrs, how: Counted, mask: str, plain: Callable[[], None]) -> None:
    """Print a histogram, or sums. ``plain`` prints the atomic itself, for more bins than were seen when binding."""
    if not isinstance(how.bins.size, Expr):
        _count(e, op, attrs, how, mask)
        return
    e.lines.add(f"if {e.number(how.bins.size)} <= {how.width}:")
    with e.lines.indent():
        _count(e, op, attrs, how, mask)
    e.lines.add("else:")
    with e.lines.indent():
        plain()


def _count(e: Emission, op: Op, attrs: MemoryAttrs, how: Counted, mask: str) -> None:
    bins, tensor = how.bins, e.kernel.tensors[attrs.tensor]
    place = index_text(e, op, attrs.indices[bins.at], attrs.rank)
    inside = f"{f'{mask} & ' if mask else ''}({place} >= 0) & ({place} < {e.number(bins.size)})"
    flat = f"[{' * '.join(e.size_text(dim) for dim in op.result.dims)}]"
    found, each = e.names.fresh("sums" if how.summed else "counts"), e.names.fresh("bins")
    e.lines.add(f"{each} = tl.arange(0, {how.width}){'.to(tl.int64)' if e.wide else ''}")
    if how.summed:
        lanes = e.names.fresh("lanes")
        e.lines.add(f"{lanes} = tl.reshape(tl.where({inside}, {place}, -1).to(tl.int32), {flat})")
        value = f"tl.reshape({e.operand(op.operands[0])}, {flat})"
        zero = "0.0" if tensor.dtype.is_floating_point else "0"
        bin_of_lane = f"{lanes}[:, None] == tl.arange(0, {how.width})[None, :]"
        chosen = f"tl.where({bin_of_lane}, {value}[:, None], {zero})"
        e.lines.add(f"{found} = tl.sum({chosen}, axis=0)")
    else:
        lanes = f"tl.reshape({place}.to(tl.int32), {flat})"
        e.lines.add(f"{found} = tl.histogram({lanes}, {how.width}, tl.reshape({inside}, {flat}))")
    parts = []
    for at, (index, stride) in enumerate(zip(attrs.indices, tensor.strides, strict=True)):
        text = each if at == bins.at else index_text(e, op, index, attrs.rank)
        if text != "0":
            parts.append(text if isinstance(stride, int) and stride == 1 else f"{text} * {e.number(stride)}")
    dtype = TRITON_DTYPES[tensor.dtype]
    added = f"{found}.to({dtype})" + (f" * {bins.amount}" if bins.amount not in (None, 1) else "")
    pointers = f"{e.tensor_names[attrs.tensor]} + ({' + '.join(parts)})"
    e.lines.add(f"tl.atomic_add({pointers}, {added}, mask={found} != 0, sem='relaxed')")


__all__ = ["count"]
