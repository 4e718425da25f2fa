"""Helpers shared by the tests and the benchmarks, on top of ``helion.testing``.

The names `DEVICE`, `code_and_output`, `run_example`, `check_example` and `do_bench` are not public API. They are kept
stable because kernels written for Helion commonly import them.
"""

from __future__ import annotations

import functools
import importlib.util
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
from .autotuner.benchmarking import do_bench as do_bench
from .testing import DEVICE as DEVICE
from .testing import as_meta as as_meta
from .testing import check as check
from .testing import gpu_median_ms as gpu_median_ms
from .testing import map_tensors as map_tensors
from .testing import outputs

HALF_DTYPE: torch.dtype = torch.float16
LONG_INT_TYPE: torch.dtype = torch.int64

EXAMPLES_DIR: Path = Path(__file__).resolve().parents[1] / "examples"


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
        Median device time in ms by name; None for each on a machine without a GPU, where times of the interpreter mean
        nothing.

    Raises:
        AssertionError: an output differs from the first baseline's by more than `atol + rtol * abs(baseline)`.
    """
    kernels = dict(kernel_fn) if isinstance(kernel_fn, Mapping) else {kernel_name: kernel_fn}
    baselines = dict(baseline_fn) if isinstance(baseline_fn, Mapping) else {baseline_name: baseline_fn}
    expected = outputs(next(iter(baselines.values()))(*args))
    times: dict[str, float | None] = {}
    for name, function in {**kernels, **baselines}.items():
        actual = outputs(function(*args))
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
        torch.testing.assert_close(
            a.to(torch.float32),
            e.to(torch.float32),
            rtol=rtol,
            atol=atol,
            msg=functools.partial("{}: {}".format, label),
        )


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
    return bound.to_code(chosen), bound.compile_config(chosen)(*args)


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
        _assert_outputs_close(name, outputs(result), outputs(expected), rtol=rtol, atol=atol)
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
