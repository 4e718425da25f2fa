"""Factories without a device in host code make tensors where the arguments are."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def factories(x: torch.Tensor, n: int) -> torch.Tensor:
    options = {"dtype": torch.float32}
    out, zeros = torch.empty([x.size(0)]), torch.zeros(x.size(0), dtype=x.dtype)
    twos, places = torch.full((x.size(0),), 2.0), torch.arange(x.size(0))
    table, parts = torch.tensor([1.0, 2.0, 3.0]), [torch.ones(4) for _ in range(2)]
    more = torch.zeros(n, **options)
    same, placed = torch.ones_like(x), torch.empty(n, device=x.device)
    x = x * 1
    for t in hl.tile(x.size(0)):
        out[t] = x[t] + zeros[t] + twos[t] * places[t] + table[1] + parts[1][0] + more[0] + same[t]
    placed.fill_(0)
    return out


@pytest.mark.parametrize("static", [True, False])
def test_on_the_device_of_the_arguments(static: bool) -> None:
    """The default device stands for the CPU where arguments are on a GPU."""
    kernel, x = helion.kernel(factories, static_shapes=static), torch.randn(5)
    expected = x + 2 * torch.arange(5) + 4
    torch.testing.assert_close(kernel(x, 3), expected)
    text = kernel.bind((x, 3)).to_code()
    assert "_helion_device" not in text
    with torch.device("meta"):
        other = helion.kernel(factories, static_shapes=static)
        result = other(x, 3)
        text = other.bind((x, 3)).to_code()
    assert result.device.type == "cpu" and text.count("device=_helion_device") == 7
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("target", ["h200", "gfx942"])
def test_generated_for_gpus(target: str) -> None:
    text = helion.kernel(factories).bind((torch.empty(5, device="meta"), 3), target=target).to_code()
    assert "    _helion_device = x.device\n    options" in text
    assert "torch.empty([x.size(0)], device=_helion_device)" in text
    assert "torch.ones_like(x)" in text and "torch.empty(n, device=x.device)" in text


def in_a_list(xs: list[torch.Tensor]) -> torch.Tensor:
    out = torch.empty(xs[0].size(0))
    for t in hl.tile(out.size(0)):
        out[t] = xs[0][t] + xs[1][t]
    return out


def test_arguments_in_containers() -> None:
    with torch.device("meta"):
        kernel = helion.kernel(in_a_list)
        x = torch.randn(9, device="cpu")
        torch.testing.assert_close(kernel([x, x]), x * 2)
        assert "_helion_device = xs[0].device" in kernel.bind(([x, x],)).to_code()


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    x = torch.randn(5, device="cuda")
    result = helion.kernel(factories)(x, 3)
    assert result.device == x.device
    torch.testing.assert_close(result, x + 2 * torch.arange(5, device="cuda") + 4)


def in_a_helper(x: torch.Tensor) -> torch.Tensor:
    out, other = torch.empty_like(x), made(x.size(0))
    for t in hl.tile(x.size(0)):
        out[t] = x[t] + other[t]
    return out


def made(n: int) -> torch.Tensor:
    return torch.zeros(n)


@pytest.mark.gpu
def test_functions_that_host_code_calls_name_a_device() -> None:
    with pytest.raises(exc.BaseError, match="is on the CPU, but the kernel runs on cuda.*give it device="):
        helion.kernel(in_a_helper)(torch.randn(5, device="cuda"))
