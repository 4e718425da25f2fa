"""Printing of subscripts as sums of offsets."""

from __future__ import annotations

import torch

from ...._compiler.ir.grammar import Index, MemoryAttrs, Op, Value
from ...._compiler.ir.operands import unaddressed
from ...._shapes import Dims, Expr
from .emission import Emission


def pointer(e: Emission, op: Op, attrs: MemoryAttrs, dims: Dims) -> str:
    """Return the pointers of an access whose value has the dimensions ``dims``."""
    tensor = e.kernel.tensors[attrs.tensor]
    parts = []
    far = not e.wide and tensor.made and any(isinstance(extent, Expr) for extent in tensor.shape)
    for at, (index, stride) in enumerate(zip(attrs.indices, tensor.strides, strict=True)):
        text = index_text(e, op, index, attrs.rank)
        if far and at < tensor.ndim - 1:
            # no argument has the number of its elements
            text = f"{text}.to(tl.int64)"
        if text == "0" or (isinstance(stride, int) and stride == 0 and not index.positions):
            continue
        if isinstance(stride, int) and stride == 0:
            text = f"{text} * 0"
        elif not (isinstance(stride, int) and stride == 1):
            text = f"{text} * {e.number(stride)}"
        parts.append(text)
    name = e.tensor_names[attrs.tensor]
    bare = attrs.rank and not any(index.positions for index in attrs.indices)
    if bare or unaddressed(attrs.indices, op.operands, dims):
        # the indices do not give the pointers their whole shape: some are into dimensions of size 1
        parts.append(f"tl.zeros({e.shape(dims)}, {e.index_dtype})")
    if attrs.aligned:
        return f"{name} + tl.multiple_of({' + '.join(parts)}, {_multiples(e, attrs)})"
    return f"{name} + ({' + '.join(parts)})" if len(parts) > 1 else f"{name} + {parts[0]}" if parts else name


def _multiples(e: Emission, attrs: MemoryAttrs) -> list[int]:
    """Return, by dimension, the number that the first offset of each row is a multiple of."""
    blocks = (index for index in attrs.indices if index.kind == "block" and index.block is not None)
    (along,) = (index.positions[0] for index in blocks if e.plan.size(index.block) > 1)  # type: ignore[arg-type]
    return [attrs.aligned if at == along else 1 for at in range(attrs.rank)]


def index_text(e: Emission, op: Op, index: Index, rank: int) -> str:
    """Return one index of a subscript: a number, or lanes broadcast over the ``rank`` dimensions of the access.

    An int64 index of a tensor stays one: narrowed, it saves no instruction (measurement ``narrow_indices``).
    """
    kind, shift, positions = index.kind, index.shift, index.positions
    terms = []
    if index.block is not None and kind == "block":
        terms.append(e.active(index.block).index)
    if index.operand is not None:
        value = op.operands[index.operand]
        text = e.operand(value)
        narrow = isinstance(value, Value) and value.dtype != torch.int64
        terms.append(f"{text}.to(tl.int64)" if e.wide and narrow else text)
    if isinstance(shift, Expr) or shift != 0:
        terms.append(e.number(shift))
    text = f"({' + '.join(terms)})" if len(terms) > 1 else terms[0] if terms else "0"
    return text if kind == "scalar" else e.spread(text, positions, rank)
