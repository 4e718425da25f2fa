"""Arithmetic of the device's number formats on numpy arrays.

numpy lacks fp16, bf16 and the fp8 formats, here called *narrow*, or is slow at them. They are stored as float32 arrays
whose elements are exactly representable in the narrow format. An operation computes in float32 and rounds its result
with :func:`round_narrow`. float32 has at least 2p + 2 bits for every narrow precision p. So for + - * / and sqrt,
rounding twice gives the same number as the one rounding of the device. For float64 and integer sources and fused
multiply-add, the first rounding is to odd, which restores this.

Names of formats are those of ``triton.language`` dtypes: ``fp32``, ``bf16``, ``fp8e4nv``, ``int1`` ...
"""

from __future__ import annotations

import numpy as np
import torch

NARROW: dict[str, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
}
"""Formats stored as float32, with the torch dtype that has the same bits. (``fp8e4b15`` has none: unsupported.)"""

FP8 = frozenset(name for name in NARROW if name.startswith("fp8"))

_WIDE = {
    "int1": np.bool_,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "uint64": np.uint64,
    "fp32": np.float32,
    "fp64": np.float64,
}

HELD: dict[str, np.dtype] = {name: np.dtype(t) for name, t in _WIDE.items()} | {
    name: np.dtype(np.float32) for name in NARROW
}
"""numpy dtype of the array that stores values of a format."""

RAW: dict[str, np.dtype] = {name: np.dtype(t) for name, t in _WIDE.items()} | {
    name: np.dtype(np.float16 if name == "fp16" else np.uint16 if name == "bf16" else np.uint8) for name in NARROW
}
"""numpy dtype of a format's bits in memory."""

_SAME_SIZE_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BF16_QUIET_NAN = np.uint32(0x7FC00000)


def _torch(array: np.ndarray) -> torch.Tensor:
    """Return a tensor on ``array``'s memory, copied first when torch cannot use that memory."""
    flags = array.flags
    if not (flags.writeable and flags.c_contiguous):
        array = np.array(array, order="C")
    return torch.from_numpy(array)


def apply_torch(function: object, *arrays: np.ndarray) -> np.ndarray:
    """Apply ``function`` (a torch function on tensors) to float arrays of one shape and return a numpy array."""
    return function(*(_torch(a) for a in arrays)).numpy()  # type: ignore[operator]


_FP8_TABLES: dict[str, np.ndarray] = {
    name: torch.arange(256, dtype=torch.uint8, device="cpu").view(NARROW[name]).float().numpy() for name in sorted(FP8)
}


def decode(raw: np.ndarray, name: str) -> np.ndarray:
    """Return the values of the memory bits ``raw`` (dtype ``RAW[name]``)."""
    if name not in NARROW:
        return raw
    if name == "bf16":
        wide = raw.astype(np.uint32)
        np.left_shift(wide, 16, out=wide)
        return wide.view(np.float32)
    if name == "fp16":
        return raw.astype(np.float32) if raw.size < 64 else _torch(raw).float().numpy()
    return _FP8_TABLES[name].take(raw)


def encode(held: np.ndarray, name: str) -> np.ndarray:
    """Return the memory bits (dtype ``RAW[name]``) of values; exact, because they are representable."""
    if name not in NARROW:
        return held
    if name == "bf16":
        return (np.right_shift(held.view(np.uint32), 16)).astype(np.uint16)
    if name == "fp16":
        return held.astype(np.float16) if held.size < 64 else _torch(held).half().numpy()
    return _torch(held).to(NARROW[name]).view(torch.uint8).numpy()


