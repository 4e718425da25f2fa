"""Triton functions in a module of their own, which kernels of other modules call."""

from __future__ import annotations

import triton
import triton.language as T
from triton.language import constexpr as Const
from triton.language import load

SCALE: T.constexpr = T.constexpr(5)
_SHIFT = T.constexpr(7)
LIMIT = float("inf")


class Options:
    BIAS = 2


@triton.jit
def helper(value, EXTRA: Const):
    return value * SCALE + _SHIFT + EXTRA


@triton.jit
def nested(value):
    return T.minimum(helper(value, Options.BIAS), LIMIT) + T.sum(T.zeros([4], T.float32), 0)


@triton.jit
def reader(pointer, place):
    return load(pointer + place)


@triton.jit(noinline=True)
def apart(value):
    return value + SCALE
