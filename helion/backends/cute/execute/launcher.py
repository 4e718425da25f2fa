"""The launcher of compiled GEMMs: of shared objects on a GPU, of the evaluation on CPU tensors."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...._support.lazy import lazy
from ...._support.locks import new_lock
from ... import stub
from ..plan.refusal import Refusal
from ..toolchain.kernel import GemmKernel
from ..toolchain.library import SHARED_OBJECT, Library, folder
from .alignment import ALIGNMENT_BYTES, aligned, is_aligned, write_back
from .problems import Given, has_messages, launched, names_of, split
from .workspace import workspaces

if TYPE_CHECKING:
    from . import evaluators
else:
    # launches on a GPU evaluate nothing
    evaluators = lazy("helion.backends.cute.execute.evaluators")


class LaunchFailed(RuntimeError):
    """An error of CUDA when it loads or launches a kernel; the message has its status."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A kernel on one device: ``launch`` takes addresses and numbers, the co-resident clusters, and a stream.

    The last address is that of its workspace, if any, which ``workspace`` returns for a stream. ``checked`` are
    launch-time integers that the kernel is known to take.
    """

    launch: Callable[..., int]
    clusters: int
    device: int
    current_stream: Callable[[int], int]
    current_device: Callable[[], int] | None
    """None if there is only one device."""
    workspace: Callable[[int], int] | None = None
    checked: set[tuple[int, ...]] = dataclasses.field(default_factory=set)


_LOCK = new_lock()
_LIBRARIES: dict[str, Library] = {}
_ENTRIES: dict[tuple[str, int], Entry] = {}


#: Limit of cached launch-time integers of a kernel, after which all are dropped.
KEPT = 4096


def launch_gemm(kernel: GemmKernel, grid: tuple[int, ...], *given: Given) -> None:
    """Launch ``kernel`` over ``grid`` clusters of tiles, or evaluate it on CPU tensors. Empty grids launch nothing.

    Tensors whose addresses TMA cannot take are copied for the launch, unless peers access them. Raises
    ``LaunchFailed``, and the errors of compilation if the kernel is not compiled yet.
    """
    if 0 in grid:
        return
    if stub.active():
        folder(kernel)
        stub.recorder(kernel.name, len(given))(*(*grid, 1, 1)[:3])
        return
    if has_messages(kernel):
        _check_tensors(kernel, given)
    passed = aligned(given)
    if left_of(given).device.type == "cpu":
        with _refusals(kernel):
            evaluators.evaluate(kernel, passed)
    else:
        _launch(kernel, passed)
    write_back(kernel, given, passed)


@contextlib.contextmanager
def _refusals(kernel: GemmKernel) -> Iterator[None]:
    """Convert refusals of sizes and strides to ``LaunchFailed``."""
    try:
        yield
    except Refusal as refusal:
        raise LaunchFailed(
            f"{kernel.name} cannot be launched with these sizes and strides: {refusal}; call contiguous() of the tensor, or"
            " use backend='auto'"
        ) from refusal


def left_of(given: Sequence[Given]) -> torch.Tensor:
    """Return the left operand, the first argument of a launch."""
    left = given[0]
    assert isinstance(left, torch.Tensor)
    return left


def _launch(kernel: GemmKernel, given: Sequence[Given]) -> None:
    check_launch(kernel, given)
    device, integers = left_of(given).get_device(), split(kernel, given)[1]
    with torch.cuda.device(device):
        entry = entry_of(kernel, device)
        stream = entry.current_stream(device)
        passed = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in given]
        if entry.workspace is not None:
            passed.append(entry.workspace(stream))
        status = entry.launch(*passed, entry.clusters, stream)
    check_status(kernel, "launched", status)
    if len(entry.checked) >= KEPT:
        entry.checked.clear()
    entry.checked.add(integers)


def check_launch(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Check that TMA can address the tensors, sizes and strides. Raises ``LaunchFailed``."""
    _check_tensors(kernel, given)
    with _refusals(kernel):
        launched(kernel, split(kernel, given)[1])


def _check_tensors(kernel: GemmKernel, given: Sequence[Given]) -> None:
    device = left_of(given).device
    for at, tensor in enumerate(given):
        if not isinstance(tensor, torch.Tensor):
            continue
        name = names_of(kernel)[at]
        if tensor.device != device:
            raise LaunchFailed(f"{name} is on {tensor.device}, and {names_of(kernel)[0]} on {device}; move one of them")
        if not is_aligned(tensor):
            excess = tensor.data_ptr() % ALIGNMENT_BYTES
            raise LaunchFailed(
                f"{name}, of shape {tuple(tensor.shape)}, begins {excess} bytes after a multiple of {ALIGNMENT_BYTES}, where"
                " TMA cannot begin; clone it, or use backend='auto', which leaves such calls to another one"
            )


def check_status(kernel: GemmKernel, what: str, status: int) -> None:
    """Check a status of CUDA. Raises ``LaunchFailed`` unless it is success."""
    if status:
        raise LaunchFailed(f"{kernel.name} could not be {what}: CUDA error {status}")


def entry_of(kernel: GemmKernel, device: int) -> Entry:
    """Return the kernel on the current device; compile and load it on first use."""
    found = _ENTRIES.get((kernel.key, device))
    if found is None:
        with _LOCK:
            found = _ENTRIES.get((kernel.key, device)) or _loaded(kernel, device)
            _ENTRIES[kernel.key, device] = found
    return found


def _loaded(kernel: GemmKernel, device: int) -> Entry:
    library = _LIBRARIES.get(kernel.key)
    if library is None:
        make_runtime_visible()
        library = _LIBRARIES[kernel.key] = Library(folder(kernel) / SHARED_OBJECT, kernel.pointers)
    torch.cuda.current_stream(device)  # makes the context that the kernel is loaded in
    check_status(kernel, "loaded", library.load(device))
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return Entry(
        launch=library.launch,
        clusters=library.clusters() or max(1, sms // kernel.ctas),
        device=device,
        current_stream=torch._C._cuda_getCurrentRawStream,
        current_device=torch._C._cuda_getDevice if torch.cuda.device_count() > 1 else None,
        workspace=functools.partial(workspaces(device).address, kernel.workspace_bytes, kernel.counter_bytes)
        if kernel.workspace_bytes
        else None,
    )


def make_runtime_visible() -> None:
    """Make the CUDA runtime of torch visible to shared objects, whose symbols of it are undefined."""
    major = (torch.version.cuda or "13").split(".")[0]
    ctypes.CDLL(f"libcudart.so.{major}", mode=ctypes.RTLD_GLOBAL)
