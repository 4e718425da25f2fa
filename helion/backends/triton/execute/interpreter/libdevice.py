"""CUDA's libdevice functions on numpy arrays, by their symbol (``__nv_erff``, ``__nv_pow`` ...).

Triton's ``libdevice`` module maps a call to a symbol and a result type, for each argument type the library takes; the
mapping is used unchanged, so argument checks and result types are the device's. Results here are within a few units in
the last place of the exact value. Functions without a numpy or torch counterpart raise NotImplementedError in the
kernel: Bessel functions of order n, and additions, multiplications, divisions and roots rounded up or down.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import numerics

Function = Callable[..., Any]


def _special(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    return lambda x: numerics.apply_torch(function, x)


def _in_float64(function: Function) -> Function:
    """Return ``function`` computed in float64 and rounded to the type of its first argument."""

    def wide(*args: np.ndarray) -> np.ndarray:
        return np.asarray(function(*[a.astype(np.float64) for a in args])).astype(args[0].dtype)

    return wide


def _pi(function: Function) -> Function:
    """Return sin or cos of pi times the argument, reduced exactly before the multiplication."""

    def reduced(x: np.ndarray) -> np.ndarray:
        return np.where(np.isinf(x), np.nan, function(np.pi * np.fmod(x.astype(np.float64), 2.0)))

    return reduced


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x, y.astype(x.dtype))


def _norm(*parts: np.ndarray) -> np.ndarray:
    return functools.reduce(np.hypot, parts)


def _reciprocal(function: Function) -> Function:
    return lambda *args: 1.0 / function(*args)


def _gamma(x: np.ndarray) -> np.ndarray:
    pole = (x <= 0) & (x == np.floor(x))
    magnitude = np.exp(_LGAMMA(np.where(pole, 1.0, x)))
    # The sign of gamma alternates between the negative integers.
    negative = (x < 0) & (np.mod(np.floor(x), 2.0) == 1.0)
    value = np.where(negative, -magnitude, magnitude)
    value = np.where(pole, np.where(x == 0, np.copysign(np.inf, x), np.nan), value)
    # exp(lgamma) carries lgamma's error; small integers have exact factorials.
    whole = (x == np.floor(x)) & (x > 0) & (x < 24)
    return np.where(whole, np.round(value), value)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the IEEE remainder: that of the quotient rounded to nearest even."""
    r = np.fmod(x, y)
    magnitude, bound = np.abs(r), np.abs(y)
    odd = np.mod(np.floor(np.abs(np.fmod(x, 2 * y)) / bound), 2.0) == 1.0
    away = (magnitude > bound / 2) | ((magnitude == bound / 2) & odd)
    return np.where(np.isinf(y) & np.isfinite(x), x, np.where(away, r - np.copysign(bound, r), r))


def _round_half_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), np.copysign(whole, x)).astype(x.dtype)


def _logb(x: np.ndarray) -> np.ndarray:
    exponent = np.frexp(x)[1] - 1.0
    return np.where(x == 0, -np.inf, np.where(np.isinf(x), np.inf, np.where(np.isnan(x), np.nan, exponent)))


def _ilogb(x: np.ndarray) -> np.ndarray:
    exponent = np.frexp(x)[1].astype(np.int64) - 1
    exponent = np.where(np.isinf(x), 2**31 - 1, np.where((x == 0) | np.isnan(x), -(2**31), exponent))
    return exponent.astype(np.int32)


