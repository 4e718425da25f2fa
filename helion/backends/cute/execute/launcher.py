"""Launches compiled products: on a GPU their shared objects, on CPU tensors what they compute."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ...._locks import new_lock
from ... import stub
from ..plan.refusal import Refusal
from ..toolchain.kernel import GemmKernel
from ..toolchain.library import SHARED_OBJECT, Library, folder
from .evaluate import evaluate
from .problems import Given, launched, names_of, split
from .workspace import workspaces

ALIGNMENT_BYTES = 16


class LaunchFailed(RuntimeError):
    """CUDA refused to load or to launch a kernel; the message has its status."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A kernel on one device: ``launch`` takes addresses and numbers, the clusters that run at once, and a stream.

    The last address is that of its workspace, if it has one, which ``workspace`` gives for a stream. ``checked`` are the
    integers of launches, those that only they know, of which it is known that the kernel takes them.
    """

    launch: Callable[..., int]
    clusters: int
    device: int
    current_stream: Callable[[int], int]
    current_device: Callable[[], int] | None
    """None where there is but one."""
    workspace: Callable[[int], int] | None = None
    checked: set[tuple[int, ...]] = dataclasses.field(default_factory=set)


_LOCK = new_lock()
_LIBRARIES: dict[str, Library] = {}
_ENTRIES: dict[tuple[str, int], Entry] = {}


#: Integers of launches that a kernel keeps before it forgets them all.
KEPT = 4096


def launch_gemm(kernel: GemmKernel, grid: tuple[int, ...], *given: Given) -> None:
    """Launch ``kernel`` over ``grid`` clusters of tiles. Empty grids launch nothing. On CPU tensors it is evaluated.

    Raises ``LaunchFailed``, and what compiling raises where nobody has compiled the kernel.
    """
    if 0 in grid:
        return
    if stub.active():
        folder(kernel)
        stub.recorder(kernel.name, len(given))(*(*grid, 1, 1)[:3])
    elif left_of(given).device.type == "cpu":
        with _refusals(kernel):
            evaluate(kernel, given)
    else:
        _launch(kernel, given)


@contextlib.contextmanager
def _refusals(kernel: GemmKernel) -> Iterator[None]:
    """Raises ``LaunchFailed`` for sizes and strides that the kernel cannot take."""
    try:
        yield
    except Refusal as refusal:
        raise LaunchFailed(
            f"{kernel.name} cannot be launched with these sizes and strides: {refusal}; call contiguous() of the tensor, or"
            " use backend='auto'"
        ) from refusal


def left_of(given: Sequence[Given]) -> torch.Tensor:
    """The left operand, which is the first that a launch is given."""
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
    """Raises ``LaunchFailed`` for tensors, sizes and strides that the copy engine cannot address."""
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
        behind = tensor.data_ptr() % ALIGNMENT_BYTES
        if behind:
            raise LaunchFailed(
                f"{name}, of shape {tuple(tensor.shape)}, begins {behind} bytes behind a multiple of {ALIGNMENT_BYTES}, where"
                " the copy engine cannot begin; clone it, or use backend='auto', which leaves such calls to another one"
            )


def check_status(kernel: GemmKernel, what: str, status: int) -> None:
    """Raises ``LaunchFailed`` for a status of CUDA's other than success."""
    if status:
        raise LaunchFailed(f"{kernel.name} could not be {what}: CUDA error {status}")


def entry_of(kernel: GemmKernel, device: int) -> Entry:
    """The kernel on a device, which is the current one; compiled and loaded when first asked for."""
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
    """Let shared objects find the CUDA runtime that torch has loaded, of whose symbols they leave open."""
    major = (torch.version.cuda or "13").split(".")[0]
    ctypes.CDLL(f"libcudart.so.{major}", mode=ctypes.RTLD_GLOBAL)
