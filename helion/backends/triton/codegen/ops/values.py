"""Numbers, indices, elementwise operations, reductions, views and masks."""

from __future__ import annotations

from typing import Any

import torch

from ....._compiler.ir.grammar import (
    IotaAttrs,
    MaskAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    ReduceAttrs,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.pointwise import POINTWISE, common_dtype
from ....._shapes import Dims
from ..emission import Emission
from ..expressions import Expression, helper, infix, method
from ..expressions import number as number_text
from . import pointwise as ops_pointwise
from . import reduction as ops_reduction
from .bytes import FUNCTIONS as BYTES
from .literals import TRITON_DTYPES, is_negative_zero, literal
from .matmul import settled


def number(e: Emission, op: Op) -> None:
    attrs = op.attributes(NumberAttrs)
    # an argument that equals 1 is a constexpr inside the kernel: make it a value either way
    e.number_kinds[op.result.number] = attrs.expr.kind
    text = e.number(attrs.expr)
    e.assign(op, "number", f"tl.cast({text}, {TRITON_DTYPES[op.result.dtype]})")


def tile(e: Emission, op: Op) -> None:
    attrs = op.attributes(TileAttrs)
    e.assign(op, f"tile_{attrs.field}", f"tl.cast({_tile_field(e, attrs)}, {e.index_dtype})")


def _tile_field(e: Emission, attrs: TileAttrs) -> str:
    loop = e.scope.active[attrs.block]
    if attrs.field in ("index", "begin"):
        return loop.offset
    size = e.symbol(attrs.block) or "1"
    if attrs.field == "end":
        return f"tl.minimum({loop.offset} + {size}, {loop.end})" if loop.mask else f"{loop.offset} + {size}"
    if attrs.field == "count":
        return f"tl.cdiv({loop.end} - {loop.begin}, {size})"
    number = f"{loop.offset} // {size}"
    return number if loop.begin.isdecimal() else e.rounded_down("floordiv", number, loop.offset, size)


def iota(e: Emission, op: Op) -> None:
    attrs = op.attributes(IotaAttrs)
    (dim,) = op.result.dims
    full = e.kernel.blocks[attrs.block].kind == "full" and dim.block is not None
    if full or not attrs.relative:
        text = e.active(attrs.block).index
    else:
        text = f"tl.arange(0, {e.size_text(dim)})" + (".to(tl.int64)" if e.wide else "")
    if attrs.relative:
        text = f"{text} * {attrs.step}" if attrs.step != 1 else text
        text = f"{text} + {attrs.start}" if attrs.start else text
    if text.isidentifier():
        e.names.alias(op.result, text)
    else:
        e.assign(op, "index", text)


def full(e: Emission, op: Op) -> None:
    (fill,) = op.operands
    text = literal(fill, op.result.dtype) if not isinstance(fill, Value) else e.operand(fill)
    negative_zero = not isinstance(fill, Value) and is_negative_zero(fill)
    # Triton makes +0.0 of every constant that equals zero
    made = f"tl.full({e.shape(op.result.dims)}, {'0.0' if negative_zero else text}, {TRITON_DTYPES[op.result.dtype]})"
    e.assign(op, "full", f"{made} * -1.0" if negative_zero else made)


def pointwise(e: Emission, op: Op) -> None:
    attrs = op.attributes(PointwiseAttrs)
    name, rank = attrs.name, len(op.result.dims)
    wide = e.is_wide(op.result)
    in_fp32 = wide or ops_pointwise.computes_in_fp32(name) or (name == "cast" and op.result.dtype == torch.float32)
    operands = [_aligned(e, o, rank, in_fp32) if isinstance(o, Value) else o for o in op.operands]
    kinds = [_promotes_as(e, o) for o in op.operands]
    if name in ("cast", "bitcast"):
        dtypes = [o.dtype if isinstance(o, Value) else None for o in op.operands]
    else:
        dtypes = [k[0] if isinstance(k, tuple) else None for k in kinds]
    if wide:
        e.assign_wide(op, name, ops_pointwise.render_rounded(name, operands, dtypes))
        return
    if op.number in e.plan.converted_bytes:
        (source,) = op.values()
        e.assign(op, name, helper(BYTES[source.dtype, op.result.dtype], Expression(str(operands[0]))))
        return
    common = common_dtype(name, kinds) if POINTWISE[name].result == "bool" else None
    value = ops_pointwise.render(name, operands, dtypes, op.result.dtype, common_dtype=common)
    e.assign(op, name, settled(e, op, value))


def _promotes_as(e: Emission, operand: Operand) -> Any:
    """Return the operand's role in promotion: dtype and rank, the number, or the type of a number known at run time."""
    if not isinstance(operand, Value):
        return operand
    return e.number_kinds.get(operand.number, (operand.dtype, len(operand.dims)))


def _aligned(e: Emission, operand: Value, rank: int, in_fp32: bool) -> str:
    """Return the name of an operand with leading dimensions of 1 up to ``rank``."""
    text = e.in_fp32(operand) if in_fp32 else e.names.of(operand)
    if 0 < len(operand.dims) < rank:
        subscript = ", ".join(["None"] * (rank - len(operand.dims)) + [":"] * len(operand.dims))
        name = e.names.fresh(text)
        e.lines.add(f"{name} = {text}[{subscript}]")
        return name
    return text


def reduce(e: Emission, op: Op) -> None:
    attrs = op.attributes(ReduceAttrs)
    (value,) = op.values()
    if attrs.name in ("argmax", "argmin"):
        _arg_reduce(e, op, value, attrs.dims[0])
        return
    reduced = Expression(e.in_fp32(value))
    if value.dtype in (torch.float16, torch.bfloat16):
        # the combine functions would return fp32 for half operands; extrema are exact in it
        reduced = method(reduced, "to(tl.float32)")
    # all dimensions at once: a thread combines its own elements first, and lanes exchange one
    for axis in (None,) if 1 < len(attrs.dims) == len(value.dims) else reversed(attrs.dims):
        reduced = ops_reduction.render(attrs.name, reduced, axis, value.dtype)
    if e.is_wide(op.result):
        e.assign_wide(op, attrs.name, ops_reduction.render_rounded(attrs.name, reduced, kept=attrs.kept))
        return
    narrow = not op.result.dtype.is_floating_point and op.result.dtype.itemsize < 4
    if narrow or op.result.dtype in (torch.float16, torch.bfloat16) or op.result.dtype != value.dtype:
        reduced = ops_reduction.cast(reduced, op.result.dtype)
    if attrs.kept:
        reduced = infix(reduced, "+", number_text(0.0))
    e.assign(op, attrs.name, reduced)


def _arg_reduce(e: Emission, op: Op, value: Value, axis: int) -> None:
    attrs = op.attributes(ReduceAttrs)
    rank = len(value.dims)
    subscript = ", ".join(":" if i == axis else "None" for i in range(rank))
    lanes = f"tl.arange(0, {e.size_text(value.dims[axis])})"
    # positions within the value, not in the tensor, as for argmax of a tile
    index = f"tl.broadcast_to({lanes}[{subscript}], {e.shape(value.dims)})" if rank > 1 else lanes
    text = e.names.of(value)
    if value.dtype in (torch.float16, torch.bfloat16):
        text = f"{text}.to(tl.float32)"
    extremum = ops_reduction.render(attrs.name.removeprefix("arg"), Expression(text), axis, value.dtype)
    e.needs |= extremum.needs
    name = e.names.fresh("extremum")
    e.lines.add(f"{name} = {extremum.text}")
    kept = [i for i in range(rank) if i != axis]
    lane = e.spread(name, kept, rank) if kept else name
    found = ops_reduction.render_arg(text, lane, index, axis, e.size(value.dims[axis]), value.dtype)
    e.assign(op, attrs.name, ops_reduction.cast(found, op.result.dtype))


def view(e: Emission, op: Op) -> None:
    attrs = op.attributes(ViewAttrs)
    (value,) = op.values()
    wide = e.is_wide(op.result)
    text = e.in_fp32(value) if wide else e.names.of(value)
    assign = e.assign_wide if wide else e.assign
    if attrs.name == "permute":
        assign(op, "permute", f"tl.permute({text}, {list(attrs.order)})")
    elif attrs.name == "broadcast" or not value.dims:
        assign(op, "expand", f"tl.broadcast_to({text}, {e.shape(op.result.dims)})")
    elif not op.result.dims:
        # a value of one element becomes a scalar
        flat = text if len(value.dims) == 1 else f"tl.reshape({text}, [1])"
        total = f"tl.max({flat}.to(tl.int32), 0)" if value.dtype == torch.bool else f"tl.sum({flat}, 0)"
        e.assign(op, "scalar", ops_reduction.cast(Expression(total), value.dtype))
    elif (subscript := _insertions(value.dims, op.result.dims)) is not None:
        assign(op, "view", f"{text}[{subscript}]")
    else:
        assign(op, "view", f"tl.reshape({text}, {e.shape(op.result.dims)})")


def mask(e: Emission, op: Op) -> None:
    attrs = op.attributes(MaskAttrs)
    value, *other = op.values()
    mask = e.mask_of(value.dims, attrs.dims)
    if e.is_wide(op.result):
        _mask_wide(e, op, mask)
        return
    if not mask:
        e.names.alias(op.result, e.names.of(value))
        return
    fill = e.names.of(other[0]) if other else literal(attrs.fill, value.dtype)
    masked = Expression(f"tl.where({mask}, {e.names.of(value)}, {fill})")
    if value.dtype != torch.float32 and not other:
        masked = ops_reduction.cast(masked, value.dtype)
    e.assign(op, "masked", masked)


def _mask_wide(e: Emission, op: Op, mask: str) -> None:
    """Print a mask of bf16 values in variables of fp32."""
    attrs = op.attributes(MaskAttrs)
    value, *other = op.values()
    fill = f"{e.in_fp32(other[0])}.to(tl.float32)" if other else literal(attrs.fill, value.dtype)
    if mask:
        e.assign_wide(op, "masked", f"tl.where({mask}, {e.in_fp32(value)}, {fill})")
    else:
        e.alias_wide(op.result, value)


def _insertions(before: Dims, after: Dims) -> str | None:
    """Return the subscript that converts ``before`` to ``after`` by inserting dimensions of 1; None if that does not
    suffice.
    """
    items, at = [], 0
    for position, dim in enumerate(after):
        remaining = len(after) - position
        if at < len(before) and dim == before[at] and (not dim.is_one or remaining == len(before) - at):
            items.append(":")
            at += 1
        elif dim.is_one:
            items.append("None")
        else:
            return None
    return ", ".join(items) if at == len(before) else None


OPS = {
    "number": number,
    "tile": tile,
    "iota": iota,
    "full": full,
    "pointwise": pointwise,
    "reduce": reduce,
    "view": view,
    "mask": mask,
}
