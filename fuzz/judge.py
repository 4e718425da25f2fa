"""Error bounds of a fuzzed kernel, by Monte Carlo arithmetic on its fp64 reference.

The reference runs once as it is and ``TRIALS`` times with noise: each floating result of an operation is multiplied by
``1 + u * r``, r uniform in [-1, 1]. ``u`` is the unit roundoff of the least precise dtype that values pass through.

- An operation that adds up n terms gets ``1 + (u + 2**-24 * sqrt(n)) * r``, and its operands ``1 + 2**-24 * r``.
- The operands of a sum or difference get ``1 + 2**-22 * r``: a GPU adds an operand that is a product unrounded (FMA).
- A matmul over k gets ``1 + (u + 2**-22 * sqrt(k)) * r``: tensor cores truncate the terms of the accumulation. Its
  operands get the roundoff of their dtype. TF32 operands are truncated, not rounded: ``1 - 2 * u * r``, r uniform in
  [0, 1].

The bound of an element is

    SAFETY * max(its spread, mean spread of the tensor) + 2 * roundoff(output) * |value| + 8 * min(tiny(output), 2**-24)

where the spread is the largest distance of a noisy run from the exact one. Integers and bools are compared exactly. A
reproducer carries the text of this module: it imports torch and the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TRIALS = 4
SAFETY = 8.0
#: Unit roundoff by dtype. fp32 has two bits less than it could: GPUs approximate exponentials and divisions.
ROUNDOFF = {
    "float64": 2.0**-50,
    "float32": 2.0**-22,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
#: Numbers of this size are hidden elements. They are constants that nothing rounds: a row of them has a softmax.
MASKED = 1e20
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_ADDING = (
    "sum",
    "mean",
    "var",
    "cumsum",
    "cumprod",
    "prod",
    "logsumexp",
    "_softmax",
    "linalg_vector_norm",
    "index_put",
)
_FUSED = ("add", "sub", "rsub")
_MOVING = ("view", "expand", "permute", "slice", "select", "transpose", "t", "unsqueeze", "squeeze", "clone", "copy_")
_CHOOSING = ("where", "amax", "amin", "max", "min", "index", "gather", "flip", "detach", "alias", "_to_copy", "fill_")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Names of dtypes, keys of ``ROUNDOFF``: the least precise one of values, and that of matmul operands."""

    values: str = "float32"
    operands: str = "float32"


