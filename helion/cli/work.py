"""One kernel to tune for the arguments of one call, as text that other processes and machines understand, and who does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import exc, knobs
from ..autotuner.cache.rows import exported, imported
from ..autotuner.cache.store import default_store
from ..autotuner.options import Options
from ..runtime.bound import BoundKernel, kept_entry, ranked_offline
from ..runtime.kernel import Kernel
from ..testing import map_tensors
from .arguments import find_kernel, parse_arguments


@dataclass(frozen=True, kw_only=True)
class Work:
    """``kernel`` is ``FILE.py::NAME``, ``args`` as on a command line, ``options`` those of ``kernel.autotune``.

    ``offline`` is the number of mutations of the seeds that are compiled for ``target`` and ranked, None where times are
    measured. ``known`` are rows that were tuned before, as ``rows.exported`` gives them; with ``force`` they are no answer.
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
    """What became of a work: ``message`` for people, ``entries`` as ``rows.exported`` gives them."""

    worked: bool
    message: str
    entries: str = ""


class Worker:
    """Does one work after the other, on the GPU of this number of those that the process sees, or on any."""

    def __init__(self, gpu: int | None = None) -> None:
        if gpu is not None:
            knobs.see_one_gpu(gpu)
        self._kernels: dict[str, Kernel] = {}

    def run(self, work: Work) -> Report:
        """Errors of the kernel are reported; others are raised."""
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
    return Report(worked=True, message=f"{took}{bound.format_kernel_decorator(config)}", entries=entries)


def _ranked(kernel: Kernel, args: tuple[Any, ...], work: Work) -> Report:
    assert work.offline is not None
    bound: BoundKernel = kernel.bind(args, target=work.target)
    entry = ranked_offline(bound, args, Options.of(kernel.settings, "quick", work.options), work.offline)
    left_out = sum(outcome.microseconds is None for outcome in entry.sweep)
    decorator = bound.format_kernel_decorator(entry.row.config)
    message = f"{len(entry.sweep)} compiled, {left_out} left out: {decorator}"
    return Report(worked=True, message=message, entries=exported([entry], sweeps=True))


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return _filled(tensor, "cuda")


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return _filled(tensor, "cpu")


def _filled(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor like this meta tensor: normally distributed numbers, integers that are 0 or 1."""
    values = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.is_floating_point():
        return values.copy_(torch.randn(tensor.size(), device=device))
    return values.copy_(torch.randint(0, 2, tensor.size(), device=device))
