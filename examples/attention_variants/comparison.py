"""Helpers of the examples in this folder: a comparison with torch's attention, of values anywhere and of times on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

import helion
from helion.testing import DEVICE

#: Limit of the relative error in the 2-norm against eager PyTorch in fp32, by the type of the output.
BOUNDS = {torch.bfloat16: 8e-3, torch.float16: 2e-3, torch.float32: 1e-4}


def relative_error(function: Callable[..., Any], reference: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Return the largest error of the outputs against `reference` in fp32. Raises AssertionError if it is too large."""
    results = _outputs(function(*args))
    exact = _outputs(reference(*(_widened(arg) for arg in args)))
    worst = 0.0
    for result, wanted in zip(results, exact, strict=True):
        error = float((result.float() - wanted).norm() / wanted.norm())
        assert error < BOUNDS[result.dtype], f"{getattr(function, '__name__', function)} is {error:.1e} off"
        worst = max(worst, error)
    return worst


def _outputs(results: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _widened(arg: Any) -> Any:
    return arg.float() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg


def beside_torch(kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Print the error of a kernel and, on a GPU, its time and that of the reference."""
    error = relative_error(kernel, reference, args)
    if DEVICE.type != "cuda":
        print(f"{kernel.name}: error {error:.1e}, on the CPU")
        return
    ours, theirs = (_microseconds(lambda: each(*args)) for each in (kernel, reference))  # noqa: B023
    print(f"{kernel.name}: error {error:.1e}, {ours:.0f} us, torch {theirs:.0f} us, on {torch.cuda.get_device_name()}")


def _microseconds(run: Callable[[], Any], repeats: int = 20) -> float:
    """Return the median time of a call on the GPU."""
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[3:])


def randn(*sizes: int, mean: float = 0.25, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return random numbers on the device of the examples."""
    return (torch.randn(sizes, device=DEVICE) + mean).to(dtype)
