"""Buckets of numbers of columns: one kernel serves all rows of a bucket, where only the launch knows their columns.

A kernel has the registers and the memory of its longest rows, and masks granules that its shortest ones may lack.
"""

from __future__ import annotations

from ....._shapes import previous_power_of_2

FIRST = 256
"""The most columns of the first bucket."""
PARTS = 4
"""Buckets from one power of two to the next: rows have at least four fifths of the columns of the longest ones."""
LONG, LONG_PARTS = 32768, 8
"""Columns of long rows, and their buckets: a granule for each thread more than a row has costs a tenth of it."""
MOST_LANES = 16
"""The most elements of a granule. The ends of buckets are multiples of it."""


def bucket_of(n: int, aligned: bool) -> range:
    """Return the columns of the bucket of ``n``; it has ``aligned`` rows of whole granules, or others.

    The longest rows of others have an odd number of columns, so that rows begin anywhere.
    """
    if n <= FIRST:
        before, end = 0, FIRST
    else:
        step = previous_power_of_2(n - 1) // (LONG_PARTS if n > LONG else PARTS)
        end = -(-n // step) * step
        before = end - step
    return range(before + 1, end + 1) if aligned else range(before + 1, end)
