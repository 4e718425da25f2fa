"""Matrix-vector products, einsum, and other sums of products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .... import exc
from ...._shapes import ONE, fixed_at
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue
from .composites import outer
from .matmul import dot, is_dot_dtype, product_dtype
from .pointwise import HALF, in_float32, named
from .reductions import root_of, sum_of
from .shapes import position

RULES = Rules()
rule = RULES.register


def _summed(t: Tracer, one: DeviceValue, other: DeviceValue, dims: Sequence[int]) -> DeviceValue:
    """Return sums of products, accumulated in fp32 for half precision, in torch's result dtype."""
    result = torch.promote_types(one.dtype, other.dtype)
    wide = torch.float32 if result in HALF else result
    total = ops.cast(t, one, wide) * ops.cast(t, other, wide)
    return ops.cast(t, sum_of(t, total, list(dims), dtype=wide) if dims else total, result)


def _same(t: Tracer, one: DeviceValue, other: DeviceValue, places: tuple[int, int], name: str) -> None:
    left, right = one.dims[places[0]], other.dims[places[1]]
    if left != right and t.blocks.size_of(left) is not t.blocks.size_of(right):
        sizes = (t.blocks.size_of(left), t.blocks.size_of(right))
        if not all(isinstance(size, int) for size in sizes) or sizes[0] != sizes[1]:
            detail = f" in {name}: the inner dimensions differ" + t.blocks.sizes_text((left,), (right,))
            raise exc.ShapeMismatch(lhs=repr(one), rhs=repr(other), detail=detail)


def vector_product(t: Tracer, input: DeviceValue, other: DeviceValue, name: str) -> DeviceValue:
    """Return ``input @ other`` where one of them is a vector."""
    _same(t, input, other, (-1, 0 if other.ndim == 1 else -2), name)
    if other.ndim == 1:
        return _summed(t, input, other, [-1])
    column = ops.reshape(t, input, (*input.dims, ONE))
    return _summed(t, column, other, [-2])


