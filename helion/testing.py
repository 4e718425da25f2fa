"""Comparison of kernels with references in float64, and timing: used by the examples and by tests of kernels."""

from __future__ import annotations

import functools
import statistics
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .autotuner.benchmarking import event_times
from .runtime.kernel import Kernel

DEVICE: torch.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Device of the tensors of examples and tests: the GPU if PyTorch sees one, else the CPU (Triton's interpreter)."""

# A kernel that computes in fp32 rounds once, to its output dtype, by half a unit in the last place. That is 2^-9 for
# bf16, 2^-12 for fp16, 2^-25 for fp32, 2^-4 for e4m3 and 2^-3 for e5m2. The bounds are 4-6 times that for the half
# types. For fp32 and fp64 they allow sums of a few hundred terms in another order.
_TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float8_e5m2: 1.3e-1,
    torch.float8_e4m3fn: 7e-2,
    torch.bfloat16: 1e-2,
    torch.float16: 1.5e-3,
    torch.float32: 2e-5,
    torch.float64: 1e-10,
}
# TF32 keeps 10 mantissa bits of each fp32 operand of a dot: 2^-11 an operand.
_TF32_TOLERANCE = 5e-3
_FULL_PRECISION_DOTS = ("ieee", "highest", "tf32x3", "high")


def map_tensors(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Copy a value, with a function applied to every tensor in it.

    Looks into tuples, named tuples, lists, dicts and the closure cells of plain functions (an epilogue that captures
    a bias); anything else is returned as it is.
    """
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, convert) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, convert) for key, item in value.items()}
    if isinstance(value, types.FunctionType) and value.__closure__:
        cells = tuple(types.CellType(map_tensors(cell.cell_contents, convert)) for cell in value.__closure__)
        clone = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        clone.__kwdefaults__ = value.__kwdefaults__
        return clone
    return value


def as_meta(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace every tensor in the arguments by a `meta` tensor of the same dtype, sizes and strides, which has no data."""
    return tuple(
        map_tensors(arg, lambda t: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta"))
        for arg in args
    )


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fresh fp64 copy of a floating-point tensor; a plain copy of any other."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def outputs(value: Any) -> tuple[torch.Tensor, ...]:
    """List the tensors of a result, which is a tensor or a tuple or list of results, in order.

    Raises:
        TypeError: there is anything else in it.
    """
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (tuple, list)):
        return tuple(tensor for item in value for tensor in outputs(item))
    raise TypeError(f"expected a tensor or a tuple of tensors as the result to compare, got {type(value).__name__}")


def _dots_in_tf32(kernel: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether `kernel` multiplies fp32 matrices on a GPU in TF32 (the default `dot_precision`)."""
    if not isinstance(kernel, Kernel) or kernel.settings.dot_precision in _FULL_PRECISION_DOTS:
        return False
    if not any(isinstance(arg, torch.Tensor) and arg.is_cuda and arg.dtype == torch.float32 for arg in args):
        return False
    return bool(kernel.bind(args).facts.matmuls)


def check(
    name: str,
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    slack: float = 1.0,
) -> float:
    """Run `kernel(*args)` and compare it with `reference` on the same arguments widened to float64.

    Args:
        name: what the failure message calls this comparison.
        kernel: a Helion kernel or any callable returning a tensor or a (nested) tuple of tensors.
        reference: eager PyTorch with the same signature; must not narrow dtypes itself.
        args: the arguments of both.
        rtol: relative tolerance; None takes the one of the output dtype (e4m3 7e-2, bf16 1e-2, fp16 1.5e-3, fp32 2e-5,
            or 5e-3 where fp32 dots run in TF32). Integer and boolean outputs are compared exactly.
        atol: absolute tolerance; None takes `rtol` times the root mean square of the reference. So outputs that are
            small throughout (a softmax over a long row) are not accepted for being small.
        slack: factor on both tolerances, for runs whose order of summation is far from the usual one.

    Returns:
        The largest absolute difference over all outputs (0.0 if they are empty).

    Raises:
        AssertionError: shapes, the number of outputs or values differ; names the case and the output.
    """
    expected_outputs = outputs(reference(*(map_tensors(arg, _widen) for arg in args)))
    actual_outputs = outputs(kernel(*args))
    if len(actual_outputs) != len(expected_outputs):
        raise AssertionError(f"{name}: {len(actual_outputs)} outputs, the reference has {len(expected_outputs)}")
    tf32 = rtol is None and _dots_in_tf32(kernel, args)
    worst = 0.0
    for position, (actual, expected) in enumerate(zip(actual_outputs, expected_outputs, strict=True)):
        label = f"{name}: output {position} of {len(expected_outputs)}"
        if not actual.is_floating_point():
            torch.testing.assert_close(
                actual, expected, rtol=0, atol=0, check_dtype=False, msg=functools.partial("{}: {}".format, label)
            )
            continue
        default = max(_TOLERANCE[actual.dtype], _TF32_TOLERANCE if tf32 else 0.0)
        relative = slack * (rtol if rtol is not None else default)
        widened = _widen(actual)
        absolute = slack * atol if atol is not None else relative * _root_mean_square(expected)
        torch.testing.assert_close(
            widened,
            expected.to(torch.float64),
            rtol=relative,
            atol=absolute,
            equal_nan=True,
            msg=functools.partial("{}: {}".format, label),
        )
        if widened.numel():
            worst = max(worst, float((widened - expected).abs().nan_to_num(nan=0.0).max()))
    return worst


def _root_mean_square(values: torch.Tensor) -> float:
    finite = values[torch.isfinite(values)].to(torch.float64)
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def gpu_median_ms(function: Callable[[], Any], *, warmup: int = 5, repetitions: int = 30) -> float:
    """Measure the median device time of a function, with a cold L2 before each run (CUDA events). Needs a GPU.

    Args:
        function: called without arguments.
        warmup: calls before the first that counts; compilation belongs to them.
        repetitions: calls that count.

    Returns:
        Milliseconds.
    """
    for _ in range(warmup):
        function()
    return statistics.median(event_times(function, repetitions))


def run_cases(cases: Iterable[tuple[str, Callable[..., Any], tuple[Any, ...]]], reference: Callable[..., Any]) -> None:
    """Check kernels as `check` does, and print a line for each: what ran where, on which tensors, and how exact it was.

    Args:
        cases: label, kernel and arguments.
        reference: eager PyTorch with the signature of the kernels.

    Raises:
        AssertionError: shapes, the number of outputs or values differ.
    """
    for label, kernel, args in cases:
        error = check(label, kernel, reference, args)
        name = getattr(kernel, "__name__", type(kernel).__name__)
        print(f"{name}, {label}: max error {error:.1e}, on {_place(args)}, of {_described(args)}")


def _place(args: tuple[Any, ...]) -> str:
    """Describe the device of the first tensor."""
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} (interpreted)"


def _described(args: tuple[Any, ...]) -> str:
    return ", ".join(
        f"{str(arg.dtype).removeprefix('torch.')}{list(arg.shape)}" for arg in args if isinstance(arg, torch.Tensor)
    )
