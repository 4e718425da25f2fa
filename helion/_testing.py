"""Helpers shared by the examples, the tests and the benchmarks: the device, accuracy checks and timing.

Not part of the public API, but the names `DEVICE`, `code_and_output`, `run_example` and `check_example` are kept stable
because kernels written for Helion commonly import them.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import helion

from ._testing_unittest import RefEagerTestBase as RefEagerTestBase
from ._testing_unittest import RefEagerTestDisabled as RefEagerTestDisabled
from ._testing_unittest import TestCase as TestCase
from ._testing_unittest import skipIfCpu as skipIfCpu
from ._testing_unittest import skipIfRefEager as skipIfRefEager
from ._testing_unittest import skipIfRocm as skipIfRocm
from ._testing_unittest import skipIfXPU as skipIfXPU
from ._testing_unittest import skipUnlessTensorDescriptor as skipUnlessTensorDescriptor

DEVICE: torch.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where examples and tests put their tensors: the GPU if PyTorch sees one, else the CPU (Triton's interpreter)."""

HALF_DTYPE: torch.dtype = torch.float16
LONG_INT_TYPE: torch.dtype = torch.int64

EXAMPLES_DIR: Path = Path(__file__).resolve().parents[1] / "examples"

# A kernel that computes in fp32 rounds once, to its output dtype: half a unit in the last place, which is 2^-9 for
# bf16, 2^-12 for fp16, 2^-25 for fp32, 2^-4 for e4m3 and 2^-3 for e5m2. The bounds leave a factor of 4-6 for the half
# types, and for fp32 and fp64 room for sums of a few hundred terms in another order.
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

# Written between two timed runs so that the second starts with a cold L2; the largest L2 of a current GPU (CDNA3's
# 256 MB last-level cache) just fits.
_L2_FLUSH_BYTES = 256 * 2**20


