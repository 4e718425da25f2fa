"""Atomics that count: a histogram of a tile, and one atomic for each of its bins."""

from __future__ import annotations

from collections.abc import Callable

from ....._compiler.ir.grammar import MemoryAttrs, Op
from ....._shapes import Expr
from ...plan.bins import Counted
from ..addresses import index_text
from ..emission import Emission
from .literals import TRITON_DTYPES


def count(e: Emission, op: Op, attrs: MemoryAttrs, how: Counted, mask: str, plain: Callable[[], None]) -> None:
    """Print a histogram. ``plain`` prints the atomic itself, for more bins than were seen when binding."""
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
    inside = f"({place} >= 0) & ({place} < {e.number(bins.size)})"
    flat = f"[{' * '.join(e.size_text(dim) for dim in op.result.dims)}]"
    counts, each = e.names.fresh("counts"), e.names.fresh("bins")
    lanes = f"tl.reshape({place}.to(tl.int32), {flat})"
    e.lines.add(
        f"{counts} = tl.histogram({lanes}, {how.width}, tl.reshape({f'{mask} & ' if mask else ''}{inside}, {flat}))"
    )
    e.lines.add(f"{each} = tl.arange(0, {how.width}){'.to(tl.int64)' if e.wide else ''}")
    parts = []
    for at, (index, stride) in enumerate(zip(attrs.indices, tensor.strides, strict=True)):
        text = each if at == bins.at else index_text(e, op, index, attrs.rank)
        if text != "0":
            parts.append(text if isinstance(stride, int) and stride == 1 else f"{text} * {e.number(stride)}")
    added = f"{counts}.to({TRITON_DTYPES[tensor.dtype]})" + (f" * {bins.amount}" if bins.amount != 1 else "")
    pointers = f"{e.tensor_names[attrs.tensor]} + ({' + '.join(parts)})"
    e.lines.add(f"tl.atomic_add({pointers}, {added}, mask={counts} != 0, sem='relaxed')")


__all__ = ["count"]
