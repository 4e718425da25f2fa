"""Short logarithms of 16-bit elements: where they are taken, where not, and every number of bf16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@helion.kernel(backend="triton")
def divergence(target: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        wanted, given = target[tile, :].to(torch.float32), x[tile, :].to(torch.float32)
        total[tile] = torch.where(wanted > 0, wanted * (torch.log(wanted) - given), 0.0).sum(-1)
    return total


@helion.kernel(backend="triton")
def logs(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    total = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        found = torch.log(x[tile, :].to(torch.float32))
        out[tile, :] = found.to(out.dtype)
        total[tile] = found.sum(-1)
    return total


@helion.kernel(backend="triton")
def largest(x: torch.Tensor) -> torch.Tensor:
    top = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        top[tile] = torch.log(x[tile, :].to(torch.float32)).amax(-1)
    return top


@helion.kernel(backend="triton")
def entropy(x: torch.Tensor) -> torch.Tensor:
    total = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        total[tile] = torch.log(x[tile, :].to(torch.float32)).sum(-1)
    return total


def is_short(kernel: Any, *args: torch.Tensor, target: str = "h100") -> bool:
    return "_summed_log(" in kernel.bind(args, target=target).to_triton_code()


@pytest.mark.parametrize(("dtype", "target", "short"), [(BF16, "h100", True), (FP16, "a100", True), (FP32, "h100", False), (BF16, "mi300x", False)])  # fmt: skip
def test_elements_of_16_bits_on_nvidia(dtype: torch.dtype, target: str, short: bool) -> None:
    assert is_short(divergence, tensor(64, 100, dtype=dtype), tensor(64, 100, dtype=BF16), target=target) == short


def test_stored_elements_and_maxima_have_the_exact_logarithm() -> None:
    x = tensor(64, 100, dtype=BF16)
    assert not is_short(logs, x, x) and not is_short(largest, x)


def test_every_number_of_bf16() -> None:
    """Each is the only one of its row that is not 1, whose logarithm is 0; subnormal numbers and zero are among them."""
    x = torch.ones(2**16, 2, dtype=BF16)
    x[:, 0] = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(BF16)
    want, got = torch.log(x[:, 0].double()), entropy(x).double()
    finite = want.isfinite()
    assert is_short(entropy, x)
    assert torch.equal(got[~finite].nan_to_num(5.0), want[~finite].nan_to_num(5.0))
    assert ((got - want).abs() <= 1e-6 * want.abs())[finite].all()
