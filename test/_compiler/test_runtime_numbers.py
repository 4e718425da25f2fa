"""Offsets, strides and bounds that are known only at launch, where facts, rewrites and both backends look at numbers."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl


def shifted(x: torch.Tensor, k: int):
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.shape):
        past = hl.load(x, [rows, columns.index - k], extra_mask=(columns.index >= k)[None, :])
        out[rows, columns] = x[rows, columns] + past
    return out


def taps(x: torch.Tensor, k: int):
    out = torch.zeros_like(x)
    for rows, columns in hl.tile([x.size(0), x.size(1) - 3 * k]):
        out[rows, columns] = x[rows, columns + k] - x[rows, columns + 2 * k] + x[rows, columns + 3 * k]
    return out


def halves(x: torch.Tensor, k: int):
    half = x.size(1) // 2
    out = torch.zeros_like(x)
    for rows, columns in hl.tile([x.size(0), half]):
        out[rows, columns] = x[rows, columns] * x[rows, columns.index + half] + k
    return out


def moved_rows(x: torch.Tensor, k: int):
    out = torch.zeros_like(x)
    for rows in hl.tile(x.size(0) - k):
        value = x[rows.index + k, :].to(torch.float32)
        out[rows.index + k, :] = (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + 1)).to(x.dtype)
    return out


def in_place(x: torch.Tensor, k: int):
    out = x.clone()
    for rows in hl.tile(x.size(0)):
        for columns in hl.tile(x.size(1) - k):
            out[rows, columns.index + k] = out[rows, columns.index + k] + 1
            out[rows, columns.index + k] = out[rows, columns.index + k] * 2
    return out


def product(x: torch.Tensor, k: int):
    out = torch.empty([x.size(0), x.size(0)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.shape):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(x.size(1) - k):
            acc = hl.dot(x[rows, inner.index + k], x[columns, inner.index + k].T, acc=acc)
        out[rows, columns] = acc
    return out


def expected(name: str, x: torch.Tensor, k: int) -> torch.Tensor:
    """Return the result in eager torch."""
    out = torch.zeros_like(x)
    if name == "shifted":
        return x + torch.nn.functional.pad(x, (k, 0))[:, : x.size(1)]
    if name == "taps":
        n = x.size(1) - 3 * k
        out[:, :n] = x[:, k : k + n] - x[:, 2 * k : 2 * k + n] + x[:, 3 * k : 3 * k + n]
    elif name == "halves":
        half = x.size(1) // 2
        out[:, :half] = x[:, :half] * x[:, half : 2 * half] + k
    elif name == "moved_rows":
        out[k:] = x[k:] * torch.rsqrt(x[k:].pow(2).mean(-1, keepdim=True) + 1)
    elif name == "in_place":
        out = x.clone()
        out[:, k:] = (out[:, k:] + 1) * 2
    else:
        return x[:, k:] @ x[:, k:].T
    return out


KERNELS = {each.__name__: each for each in (shifted, taps, halves, moved_rows, in_place, product)}


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", KERNELS)
def test_results_are_those_of_eager_torch(name, static):
    kernel = helion.kernel(KERNELS[name], autotune_effort="none", static_shapes=static)
    x = torch.randn(37, 65, generator=torch.Generator().manual_seed(1))
    for k in (3, 0, 7):
        torch.testing.assert_close(kernel(x, k), expected(name, x, k), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("name", KERNELS)
def test_both_backends_choose_a_config(name, backend):
    kernel = helion.kernel(KERNELS[name], autotune_effort="none", static_shapes=False, backend=backend)
    x = torch.empty([4096, 2048], dtype=torch.bfloat16, device="meta")
    bound = kernel.bind((x, 3), target="sm_90")
    assert f"def {name}" in bound.to_code(bound.default_config())


def crossed(x: torch.Tensor, k: int):
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.shape):
        out[rows, columns] = torch.cross(x[rows, columns], x[rows, columns], dim=1)
    return out


def test_a_size_that_is_a_tile_is_refused_by_name():
    with pytest.raises(helion.exc.TorchOpTracingError, match="dimension 1 must have 3 elements"):
        helion.kernel(crossed, autotune_effort="none").bind((torch.empty(8, 3), 1))
