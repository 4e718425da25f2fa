"""Elementwise kernels that exchange tiles with other GPUs: few messages, and enough programs to fill the link.

Matches kernels with messages and one tile size, without matmuls, scans and reductions of known extent. Each program that
sends a tile waits until its stores have arrived, then signals: a message costs a trip over the link. So tiles are as long
as the programs that fill the link allow, and each thread stores whole vectors (measurement ``nvlink4``). In long tensors,
tiles stay short enough for many programs per SM, of which some store while others wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....._compiler.facts.records import KernelFacts
from ....._shapes import previous_power_of_2
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import NVLINK4, VECTOR_BYTES, WARP_THREADS, Target
from ...proposal import TritonProposal
from ..sizing import clamp, extent_of
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "exchange"

    #: Least and most vectors of a program, and vectors of a thread.
    least: int
    most: int
    thread_vectors: int
    #: Most warps of a program.
    warps: int


_TUNED = tuned(_Numbers)


class TritonExchangeHeuristic(Heuristic):
    name: ClassVar[str] = "TritonExchangeHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.messages:
            return Declined("no messages between GPUs")
        if facts.matmuls or facts.primary_reduction is not None or facts.scans:
            return Declined("the kernel has a matmul, a scan or a reduction of known extent")
        if len(facts.tunable_axes) != 1 or not facts.tunable_axes[0].on_grid:
            return Declined("not one tile size, that of the grid")
        (axis,) = facts.tunable_axes
        stores = [op for op in facts.memory_ops if op.kind == "store" and op.tile_axes == (axis.block_id,)]
        if not stores:
            return Declined("no store of a tile along the grid alone")
        per_vector = VECTOR_BYTES // max(op.itemsize for op in stores)
        link = target.link or NVLINK4
        share = extent_of(axis) // (link.full_programs * per_vector)
        vectors = max(_TUNED.least, min(_TUNED.most, previous_power_of_2(max(1, share))))
        size = clamp(vectors * per_vector, axis)
        lanes = size // per_vector // _TUNED.thread_vectors
        warps = max(1, min(_TUNED.warps, lanes // WARP_THREADS))
        reason = f"{link.full_programs} programs fill {link.name}: tiles of {size}, {warps} warps"
        return (TritonProposal(reason=reason, block_sizes={axis.block_id: size}, num_warps=warps, num_stages=1),)
