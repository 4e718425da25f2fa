"""Differentiation rules: for each kind of op, the gradients of its operands, or the reason that there are none.

Keys are those of ``ir/ops.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ..._shapes import ONE, Dims
from ..ir.grammar import (
    DotAttrs,
    FoldAttrs,
    GatherAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    ReduceAttrs,
    ScanAttrs,
    Value,
    ViewAttrs,
    VjpAttrs,
)
from ..ir.operands import accumulator_of
from .adjoint import Rule, Sweep
from .functions import FUNCTIONS
from .pointwise import POINTWISE, share
from .refusal import not_supported
from .spelling import broadcast, combination, dtype_text
from .statements import Var

Grads = Sequence["Var | None"]

#: Dtypes that Tensor Cores take gradients in.
_FACTORS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _pointwise(s: Sweep, op: Op, grads: Grads) -> None:
    (g,) = grads
    assert g is not None
    name = op.attributes(PointwiseAttrs).name
    row = POINTWISE[name]
    if isinstance(row, str):
        raise not_supported(f"torch.{name}", f"{row}; compute it outside of the kernel, where torch differentiates it")
    known = tuple(map(s.known, op.operands))
    y = Var(name=s.wide(op.result), dtype=g.dtype, dims=op.result.dims)
    _shares(s, op.operands, [share(name, at, known) for at in range(len(op.operands))], g, y)


def _vjp(s: Sweep, op: Op, grads: Grads) -> None:
    """Differentiate a function by its own derivative; the ops that compute it get nothing."""
    (g,) = grads
    assert g is not None
    attrs, inputs = op.attributes(VjpAttrs), op.operands[1:]
    if attrs.name == "reshape":
        (source,) = inputs
        assert isinstance(source, Value)
        g = s.spread(g, op.result.dims)
        s.add(source, s.share(source, s.spelling.reshaped(g.name, g.dims, source.dims), g, source.dims))
        return
    y = Var(name=s.wide(op.result), dtype=g.dtype, dims=op.result.dims)
    if attrs.over:
        (first, *_) = inputs
        assert isinstance(first, Value)
        dims = _ones_at(first.dims, attrs.over)
        g, y = (
            _kept(s, g, first.dims, attrs.over),
            replace(y, name=s.spelling.reshaped(y.name, y.dims, dims), dims=dims),
        )
    _shares(s, inputs, FUNCTIONS[attrs.name], g, y)


def _shares(s: Sweep, operands: Sequence[Operand], templates: Sequence[str | None], g: Var, y: Var) -> None:
    """Add to each operand its share of the gradient ``g`` of the result ``y``, by its expression."""
    names = {
        "g": g.name,
        "y": y.name,
        "t": dtype_text(g.dtype),
        **dict(zip("abcd", map(s.wide, operands), strict=False)),
    }
    dims = {c: o.dims for c, o in zip("abcd", operands, strict=False) if isinstance(o, Value)}
    whole = broadcast(y.dims, *dims.values())
    for operand, template in zip(operands, templates, strict=False):
        if template is None or not isinstance(operand, Value) or not s.is_active(operand):
            continue
        var = g
        if template != "{g}":
            used = [d for c, d in {**dims, "y": y.dims}.items() if f"{{{c}}}" in template]
            var = s.share(operand, template.format(**names), g, broadcast(g.dims, *used))
        s.add(operand, s.summed(var, whole, operand.dims))


def _load(s: Sweep, op: Op, grads: Grads) -> None:
    if grads[0] is not None:
        s.loaded(op, grads[0])


def _store(s: Sweep, op: Op, grads: Grads) -> None:
    s.stored(op)


def _atomic(s: Sweep, op: Op, grads: Grads) -> None:
    if op.attributes(MemoryAttrs).atomic != "add":
        raise not_supported(f"hl.atomic_{op.attributes(MemoryAttrs).atomic}", "only hl.atomic_add has a derivative")
    s.stored(op)


def _ones_at(dims: Dims, over: Sequence[int]) -> Dims:
    return tuple(ONE if at in over else d for at, d in enumerate(dims))


def _kept(s: Sweep, var: Var, dims: Dims, over: Sequence[int]) -> Var:
    """Return the gradient of a reduction with the reduced dimensions as dimensions of 1."""
    left = tuple(d for at, d in enumerate(dims) if at not in over)
    var = s.spread(var, left)
    after = _ones_at(dims, over)
    return Var(name=s.spelling.reshaped(var.name, left, after), dtype=var.dtype, dims=after)


def _reduce(s: Sweep, op: Op, grads: Grads) -> None:
    attrs = op.attributes(ReduceAttrs)
    _reduced(s, op, grads, attrs.name, attrs.dims)


def _reduced(s: Sweep, op: Op, grads: Grads, name: str, over: Sequence[int]) -> None:
    (g,) = grads
    assert g is not None
    (operand,) = op.values()
    wide = _kept(s, g, operand.dims, over)
    if name == "sum":
        s.add(operand, s.share(operand, wide.name, g, wide.dims))
        return
    value, where = s.text(operand), str(over[0]) if len(over) == 1 else str(tuple(over))
    result = s.spelling.reshaped(s.text(op.result), op.result.dims, wide.dims)
    dtype = dtype_text(g.dtype)
    if name in ("max", "min"):
        ties = s.assign(f"({value} == {result}).to({dtype})", g.dtype, operand.dims, "ties")
        count = s.assign(f"torch.sum({ties.name}, {where})", g.dtype, op.result.dims, "count", "costly")
        each = s.spelling.reshaped(count.name, op.result.dims, wide.dims)
        s.add(operand, s.share(operand, f"{ties.name} * ({wide.name} / {each})", g, operand.dims))
        return
    assert name == "prod", name
    _product(s, op, g, wide, over)


def _product(s: Sweep, op: Op, g: Var, wide: Var, over: Sequence[int]) -> None:
    """Differentiate a product: the product of all other elements, which is 0 if one of them is."""
    (operand,) = op.values()
    value = s.wide(operand)
    zero = s.assign(f"({value} == 0).to({dtype_text(g.dtype)})", g.dtype, operand.dims, "zero")
    rest = f"torch.where({value} == 0, 1.0, {value})"
    zeros = zero.name
    for at in sorted(over, reverse=True):
        rest, zeros = f"torch.prod({rest}, {at})", f"torch.sum({zeros}, {at})"
    product = s.assign(rest, g.dtype, op.result.dims, "product", "costly")
    count = s.assign(zeros, g.dtype, op.result.dims, "zeros", "costly")
    product_text = s.spelling.reshaped(product.name, op.result.dims, wide.dims)
    others = f"({s.spelling.reshaped(count.name, op.result.dims, wide.dims)} - {zero.name})"
    text = f"torch.where({others} == 0, {wide.name} * {product_text} / torch.where({value} == 0, 1.0, {value}), 0.0)"
    s.add(operand, s.share(operand, text, g, operand.dims))


def _dot(s: Sweep, op: Op, grads: Grads) -> None:
    (g,) = grads
    assert g is not None
    if op.attributes(DotAttrs).scaled is not None:
        raise not_supported("hl.dot_scaled", "scale the operands and use hl.dot")
    lhs, rhs = op.operands[:2]
    assert isinstance(lhs, Value) and isinstance(rhs, Value)
    acc = accumulator_of(op)
    if acc is not None:
        s.add(acc, g)
    if not (s.is_active(lhs) or s.is_active(rhs)):
        return
    g = s.spread(g, op.result.dims)
    out = dtype_text(g.dtype)
    if s.is_active(lhs):
        grad, other = _factors(s, g, rhs)
        s.add(lhs, s.share(lhs, f"hl.dot({grad}, {_transposed(other, rhs)}, out_dtype={out})", g, lhs.dims, "costly"))
    if s.is_active(rhs):
        grad, other = _factors(s, g, lhs)
        s.add(rhs, s.share(rhs, f"hl.dot({_transposed(other, lhs)}, {grad}, out_dtype={out})", g, rhs.dims, "costly"))


def _factors(s: Sweep, g: Var, other: Value) -> tuple[str, str]:
    """Return a gradient and the other factor in one dtype that Tensor Cores take."""
    dtype = other.dtype if other.dtype in _FACTORS else torch.bfloat16
    text = s.spelling.converted(g.name, g.dtype, dtype)
    if text != g.name:
        text = s.assign(text, dtype, g.dims, g.name).name
    return text, s.spelling.converted(s.text(other), other.dtype, dtype)


def _transposed(text: str, value: Value) -> str:
    return f"{text}.transpose({len(value.dims) - 2}, {len(value.dims) - 1})"


def _view(s: Sweep, op: Op, grads: Grads) -> None:
    (g,) = grads
    assert g is not None
    (operand,) = op.values()
    attrs, dims = op.attributes(ViewAttrs), op.result.dims
    if attrs.name == "broadcast":
        s.add(operand, s.summed(g, dims, operand.dims))
        return
    g = s.aligned(g, len(dims))
    if attrs.name == "permute":
        back = [attrs.order.index(at) for at in range(len(attrs.order))]
        s.add(operand, s.share(operand, f"{g.name}.permute({back})", g, tuple(g.dims[at] for at in back)))
        return
    if tuple(d for d in dims if not d.is_one) == tuple(d for d in operand.dims if not d.is_one):
        # the views differ in dimensions of 1 only; the gradient may still be broadcast in the others
        left = iter([found for d, found in zip(dims, g.dims, strict=True) if not d.is_one])
        after = tuple(ONE if d.is_one else next(left) for d in operand.dims)
    else:
        g, after = s.spread(g, dims), operand.dims
    s.add(operand, s.share(operand, s.spelling.reshaped(g.name, g.dims, after), g, after))


def _full(s: Sweep, op: Op, grads: Grads) -> None:
    fill = op.operands[0]
    if grads[0] is not None and isinstance(fill, Value):
        s.add(fill, s.summed(grads[0], op.result.dims, fill.dims))


def _mask(s: Sweep, op: Op, grads: Grads) -> None:
    if grads[0] is not None:
        s.add(op.operands[0], grads[0])


def _scan(s: Sweep, op: Op, grads: Grads) -> None:
    (g,) = grads if len(grads) == 1 else (None,)
    name = combination(op)
    if g is None or name not in ("add", "mul"):
        raise not_supported(
            "a scan other than a sum or a product",
            "use torch.cumsum or torch.cumprod (from the end: values.flip(dim).cumsum(dim).flip(dim)), or compute it outside "
            "of the kernel",
        )
    attrs = op.attributes(ScanAttrs)
    (operand,) = op.values()
    g = s.spread(g, op.result.dims)
    if name == "mul":
        _running_product(s, op, g)
        return
    reverse = "" if attrs.reverse else ", reverse=True"
    s.add(operand, s.share(operand, f"hl.cumsum({g.name}, {attrs.dim}{reverse})", g, operand.dims, "costly"))


def _running_product(s: Sweep, op: Op, g: Var) -> None:
    """Differentiate a cumulative product.

    Before the first 0 of a row, the gradient is the suffix sum of ``g * y`` divided by the element. At the first 0, the
    products are those of all other elements; after it, the gradient is 0.
    """
    attrs = op.attributes(ScanAttrs)
    (operand,) = op.values()
    dims, x, dtype = op.result.dims, s.wide(operand), dtype_text(g.dtype)
    forth, back = (
        f", {attrs.dim}{', reverse=True' if reverse else ''})" for reverse in (attrs.reverse, not attrs.reverse)
    )

    def made(text: str, hint: str) -> str:
        return s.assign(text, g.dtype, dims, hint, "costly").name

    zeros = made(f"hl.cumsum(({x} == 0).to({dtype}){forth}", "zeros")
    first = f"(({x} == 0) & ({zeros} == 1))"
    others = made(f"hl.cumprod(torch.where({first}, 1.0, {x}){forth}", "others")
    before = made(f"hl.cumsum({g.name} * {s.wide(op.result)}{back}", "before")
    at_zero = made(f"hl.cumsum({g.name} * {others}{back}", "at_zero")
    text = f"torch.where({zeros} == 0, {before} / {x}, torch.where({first}, {at_zero}, 0.0))"
    s.add(operand, s.share(operand, text, g, dims))


def _fold(s: Sweep, op: Op, grads: Grads) -> None:
    names = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}
    name = names.get(combination(op) or "")
    if name is None or len(grads) != 1:
        raise not_supported(
            "hl.reduce with a combine function other than a sum, product, maximum or minimum",
            "use torch.sum, torch.prod, torch.amax or torch.amin",
        )
    _reduced(s, op, grads, name, (op.attributes(FoldAttrs).dim,))


def _is_ranking(s: Sweep, index: Operand) -> bool:
    """Return whether an index has the places of sorted elements: each lane once, as ``torch.sort`` gives them."""
    maker = s.makers.of(index)
    while maker is not None and (
        maker.attrs in (PointwiseAttrs("cast"), PointwiseAttrs("minimum"), PointwiseAttrs("bitwise_and"))
    ):
        first, *rest = maker.operands
        size = s.program.blocks[block].extent if (block := maker.result.dims[-1].block) is not None else None
        limits = {"minimum": size and size - 1, "bitwise_and": 0xFFFFFFFF}
        if rest and rest != [limits[maker.attrs.name]]:
            return False
        maker = s.makers.of(first)
    return maker is not None and maker.kind == "sort"


def _gather(s: Sweep, op: Op, grads: Grads) -> None:
    """Differentiate a gather: each lane of the value gets the sum of the gradients of all lanes that picked it."""
    (g,) = grads
    assert g is not None
    value, index = op.operands
    assert isinstance(value, Value) and isinstance(index, Value)
    at = op.attributes(GatherAttrs).dim
    g = s.spread(g, op.result.dims)
    if _is_ranking(s, index) and op.result.dims == value.dims == index.dims and at == len(value.dims) - 1:
        narrow = "" if index.dtype == torch.int32 else ".to(torch.int32)"
        back = f"torch.gather({g.name}, {at}, torch.argsort({s.text(index)}{narrow}, {at}))"
        s.add(value, s.share(value, back, g, value.dims, "costly"))
        return
    both = (*value.dims[: at + 1], *op.result.dims[at:])
    lanes = (*(ONE,) * at, value.dims[at], *(ONE,) * (len(value.dims) - at))
    picked = _ones_at(both, (at,))
    size = s.spelling.dim(value.dims[at])
    block = value.dims[at].block
    if block is not None and s.program.blocks[block].kind != "full":
        size = f"{size}.block_size"
    places = s.spelling.reshaped(f"hl.arange({size})", (value.dims[at],), lanes)
    chosen = s.spelling.reshaped(s.text(index), index.dims, picked)
    spread = s.spelling.reshaped(g.name, g.dims, picked)
    text = f"torch.sum(torch.where({chosen} == {places}, {spread}, 0.0), {at + 1})"
    s.add(value, s.share(value, text, g, value.dims, "costly"))


def _join(s: Sweep, op: Op, grads: Grads) -> None:
    (g,) = grads
    assert g is not None
    g = s.spread(g, op.result.dims)
    halves = s.halves(g)
    for operand, half in zip(op.operands, halves, strict=True):
        s.add(operand, half)


def _split(s: Sweep, op: Op, grads: Grads) -> None:
    like = next(g for g in grads if g is not None)
    parts = []
    for result, g in zip(op.results, grads, strict=True):
        if g is None:
            parts.append(f"hl.zeros({s.spelling.shape(result.dims)}, dtype={dtype_text(like.dtype)})")
        else:
            parts.append(s.spread(g, result.dims).name)
    (operand,) = op.values()
    s.add(operand, s.share(operand, f"hl.join({', '.join(parts)})", like, operand.dims))


def _loop(s: Sweep, op: Op, grads: Grads) -> None:
    s.loop(op, grads)


def _branch(s: Sweep, op: Op, grads: Grads) -> None:
    s.branch(op, grads)


_NO_FLOATS = "its result is not a differentiable function of floats"

RULES: Mapping[str, Rule | str] = {
    "number": _NO_FLOATS,
    "tile": _NO_FLOATS,
    "iota": _NO_FLOATS,
    "full": _full,
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "load_at": "the tensor at an address is unknown",
    "store_at": "the tensor at an address is unknown",
    "pointwise": _pointwise,
    "vjp": _vjp,
    "reduce": _reduce,
    "dot": _dot,
    "view": _view,
    "mask": _mask,
    "scan": _scan,
    "fold": _fold,
    "gather": _gather,
    "sort": "its keys are integers, which have no gradient",
    "join": _join,
    "split": _split,
    "seed": _NO_FLOATS,
    "random": _NO_FLOATS,
    "random4": _NO_FLOATS,
    "print": "it has no result",
    "check": "it has no result",
    "asm": "the compiler does not analyze inline assembly",
    "inline": "the compiler does not analyze source of the target's language",
    "barrier": "it has no result",
    "for": _loop,
    "while": "its trip count is known on the device only; use a loop with bounds",
    "if": _branch,
}
