"""Dots in microscaling formats: dots of floats of 8 or 4 bits, and scales of blocks of 32 elements of K that the matrix unit takes.

::

    out[i, j] = hl.dot_scaled(a[i, :], s[i, :], "e4m3",      →      out[i, j] = hl.dot(a[i, :], b[:, j]),
                              b[:, j], t[j, :], "e4m3")             with the scales s of rows and t of columns
"""

from __future__ import annotations

import dataclasses

from ....._compiler.ir.grammar import DotAttrs, MemoryAttrs, Op, Operand, Program, Region, Value
from ....._compiler.ir.operands import is_block
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import dtype_name
from ....._support.records import dataclass
from ...plan.refusal import Refusal
from ...plan.scales import MICRO_FORMATS, BlockScales, Scale, Side, micro_block
from ..names import name_of
from ..numbers import known
from ..product import Product

_HELD = {"e2m1": "uint8"}
"""Types of tensors of packed numbers, by the format."""


@dataclass(frozen=True, kw_only=True)
class Micro:
    """A ``program`` without the scales of its dot, whose loads are ``scales``: those of its rows, which are tiled by block
    ``rows``, and those of its columns. The operands are multiplied as ``dtype``."""

    program: Program
    dtype: str = ""
    rows: int | None = None
    scales: tuple[Op, ...] = ()


def without_micro_scales(program: Program) -> Micro:
    """Return the program with a plain dot in place of a scaled one, and the original one if it has none. Raises
    ``Refusal``."""
    dots = [op for op in program.walk() if op.kind == "dot" and op.attributes(DotAttrs).scaled is not None]
    if not dots:
        return Micro(program=program)
    if len(dots) > 1:
        raise Refusal(f"{len(dots)} dots in microscaling formats; one is implemented")
    (dot,) = dots
    makers = {result.number: op for op in program.walk() for result in op.results}
    scaled = dot.attributes(DotAttrs).scaled
    assert scaled is not None
    formats = scaled.lhs_format, scaled.rhs_format
    if formats[0] != formats[1] or formats[0] not in MICRO_FORMATS:
        raise Refusal(
            f"hl.dot_scaled of {formats[0]} and {formats[1]}; {' or '.join(MICRO_FORMATS)} on both sides is implemented"
        )
    for at in (0, 1):
        side = dot.operands[at]
        if not isinstance(side, Value) or dtype_name(side.dtype) != _HELD.get(formats[at], MICRO_FORMATS[formats[at]]):
            raise Refusal(f"operands of hl.dot_scaled in {formats[at]} that are not of that type are not implemented")
    if scaled.lhs_scale is None or scaled.rhs_scale is None:
        raise Refusal("hl.dot_scaled is implemented with scales of both operands")
    loads = tuple(_load(program, makers, dot.operands[at]) for at in (scaled.lhs_scale, scaled.rhs_scale))
    left = dot.operands[0]
    assert isinstance(left, Value)
    gone = {scaled.lhs_scale, scaled.rhs_scale}
    plain = dataclasses.replace(
        dot,
        operands=tuple(each for at, each in enumerate(dot.operands) if at not in gone),
        attrs=dataclasses.replace(dot.attributes(DotAttrs), scaled=None),
    )
    return Micro(program=_with(program, plain), dtype=MICRO_FORMATS[formats[0]], rows=left.dims[0].block, scales=loads)


def _load(program: Program, makers: dict[int, Op], value: Operand) -> Op:
    """Return the load of scales of all of K, whose rows are contiguous. Raises ``Refusal``."""
    op = makers.get(value.number) if isinstance(value, Value) else None
    if op is None or op.kind != "load" or op.attributes(MemoryAttrs).mask is not None:
        raise Refusal("scales of hl.dot_scaled that are loaded are implemented, not those that are computed or masked")
    attrs, tensor = op.attributes(MemoryAttrs), program.tensors[op.attrs.tensor]
    plain = all(is_block(each) and len(each.positions) == 1 for each in attrs.indices)
    last = attrs.indices[-1].block
    whole = last is not None and program.blocks[last].kind == "full"
    if not plain or len(attrs.indices) != 2 or not whole:
        raise Refusal(
            f"{tensor.name} has the scales of hl.dot_scaled; {tensor.name}[tile, :] with all of K is implemented"
        )
    return op


def _with(program: Program, changed: Op) -> Program:
    """Return the program with an op in place of the one of its number."""

    def of(region: Region) -> Region:
        return dataclasses.replace(region, ops=tuple(map(replaced, region.ops)))

    def replaced(op: Op) -> Op:
        if op.number == changed.number:
            return changed
        return dataclasses.replace(op, regions=tuple(map(of, op.regions))) if op.regions else op

    roots = tuple(dataclasses.replace(root, body=of(root.body)) for root in program.roots)
    return drop_dead(dataclasses.replace(program, roots=roots))


def with_micro_scales(product: Product, micro: Micro) -> Product:
    """Return the product with the scales that the program had. Raises ``Refusal``."""
    if not micro.scales:
        return product
    if product.problem.scales is not None or product.scales:
        raise Refusal("hl.dot_scaled with further factors of blocks of K is not implemented")
    turned = product.blocks[0] != micro.rows
    sides: tuple[Side, Side] = ("column", "row") if turned else ("row", "column")
    tensors = [micro.program.tensors[op.attrs.tensor] for op in micro.scales]
    factors = []
    for side, tensor in sorted(zip(sides, tensors, strict=True), key=lambda each: each[0] == "column"):
        pitch, step = (known(stride, f"a stride of {tensor.name}") for stride in tensor.strides)
        factors.append(
            Scale(name=name_of(tensor), side=side, dtype=dtype_name(tensor.dtype), pitch=pitch, k_pitch=step)
        )
    scales = BlockScales(k=micro_block(micro.dtype, factors[0].dtype), factors=tuple(factors))
    problem = dataclasses.replace(product.problem, operand_dtype=micro.dtype, scales=scales)
    ids = tuple(tensor.id for tensor in (tensors[::-1] if turned else tensors))
    return dataclasses.replace(product, problem=problem, scales=ids)