@rule(*named("matmul"), torch.Tensor.__matmul__)
def matmul(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    for operand in (input, other):
        ops.refuse_operand(operand, "in torch.matmul")
    if 1 in (input.ndim, other.ndim):
        return vector_product(t, input, other, "torch.matmul")
    if input.ndim not in (2, 3) or other.ndim not in (2, 3):
        raise exc.ShapeMismatch(lhs=repr(input), rhs=repr(other), detail=": torch.matmul takes operands of rank 1 to 3")
    return dot(t, input, other, None, product_dtype(input, other, "torch.matmul"))


@rule(torch.Tensor.__rmatmul__)
def _rmatmul(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    return matmul(t, other, input)


def _vectors(name: str, *values: Any) -> None:
    for value in values:
        ops.refuse_operand(value, f"in torch.{name}")
        if value.ndim != 1:
            raise exc.TorchOpTracingError(name=f"torch.{name}", reason=f"a vector is needed, got {value!r}")


@rule(*named("mv"))
def _mv(t: Tracer, input: DeviceValue, vec: DeviceValue) -> DeviceValue:
    _vectors("mv", vec)
    return vector_product(t, input, vec, "torch.mv")


@rule(*named("dot"), *named("vdot"))
def _dot(t: Tracer, input: DeviceValue, other: Any = None, *, tensor: Any = None) -> DeviceValue:
    other = tensor if other is None else other
    _vectors("dot", input, other)
    return vector_product(t, input, other, "torch.dot")


@rule(torch.linalg.vecdot)
def _vecdot(t: Tracer, x: DeviceValue, y: DeviceValue, *, dim: int = -1) -> DeviceValue:
    return _summed(t, x, y, [dim])


@rule(*named("inner"))
def _inner(t: Tracer, input: DeviceValue, other: DeviceValue) -> DeviceValue:
    if other.ndim == 1:
        return vector_product(t, input, other, "torch.inner")
    if input.ndim == 1:
        return vector_product(t, other, input, "torch.inner")
    return matmul(t, input, ops.permute(t, other, (1, 0)))


@rule(*named("addmv"))
def _addmv(t: Tracer, input: Any, mat: DeviceValue, vec: DeviceValue, *, beta: Any = 1, alpha: Any = 1) -> DeviceValue:
    return ops.pointwise(t, "add", _times(t, input, beta), _times(t, _mv(t, mat, vec), alpha))


@rule(*named("addr"))
def _addr(t: Tracer, input: Any, vec1: DeviceValue, vec2: DeviceValue, *, beta: Any = 1, alpha: Any = 1) -> DeviceValue:
    return ops.pointwise(t, "add", _times(t, input, beta), _times(t, outer(t, vec1, vec2), alpha))


def _times(t: Tracer, value: Any, factor: Any) -> Any:
    return value if factor == 1 else ops.pointwise(t, "mul", value, factor)


@rule(torch.cdist)
@in_float32
def _cdist(t: Tracer, x1: DeviceValue, x2: DeviceValue, p: float = 2.0, compute_mode: str | None = None) -> DeviceValue:
    if x1.ndim < 2 or x2.ndim != x1.ndim:
        raise exc.ShapeMismatch(
            lhs=repr(x1), rhs=repr(x2), detail=": torch.cdist takes two operands of one rank, from 2 on"
        )
    rows = ops.reshape(t, x1, (*x1.dims[:-1], ONE, x1.dims[-1]))
    columns = ops.reshape(t, x2, (*x2.dims[:-2], ONE, *x2.dims[-2:]))
    gap = ops.pointwise(t, "abs", rows - columns)
    if p == 2:
        return root_of(t, sum_of(t, gap * gap, -1))
    if p == 1:
        return sum_of(t, gap, -1)
    raise exc.UnsupportedTorchFunction(name=f"torch.cdist with p={p!r}", remedy="; use p=1 or p=2")


# --- einsum -----------------------------------------------------------------------------------------------------------


@rule(torch.einsum)
def _einsum(t: Tracer, equation: Any, *operands: Any) -> DeviceValue:
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "." in equation:
        raise exc.UnsupportedTorchFunction(name="torch.einsum without letters for all dimensions", remedy="")
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise exc.TorchOpTracingError(
            name="torch.einsum", reason=f"{equation!r} has {len(terms)} operands, got {len(operands)}"
        )
    if not arrow:
        output = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    for term, value in zip(terms, operands, strict=True):
        ops.refuse_operand(value, "in torch.einsum")
        if len(term) != value.ndim or len(set(term)) != len(term):
            raise exc.UnsupportedTorchFunction(
                name=f"{term!r} of torch.einsum for {value!r}", remedy="; name each dimension once"
            )
    if not set(output) <= set(left) or len(set(output)) != len(output):
        raise exc.TorchOpTracingError(
            name="torch.einsum", reason=f"the result of {equation!r} has dimensions that no operand has"
        )
    value, term = operands[0], terms[0]
    for at, (other, letters) in enumerate(zip(operands[1:], terms[1:], strict=True), 1):
        later = set(output).union(*terms[at + 1 :])
        value, term = _contracted(t, value, term, other, letters, later)
    value, term = _without(t, value, term, set(output))
    return ops.permute(t, value, [term.index(letter) for letter in output])


def _without(t: Tracer, value: DeviceValue, term: str, kept: set[str]) -> tuple[DeviceValue, str]:
    """Sum ``value`` over the dimensions that are not in ``kept``."""
    gone = [at for at, letter in enumerate(term) if letter not in kept]
    if not gone:
        return value, term
    return sum_of(t, value, gone, dtype=value.dtype), "".join(letter for letter in term if letter in kept)


def _contracted(
    t: Tracer, one: DeviceValue, first: str, other: DeviceValue, second: str, later: set[str]
) -> tuple[DeviceValue, str]:
    """Return the product of two operands, summed over dimensions that no later operand needs."""
    one, first = _without(t, one, first, later | set(second))
    other, second = _without(t, other, second, later | set(first))
    both = [letter for letter in first if letter in second]
    inner = [letter for letter in both if letter not in later]
    batch = [letter for letter in both if letter in later]
    rows, columns = ([letter for letter in term if letter not in both] for term in (first, second))
    if [len(rows), len(columns), len(inner)] == [1, 1, 1] and len(batch) <= 1 and is_dot_dtype(one, other):
        lhs = ops.permute(t, one, [first.index(letter) for letter in (*batch, *rows, *inner)])
        rhs = ops.permute(t, other, [second.index(letter) for letter in (*batch, *inner, *columns)])
        return dot(t, lhs, rhs, None, product_dtype(one, other, "torch.einsum")), "".join((*batch, *rows, *columns))
    order = [*batch, *rows, *columns, *inner]
    kept = len(order) - len(inner)
    left, right = (_spread(t, v, term, order) for v, term in ((one, first), (other, second)))
    return _summed(t, left, right, list(range(kept, len(order)))), "".join(order[:kept])


def _spread(t: Tracer, value: DeviceValue, term: str, order: list[str]) -> DeviceValue:
    """Return ``value`` with its dimensions in ``order``, and 1 for missing ones."""
    value = ops.permute(t, value, [term.index(letter) for letter in order if letter in term])
    dims = iter(value.dims)
    return ops.reshape(t, value, tuple(next(dims) if letter in term else ONE for letter in order))


# --- attention --------------------------------------------------------------------------------------------------------


@rule(*named("trace"))
def _trace(t: Tracer, input: DeviceValue) -> DeviceValue:
    if input.ndim != 2:
        raise exc.TorchOpTracingError(name="torch.trace", reason=f"a matrix is needed, got {input!r}")
    sizes = [t.blocks.size_of(dim) for dim in input.dims]
    if not all(isinstance(size, int) for size in sizes):
        raise exc.UnsupportedTorchFunction(name="torch.trace of tiles", remedy="")
    same = ops.pointwise(t, "eq", ops.lanes(t, sizes[0], 2, 0), ops.lanes(t, sizes[1], 2, 1))
    return sum_of(t, ops.pointwise(t, "where", same, input, ops.full(t, (), 0, input.dtype)))


@rule(*named("cross"), torch.linalg.cross)
def _cross(t: Tracer, input: DeviceValue, other: DeviceValue, dim: int = -1) -> DeviceValue:
    input, other = ops.together(t, (input, other), " in torch.cross")
    at = position(input, dim)
    if not fixed_at(t.blocks.size_of(input.dims[at]), 3):
        raise exc.TorchOpTracingError(name="torch.cross", reason=f"dimension {dim} must have 3 elements")
    roll = t.rules[torch.roll]
    a, b = ((roll(t, v, -1, at), roll(t, v, -2, at)) for v in (input, other))
    return a[0] * b[1] - a[1] * b[0]
