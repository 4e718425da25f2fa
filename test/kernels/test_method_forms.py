"""Functions and methods of torch that take their operands in an order of their own, on every kind of dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32)
#: By name: a, b and c have the dtype, p, q and r are bool.
FORMS: dict[str, Callable[..., Any]] = {
    "torch.where": lambda a, b, c, p, q, r: torch.where(p, a, b),
    "where": lambda a, b, c, p, q, r: a.where(p, b),
    "where by keyword": lambda a, b, c, p, q, r: a.where(condition=p, other=b),
    "where number": lambda a, b, c, p, q, r: a.where(p, 3),
    "torch.where number": lambda a, b, c, p, q, r: torch.where(p, 2, a),
    "where of bools": lambda a, b, c, p, q, r: p.where(q, r),
    "torch.where of bools": lambda a, b, c, p, q, r: torch.where(p, q, r),
    "where of a comparison": lambda a, b, c, p, q, r: p.where(a > b, q),
    "masked_fill": lambda a, b, c, p, q, r: a.masked_fill(p, 1),
    "torch.masked_fill": lambda a, b, c, p, q, r: torch.masked_fill(a, p, 1),
    "torch.rsub": lambda a, b, c, p, q, r: torch.rsub(a, b, alpha=2),
    "rsub": lambda a, b, c, p, q, r: 3 - a,
    "sub": lambda a, b, c, p, q, r: a.sub(b, alpha=2),
    "torch.sub": lambda a, b, c, p, q, r: torch.sub(a, b, alpha=3),
    "rdiv": lambda a, b, c, p, q, r: 3 / (a + 4),
    "torch.div": lambda a, b, c, p, q, r: torch.div(a, c, rounding_mode="trunc"),
    "rfloordiv": lambda a, b, c, p, q, r: 7 // c,
    "rmod": lambda a, b, c, p, q, r: 7 % c,
    "torch.remainder": lambda a, b, c, p, q, r: torch.remainder(7, c),
    "fmod": lambda a, b, c, p, q, r: a.fmod(c),
    "lerp": lambda a, b, c, p, q, r: a.lerp(b, c),
    "torch.lerp": lambda a, b, c, p, q, r: torch.lerp(a, b, 0.25),
    "clamp": lambda a, b, c, p, q, r: a.clamp(b, c),
    "clamp by keyword": lambda a, b, c, p, q, r: torch.clamp(a, max=b, min=c),
    "clamp_max": lambda a, b, c, p, q, r: a.clamp_max(b),
    "addcmul": lambda a, b, c, p, q, r: a.addcmul(b, c, value=2),
    "addcmul of a half": lambda a, b, c, p, q, r: torch.addcmul(a, b, c, value=0.5),
    "addcdiv": lambda a, b, c, p, q, r: torch.addcdiv(a, b, c, value=2),
    "pow": lambda a, b, c, p, q, r: c.pow(2),
    "rpow": lambda a, b, c, p, q, r: 2**c,
    "torch.pow": lambda a, b, c, p, q, r: torch.pow(2, c),
    "atan2": lambda a, b, c, p, q, r: a.atan2(c),
    "copysign": lambda a, b, c, p, q, r: torch.copysign(a, b),
    "xlogy": lambda a, b, c, p, q, r: torch.xlogy(2, c),
    "heaviside": lambda a, b, c, p, q, r: a.heaviside(b),
    "rshift": lambda a, b, c, p, q, r: 64 >> c,
    "compared": lambda a, b, c, p, q, r: 2 < a,
    "gt": lambda a, b, c, p, q, r: a.gt(other=b),
    "max": lambda a, b, c, p, q, r: a.max(b),
    "bools": lambda a, b, c, p, q, r: (p < q) ^ (p & ~r),
}  # fmt: skip


@helion.kernel(config=helion.Config(block_sizes=[4]))
def kernel(values: list[torch.Tensor], out: torch.Tensor, f: Callable[..., Any]) -> None:
    for t in hl.tile(out.size(0)):
        out[t, :] = f(
            values[0][t, :], values[1][t, :], values[2][t, :], values[3][t, :], values[4][t, :], values[5][t, :]
        )


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randint(0 if dtype == torch.uint8 else -4, 6, (3, 8), generator=generator) for _ in range(2)]
    drawn.append(torch.randint(1, 6, (3, 8), generator=generator))
    flags = [torch.rand(3, 8, generator=generator) > 0.5 for _ in range(3)]
    return [(v > 0) if dtype == torch.bool else (v * 0.75).to(dtype) if dtype.is_floating_point else v.to(dtype)
            for v in drawn] + flags  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forms(dtype: torch.dtype) -> None:
    values, compared = operands(dtype), 0
    for name, f in FORMS.items():
        try:
            expected = f(*values)
        except (RuntimeError, NotImplementedError):
            continue  # torch does not have it for this dtype
        out = torch.empty(3, 8, dtype=expected.dtype)
        try:
            kernel(values, out, f)
        except (exc.TypeInferenceError, exc.TorchOpTracingError, exc.UnsupportedTorchFunction):
            continue  # refused
        torch.testing.assert_close(
            out, expected, rtol=2e-3, atol=1e-5, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
        compared += 1
    assert compared >= 25
