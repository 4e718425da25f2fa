"""What the examples of this folder share: they run on any device and say what ran where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion
from helion.testing import DEVICE

#: Distance of a result from eager PyTorch in fp32, relative in the 2-norm, by the type of the output.
BOUNDS = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 1e-4}


def relative_error(kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Run `kernel` and compare what it gives with `reference` in fp32. Raises AssertionError where it is too far off."""
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
    """Print how far the kernel is off, where it ran, and with what tiles."""
    error = relative_error(kernel, reference, args)
    bound = kernel.bind(args)
    where = torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"the CPU, in the place of {bound.target}"
    plan = bound.plan()
    tiles = f": tiles {plan.gemm.tile} on {plan.gemm.unit}" if hasattr(plan, "gemm") else ""
    print(f"{kernel.name}: error {error:.1e}, ran on {where}{tiles}")
