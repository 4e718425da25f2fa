"""Launcher of generated kernels: Triton on a GPU, the interpreter on CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.runtime import _allocation

from .... import knobs
from ...._support.lazy import lazy
from ....hardware import DEFAULT_TARGET, from_device_properties
from ... import stub
from . import c_launchers
from .fast_launch import launch_stub

if TYPE_CHECKING:
    from . import host_copies, interpreter
else:
    # calls on a GPU need no interpreter
    host_copies = lazy("helion.backends.triton.execute.host_copies")
    interpreter = lazy("helion.backends.triton.execute.interpreter")


#: Counters of programs at a barrier, by number of the device and stream. They are 0 in their lower 31 bits between
#: launches.
_ARRIVED: dict[tuple[int | None, int], torch.Tensor] = {}
#: Counters that no launch has, by number of the device. A capture cannot make one without another node of its graph.
_SPARE: dict[int | None, list[torch.Tensor]] = {}
#: Number of counters that are made at once, and their distance in elements: arguments are aligned to 16 bytes.
_COUNTERS, _APART = 1024, 4


def get_num_sm(device: torch.device, reserved_sms: int = 0) -> int:
    """Return the number of SMs for persistent programs; 4 where the interpreter replaces a GPU."""
    if device.type != "cuda":
        return 4
    index = device.index if device.index is not None else torch.cuda.current_device()
    return max(1, from_device_properties(index).num_sms - reserved_sms)


def arrived_programs(device: torch.device) -> torch.Tensor:
    """Return the counter of programs at a barrier for a launch on the current stream of a device.

    Launches of a stream share it, since they run one after the other. A graph may run next to them, so each of its
    launches has one of its own.
    """
    if device.type != "cuda":
        return torch.zeros(1, dtype=torch.int32)
    if torch.cuda.is_current_stream_capturing():
        spare = _SPARE.get(device.index)
        return spare.pop() if spare else torch.zeros(1, dtype=torch.int32, device=device)
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    if key not in _ARRIVED:
        _ARRIVED[key] = _spare(device)
    return _ARRIVED[key]


def _spare(device: torch.device) -> torch.Tensor:
    """Return a counter that no launch has."""
    if not _SPARE.get(device.index):
        counters = torch.zeros(_COUNTERS * _APART, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)  # other streams use them, too
        _SPARE[device.index] = [counters[at : at + 1] for at in range(0, counters.numel(), _APART)]
    return _SPARE[device.index].pop()


def random_seeds(count: int, like: torch.Tensor) -> torch.Tensor:
    """Return seeds for one launch, drawn on the device of ``like`` from its default generator.

    ``torch.manual_seed`` makes them reproducible, and a captured CUDA graph draws others at each replay.
    """
    return torch.randint(2**63 - 1, (count,), device=like.device)


def set_triton_allocator() -> None:
    """Give Triton device memory for the tensor descriptors that kernels create, in this thread, unless the user has."""
    if isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        triton.set_allocator(_allocate)


def _allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=torch.int8)


def default_launcher(kernel: triton.JITFunction, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch ``kernel`` over ``grid`` programs. Empty grids launch nothing. CPU tensors are interpreted."""
    for size in grid:
        if size == 0:
            return
    if stub.active():
        launch_stub(kernel, grid, args, options, knobs.TARGET.read() or DEFAULT_TARGET)
        return
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if arg.device.type == "cpu":
                interpreter.interpret(kernel, grid, args, options)
                return
            if knobs.TRITON_INTERPRET.read():
                host_copies.interpret_copies(kernel, grid, args, options)
                return
            break
    c_launchers.wait()
    kernel[grid](*args, **options)
