"""The choice of tiles for the first of products in sequence, which has few columns."""

from __future__ import annotations

from ....._shapes import next_power_of_2, previous_power_of_2
from .....hardware import Target
from ...limits import LEAST_COLUMNS, TCGEN05_ROWS
from ..build import unit_of
from ..records import WGMMA_ROWS, Choice, GemmProblem

MIDDLE_SLOT = -1
"""Slot of the loads of a middle, which the program does not load itself."""
LEAST_K_TILES = 4
"""K tiles of each part of K, which fill a pipeline."""
MOST_PARTS = 8
"""CTAs of a cluster that share the K of a tile."""
SUBTILE = 8


def choice_of_first(problem: GemmProblem, target: Target) -> Choice:
    """Return the choice for a matmul of few columns: one tile has all of them, and K is in as many parts as fill the GPU."""
    rows = WGMMA_ROWS if unit_of(target) == "wgmma" else TCGEN05_ROWS
    columns = max(LEAST_COLUMNS, next_power_of_2(problem.n))
    if problem.b_major != "k" or problem.copied:
        columns = max(columns, problem.line)
    tiles, k_tiles, splits = -(-problem.m // rows), -(-problem.k // problem.line), 1
    if unit_of(target) == "wgmma":
        parts = min(MOST_PARTS, target.num_sms // tiles, k_tiles // LEAST_K_TILES, columns // SUBTILE)
        splits = previous_power_of_2(max(1, parts))
    return Choice(
        tile=(rows, columns, problem.line),
        epilogue_n=SUBTILE,
        store_stages=2,
        splits=splits,
        copies_in="memory" if problem.copied else "shared",
        group=1,
    )
