"""Atomics whose programs count, or sum up values, in registers first, and add one number for each bin."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ...._compiler.ir.bins import Bins, bins_of
from ...._compiler.ir.grammar import MemoryAttrs, Program
from ...._compiler.ir.rewrite import Makers
from ...._shapes import hint_of
from ...._support.records import dataclass
from ....hardware import Target
from ..histograms import counts, width_of

#: Dtypes that hold the counts, or sums, of all elements of a tile.
_DTYPES = (torch.int32, torch.int64, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Counted:
    """The bins of an atomic, and the power of two that a histogram or sums of them have."""

    bins: Bins
    width: int

    @property
    def summed(self) -> bool:
        """True where each lane has a value of its own."""
        return self.bins.amount is None


def counted(program: Program, sizes: Mapping[int, int], warps: int, target: Target) -> dict[int, Counted]:
    """Return the atomics that count in histograms, or sum up by bins, by op."""
    atomics = [op for op in program.walk() if op.kind == "atomic" and op.attributes(MemoryAttrs).unread]
    makers = Makers.among(program.walk() if atomics else ())
    found = {}
    for op in atomics:
        bins = bins_of(op, makers, program)
        if bins is None or program.tensors[op.attributes(MemoryAttrs).tensor].dtype not in _DTYPES:
            continue
        summed = bins.amount is None
        width = width_of(int(hint_of(bins.size)), summed)
        blocks = [block for dim in op.result.dims for block in dim.blocks]
        elements = math.prod(sizes[block] for block in blocks) * math.prod(dim.const for dim in op.result.dims)
        if counts(elements, width, warps, target, summed):
            found[op.number] = Counted(bins, width)
    return found


__all__ = ["Counted", "counted"]
