"""Printing of accesses by block pointers and tensor descriptors."""

from __future__ import annotations

import torch

from ...._compiler.ir.grammar import Index, MemoryAttrs, Op, Value
from ...._shapes import fixed_at
from ..plan.indexing import Box
from .addresses import index_text
from .emission import Emission


def load(e: Emission, op: Op, attrs: MemoryAttrs, box: Box, options: list[str]) -> str:
    """Return the loaded tile as an expression of the result's shape.

    ``options`` are keyword arguments for block pointers; TMA supports none of them.
    """
    if box.mechanism == "tensor_descriptor":
        text = f"{_descriptor(e, attrs, box)}.load([{', '.join(_offsets(e, op, attrs, box))}])"
    else:
        padding = ["padding_option='zero'"] if box.check else []
        text = f"tl.load({', '.join([_block_pointer(e, op, attrs, box), *_checks(box), *padding, *options])})"
    sizes = [_size(e, i) for i in attrs.indices]
    wanted = [e.size_text(d) for d in op.result.dims]
    kept = _kept(sizes, wanted)
    if kept is None:
        inverse = [box.order.index(d) for d in range(len(box.order))]
        text = text if inverse == sorted(inverse) else f"tl.permute({text}, {inverse})"
        return f"tl.reshape({text}, {e.shape(op.result.dims)})"
    # a descriptor load is a view for a transposed operand of the matrix unit if only its last two dimensions are
    # swapped
    order = [d for d in box.order if d in kept]
    if len(kept) < len(sizes):
        text = f"tl.reshape({text}, [{', '.join(sizes[d] for d in order)}])"
    inverse = [order.index(d) for d in kept]
    return text if inverse == sorted(inverse) else f"tl.permute({text}, {inverse})"


def _kept(sizes: list[str], wanted: list[str]) -> list[int] | None:
    """Return the dimensions of a tensor that are those of the tile, one after another; None where it has others."""
    kept: list[int] = []
    for at, size in enumerate(sizes):
        if len(kept) < len(wanted) and size == wanted[len(kept)]:
            kept.append(at)
    return kept if len(kept) == len(wanted) else None


def store(e: Emission, op: Op, attrs: MemoryAttrs, box: Box, options: list[str]) -> str:
    """Return the store as a statement; for ``options`` see ``load``."""
    dims = op.results[0].dims
    value = e.operand(op.operands[0])
    sizes = [_size(e, i) for i in attrs.indices]
    if sizes != [e.size_text(d) for d in dims]:
        value = f"tl.reshape({value}, [{', '.join(sizes)}])"
    if list(box.order) != sorted(box.order):
        value = f"tl.permute({value}, {list(box.order)})"
    if box.mechanism == "tensor_descriptor":
        return f"{_descriptor(e, attrs, box)}.store([{', '.join(_offsets(e, op, attrs, box))}], {value})"
    return f"tl.store({', '.join([_block_pointer(e, op, attrs, box), value, *_checks(box), *options])})"


def _size(e: Emission, index: Index) -> str:
    return e.symbol(index.block) if index.kind == "block" else "1"  # type: ignore[arg-type]


def _offsets(e: Emission, op: Op, attrs: MemoryAttrs, box: Box) -> list[str]:
    offsets = []
    for dim in box.order:
        index = attrs.indices[dim]
        if index.kind == "block":
            text = e.active(index.block).offset  # type: ignore[arg-type]
            text = f"{text} + {e.number(index.shift)}" if not fixed_at(index.shift, 0) else text
        else:
            text = index_text(e, op, index, attrs.rank)
            value = op.operands[index.operand] if index.operand is not None else None
            if isinstance(value, Value) and value.dtype == torch.int64:
                text = f"({text}).to(tl.int32)"  # descriptors have 32-bit offsets, and so does the tensor
        offsets.append(text)
    return offsets


def _layout(e: Emission, attrs: MemoryAttrs, box: Box) -> tuple[str, str, str]:
    tensor = e.kernel.tensors[attrs.tensor]
    shape = ", ".join(str(tensor.shape[d]) for d in box.order)
    strides = ", ".join(str(tensor.strides[d]) for d in box.order)
    sizes = ", ".join(_size(e, attrs.indices[d]) for d in box.order)
    return f"[{shape}]", f"[{strides}]", f"[{sizes}]"


def _descriptor(e: Emission, attrs: MemoryAttrs, box: Box) -> str:
    """Return the variable of the descriptor of a tensor and a tile shape, created once, at the top of the kernel."""
    name = e.tensor_names[attrs.tensor]
    shape, strides, sizes = _layout(e, attrs, box)
    text = f"tl.make_tensor_descriptor({name}, {shape}, {strides}, {sizes})"
    if text not in e.descriptors:
        e.descriptors[text] = e.names.fresh(f"{name}_desc")
    return e.descriptors[text]


def _block_pointer(e: Emission, op: Op, attrs: MemoryAttrs, box: Box) -> str:
    shape, strides, sizes = _layout(e, attrs, box)
    order = list(range(len(box.order)))[::-1]
    offsets = ", ".join(_offsets(e, op, attrs, box))
    return f"tl.make_block_ptr({e.tensor_names[attrs.tensor]}, {shape}, {strides}, [{offsets}], {sizes}, {order})"


def _checks(box: Box) -> list[str]:
    return [f"boundary_check={[box.order.index(d) for d in box.check]}"] if box.check else []
