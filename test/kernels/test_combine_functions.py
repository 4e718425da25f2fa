"""What may combine values in scans and reductions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl


def add(a: Any, b: Any) -> Any:
    return a + b


def add_pairs(left: Any, right: Any) -> Any:
    return left[0] + right[0], torch.maximum(left[1], right[1])


@helion.kernel
def add_kernel(a: Any, b: Any) -> Any:
    return a + b


def torch_scan(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = torch._higher_order_ops.associative_scan(add, x[t, :], 1, combine_mode="generic")
    return out


def torch_scan_of_two(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        sums, _ = torch._higher_order_ops.associative_scan(add_pairs, (x[t, :], x[t, :]), dim=1, reverse=False)
        out[t, :] = sums
    return out


def scan_by_a_kernel(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = hl.associative_scan(add_kernel, x[t, :], dim=1)
    return out


@pytest.mark.parametrize("function", [torch_scan, torch_scan_of_two, scan_by_a_kernel], ids=lambda f: f.__name__)
def test_scans(function: Any) -> None:
    x = torch.randn(5, 9)
    torch.testing.assert_close(helion.kernel(function)(x), x.cumsum(1))


def test_a_scan_in_reference_mode() -> None:
    x = torch.randn(5, 9)
    kernel = helion.kernel(scan_by_a_kernel, ref_mode=helion.RefMode.EAGER)
    torch.testing.assert_close(kernel(x), x.cumsum(1))


def sum_by_a_kernel(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], device=x.device)
    for t in hl.tile(x.size(0)):
        out[t] = hl.reduce(add_kernel, x[t, :], dim=1)
    return out


@pytest.mark.parametrize("mode", [helion.RefMode.OFF, helion.RefMode.EAGER])
def test_reductions(mode: helion.RefMode) -> None:
    x = torch.randn(5, 9)
    torch.testing.assert_close(helion.kernel(sum_by_a_kernel, ref_mode=mode)(x), x.sum(1))
