"""Limits of the matrix units on a target that shape a program."""

from __future__ import annotations

import torch

from ..._compiler.context import Limits
from ...hardware import Target
from .plan.records import SWIZZLE_BYTES

#: Rows of the accumulator that one CTA of tcgen05 holds in tensor memory.
TCGEN05_ROWS = 128
#: Two sub-tiles with the fewest columns that are stored at a time.
LEAST_COLUMNS = 32
#: The same of few rows of a transposed matmul, which threads store without buffers.
LEAST_FEW = 16
#: Step of the columns of both matrix units for tiles of 128 rows (PTX ISA, ``wgmma.mma_async`` and ``tcgen05.mma``).
COLUMN_STEP = 16


def limits(target: Target) -> Limits:
    """Return the limits: tiles of K fill a line of the widest swizzle, and TMA reads zeros past the end of a tensor."""
    return Limits(
        backend="cute",
        powers_of_2=True,
        tile_step=COLUMN_STEP,
        # rows have more, unless the transposed matmul is computed; ``tile_bounds`` has those of each matmul
        min_dot={itemsize: (LEAST_FEW, LEAST_FEW, SWIZZLE_BYTES // itemsize) for itemsize in (1, 2, 4, 8)},
        min_four_bit_k=SWIZZLE_BYTES,
        dot_precisions=frozenset({"ieee", "tf32", "tf32x3"}),
        float_arguments=torch.float32,
        least_size=2,
    )
