"""Gradients of root-mean-square normalization with respect to input and weight, in one pass over the rows.

The gradient of the weight sums over rows. Every program loops over a block of rows, keeps one sum per feature in
registers and stores it at the end. The host adds the few partial sums.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def rms_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradients of `sum(grad_out * rms_norm(x, weight))` with respect to `x[M, N]` and `weight[N]`."""
    m, n = x.size()
    n = hl.specialize(n)
    block_m = hl.register_block_size(m)
    blocks = helion.cdiv(m, block_m)
    grad_x = torch.empty_like(x)
    partial = torch.empty([blocks, n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m, block_size=block_m):
        sums = hl.zeros([n], dtype=torch.float32)
        for tile_m in hl.tile(rows.begin, rows.end):
            values = x[tile_m, :].to(torch.float32)
            grad = grad_out[tile_m, :].to(torch.float32)
            scale = torch.rsqrt(torch.mean(values * values, dim=-1, keepdim=True) + eps)
            normalised = values * scale
            sums += torch.sum(grad * normalised, dim=0)
            weighted = grad * weight[:].to(torch.float32)
            along = torch.mean(weighted * normalised, dim=-1, keepdim=True)
            grad_x[tile_m, :] = (weighted - normalised * along) * scale
        partial[rows.id, :] = sums
    return grad_x, partial.sum(0).to(weight.dtype)


def reference(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in (x, weight)]
    out = torch.nn.functional.rms_norm(inputs[0], [x.size(-1)], inputs[1], eps)
    return torch.autograd.grad(out, inputs, grad_out)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([45, 301], device=DEVICE) + 0.5
    grad_out = torch.randn([45, 301], device=DEVICE) - 0.25
    weight = torch.randn([301], device=DEVICE) + 1
    return [
        ("fp32", rms_norm_backward, (grad_out, x, weight)),
        ("bf16", rms_norm_backward, (grad_out.bfloat16(), x.bfloat16(), weight.bfloat16())),
        ("fp16, 63 columns, eps 0.1", rms_norm_backward, (grad_out[:, :63].half(), x[:, :63].half(), weight[:63], 0.1)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
