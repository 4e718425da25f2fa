"""A product whose rows are reduced behind it, and lie in memory in between: as tiles of a plain product, and a kernel that
reads each row once, or joins what tiles have reduced where numbers per row are all that is stored.

For rows that no cluster holds, and for those that a cluster holds so slowly that writing and reading them takes less: with few
rows, of which clusters leave most SMs without work, the K of a tile can be split. Where rows are held by a cluster as well, the
predicted times decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....hardware import Target
from ..plan.records import Choice
from ..resources.shape import ProductShape
from ..settle import TILE_COLUMNS
from . import tcgen05_matmul, wgmma_matmul


def choices(shape: ProductShape, target: Target) -> Iterator[Choice]:
    """What has a plan or not; of equally fast ones the first is taken."""
    unit = tcgen05_matmul if target.has("tcgen05") else wgmma_matmul
    for choice in unit.choices(shape, target):
        if choice.tile[1] in TILE_COLUMNS:
            yield replace(choice, rows_in="memory")
