"""Triton's semantic layer on interpreter values, and the reductions, scans and maps it leaves to the code generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic

from . import numerics
from .builder import Builder
from .numerics import FP8, HELD
from .values import Block, Handle, Tensor, binary_shape, block, own, scalar

_CONDITION: Any = (tl.condition,) if hasattr(tl, "condition") else ()
_NUMBERS = frozenset((int, float, bool))


class BlockCondition(ValueError):
    """A block of more than one element was used where Python needs one truth value."""


class Semantic(TritonSemantic):
    """``TritonSemantic`` with cheaper promotion, broadcasting and casts, with the same results."""

    tensor = Tensor
    builder: Builder

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self._promotions: dict[tuple[str, bool, str, bool, bool], tl.dtype] = {}
        self._constants: dict[tuple[Any, ...], tuple[tl.dtype, Tensor]] = {}

    def to_tensor(self, x: Any, check_type: bool = True) -> Any:
        # Functions of triton.language build plain tensors for their own results, and some continue with them.
        return own(x) if x.__class__ is tl.tensor else super().to_tensor(x, check_type)

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
        if lhs.__class__ is Tensor and lhs.dtype.name in HELD:
            if rhs.__class__ is Tensor and rhs.dtype.name in HELD:
                if arithmetic_check and (div_or_mod or lhs.dtype is not rhs.dtype):
                    common = self.computation_type_impl(lhs.dtype, False, rhs.dtype, False, div_or_mod)
                    lhs, rhs = self.cast(lhs, common), self.cast(rhs, common)
                return self.broadcast_impl_value(lhs, rhs)
            if arithmetic_check and rhs.__class__ in _NUMBERS:
                common, rhs = self._constant(lhs.dtype, rhs, div_or_mod)
                return self.broadcast_impl_value(self.cast(lhs, common), rhs)
        elif rhs.__class__ is Tensor and rhs.dtype.name in HELD:
            if arithmetic_check and lhs.__class__ in _NUMBERS:
                common, lhs = self._constant(rhs.dtype, lhs, div_or_mod)
                return self.broadcast_impl_value(lhs, self.cast(rhs, common))
            if allow_lhs_ptr and lhs.__class__ is Tensor and lhs.dtype.is_ptr() and HELD[rhs.dtype.name].kind in "iu":
                return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )

    def _constant(self, dtype: tl.dtype, value: Any, div_or_mod: bool) -> tuple[tl.dtype, Tensor]:
        """Return the common type of a tensor of ``dtype`` and the number ``value``, and the number in it."""
        key = (dtype.name, value.__class__, value, value.__class__ is float and math.copysign(1.0, value), div_or_mod)
        found = self._constants.get(key)
        if found is None:
            sample = Tensor(self.builder.get_null_value(dtype), dtype)
            promoted, constant = super().binary_op_type_checking_impl(sample, value, False, False, True, div_or_mod)
            if len(self._constants) > 4096:  # a kernel's constants are few, those of loop bounds and offsets are not
                self._constants.clear()
            found = self._constants[key] = (promoted.dtype, constant)
        return found

    def expand_dims(self, input: Tensor, axis: int) -> Tensor:
        kind = input.type
        if kind.__class__ is not Block or not 0 <= axis <= len(kind.dims):
            return super().expand_dims(input, axis)
        dims = (*kind.dims[:axis], 1, *kind.dims[axis:])
        return Tensor(self.builder.create_expand_dims(input.handle, axis), block(input.dtype, dims))

    def broadcast_impl_value(self, lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
        lhs, rhs = own(lhs), own(rhs)
        left, right = lhs.type, rhs.type
        if left is right:
            return lhs, rhs
        left_dims = left.dims if left.__class__ is Block else None
        right_dims = right.dims if right.__class__ is Block else None
        if left_dims == right_dims:
            return lhs, rhs
        if left_dims is None or right_dims is None:
            common = left_dims or right_dims or ()
            return _stretched(lhs, common), _stretched(rhs, common)
        dims = binary_shape(left_dims, right_dims)
        if dims is None:
            return super().broadcast_impl_value(lhs, rhs)  # which raises
        return _stretched(lhs, dims), _stretched(rhs, dims)

    def cast(self, input: Tensor, dst_ty: tl.dtype, fp_downcast_rounding: str | None = None) -> Tensor:
        input = own(input)
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


def _stretched(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return ``value`` as a block of shape ``dims``, sharing its data."""
    if value.type.__class__ is Block and value.type.dims == dims:
        return value
    return Tensor(Handle(value.handle.data, value.dtype), block(value.dtype, dims))


