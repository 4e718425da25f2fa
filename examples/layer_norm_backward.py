"""Gradients of layer normalization with respect to input, weight and bias, in one pass over the rows.

The gradients of weight and bias sum over rows. Every program loops over a block of rows, keeps one sum per feature in
registers and stores it at the end. The host adds the few partial sums.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def layer_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of `sum(grad_out * layer_norm(x, weight, bias))` with respect to `x[M, N]`, `weight[N]`,
    `bias[N]`."""
    m, n = x.size()
    n = hl.specialize(n)
    block_m = hl.register_block_size(m)
    blocks = helion.cdiv(m, block_m)
    grad_x = torch.empty_like(x)
    partial_weight = torch.empty([blocks, n], dtype=torch.float32, device=x.device)
    partial_bias = torch.empty([blocks, n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m, block_size=block_m):
        sum_weight = hl.zeros([n], dtype=torch.float32)
        sum_bias = hl.zeros([n], dtype=torch.float32)
        for tile_m in hl.tile(rows.begin, rows.end):
            values = x[tile_m, :].to(torch.float32)
            grad = grad_out[tile_m, :].to(torch.float32)
            centred = values - torch.mean(values, dim=-1, keepdim=True)
            scale = torch.rsqrt(torch.mean(centred * centred, dim=-1, keepdim=True) + eps)
            normalised = centred * scale
            sum_weight += torch.sum(grad * normalised, dim=0)
            sum_bias += torch.sum(grad, dim=0)
            weighted = grad * weight[:].to(torch.float32)
            along = torch.mean(weighted * normalised, dim=-1, keepdim=True)
            grad_x[tile_m, :] = (weighted - torch.mean(weighted, dim=-1, keepdim=True) - normalised * along) * scale
        partial_weight[rows.id, :] = sum_weight
        partial_bias[rows.id, :] = sum_bias
    return grad_x, partial_weight.sum(0).to(weight.dtype), partial_bias.sum(0).to(bias.dtype)


def reference(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    out = torch.nn.functional.layer_norm(inputs[0], [x.size(-1)], inputs[1], inputs[2], eps)
    return torch.autograd.grad(out, inputs, grad_out)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([45, 301], device=DEVICE) * 2 + 5
    grad_out = torch.randn([45, 301], device=DEVICE) + 0.5
    weight = torch.randn([301], device=DEVICE) + 1
    bias = torch.randn([301], device=DEVICE)
    args = (grad_out, x, weight, bias)
    return [
        ("fp32", layer_norm_backward, args),
        ("fp32, 63 columns, eps 0.1", layer_norm_backward, (grad_out[:, :63], x[:, :63], weight[:63], bias[:63], 0.1)),
        ("bf16", layer_norm_backward, tuple(arg.bfloat16() for arg in args)),
        ("fp16, fp32 weights", layer_norm_backward, (grad_out.half(), x.half(), weight, bias)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
