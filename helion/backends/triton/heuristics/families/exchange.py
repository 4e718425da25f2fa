"""Kernels that exchange tiles with other GPUs: few messages, and enough programs to fill the link.

Matches kernels with messages and one tile size, without matmuls and scans. Each program that sends a tile waits until
its stores have arrived, then signals: a message costs a trip over the link. So tiles are as long as the programs that
fill the link allow, and each thread stores whole vectors (measurements ``nvlink4`` and ``exchanged_tiles``). Rows that are
reduced are whole: one per program, which is ready to send at once.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ....._compiler.facts.records import KernelFacts
from ....._shapes import previous_power_of_2
from ....._support.records import dataclass
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import NVLINK4, VECTOR_BYTES, WARP_THREADS, Target
from ...proposal import TritonProposal
from ..sizing import clamp, extent_of
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "exchange"

    #: Least and most vectors of a tile, and vectors of a thread.
    least: int
    most: int
    thread_vectors: int
    #: Programs for each one that fills the link, where threads store one vector.
    share: float
    #: Least and most warps of a program.
    warps: tuple[int, int]
    #: Most vectors of a row that registers hold.
    row: int


_TUNED = tuned(_Numbers)


class TritonExchangeHeuristic(Heuristic):
    name: ClassVar[str] = "TritonExchangeHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.messages:
            return Declined("no messages between GPUs")
        if facts.matmuls or facts.scans:
            return Declined("the kernel has a matmul or a scan")
        if len(facts.tunable_axes) != 1 or not facts.tunable_axes[0].on_grid:
            return Declined("not one tile size, that of the grid")
        (axis,) = facts.tunable_axes
        whole = {each.block_id: max(1, each.padded) for each in facts.axes if each.kind == "full"}
        stores = [op for op in facts.memory_ops if op.kind == "store" and {axis.block_id, *whole} == {*op.tile_axes}]
        if not stores:
            return Declined("no store of a whole tile")
        per_vector = VECTOR_BYTES // max(op.itemsize for op in stores)
        row = math.prod(whole.values())
        if row > _TUNED.row * per_vector:
            return Declined(f"rows of more than {_TUNED.row} vectors of {VECTOR_BYTES} bytes")
        link = target.link or NVLINK4
        programs = max(1, int(_TUNED.share * link.full_programs))
        share = row * extent_of(axis) // (programs * per_vector)
        vectors = max(_TUNED.least, min(_TUNED.most, previous_power_of_2(max(1, share))))
        size = clamp(max(1, vectors * per_vector // row), axis)
        lanes = size * row // per_vector
        fewest, most = _TUNED.warps
        warps = max(min(fewest, lanes // WARP_THREADS), min(most, lanes // (_TUNED.thread_vectors * WARP_THREADS)), 1)
        reason = f"{link.full_programs} programs fill {link.name}: tiles of {size * row}, {warps} warps"
        return (TritonProposal(reason=reason, block_sizes={axis.block_id: size}, num_warps=warps, num_stages=1),)
