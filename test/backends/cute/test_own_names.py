"""Names of a kernel's own tensors that begin like names of generated code."""

from __future__ import annotations

import re

import pytest
import torch

import helion
import helion.language as hl


@helion.kernel(backend="cute")
def scaled(
    x: torch.Tensor, y: torch.Tensor, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor
) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for t in hl.tile(k):
            acc = hl.dot(x[i, t], y[t, j], acc=acc)
        out[i, j] = (acc * first[i][:, None] * second[j][None, :] + third[i, j]).to(out.dtype)
    return out


@helion.kernel(backend="cute")
def scaled_by_others(
    x: torch.Tensor, y: torch.Tensor, tma_first: torch.Tensor, scales: torch.Tensor, raw_third: torch.Tensor
) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for t in hl.tile(k):
            acc = hl.dot(x[i, t], y[t, j], acc=acc)
        out[i, j] = (acc * tma_first[i][:, None] * scales[j][None, :] + raw_third[i, j]).to(out.dtype)
    return out


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_names_of_tensors_only_rename_the_code(target: str) -> None:
    x, y, third = (torch.empty([size, size], dtype=torch.bfloat16, device="meta") for size in (512, 512, 512))
    first, second = (torch.empty([512], device="meta") for _ in range(2))
    args = (x, y, first, second, third)
    plain, own = (each.bind(args, target=target).to_code() for each in (scaled, scaled_by_others))
    for name, other in (
        ("tma_first", "first"),
        ("scales", "second"),
        ("raw_third", "third"),
        ("scaled_by_others", "scaled"),
    ):
        own = re.sub(rf"(?<=[\W_]){name}(?=_\d|_operand|\W)", other, own)
    assert own == plain
