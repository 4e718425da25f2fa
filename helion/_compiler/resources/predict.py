"""How many registers, bytes, blocks and microseconds a kernel takes with given tile sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...hardware import Target
from ..facts.records import KernelFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What one launch takes.

    ``registers_per_thread`` before any cap, in 32-bit registers; ``spill_risk`` from 0 (none) to 1 (certain).
    ``shared_bytes`` per block is an upper bound. ``waves`` is blocks over all that run at once. ``fits``: the launch is
    possible (shared memory, tensor memory, threads, tile size); if not, ``reason`` says what is needed and what there
    is. ``bytes_moved`` from and to memory, ``flops`` of dots and elementwise ops. ``time_us`` is a roofline.
    """

    registers_per_thread: int
    spill_risk: float
    shared_bytes: int
    tensor_memory_columns: int
    waves: float
    occupancy_blocks: int
    fits: bool
    bytes_moved: int
    flops: int
    time_us: float
    reason: str = ""


def predict(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, num_stages: int, target: Target) -> Predicted:
    raise NotImplementedError
