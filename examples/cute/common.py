"""Helpers of the examples in this folder, which run on any device and print where they ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion
from helion.testing import DEVICE

#: Limit of the relative error in the 2-norm against eager PyTorch in fp32, by the type of the output.
BOUNDS = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 1e-4}


def relative_error(kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Run `kernel` and compare its result with `reference` in fp32. Raises AssertionError if the error is too large."""
    results = kernel(*args)
    expected = reference(*(arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args))
    worst = 0.0
    for result, exact in zip(_outputs(results), _outputs(expected), strict=True):
        error = float((result.float() - exact).norm() / exact.norm())
        assert error < BOUNDS[result.dtype], f"{kernel.name} is {error:.1e} off"
        worst = max(worst, error)
    return worst


def _outputs(results: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def report(kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Print the error of the kernel, the device, and its tiles."""
    error = relative_error(kernel, reference, args)
    bound = kernel.bind(args)
    where = torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"the CPU, in the place of {bound.target}"
    plan = bound.plan()
    tiles = f": tiles {plan.gemm.tile} on {plan.gemm.unit}" if hasattr(plan, "gemm") else ""
    print(f"{kernel.name}: error {error:.1e}, ran on {where}{tiles}")
