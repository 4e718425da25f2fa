"""Dropout that stores no mask: the backward pass draws the same random numbers again, from the same seed.

One counter gives four numbers, which go to the four quarters of a row. So a number costs a quarter of what `hl.rand` takes.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def dropout(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Drop elements of `x[M, 4, N]` with probability `p`, and divide others by `1 - p`; its gradient is the same function."""
    m, n = x.size(0), x.size(2)
    quarters = hl.specialize(x.size(1))
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        numbers = hl.rand4x(seed, tile_m.index[:, None] * n + tile_n.index[None, :])
        for quarter in hl.static_range(quarters):
            values = x[tile_m, quarter, tile_n].to(torch.float32)
            out[tile_m, quarter, tile_n] = torch.where(numbers[quarter] >= p, values / (1 - p), 0.0)
    return out


class Dropout(torch.autograd.Function):
    """Dropout of `[M, 4 * N]` with a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
        ctx.options = p, seed
        return dropout(x.unflatten(1, (4, -1)), p, seed).flatten(1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return dropout(grads[0].unflatten(1, (4, -1)), *ctx.options).flatten(1), None, None


def philox(counters: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the four 32-bit words of Philox-4x32-10 for each counter, as int64 `[..., 4]`."""
    word = 0xFFFFFFFF
    zero = torch.zeros_like(counters)
    a, b, c, d = counters & word, counters >> 32, zero, zero
    first, second = seed & word, seed >> 32 & word
    for _ in range(10):
        low, high = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (high >> 32 & word) ^ b ^ first, high & word
        c, d = (low >> 32 & word) ^ d ^ second, low & word
        first, second = first + 0x9E3779B9 & word, second + 0xBB67AE85 & word
    return torch.stack([a, b, c, d], -1)


def reference(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    m, quarters, n = x.shape
    words = philox(torch.arange(m * n, device=x.device), seed).view(m, n, 4).transpose(1, 2)[:, :quarters]
    numbers = torch.where(words >= 2**31, 2**32 - 1 - words, words).float() * 4.6566127342e-10
    return torch.where(numbers >= p, x / (1 - p), 0)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([9, 4, 37], device=DEVICE) + 2
    return [
        ("fp32", dropout, (x, 0.25, 7)),
        ("bf16", dropout, (x.bfloat16(), 0.5, 2**40 + 1)),
        ("nothing dropped, fp16", dropout, (x.half(), 0.0, 3)),
    ]


def main() -> None:
    run_cases(cases(), reference)
    x = torch.randn([512, 1024], device=DEVICE, requires_grad=True)
    out: torch.Tensor = Dropout.apply(x, 0.25, 7)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad > 0, out != 0)
    print(f"kept {(out != 0).float().mean():.3f} of the elements, with the same mask in both passes")


if __name__ == "__main__":
    main()
