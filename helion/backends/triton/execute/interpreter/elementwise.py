"""Elementwise operations of the builder: arithmetic, comparisons, conversions, math functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir

from . import libdevice, numerics
from .numerics import HELD, NARROW, RAW
from .values import Handle

Arrays = Callable[..., np.ndarray]
Operation = Callable[..., Handle]


def signed(x: np.ndarray) -> np.ndarray:
    """Return integers reinterpreted as signed."""
    return x.view(f"i{x.dtype.itemsize}") if x.dtype.kind == "u" else x


def unsigned(x: np.ndarray) -> np.ndarray:
    """Return integers reinterpreted as unsigned."""
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "i" else x


def _float(function: Arrays) -> Operation:
    """Return an operation on floats of one format, whose result is rounded to that format."""

    def operation(self: object, first: Handle, *others: Handle) -> Handle:
        dtype = first.dtype
        result = function(first.data, *[o.data for o in others])
        if dtype.name in NARROW:
            result = numerics.round_narrow(result, dtype.name)
        return Handle(result, dtype, first.shape)

    return operation


def _exact(function: Arrays) -> Operation:
    """Return an operation whose results are representable in the operands' format without rounding."""

    def operation(self: object, first: Handle, *others: Handle) -> Handle:
        return Handle(function(first.data, *[o.data for o in others]), first.dtype, first.shape)

    return operation


def _integer(function: Arrays, view: Arrays) -> Operation:
    """Return an operation on integers reinterpreted as signed or unsigned."""

    def operation(self: object, first: Handle, *others: Handle) -> Handle:
        return Handle(function(view(first.data), *[view(o.data) for o in others]), first.dtype, first.shape)

    return operation


def _modular(function: Arrays, on_bools: Arrays) -> Operation:
    """Return integer arithmetic modulo 2^bits; numpy's arithmetic on bools is not modulo 2."""

    def operation(self: object, left: Handle, right: Handle) -> Handle:
        chosen = on_bools if left.data.dtype.kind == "b" else function
        return Handle(chosen(left.data, right.data), left.dtype, left.shape)

    return operation


def _compare(function: Arrays, view: Arrays | None = None) -> Operation:
    def operation(self: object, left: Handle, right: Handle) -> Handle:
        if view is None:
            return Handle(function(left.data, right.data), tl.int1, left.shape)
        return Handle(function(view(left.data), view(right.data)), tl.int1, left.shape)

    return operation


def _torch_math(function: Callable[[torch.Tensor], torch.Tensor]) -> Arrays:
    return lambda x: numerics.apply_torch(function, x)


def _reciprocal_root(x: np.ndarray) -> np.ndarray:
    # float64 limits 1/sqrt to the one final rounding, against which the device's approximation is measured.
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(x.dtype)