def map_tensors(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of `value` with `convert` applied to every tensor in it.

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
    """`args` with every tensor replaced by a `meta` tensor of the same dtype, sizes and strides (no storage)."""
    return tuple(
        map_tensors(arg, lambda t: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta"))
        for arg in args
    )


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """A fresh fp64 copy of a floating-point tensor; a plain copy of any other."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _outputs(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (tuple, list)):
        return tuple(tensor for item in value for tensor in _outputs(item))
    raise TypeError(f"expected a tensor or a tuple of tensors as the result to compare, got {type(value).__name__}")


def _dots_in_tf32(kernel: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether `kernel` multiplies fp32 matrices on a GPU in TF32 (the default `dot_precision`)."""
    if not isinstance(kernel, helion.Kernel) or kernel.settings.dot_precision in _FULL_PRECISION_DOTS:
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
    """Run `kernel(*args)` and compare it with `reference` evaluated on the same arguments widened to fp64.

    Args:
        name: what the failure message calls this comparison.
        kernel: a Helion kernel or any callable returning a tensor or a (nested) tuple of tensors.
        reference: eager PyTorch with the same signature; must not narrow dtypes itself.
        rtol: relative tolerance; None takes the one of the output dtype (e4m3 7e-2, bf16 1e-2, fp16 1.5e-3, fp32 2e-5,
            or 5e-3 where fp32 dots run in TF32). Integer and boolean outputs are compared exactly.
        atol: absolute tolerance; None takes `rtol` times the root mean square of the reference, so outputs that are
            small throughout (a softmax over a long row) are not accepted for being small.
        slack: factor on both tolerances, for runs whose order of summation is far from the usual one.

    Returns:
        The largest absolute difference over all outputs (0.0 if they are empty).

    Raises:
        AssertionError: shapes, the number of outputs or values differ; names the case and the output.
    """
    expected_outputs = _outputs(reference(*(map_tensors(arg, _widen) for arg in args)))
    actual_outputs = _outputs(kernel(*args))
    if len(actual_outputs) != len(expected_outputs):
        raise AssertionError(f"{name}: {len(actual_outputs)} outputs, the reference has {len(expected_outputs)}")
    tf32 = rtol is None and _dots_in_tf32(kernel, args)
    worst = 0.0
    for position, (actual, expected) in enumerate(zip(actual_outputs, expected_outputs, strict=True)):
        label = f"{name}: output {position} of {len(expected_outputs)}"
        if not actual.is_floating_point():
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_dtype=False, msg=_prefixed(label))
            continue
        default = max(_TOLERANCE[actual.dtype], _TF32_TOLERANCE if tf32 else 0.0)
        relative = slack * (rtol if rtol is not None else default)
        widened = _widen(actual)
        absolute = slack * atol if atol is not None else relative * _root_mean_square(expected)
        torch.testing.assert_close(
            widened, expected.to(torch.float64), rtol=relative, atol=absolute, equal_nan=True, msg=_prefixed(label)
        )
        if widened.numel():
            worst = max(worst, float((widened - expected).abs().nan_to_num(nan=0.0).max()))
    return worst


def _root_mean_square(values: torch.Tensor) -> float:
    finite = values[torch.isfinite(values)].to(torch.float64)
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _prefixed(label: str) -> Callable[[str], str]:
    return lambda message: f"{label}: {message}"


def gpu_median_ms(function: Callable[[], Any], *, warmup: int = 5, repetitions: int = 30) -> float:
    """Median device time of `function()` in milliseconds, with a cold L2 before each run (CUDA events).

    Compilation belongs to the warm-up and is not counted. Needs a GPU.
    """
    flush = torch.empty(_L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(warmup):
        function()
    pairs = []
    for _ in range(repetitions):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        function()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def run_example(
    kernel_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    baseline_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    args: tuple[Any, ...],
    kernel_name: str = "helion",
    baseline_name: str = "torch",
    rtol: float = 1e-2,
    atol: float = 1e-1,
    **_: Any,
) -> dict[str, float | None]:
    """Check kernels against the first baseline on `args` and print one line per function.

    Either callable may be a mapping from names to callables. Unknown keyword arguments are accepted and ignored, so
    callers written for richer versions of this function run.

    Returns:
        Median device time in ms by name; None for each on a machine without a GPU, where times of the interpreter
        would say nothing.

    Raises:
        AssertionError: an output differs from the first baseline's by more than `atol + rtol * abs(baseline)`.
    """
    kernels = dict(kernel_fn) if isinstance(kernel_fn, Mapping) else {kernel_name: kernel_fn}
    baselines = dict(baseline_fn) if isinstance(baseline_fn, Mapping) else {baseline_name: baseline_fn}
    expected = _outputs(next(iter(baselines.values()))(*args))
    times: dict[str, float | None] = {}
    for name, function in {**kernels, **baselines}.items():
        actual = _outputs(function(*args))
        _assert_outputs_close(name, actual, expected, rtol=rtol, atol=atol)
        times[name] = gpu_median_ms(functools.partial(function, *args)) if DEVICE.type == "cuda" else None
        error = max((float((a.double() - e.double()).abs().max()) for a, e in _nonempty(actual, expected)), default=0.0)
        timing = f", {times[name]:.4f} ms" if times[name] is not None else ""
        print(f"{name}: max error {error:.2e}{timing}")
    return times


def _nonempty(
    actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(a, e) for a, e in zip(actual, expected, strict=True) if a.numel()]


def _assert_outputs_close(
    name: str, actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], *, rtol: float, atol: float
) -> None:
    if len(actual) != len(expected):
        raise AssertionError(f"{name}: {len(actual)} outputs, the baseline has {len(expected)}")
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        label = f"{name}: output {position} of {len(expected)}"
        torch.testing.assert_close(a.to(torch.float32), e.to(torch.float32), rtol=rtol, atol=atol, msg=_prefixed(label))


def code_and_output(fn: helion.Kernel, args: tuple[Any, ...], **config: Any) -> tuple[str, Any]:
    """Compile `fn` for `args` with one config and run it once.

    Args:
        fn: the kernel.
        args: its arguments.
        **config: config keys. None given: the kernel's only fixed config if it has exactly one, else the default.

    Returns:
        The generated module's source and the result; no source (``""``) where kernels run eagerly.
    """
    bound = fn.bind(args)
    if bound.is_eager:
        return "", fn(*args)
    if config:
        chosen = helion.Config(**config)
    elif len(fn.configs) == 1:
        chosen = fn.configs[0]
    else:
        chosen = bound.default_config()
    return bound.to_triton_code(chosen), bound.compile_config(chosen)(*args)


def check_example(
    name: str,
    args: tuple[Any, ...],
    expected: Any,
    *,
    fn_name: str | None = None,
    skip_accuracy: bool = False,
    static_shapes: bool | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-1,
    **config: Any,
) -> str:
    """Run the kernel `fn_name` (default: `name`) of `examples/<name>.py`, compare its result, return its source.

    Raises:
        AssertionError: the result differs from `expected` by more than `atol + rtol * abs(expected)`.
    """
    kernel: helion.Kernel = getattr(import_path(EXAMPLES_DIR / f"{name}.py"), fn_name or name)
    if static_shapes is not None and static_shapes != kernel.settings.static_shapes:
        kernel = helion.kernel(kernel.fn, static_shapes=static_shapes)
    code, result = code_and_output(kernel, args, **config)
    if not skip_accuracy:
        _assert_outputs_close(name, _outputs(result), _outputs(expected), rtol=rtol, atol=atol)
    return code


_IMPORTED: dict[Path, types.ModuleType] = {}


def import_path(path: Path | str) -> types.ModuleType:
    """Import the Python file at `path` as a module, once per process and file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    resolved = Path(path).resolve()
    if resolved in _IMPORTED:
        return _IMPORTED[resolved]
    if not resolved.is_file():
        raise FileNotFoundError(f"cannot import {resolved}: no such file")
    name = f"_imported_{resolved.parent.name}_{resolved.stem}_{len(_IMPORTED)}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {resolved}: expected a file ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name while the body runs
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _IMPORTED[resolved] = module
    return module
