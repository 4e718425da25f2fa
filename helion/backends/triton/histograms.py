"""Histograms of tiles, which take the place of an atomic for each element."""

from __future__ import annotations

from ..._shapes import next_power_of_2
from ...hardware import Target

#: Most bins: a warp compares each of its elements with one in 32 of them.
MOST_BINS = 1024
_LEAST_BINS = 32
#: Least elements of a tile for each bin; with fewer, programs would add about as many numbers.
_PER_BIN = 2
#: Bytes of a bin in shared memory.
BIN_BYTES = 4
#: Issue slots of a warp for each bit of a bin, and for each 32 bins: in the ratio of instructions for sm_90, as timed on an
#: H200 (benchmarks/results/histograms.jsonl).
_OF_VOTES, _OF_BINS = 4.2, 1.9


def width_of(bins: int) -> int:
    """Return the power of two of a histogram; 0 for more bins than it may have."""
    return max(_LEAST_BINS, next_power_of_2(bins)) if 1 <= bins <= MOST_BINS else 0


def counts(elements: float, width: int, num_warps: int, target: Target) -> bool:
    """Return whether a tile counts: each thread has elements of its own, and bins have several."""
    if target.kind != "cuda":  # measured there alone
        return False
    return 0 < width * _PER_BIN <= elements and elements >= num_warps * target.warp_size


def issued_per_warp(width: int) -> float:
    """Return the instructions of a warp for 32 elements: a vote for each bit of a bin, and a count for each 32 bins."""
    return _OF_VOTES * (width.bit_length() - 1) + _OF_BINS * (width // _LEAST_BINS)


__all__ = ["BIN_BYTES", "MOST_BINS", "counts", "issued_per_warp", "width_of"]