def _count_leading_zeros(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    u = x.view(f"u{x.dtype.itemsize}")
    count = np.full(u.shape, bits, np.int32)
    for bit in range(bits):
        count = np.where((u >> u.dtype.type(bit)) & u.dtype.type(1) != 0, bits - 1 - bit, count)
    return count


def _bits(x: np.ndarray) -> np.ndarray:
    """Return the bits of integers, lowest first, along a new last axis."""
    contiguous = np.ascontiguousarray(x)
    octets = contiguous.view(np.uint8).reshape((*x.shape, x.dtype.itemsize))
    return np.unpackbits(octets, axis=-1, bitorder="little")


def _population(x: np.ndarray) -> np.ndarray:
    return _bits(x).sum(axis=-1, dtype=np.int32)


def _reverse_bits(x: np.ndarray) -> np.ndarray:
    octets = np.packbits(_bits(x)[..., ::-1], axis=-1, bitorder="little")
    return octets.view(x.dtype).reshape(x.shape)


def _find_first_set(x: np.ndarray) -> np.ndarray:
    bits = _bits(x)
    return np.where(bits.any(axis=-1), bits.argmax(axis=-1) + 1, 0).astype(np.int32)


def _permute_bytes(x: np.ndarray, y: np.ndarray, selector: np.ndarray) -> np.ndarray:
    octets = (y.view(np.uint32).astype(np.uint64) << np.uint64(32)) | x.view(np.uint32)
    result = np.zeros(np.broadcast_shapes(x.shape, y.shape, selector.shape), np.uint32)
    for i in range(4):
        nibble = (selector.view(np.uint32) >> np.uint32(4 * i)) & np.uint32(7)
        octet = (octets >> (nibble.astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
        result |= octet.astype(np.uint32) << np.uint32(8 * i)
    return result.view(np.int32)


def _product_low24(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    shift = x.dtype.type(8)
    return (x << shift >> shift) * (y << shift >> shift)


def _absolute_difference_plus(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    difference = np.abs(x.astype(np.int64) - y.astype(np.int64))
    return (difference + z).astype(z.dtype)


def _half_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x.astype(np.int64) + y) >> 1).astype(x.dtype)


def _half_sum_up(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x.astype(np.int64) + y + 1) >> 1).astype(x.dtype)


def _view(dtype: type) -> Function:
    return lambda x: x.view(dtype)


_LGAMMA = _special(torch.special.gammaln)
_ERFINV = _special(torch.special.erfinv)
_NORMAL_QUANTILE = _special(torch.special.ndtri)

_FLOAT: dict[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "cospi": _pi(np.cos),
    "cyl_bessel_i0": _special(torch.special.i0),
    "cyl_bessel_i1": _special(torch.special.i1),
    "erf": _special(torch.special.erf),
    "erfc": _special(torch.special.erfc),
    "erfcinv": _in_float64(lambda x: -_NORMAL_QUANTILE(x / 2) / np.sqrt(2.0)),
    "erfcx": _special(torch.special.erfcx),
    "erfinv": _ERFINV,
    "exp": np.exp,
    "exp10": _in_float64(lambda x: np.power(10.0, x)),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fabs": np.abs,
    "fast_dividef": np.divide,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0.0)),
    "finite": np.isfinite,
    "floor": np.floor,
    "fma": lambda x, y, z: numerics.fused_multiply_add(x, y, z, "fp64" if z.dtype.itemsize == 8 else "fp32"),
    "fmod": np.fmod,
    "hypot": np.hypot,
    "ilogb": _ilogb,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "j0": _special(torch.special.bessel_j0),
    "j1": _special(torch.special.bessel_j1),
    "ldexp": np.ldexp,
    "lgamma": _LGAMMA,
    "llrint": lambda x: numerics.float_to_int(np.rint(x), "int64"),
    "llround": lambda x: numerics.float_to_int(_round_half_away(x), "int64"),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "logb": _logb,
    "nearbyint": np.rint,
    "nextafter": np.nextafter,
    "norm3d": _norm,
    "norm4d": _norm,
    "normcdf": _special(torch.special.ndtr),
    "normcdfinv": _NORMAL_QUANTILE,
    "pow": _power,
    "powi": _power,
    "rcbrt": _reciprocal(np.cbrt),
    "remainder": _remainder,
    "rhypot": _reciprocal(np.hypot),
    "rint": np.rint,
    "rnorm3d": _reciprocal(_norm),
    "rnorm4d": _reciprocal(_norm),
    "round": _round_half_away,
    "rsqrt": _in_float64(lambda x: 1.0 / np.sqrt(x)),
    "saturate": lambda x: np.where(np.isnan(x), np.float32(0), np.clip(x, 0.0, 1.0)),
    "scalbn": np.ldexp,
    "signbit": np.signbit,
    "sin": np.sin,
    "sinh": np.sinh,
    "sinpi": _pi(np.sin),
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "tgamma": _in_float64(_gamma),
    "trunc": np.trunc,
    "y0": _special(torch.special.bessel_y0),
    "y1": _special(torch.special.bessel_y1),
}
"""By C name; the symbol adds ``__nv_``, and ``f`` for float32 (``d`` or ``f`` to the predicates)."""