class Noise(TorchDispatchMode):
    """Mode that multiplies the results of operations by numbers close to 1."""

    def __init__(self, precision: Precision, seed: int) -> None:
        super().__init__()
        self.values, self.operands = ROUNDOFF[precision.values], ROUNDOFF[precision.operands]
        self.cut_off = precision.operands == "tf32"
        self.generator = torch.Generator().manual_seed(seed)

    def noisy(self, value: Any, size: float, cut_off: bool = False) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        noise = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        factor = 1 + size * (noise - 1 if cut_off else noise)
        return torch.where(value.abs() < MASKED, value * factor, value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        if name in _MOVING or name in _CHOOSING:
            return func(*args, **kwargs)
        if name in _PRODUCTS:
            args = (*args[:-2], *(self.noisy(each, self.operands, self.cut_off) for each in args[-2:]))
            return self.noisy(func(*args, **kwargs), self.values + 2.0**-22 * math.sqrt(args[-2].shape[-1]))
        size = self.values
        if name in _ADDING:
            args = tuple(self.noisy(each, 2.0**-24) for each in args)
        elif name in _FUSED:
            args = tuple(self.noisy(each, ROUNDOFF["float32"]) for each in args)
        result = func(*args, **kwargs)
        if name in _ADDING:
            size += 2.0**-24 * math.sqrt(_terms(args[0], result))
        if name == "_log_softmax":  # a difference of numbers of the operand's size, which are rounded
            result = result + self.noisy(args[0], ROUNDOFF["float32"]) - args[0]
        if isinstance(result, tuple):
            return tuple(self.noisy(each, size) for each in result)
        return result if name.endswith("_") else self.noisy(result, size)


def _terms(operand: torch.Tensor, result: Any) -> float:
    """Return about how many terms each element of ``result`` adds up."""
    if isinstance(result, torch.Tensor) and result.shape != operand.shape:
        return max(operand.numel() / max(result.numel(), 1), 1.0)
    return float(max(operand.shape, default=1))


@dataclass(frozen=True)
class Expected:
    """The expected result: its value in fp64, int64 or bool, and the spread of noisy runs around it."""

    value: torch.Tensor
    spread: torch.Tensor


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result, which is one or a tuple of them."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def expect(
    reference: Callable[..., Any], args: tuple[torch.Tensor, ...], precision: Precision, seed: int
) -> tuple[Expected, ...]:
    """Run ``reference`` on exact ``args`` with and without noise.

    Raises ValueError for a reference that gives infinities or NaN, by which nothing can be judged.
    """
    values = list(leaves(reference(*(each.clone() for each in args))))
    spreads = [torch.zeros(each.shape, dtype=torch.float64) for each in values]
    for number, each in enumerate(values):
        if each.is_floating_point() and not bool(torch.isfinite(each).all()):
            raise ValueError(f"result {number} of the reference is not finite")
    for trial in range(TRIALS):
        with Noise(precision, seed * 31 + trial):
            noisy = list(leaves(reference(*(each.clone() for each in args))))
        for number, (exact, near) in enumerate(zip(values, noisy, strict=True)):
            if exact.is_floating_point():
                spreads[number] = torch.maximum(spreads[number], (near - exact).abs())
                if not bool(torch.isfinite(spreads[number]).all()):
                    raise ValueError(f"result {number} of the reference is not finite with noise")
    return tuple(Expected(value, spread) for value, spread in zip(values, spreads, strict=True))


def verdict(results: Any, expected: tuple[Expected, ...]) -> str:
    """Describe what is wrong with ``results``; "" if they are right."""
    found = list(leaves(results))
    if len(found) != len(expected):
        return f"{len(found)} results, the reference has {len(expected)}"
    for number, (result, right) in enumerate(zip(found, expected, strict=True)):
        wrong = difference(result.detach().cpu(), right)
        if wrong:
            return f"result {number}: {wrong}"
    return ""


def difference(result: torch.Tensor, expected: Expected) -> str:
    """Describe the difference between ``result`` and the expected one; "" if it is within its bound."""
    value = expected.value
    if result.shape != value.shape:
        return f"shape {list(result.shape)}, not {list(value.shape)}"
    if result.numel() == 0:
        return ""
    if not result.dtype.is_floating_point:
        bad = result.to(value.dtype) != value
        return _worst(bad, bad.double(), result, value)
    got = result.double()
    info = torch.finfo(result.dtype)
    spread = torch.maximum(expected.spread, expected.spread.mean())
    roundoff = ROUNDOFF.get(str(result.dtype).removeprefix("torch."), info.eps)
    bound = SAFETY * spread + 2 * roundoff * value.abs() + 8 * min(float(info.tiny), 2.0**-24)
    gap = (got - value).abs()
    bad = ~(gap <= bound)  # a NaN is bad
    return _worst(bad, torch.where(torch.isnan(gap), math.inf, gap / bound), result, value)


def _worst(bad: torch.Tensor, excess: torch.Tensor, result: torch.Tensor, value: torch.Tensor) -> str:
    if not bool(bad.any()):
        return ""
    at = int(torch.where(bad, excess, -1.0).argmax())
    place = [int(each) for each in torch.unravel_index(torch.tensor(at), result.shape)]
    got, want = result.reshape(-1)[at].item(), value.reshape(-1)[at].item()
    share = f"{int(bad.sum())} of {bad.numel()} elements are wrong"
    return f"{share}; the worst, at {place}, is {got!r} and should be {want!r} ({float(excess.reshape(-1)[at]):.3g} of its bound)"
