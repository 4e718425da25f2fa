"""Kullback-Leibler divergence of log-probabilities from a target distribution.

Each row is summed on the device in fp32; the reduction over rows is ordinary PyTorch after the loop. String and
`hl.constexpr` arguments are compile-time constants, so only the chosen variant is compiled.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def kl_div(
    x: torch.Tensor, target: torch.Tensor, log_target: hl.constexpr = False, reduction: str = "batchmean"
) -> torch.Tensor:
    """Compute `torch.nn.functional.kl_div` of log-probabilities `x[M, N]` and `target[M, N]`.

    `target` holds probabilities, or their logarithms with `log_target`. `reduction` is "batchmean", "mean" or "sum".
    """
    assert x.size() == target.size(), "x and target must have the same shape"
    m, n = x.size()
    losses = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            wanted = target[tile_m, tile_n].to(torch.float32)
            given = x[tile_m, tile_n].to(torch.float32)
            if log_target:
                acc += torch.sum(torch.exp(wanted) * (wanted - given), dim=-1)
            else:
                acc += torch.sum(torch.where(wanted > 0, wanted * (torch.log(wanted) - given), 0.0), dim=-1)
        losses[tile_m] = acc
    if reduction == "batchmean":
        return losses.mean()
    if reduction == "mean":
        return losses.sum() / (m * n)
    return losses.sum()


def reference(
    x: torch.Tensor, target: torch.Tensor, log_target: bool = False, reduction: str = "batchmean"
) -> torch.Tensor:
    terms = torch.nn.functional.kl_div(x, target, log_target=log_target, reduction="none")
    return terms.sum() / {"batchmean": x.size(0), "mean": x.numel(), "sum": 1}[reduction]


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.log_softmax(torch.randn([33, 301], device=DEVICE), dim=-1)
    log_target = torch.log_softmax(torch.randn([33, 301], device=DEVICE) * 2, dim=-1)
    target = log_target.exp() * (log_target > -6)
    return [
        ("fp32", kl_div, (x, target)),
        ("bf16, sum", kl_div, (x.bfloat16(), target.bfloat16(), False, "sum")),
        ("fp32, logarithms", kl_div, (x, log_target, True)),
        ("fp16, logarithms, mean", kl_div, (x.half(), log_target.half(), True, "mean")),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
