"""Triton's semantic layer on interpreter values, and the reductions, scans and maps it leaves to the code generator."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic

from . import numerics
from .builder import Builder
from .numerics import FP8, HELD
from .values import Block, Handle, Tensor, binary_shape, block, scalar


class BlockCondition(ValueError):
    """A block of more than one element was used where Python needs one truth value."""


class Semantic(TritonSemantic):
    """``TritonSemantic`` with cheaper promotion, broadcasting and casts; what they decide is unchanged."""

    tensor = Tensor
    builder: Builder

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self._promotions: dict[tuple[str, bool, str, bool, bool], tl.dtype] = {}

    def computation_type_impl(
        self, a_ty: tl.dtype, a_is_scalar: bool, b_ty: tl.dtype, b_is_scalar: bool, div_or_mod: bool
    ) -> tl.dtype:
        key = (a_ty.name, a_is_scalar, b_ty.name, b_is_scalar, div_or_mod)
        found = self._promotions.get(key)
        if found is None:
            found = scalar(super().computation_type_impl(a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod))
            self._promotions[key] = found
        return found

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if lhs.__class__ is Tensor and rhs.__class__ is Tensor:
            a, b = lhs.dtype, rhs.dtype
            if a.name in HELD and b.name in HELD:
                if arithmetic_check and not (a is b and not div_or_mod):
                    common = self.computation_type_impl(a, False, b, False, div_or_mod)
                    lhs, rhs = self.cast(lhs, common), self.cast(rhs, common)
                return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )

    def broadcast_impl_value(self, lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
        left, right = lhs.type, rhs.type
        if left is right:
            return lhs, rhs
        left_dims = left.dims if left.__class__ is Block else None
        right_dims = right.dims if right.__class__ is Block else None
        if left_dims == right_dims:
            return lhs, rhs
        if left_dims is None:
            return _stretched(lhs, right_dims), rhs
        if right_dims is None:
            return lhs, _stretched(rhs, left_dims)
        dims = binary_shape(left_dims, right_dims)
        if dims is None:
            return super().broadcast_impl_value(lhs, rhs)  # which raises
        return _stretched(lhs, dims), _stretched(rhs, dims)

    def cast(self, input: Tensor, dst_ty: tl.dtype, fp_downcast_rounding: str | None = None) -> Tensor:
        source, target = input.dtype, scalar(dst_ty.scalar)
        if source is target:
            return input
        name, to = source.name, target.name
        if fp_downcast_rounding is not None or name not in HELD or to not in HELD:
            return super().cast(input, target, fp_downcast_rounding)
        if (name in FP8 and HELD[to].kind != "f") or (to in FP8 and HELD[name].kind != "f"):
            return super().cast(input, target)  # which refuses
        handle = input.handle
        data = numerics.convert(handle.data, name, to)
        kind = input.type
        return Tensor(Handle(data, target), block(target, kind.dims) if kind.__class__ is Block else target)

    def dot_scaled(self, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, rhs_scale: Any, *rest: Any) -> Tensor:
        rhs_format, *others = rest
        if hasattr(TritonSemantic, "deduce_scale_factor"):  # Triton 3.8 on takes plain strings
            formats = (getattr(f, "value", f) for f in (lhs_format, rhs_format))
        else:
            formats = (tl.constexpr(f) for f in (lhs_format, rhs_format))
        left, right = formats
        return super().dot_scaled(lhs, lhs_scale, left, rhs, rhs_scale, right, *others)

    def _has_native_tma(self) -> bool:
        return True

    def _hint(self, x: Tensor, values: Sequence[int]) -> Tensor:
        """A promise to the compiler, checked only in form."""
        if max(1, len(x.shape)) != len(values):
            raise ValueError(f"a hint on a tensor of shape {list(x.shape)} needs one value per axis, got {values}")
        return x

    multiple_of = max_contiguous = max_constancy = _hint


def _stretched(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """``value`` as a block of shape ``dims``, sharing its data."""
    if value.type.__class__ is Block and value.type.dims == dims:
        return value
    return Tensor(Handle(value.handle.data, value.dtype), block(value.dtype, dims))


SEMANTIC = Semantic(Builder())


def is_number(value: object) -> bool:
    """Whether ``value`` is a compile-time number of a kernel."""
    return isinstance(value, numbers.Number)


def truth(value: Any) -> Any:
    """``value`` as the condition of an if, while, assert or conditional expression."""
    if value.__class__ is Tensor:
        if value.handle.data.size != 1 and value.numel != 1:
            raise BlockCondition(
                f"a condition needs a scalar, got a block of shape {list(value.shape)}. Use tl.where for a choice per "
                "element, or reduce the block first."
            )
        return bool(value.handle.data.reshape(-1)[0])
    if isinstance(value, getattr(tl, "condition", ())):
        return truth(value.condition)
    return value


def _as_bool(value: Tensor) -> Tensor:
    return SEMANTIC.cast(value, tl.int1)


def logical_and(left: Any, right: Callable[[], Any]) -> Any:
    """``left and right()``: elementwise for tensors, short-circuit for compile-time values."""
    if left.__class__ is not Tensor:
        return right() if left else left
    other = right()
    if other.__class__ is not Tensor:
        return left if other else other
    return SEMANTIC.and_(_as_bool(left), _as_bool(other))


def logical_or(left: Any, right: Callable[[], Any]) -> Any:
    """``left or right()``: elementwise for tensors, short-circuit for compile-time values."""
    if left.__class__ is not Tensor:
        return left if left else right()
    other = right()
    if other.__class__ is not Tensor:
        return other if other else left
    return SEMANTIC.or_(_as_bool(left), _as_bool(other))


def logical_not(value: Any) -> Any:
    """``not value``: elementwise for a tensor."""
    if value.__class__ is Tensor:
        return SEMANTIC.not_(_as_bool(value))
    return not value


def assigned(value: Any) -> Any:
    """What a name holds after ``name = value``: numbers become tensors, as in a compiled kernel."""
    kind = value.__class__
    if kind is Tensor or value is None:
        return value
    if kind is bool or kind is int or kind is float:
        return SEMANTIC.to_tensor(value)
    if kind is tl.constexpr:
        return assigned(value.value)
    if isinstance(value, int) and not isinstance(value, bool):  # a block's extent
        return SEMANTIC.to_tensor(int(value))
    if isinstance(value, tuple):
        parts = [assigned(v) for v in value]
        return kind(*parts) if hasattr(value, "_fields") else tuple(parts)
    if kind is tl.tuple:
        return tl.tuple([assigned(v) for v in value.values], value.type)
    return value


def tensor_range(*args: Any, step: Any = None, **_: Any) -> Any:
    """``range`` and ``tl.range``: int32 (or wider) scalars. Keyword arguments are pipelining hints."""
    names = ("arg1", "arg2")
    args = (*args, *(_.pop(n) for n in names[len(args) :] if n in _))
    bounds = list(args) if step is None or len(args) == 3 else [*args, step] if len(args) == 2 else [0, *args, step]
    tensors = [SEMANTIC.to_tensor(b) for b in bounds if b is not None]
    dtype = tensors[0].dtype
    for t in tensors[1:]:
        dtype = SEMANTIC.integer_promote_impl(dtype, t.dtype)
    held = HELD[dtype.name]
    for i in range(*[int(t.handle.data[0]) for t in tensors]):
        yield Tensor(Handle(np.array([i], held), dtype, ()), dtype)


def static_range(arg1: Any, arg2: Any = None, step: Any = None) -> range:
    """``tl.static_range``: compile-time integers."""
    if arg2 is None:
        arg1, arg2 = 0, arg1
    return range(_static(arg1), _static(arg2), 1 if step is None else _static(step))


def _static(value: Any) -> int:
    if isinstance(value, Tensor):
        raise TypeError("tl.static_range needs compile-time bounds, got a tensor; use tl.range")
    return int(getattr(value, "value", value))
