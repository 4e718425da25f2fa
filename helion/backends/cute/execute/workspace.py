"""The workspace of a launch: global memory through which clusters hand sums to one another (``plan.workspace``)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...._locks import new_lock
from ..plan.workspace import COUNTER_BYTES, MAX_COUNTERS

KEPT_BYTES = 2**28
"""Larger workspaces, of rows that a product leaves to another kernel, go back to the allocator behind each launch."""
Allocate = Callable[[int], torch.Tensor]


class Workspaces:
    """Those of one device, one for each stream: launches on a stream follow one another, and each leaves its counters at
    zero.

    A launch that is captured gets one of its own, whose counters, if it has some, the graph clears: graphs are replayed on any stream, beside
    others. `allocate` gives so many bytes on the current stream; `capturing` says whether that is captured.
    """

    def __init__(self, allocate: Allocate, capturing: Callable[[], bool]) -> None:
        self._allocate, self._capturing = allocate, capturing
        self._kept: dict[int, torch.Tensor] = {}
        self._lock = new_lock()

    def address(self, size: int, counters: int, stream: int) -> int:
        """Where at least `size` bytes begin whose first `counters` bytes are zero when `stream`, the current one, comes to
        the launch. Of memory that one launch has to itself no others are cleared, and none without counters: in a graph that
        is a kernel more."""
        if self._capturing() or size > KEPT_BYTES:
            return self._cleared(size, counters).data_ptr()
        kept = self._kept.get(stream)
        if kept is None or kept.numel() < size:
            with self._lock:
                kept = self._kept[stream] = self._cleared(size, MAX_COUNTERS * COUNTER_BYTES)
        return kept.data_ptr()

    def _cleared(self, size: int, counters: int) -> torch.Tensor:
        """Memory that the allocator takes back is given to what comes later on the same stream only."""
        memory = self._allocate(size)
        if counters:
            memory[:counters].zero_()
        return memory


_LOCK = new_lock()
_WORKSPACES: dict[int, Workspaces] = {}


def workspaces(device: int) -> Workspaces:
    """Of a GPU, by its number."""
    with _LOCK:
        found = _WORKSPACES.get(device)
        if found is None:

            def allocate(size: int) -> torch.Tensor:
                return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))

            found = _WORKSPACES[device] = Workspaces(allocate, torch._C._cuda_isCurrentStreamCapturing)
        return found