SEMANTIC = Semantic(Builder())


def truth(value: Any) -> Any:
    """Return ``value`` as the condition of an if, while, assert or conditional expression."""
    if value.__class__ is Tensor:
        if value.numel != 1:
            raise BlockCondition(
                f"a condition needs a scalar, got a block of shape {list(value.shape)}. Use tl.where for a choice per "
                "element, or reduce the block first."
            )
        return bool(value.handle.data.reshape(-1)[0])
    if isinstance(value, _CONDITION):
        return truth(value.condition)
    return value


def check(condition: Any, message: Any = "") -> None:
    """Run an ``assert`` statement, for every element where ``condition`` is a tensor."""
    if condition.__class__ is Tensor:
        SEMANTIC.device_assert(condition, message, None)
    elif not condition:
        raise AssertionError(message)


def _as_bool(value: Tensor) -> Tensor:
    return SEMANTIC.cast(value, tl.int1)


def logical_and(left: Any, right: Callable[[], Any]) -> Any:
    """Return ``left and right()``: elementwise for tensors, short-circuit for compile-time values."""
    if left.__class__ is not Tensor:
        return right() if left else left
    other = right()
    if other.__class__ is not Tensor:
        return left if other else other
    return SEMANTIC.and_(_as_bool(left), _as_bool(other))


def logical_or(left: Any, right: Callable[[], Any]) -> Any:
    """Return ``left or right()``: elementwise for tensors, short-circuit for compile-time values."""
    if left.__class__ is not Tensor:
        return left if left else right()
    other = right()
    if other.__class__ is not Tensor:
        return other if other else left
    return SEMANTIC.or_(_as_bool(left), _as_bool(other))


def logical_not(value: Any) -> Any:
    """Return ``not value``: elementwise for a tensor."""
    if value.__class__ is Tensor:
        return SEMANTIC.not_(_as_bool(value))
    return not value


def hint(value: Any, _promise: Any) -> Any:
    """Return ``value``: ``tl.multiple_of``, ``tl.max_contiguous`` and ``tl.max_constancy`` have no effect here."""
    return value


def assigned(value: Any) -> Any:
    """Return the value of a name after ``name = value``: numbers become tensors, as in a compiled kernel."""
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


def tensor_range(arg1: Any, arg2: Any = None, step: Any = None, *_: Any, **__: Any) -> Iterator[Tensor]:
    """Yield the int32 (or wider) scalars of ``range`` and ``tl.range``. Further arguments are pipelining hints.

    Raises:
        OverflowError: the counter wraps around before it passes the end, so that the loop never ends on a GPU.
    """
    if arg2 is None:
        arg1, arg2 = 0, arg1
    bounds = [SEMANTIC.to_tensor(b) for b in (arg1, arg2, 1 if step is None else step)]
    dtype = bounds[0].dtype
    for bound in bounds[1:]:
        dtype = SEMANTIC.integer_promote_impl(dtype, bound.dtype)
    held = HELD[dtype.name]
    counted = range(*[int(b.handle.data[0]) for b in bounds])
    for i in counted:
        yield Tensor(Handle(np.array([i], held), dtype, ()), dtype)
    after = counted[-1] + counted.step if counted else counted.start
    if after > np.iinfo(held).max:
        raise OverflowError(
            f"{SEMANTIC.builder.place}: the counter of a loop goes from {counted[-1]} to {after}, which {dtype} cannot hold, so "
            f"that it never passes {counted.stop}; decorate the kernel with index_dtype=torch.int64."
        )


def static_range(arg1: Any, arg2: Any = None, step: Any = None) -> range:
    """Return the compile-time integers of ``tl.static_range``."""
    if arg2 is None:
        arg1, arg2 = 0, arg1
    return range(_static(arg1), _static(arg2), 1 if step is None else _static(step))


def _static(value: Any) -> int:
    if isinstance(value, Tensor):
        raise TypeError("tl.static_range needs compile-time bounds, got a tensor; use tl.range")
    return int(getattr(value, "value", value))