class Elementwise:
    """Builder methods whose result element depends on the operands' elements at the same position."""

    @property
    def place(self) -> str:
        """The kernel and program, for messages."""
        raise NotImplementedError

    create_fadd = _float(np.add)
    create_fsub = _float(np.subtract)
    create_fmul = _float(np.multiply)
    create_fdiv = create_precise_divf = create_approx_divf = _float(np.divide)
    create_frem = _float(np.fmod)
    create_fneg = _exact(np.negative)
    create_fabs = create_iabs = _exact(np.abs)
    create_floor = _float(np.floor)
    create_ceil = _float(np.ceil)
    create_sqrt = create_precise_sqrt = _float(np.sqrt)
    create_rsqrt = _float(_reciprocal_root)
    create_exp = _float(np.exp)
    create_exp2 = _float(np.exp2)
    create_log = _float(np.log)
    create_log2 = _float(np.log2)
    create_sin = _float(np.sin)
    create_cos = _float(np.cos)
    create_erf = _float(_torch_math(torch.special.erf))

    create_minimumf = _exact(np.minimum)
    create_maximumf = _exact(np.maximum)
    create_minnumf = _exact(np.fmin)
    create_maxnumf = _exact(np.fmax)
    create_minsi = _integer(np.minimum, signed)
    create_maxsi = _integer(np.maximum, signed)
    create_minui = _integer(np.minimum, unsigned)
    create_maxui = _integer(np.maximum, unsigned)

    create_add = _modular(np.add, np.logical_xor)
    create_sub = _modular(np.subtract, np.logical_xor)
    create_mul = _modular(np.multiply, np.logical_and)
    create_sdiv = _integer(numerics.divide_integers, signed)
    create_udiv = _integer(numerics.divide_integers, unsigned)
    # The remainder has the sign of the dividend, as in C.
    create_srem = _integer(np.fmod, signed)
    create_urem = _integer(np.fmod, unsigned)
    create_umulhi = _integer(numerics.multiply_high, unsigned)
    create_and = _exact(np.bitwise_and)
    create_or = _exact(np.bitwise_or)
    create_xor = _exact(np.bitwise_xor)
    create_shl = _exact(np.left_shift)
    create_lshr = _integer(np.right_shift, unsigned)
    create_ashr = _integer(np.right_shift, signed)

    create_icmpEQ = create_fcmpOEQ = _compare(np.equal)
    create_icmpNE = create_fcmpUNE = _compare(np.not_equal)
    create_icmpSLT = _compare(np.less, signed)
    create_icmpSLE = _compare(np.less_equal, signed)
    create_icmpSGT = _compare(np.greater, signed)
    create_icmpSGE = _compare(np.greater_equal, signed)
    create_icmpULT = _compare(np.less, unsigned)
    create_icmpULE = _compare(np.less_equal, unsigned)
    create_icmpUGT = _compare(np.greater, unsigned)
    create_icmpUGE = _compare(np.greater_equal, unsigned)
    create_fcmpOLT = _compare(np.less)
    create_fcmpOLE = _compare(np.less_equal)
    create_fcmpOGT = _compare(np.greater)
    create_fcmpOGE = _compare(np.greater_equal)

    def create_select(self, condition: Handle, yes: Handle, no: Handle) -> Handle:
        other = no.data
        if other.dtype != yes.data.dtype:
            # Triton 3.6 to 3.8 give one half of a floating-point tl.atomic_min a pointer's type, hence no sign.
            other = other.view(yes.data.dtype)
        return Handle(np.where(condition.data, yes.data, other), yes.dtype, yes.shape)

    def create_clampf(self, x: Handle, low: Handle, high: Handle, propagate_nan: Any) -> Handle:
        if propagate_nan == tl.PropagateNan.ALL:
            return Handle(np.minimum(np.maximum(x.data, low.data), high.data), x.dtype, x.shape)
        return Handle(np.fmin(np.fmax(x.data, low.data), high.data), x.dtype, x.shape)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        return Handle(numerics.fused_multiply_add(x.data, y.data, z.data, z.dtype.name), z.dtype, z.shape)

    def create_extern_elementwise(
        self, _library: str, _path: str, symbol: str, args: Sequence[Handle], type: tl.dtype, _pure: bool
    ) -> Handle:
        function = libdevice.function(symbol)
        if function is None:
            raise NotImplementedError(
                f"{self.place}: the device library function {symbol!r} does not run on CPU tensors. Use a "
                "triton.language function, or run this kernel on a GPU."
            )
        result = np.asarray(function(*[a.data for a in args])).astype(HELD[type.scalar.name], copy=False)
        return Handle(result, type.scalar, args[0].shape)

    # Conversions.

    def create_fp_ext(self, source: Handle, target: tl.dtype) -> Handle:
        to = target.scalar
        return Handle(numerics.convert(source.data, source.dtype.name, to.name), to, source.shape)

    create_fp_trunc = create_si_to_fp = create_ui_to_fp = create_fp_to_si = create_fp_to_ui = create_fp_ext

    def create_int_cast(self, source: Handle, target: tl.dtype, is_signed: bool) -> Handle:
        data = signed(source.data) if is_signed else unsigned(source.data)
        return Handle(data.astype(HELD[target.scalar.name]), target.scalar, source.shape)

    def create_fp_to_fp(self, source: Handle, target: tl.dtype, rounding: Any) -> Handle:
        to = target.scalar
        if rounding == ir.ROUNDING_MODE.RTZ:
            data = numerics.float_to_float_toward_zero(source.data, to.name)
        else:
            data = numerics.float_to_float(source.data, source.dtype.name, to.name)
        return Handle(data, to, source.shape)

    def create_bitcast(self, source: Handle, target: tl.dtype) -> Handle:
        to = target.scalar
        if to.is_ptr():
            return Handle(source.data, to, source.shape)
        raw = numerics.encode(source.data, source.dtype.name).view(RAW[to.name])
        return Handle(numerics.decode(raw, to.name), to, source.shape)

    def create_ptr_to_int(self, source: Handle, target: tl.dtype) -> Handle:
        return Handle(source.data.view(HELD[target.scalar.name]), target.scalar, source.shape)