def round_narrow(x: np.ndarray, name: str) -> np.ndarray:
    """Return ``x`` (float32) rounded to nearest-even in the narrow format ``name``, as float32.

    fp16 and bf16 overflow to infinity. fp8 saturates at its largest finite number, infinities included, as the device's
    ``cvt.rn.satfinite`` does. NaN stays NaN.
    """
    if name == "bf16":
        bits = x.view(np.uint32)
        rounded = np.asarray(np.right_shift(bits, 16))  # of a single element numpy makes a scalar
        np.bitwise_and(rounded, 1, out=rounded)
        np.add(rounded, 0x7FFF, out=rounded)
        np.add(rounded, bits, out=rounded)
        np.bitwise_and(rounded, 0xFFFF0000, out=rounded)
        nan = np.not_equal(x, x)
        if nan.any():
            # A NaN that is already a bf16 keeps its bits, so that a copied tensor stays the same.
            keep = np.equal(np.bitwise_and(bits, 0xFFFF), 0)
            rounded = np.where(nan, np.where(keep, bits, _BF16_QUIET_NAN), rounded)
        return rounded.view(np.float32)
    if name == "fp16":
        if x.size < 64:
            return x.astype(np.float16).astype(np.float32)
        return _torch(x).half().float().numpy()
    dtype = NARROW[name]
    limit = torch.finfo(dtype).max
    return _torch(x).clamp(-limit, limit).to(dtype).float().numpy()


def round_narrow_to_zero(x: np.ndarray, name: str) -> np.ndarray:
    """Return ``x`` (float32) rounded toward zero in the narrow format ``name``, as float32."""
    nearest = round_narrow(x, name)
    raw = encode(nearest, name).view(_SAME_SIZE_UNSIGNED[RAW[name].itemsize])
    # Sign and magnitude: the next number toward zero is one less in bits, also from infinity to the largest finite.
    raw = (raw - (np.abs(nearest) > np.abs(x))).astype(raw.dtype).view(RAW[name])
    return decode(raw, name)


def round_to_odd(x: np.ndarray) -> np.ndarray:
    """Return float64 ``x`` as float32: exact where possible, else the neighbour whose last bit is set.

    A later rounding to a format at least two bits narrower then equals one rounding of ``x``.
    """
    nearest = x.astype(np.float32)
    back = nearest.astype(np.float64)
    inexact = np.not_equal(back, x) & np.equal(x, x)
    bits = nearest.view(np.uint32) - (np.abs(back) > np.abs(x))
    return (bits.astype(np.uint32) | inexact).view(np.float32)


def float_to_float(x: np.ndarray, source: str, target: str) -> np.ndarray:
    """Return values of ``source`` converted to ``target``, rounded once, to nearest even."""
    if target == source:
        return x
    if target == "fp64":
        return x.astype(np.float64)
    if source == "fp64":
        return x.astype(np.float32) if target == "fp32" else round_narrow(round_to_odd(x), target)
    return x if target == "fp32" else round_narrow(x, target)


def float_to_float_toward_zero(x: np.ndarray, target: str) -> np.ndarray:
    """Return floats converted to a format ``target`` of fewer bits, rounded toward zero."""
    if x.dtype == np.float64:
        nearest = x.astype(np.float32)
        # Rounding to odd would be away from zero in fp32 itself; the neighbour toward zero serves narrow targets as
        # well.
        x = np.where(np.abs(nearest.astype(np.float64)) > np.abs(x), np.nextafter(nearest, np.float32(0)), nearest)
    return x if target == "fp32" else round_narrow_to_zero(x, target)


def int_to_float(x: np.ndarray, target: str) -> np.ndarray:
    """Return integers (or bools) as values of the float format ``target``, rounded once."""
    if target not in NARROW:
        return x.astype(HELD[target])
    if x.dtype.itemsize < 4:
        return round_narrow(x.astype(np.float32), target)
    if x.dtype.itemsize == 8:
        # float64 has 53 bits. Larger numbers fold their lower bits into one sticky bit.
        large = np.abs(x.astype(np.float64)) >= 2.0**53
        if large.any():
            low = x & x.dtype.type(0x7FF)
            sticky = (x - low) | np.where(low != 0, x.dtype.type(0x400), x.dtype.type(0))
            x = np.where(large, sticky, x)
    return round_narrow(round_to_odd(x.astype(np.float64)), target)