_OTHER: dict[str, Function] = {
    "brev": _reverse_bits,
    "brevll": _reverse_bits,
    "byte_perm": _permute_bytes,
    "clz": _count_leading_zeros,
    "clzll": _count_leading_zeros,
    "double2hiint": lambda x: (x.view(np.int64) >> 32).astype(np.int32),
    "double2loint": lambda x: x.view(np.int64).astype(np.int32),
    "double_as_longlong": _view(np.int64),
    "fast_fdividef": np.divide,
    "fast_powf": np.power,
    "ffs": _find_first_set,
    "ffsll": _find_first_set,
    "float_as_int": _view(np.int32),
    "float_as_uint": _view(np.uint32),
    "frsqrt_rn": _in_float64(lambda x: 1.0 / np.sqrt(x)),
    "hadd": _half_sum,
    "hiloint2double": lambda high, low: ((high.astype(np.int64) << 32) | low.view(np.uint32).astype(np.int64)).view(
        np.float64
    ),
    "int_as_float": _view(np.float32),
    "llabs": np.abs,
    "longlong_as_double": _view(np.float64),
    "mul24": _product_low24,
    "mul64hi": numerics.multiply_high,
    "mulhi": numerics.multiply_high,
    "popc": _population,
    "popcll": _population,
    "rhadd": _half_sum_up,
    "sad": _absolute_difference_plus,
    "uhadd": _half_sum,
    "uint_as_float": _view(np.float32),
    "umul24": _product_low24,
    "umul64hi": numerics.multiply_high,
    "umulhi": numerics.multiply_high,
    "urhadd": _half_sum_up,
    "usad": _absolute_difference_plus,
}

_ROUND_TO_NEAREST: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}

_TO_WHOLE: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {"int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}


def _conversion(name: str) -> Function | None:
    """Return the conversion ``float2int_rd``, ``ull2double_rn`` and the like."""
    pair, _, mode = name.rpartition("_")
    source, _, target = pair.partition("2")
    if source in ("float", "double") and target in _INTEGERS and mode in _TO_WHOLE:
        return lambda x: numerics.float_to_int(_TO_WHOLE[mode](x), _INTEGERS[target])
    if mode != "rn":
        return None
    if source in _INTEGERS and target in ("float", "double"):
        return lambda x: x.astype(np.float32 if target == "float" else np.float64)
    if pair == "double2float":
        return lambda x: x.astype(np.float32)
    return None


@functools.cache
def function(symbol: str) -> Function | None:
    """Return the numpy function for a libdevice symbol, or None where there is none.

    It takes numpy arrays of the argument types and returns an array to be cast to the symbol's result type.
    """
    name = symbol.removeprefix("__nv_")
    if name in _OTHER:
        return _OTHER[name]
    fast = name.removeprefix("fast_")
    for candidate in (fast, fast[:-1] if fast[-1:] in ("f", "d") else fast):
        if candidate in _FLOAT:
            return _FLOAT[candidate]
    if name.startswith("fma"):
        return _FLOAT["fma"] if name.endswith("_rn") else None
    if name[:1] in ("d", "f") and name.endswith("_rn"):
        found = _ROUND_TO_NEAREST.get(name[1:-3])
        if found is not None:
            return found
    return _conversion(name)
