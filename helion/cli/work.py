"""A tuning job for one kernel and the arguments of one call, as portable text, and the worker that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import exc, knobs
from ..autotuner.cache.rows import exported, imported
from ..autotuner.cache.store import default_store
from ..autotuner.options import Options
from ..autotuner.pretuned import formatted
from ..runtime.bound import BoundKernel, kept_entry, measured_row, ranked_offline
from ..runtime.kernel import Kernel
from ..testing import map_tensors
from .arguments import find_kernel, parse_arguments


@dataclass(frozen=True, kw_only=True)
class Work:
    """A job to tune one kernel for one call.

    ``kernel`` is ``FILE.py::NAME``, ``args`` as on a command line, ``options`` those of ``kernel.autotune``. With
    ``offline``, that many mutations of the seeds are compiled for ``target`` and ranked; None measures times. ``known``
    are rows tuned before, as ``rows.exported`` formats them; ``force`` tunes again nevertheless.
    """

    kernel: str
    args: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None
    offline: int | None = None
    force: bool = False
    known: str = ""

    def __str__(self) -> str:
        return f"{self.kernel.rpartition('::')[2]}({', '.join(self.args)})"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a job.

    ``message`` is for users, ``entries`` has the format of ``rows.exported``. ``measured`` has that of
    ``pretuned.formatted``, "" without times of a GPU.
    """

    worked: bool
    message: str
    entries: str = ""
    measured: str = ""


class Worker:
    """A worker that runs one job at a time, on the GPU of this number among the visible ones, or on any."""

    def __init__(self, gpu: int | None = None) -> None:
        if gpu is not None:
            knobs.see_one_gpu(gpu)
        self._kernels: dict[str, Kernel] = {}

    def run(self, work: Work) -> Report:
        """Run a job. Errors of the kernel are reported; others are raised."""
        try:
            kernel = self._kernel(work.kernel)
            positional, keywords = parse_arguments(work.args)
            args = kernel.normalize_args(*positional, **keywords)
            return _ranked(kernel, args, work) if work.offline is not None else _tuned(kernel, args, work)
        except (exc.Base, ValueError, TypeError, OSError) as error:
            return Report(worked=False, message=str(error))

    def _kernel(self, spec: str) -> Kernel:
        if spec not in self._kernels:
            self._kernels[spec] = find_kernel(spec)
        return self._kernels[spec]


def _tuned(kernel: Kernel, args: tuple[Any, ...], work: Work) -> Report:
    simulated = bool(work.options.get("simulated"))
    values = tuple(map_tensors(value, _on_cpu if simulated else _on_gpu) for value in args)
    store = default_store()
    if store is not None and work.known:
        for known in imported(work.known):
            store.put(known)
    config = kernel.autotune(values, force=work.force, **{"effort": "quick", **work.options})
    bound = kernel.bind(values)
    entry = kept_entry(bound, values)
    took = "" if entry is None else f"{entry.row.microseconds:.1f} us: "
    entries = "" if entry is None else exported([entry], sweeps=True)
    measured = "" if entry is None or simulated else formatted([measured_row(bound, entry)])
    message = f"{took}{bound.format_kernel_decorator(config)}"
    return Report(worked=True, message=message, entries=entries, measured=measured)


def _ranked(kernel: Kernel, args: tuple[Any, ...], work: Work) -> Report:
    assert work.offline is not None
    bound: BoundKernel = kernel.bind(args, target=work.target)
    entry = ranked_offline(bound, args, Options.of(kernel.settings, "quick", work.options), work.offline)
    left_out = sum(outcome.microseconds is None for outcome in entry.sweep)
    decorator = bound.format_kernel_decorator(entry.row.config)
    message = f"{len(entry.sweep)} compiled, {left_out} left out: {decorator}"
    return Report(worked=True, message=message, entries=exported([entry], sweeps=True))


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return filled(tensor, "cuda")


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return filled(tensor, "cpu")


def filled(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor like this meta tensor: normally distributed numbers, integers that are 0 or 1."""
    values = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.is_floating_point():
        return values.copy_(torch.randn(tensor.size(), device=device))
    return values.copy_(torch.randint(0, 2, tensor.size(), device=device))