def float_to_int(x: np.ndarray, target: str) -> np.ndarray:
    """Return floats as integers of ``target``: toward zero, saturating, NaN as PTX ``cvt`` defines it.

    8-bit targets go through 16 bits and wrap, which is what Triton generates (``cvt.rzi.s16.f32`` and a truncating
    store). NaN gives 0, or the sign bit alone when either side has 64 bits.
    """
    final = HELD[target]
    through = np.dtype(np.int16 if final.kind == "i" else np.uint16) if final.itemsize == 1 else final
    info = np.iinfo(through)
    # The largest float below max + 1 is the largest that converts; max itself may not be a float.
    whole = np.trunc(x)
    high = whole >= float(info.max) + 1.0 if through.itemsize >= 4 else whole > info.max
    low = whole < info.min
    nan = np.not_equal(x, x)
    odd = high | low | nan
    if not odd.any():
        return whole.astype(through).astype(final)
    result = np.where(odd, 0, whole).astype(through)
    result[high] = info.max
    result[low] = info.min
    if x.dtype.itemsize == 8 or through.itemsize == 8:
        result[nan] = np.array(1 << (through.itemsize * 8 - 1), _SAME_SIZE_UNSIGNED[through.itemsize]).view(through)
    return result.astype(final)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Dekker's exact product of float64 numbers whose magnitudes are far from overflow."""

    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        c = 134217729.0 * x  # 2^27 + 1
        high = c - (c - x)
        return high, x - high

    product = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return float64 ``a + b`` rounded to odd."""
    total, error = _two_sum(a, b)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    adjust = (error != 0) & (bits & 1 == 0) & np.isfinite(total) & np.isfinite(error)
    return np.where(adjust, bits + step, bits).view(np.float64)


def fused_multiply_add(x: np.ndarray, y: np.ndarray, z: np.ndarray, name: str) -> np.ndarray:
    """Return ``x * y + z`` with one rounding, to nearest even (Boldo and Melquiond, 2008)."""
    if name != "fp64":
        # The product of two 24-bit significands is exact in float64.
        total = _odd_sum(x.astype(np.float64) * y, z.astype(np.float64))
        return total.astype(np.float32) if name == "fp32" else round_narrow(round_to_odd(total), name)
    product, product_error = _two_product(x, y)
    low_sum, low_error = _two_sum(z, product_error)
    high, high_error = _two_sum(product, low_sum)
    exact = high + _odd_sum(low_error, high_error)
    plain = x * y + z
    return np.where(np.isfinite(exact), exact, plain)


def divide_integers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the quotient rounded toward zero, like the device; division by zero gives an unspecified number."""
    if a.dtype.kind == "u":
        return np.floor_divide(a, b)
    remainder = np.fmod(a, b)
    return np.floor_divide(a - remainder, b)


def multiply_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the upper half of the double-width product of integers of one dtype."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> (a.dtype.itemsize * 8)).astype(a.dtype)
    ua, ub = a.view(np.uint64), b.view(np.uint64)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = ua & mask, ua >> half, ub & mask, ub >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    carry = a_low * b_high + (middle & mask)
    high = a_high * b_high + (middle >> half) + (carry >> half)
    if a.dtype.kind == "u":
        return high
    # Two's complement: each negative factor is itself minus 2^64.
    zero = np.uint64(0)
    return (high - np.where(a < 0, ub, zero) - np.where(b < 0, ua, zero)).view(np.int64)


_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
E2M1_TABLE = np.concatenate([_E2M1, -_E2M1])
"""Value of each 4-bit code of the OCP MX format E2M1 (sign, 2 exponent bits, 1 mantissa bit)."""


def decode_e8m0(raw: np.ndarray) -> np.ndarray:
    """Return float32 powers of two of the OCP MX scale format E8M0 (uint8 exponents, bias 127, 255 is NaN)."""
    return np.where(raw == 255, np.float32(np.nan), np.ldexp(np.float32(1), raw.astype(np.int32) - 127))


def convert(x: np.ndarray, source: str, target: str) -> np.ndarray:
    """Return values of format ``source`` as values of ``target``, like a Triton cast."""
    held = HELD[target]
    if target == "int1":
        return np.not_equal(x, 0)
    if held.kind == "f":
        return float_to_float(x, source, target) if HELD[source].kind == "f" else int_to_float(x, target)
    return float_to_int(x, target) if HELD[source].kind == "f" else x.astype(held)
