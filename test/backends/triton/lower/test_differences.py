"""Products less what their maxima make: where they are rounded, where not, and the largest element of a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

FP16 = torch.float16


@helion.kernel(backend="triton")
def tempered(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32) / number, -1).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def logs(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.log_softmax(x[tile, :].to(torch.float32) * number, -1).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def scaled_after(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.exp((row - row.amax(-1, keepdim=True)) * number).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def scaled_apart(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.exp(row * number - row.amax(-1, keepdim=True) * number).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def centred(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * number
        out[tile, :] = (row - row.mean(-1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def losses(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile] = torch.logsumexp(row, -1) - number * row.sum(-1)
    return out


def differences(kernel: Any, columns: int = 128, target: str = "h100", **config: Any) -> int:
    bound = kernel.bind((tensor(64, columns, dtype=FP16), 0.7), target=target)
    return bound.to_triton_code(helion.Config(**{**bound.default_config().config, **config})).count(" = _difference(")


@pytest.mark.parametrize(
    ("kernel", "count"), [(tempered, 1), (logs, 1), (scaled_apart, 1), (scaled_after, 0), (centred, 0), (losses, 0)]
)
def test_products_less_their_maxima(kernel: Any, count: int) -> None:
    assert differences(kernel) == count


def test_chunks_of_a_row() -> None:
    """The running maximum is subtracted from each chunk, and the row's maximum from each element again."""
    assert differences(tempered, 4096, reduction_loops=[1024]) == 2


def test_amd_contracts_as_it_does() -> None:
    assert differences(tempered, target="mi300x") == 0


def test_matmuls_keep_the_fma() -> None:
    from examples.attention import attention

    q = tensor(1, 2, 64, 64, dtype=FP16)
    bound = attention.bind((q, q, q), target="h100")
    assert "_difference" not in bound.to_code(bound.default_config())


@pytest.mark.parametrize("loops", [None, 64])
def test_one_element_is_far_above_the_others(loops: int | None) -> None:
    x = torch.zeros(4, 128, dtype=FP16)
    x[:, 5] = torch.tensor([60000.0, 59936.0, 31.0, 65504.0])
    config = helion.Config(**{**tempered.bind((x, 0.7)).default_config().config, "reduction_loops": [loops]})
    got = helion.kernel(tempered.fn, backend="triton", config=config)(x, 0.7)
    assert got[:, 5].tolist() == [1.0] * 4 and got.double().sum(-1).tolist() == [1.0] * 4
