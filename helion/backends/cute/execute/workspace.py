"""The workspace of a launch: global memory for the split-K partials of clusters (``plan.workspace``)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...._support.locks import new_lock
from ..plan.workspace import COUNTER_BYTES, MAX_COUNTERS

KEPT_BYTES = 2**28
"""Larger workspaces, of rows for a second kernel, return to the allocator after each launch."""
Allocate = Callable[[int], torch.Tensor]


class Workspaces:
    """The workspaces of one device, one for each stream: launches on a stream run in order, and each resets its
    counters.

    A captured launch has a separate workspace, whose counters, if any, the graph clears: graphs may replay on any
    stream and overlap. `allocate` returns a number of bytes on the current stream; `capturing` returns whether that
    stream is being captured.
    """

    def __init__(self, allocate: Allocate, capturing: Callable[[], bool]) -> None:
        self._allocate, self._capturing = allocate, capturing
        self._kept: dict[int, torch.Tensor] = {}
        self._lock = new_lock()

    def address(self, size: int, counters: int, stream: int) -> int:
        """Return the address of `size` bytes or more whose first `counters` bytes are zero when `stream`, the current
        one, runs the launch.

        Memory of a single launch is cleared only up to its counters, if any: in a graph the memset is one more node.
        """
        if self._capturing() or size > KEPT_BYTES:
            return self._cleared(size, counters).data_ptr()
        kept = self._kept.get(stream)
        if kept is None or kept.numel() < size:
            with self._lock:
                kept = self._kept[stream] = self._cleared(size, MAX_COUNTERS * COUNTER_BYTES)
        return kept.data_ptr()

    def _cleared(self, size: int, counters: int) -> torch.Tensor:
        """Allocate memory and clear its counters; freed memory is only reused later on the same stream."""
        memory = self._allocate(size)
        if counters:
            memory[:counters].zero_()
        return memory


_LOCK = new_lock()
_WORKSPACES: dict[int, Workspaces] = {}


def workspaces(device: int) -> Workspaces:
    """Return the workspaces of a GPU, by its number."""
    with _LOCK:
        found = _WORKSPACES.get(device)
        if found is None:

            def allocate(size: int) -> torch.Tensor:
                return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))

            found = _WORKSPACES[device] = Workspaces(allocate, torch._C._cuda_isCurrentStreamCapturing)
        return found
