"""Histograms and sums of tiles by bins, which take the place of an atomic for each element."""

from __future__ import annotations

from ..._shapes import next_power_of_2
from ...hardware import Target

#: Most bins: a warp compares each of its elements with one in 32 of them.
MOST_BINS = 1024
_LEAST_BINS = 32
#: Least elements of a tile for each bin; with fewer, programs would add about as many numbers.
_PER_BIN = 2
#: Bytes of a bin in shared memory.
_BIN_BYTES = 4
#: Issue slots of a warp for each bit of a bin, and for each 32 bins: in the ratio of instructions for sm_90, as timed on an
#: H200 (benchmarks/results/histograms.jsonl).
_OF_VOTES, _OF_BINS = 4.2, 1.9
#: Most and least bins of values that a tile is summed up by: a thread compares each of its values with all bins.
_MOST_SUMS, _LEAST_SUMS = 64, 8
#: Pairs of a value and a bin that a thread has at most: 40 registers hold them, by ptxas for sm_90, and 250 twice as many.
_PAIRS = 64
#: Instructions of a thread for such a pair, and bytes of shared memory that exchange values and sums, by the same.
_OF_PAIR, _EXCHANGED_BYTES = 5.0, 1024


def width_of(bins: int, summed: bool = False) -> int:
    """Return the power of two of a histogram, or of sums by bins; 0 for more bins than it may have."""
    most, least = (_MOST_SUMS, _LEAST_SUMS) if summed else (MOST_BINS, _LEAST_BINS)
    return max(least, next_power_of_2(bins)) if 1 <= bins <= most else 0


def counts(elements: float, width: int, num_warps: int, target: Target, summed: bool = False) -> bool:
    """Return whether a tile is counted or summed by bins: each thread has elements of its own, and bins have several."""
    threads = num_warps * target.warp_size
    if target.kind != "cuda" or elements < threads:  # measured there alone
        return False
    return 0 < width * _PER_BIN <= elements and (not summed or elements * width <= _PAIRS * threads)


def most_summed(width: int, num_warps: int, target: Target) -> int:
    """Return the most elements of a tile that is summed by bins in little time (measurement ``summed_bins``)."""
    threads = num_warps * target.warp_size
    return threads * max(1, _PAIRS // 2 // width)


def issued_per_warp(width: int, summed: bool = False) -> float:
    """Return the instructions of a warp for 32 elements: a vote for each bit of a bin, and a count for each 32 bins.

    Sums have those of each bin.
    """
    if summed:
        return _OF_PAIR * width
    return _OF_VOTES * (width.bit_length() - 1) + _OF_BINS * (width // _LEAST_BINS)


def exchanged_bytes(width: int, summed: bool = False) -> int:
    """Return the bytes of shared memory of a tile that is counted or summed."""
    return _EXCHANGED_BYTES if summed else width * _BIN_BYTES


__all__ = ["MOST_BINS", "counts", "exchanged_bytes", "issued_per_warp", "most_summed", "width_of"]
