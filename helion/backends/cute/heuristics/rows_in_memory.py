"""GEMMs whose rows are reduced afterwards and stay in memory in between. They are tiles of a plain GEMM, and a kernel
that reads each row once. If only numbers per row are stored, that kernel combines reductions of tiles instead.

This is for rows too long for a cluster, or for which a store and a load cost less than a cluster. With few rows,
clusters leave most SMs idle, while these tiles can split K. If a cluster can hold the rows as well, predicted times
decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....hardware import Target
from ..legality import TILE_COLUMNS
from ..plan.records import Choice
from ..resources.shape import ProductShape
from . import tcgen05_matmul, wgmma_matmul


def choices(shape: ProductShape, target: Target) -> Iterator[Choice]:
    """Yield choices, with a plan or without; among equally fast ones the first wins."""
    unit = tcgen05_matmul if target.has("tcgen05") else wgmma_matmul
    for choice in unit.choices(shape, target):
        if choice.tile[1] in TILE_COLUMNS:
            yield replace(choice, rows_in="memory")
