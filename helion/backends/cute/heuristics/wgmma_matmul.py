"""One GEMM on Hopper's matrix unit: the tile with the least waves times time per tile.

Tiles of 128 x 256 and 256 x 128 run from the L2 cache at nearly the unit's rate. Smaller ones are for GEMMs whose
larger tiles would leave SMs idle. Two CTAs of a cluster that share B save loads.

Ping-pong in clusters hides the epilogues of short mainloops and the gaps between tiles (measurement ``wgmma_tiles``).
Where even small tiles leave SMs idle, CTAs of a cluster split K, and so do several clusters if needed.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._support.records import replace
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..bounds import places_of_copies, tile_bounds
from ..plan.dtypes import IMPRECISE_DTYPES
from ..plan.operands import FEW_ROWS, SLICED_COLUMNS
from ..plan.records import SWIZZLE_BYTES, WGMMA_ROWS, Choice, CopiesIn
from ..plan.scales import promoted
from ..resources.shape import ProductShape
from ..resources.time import crosses_lines, resident_clusters
from .tiles import narrowed, proposed, tiles

CONVERTED = ("registers", "slices")
"""Places of operands that the warps that multiply convert."""
SLICED_ROWS = 128
"""Rows of tiles of warps with K tiles of their own: more leave SMs idle (benchmarks/results/cute/nvidia-h200-few-rows.jsonl)."""
WIDE = (128, 256)
FEW_COLUMNS = 64
"""Columns of tiles of 256 rows whose instructions wait for A (benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
USUAL_SUBTILE, SQUARE, UNEVEN = 32, (128, 128), (128, 192)
"""Columns of a sub-tile; tiles of clusters of 2 x 2; tiles of which two CTAs cannot share an N-major B, and share A
(``waves`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
FEW_TOGETHER = 4
"""Tiles along N that read lines of A at the same time, where one wave has all tiles and the last ones are half full at least:
two CTAs of a cluster read them once (``together`` of the same rows)."""
SHARED_TILES = ((64, 128), (128, 64), (128, 128))
SHARED_CLUSTERS, SHARED_SPLITS, MOST_SHARING = ((1, 2), (2, 1), (2, 2)), (1, 2, 4), 8
"""Tiles and clusters of few tiles that share operands, and their parts of K: 8 CTAs at most (the same rows)."""
MOST_OF_LAST, MOST_WAVES = 16, 4
"""Clusters that split a tile of the last wave, and the most waves (``waves`` of the same rows)."""
MORE_GRID_SPLITS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16)
SPLITS = (2, 4, 8)
GRID_SPLITS = (2, 3, 4, 6, 8, 16)
RESIDENTS = 2
"""CTAs per SM where warps that multiply convert A: those of one wait for shared memory, barriers and the matrix unit while
those of the other convert (benchmarks/results/cute/nvidia-h200-few-rows.jsonl)."""
LEAST_OF_TWO = 4
"""Columns of B from which K is split for them, but in a cluster for warps with K tiles of their own: with fewer, more CTAs
wait for the same lines of the L2 cache (the same rows)."""


class CuteWgmmaMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "CuteWgmmaMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        return proposed(facts, target, "wgmma", choices)


def choices(shape: ProductShape, target: Target) -> list[Choice]:
    """Return choices, with a plan or without; among equally fast ones the first wins."""
    places = places_of_copies(shape.problem, target) if shape.problem.copied else ("shared",)
    if shape.problem.n > SLICED_COLUMNS:
        places = tuple(place for place in places if place != "slices")
    if "tma" in places:  # stages that warps fill have not run with A of fp32 along M
        places = tuple(place for place in places if place != "shared")
    if "registers" in places and len(places) > 1:
        # they are faster than stages for few columns, and have not run with more
        few = shape.problem.n <= FEW_ROWS
        places = tuple(place for place in places if (place in CONVERTED) == few)
    return [_in_turn(shape, choice) for place in places for choice in _choices(shape, target, place)]


def _in_turn(shape: ProductShape, choice: Choice) -> Choice:
    """Return a choice with two accumulators that take turns, where blocks of K of 8-bit floats have scales.

    A tile has one scale for all its columns (``blockwise`` of benchmarks/results/cute/nvidia-h200-parts.jsonl). Other tiles,
    clusters and numbers of accumulators are slower (measurement ``block_scaled_tiles``).
    """
    problem, scales = shape.problem, promoted(shape.problem.scales)
    converted = problem.copied and choice.copies_in != "memory"
    if scales is None or problem.operand_dtype not in IMPRECISE_DTYPES or converted or problem.runtime:
        return choice
    column = scales.of("column")
    several = column is not None and column.pitch > 0 and column.lines % choice.tile[1] > 0
    if several or choice.splits * choice.grid_splits > 1 or choice.pingpong or scales.k != choice.tile[2]:
        return choice
    return replace(choice, accumulator_stages=2)


def _choices(shape: ProductShape, target: Target, copies_in: CopiesIn) -> list[Choice]:
    found: list[Choice] = []
    in_stages = bool(shape.problem.copied) and copies_in not in ("memory", "tma")
    for tile in sorted(tiles(shape, target), key=lambda tile: tile[:2] != WIDE):
        tile = (*tile[:2], SWIZZLE_BYTES) if copies_in in CONVERTED else tile
        if copies_in == "slices" and (
            tile[1] != SLICED_COLUMNS or (tile[0] > SLICED_ROWS and shape.blocks[0] not in shape.fixed)
        ):
            continue
        if (
            shape.problem.rounded and shape.blocks[2] not in shape.fixed
        ):  # half as many sums are rounded (the same rows)
            tile = (*tile[:2], tile_bounds(shape.problem, target)[2][1])
        rows, columns = -(-shape.problem.m // tile[0]), -(-shape.problem.n // tile[1])
        together = rows * columns * shape.problem.repeats
        plain = narrowed(Choice(tile=tile, copies_in=copies_in), divided=False)
        paired = replace(plain, cluster=(2, 1))
        unshared = tile[1] > UNEVEN[0] and tile[1] % UNEVEN[0] > 0  # two CTAs cannot load slices of B along N
        unshared, tall = unshared and shape.problem.b_major == "mn", tile[0] > 2 * WGMMA_ROWS
        filled = 2 * (columns * tile[1] - shape.problem.n) <= tile[1]
        waves = 2 if columns == 2 else 1
        read_twice = 1 < columns <= FEW_TOGETHER and together <= waves * target.num_sms and filled
        beside = shape.problem.groups is not None or rows % 2 > 0 or tall or unshared or read_twice
        shared = [replace(plain, cluster=(1, 2))] if beside and columns > 1 and not in_stages else []
        shared = [paired, *shared] if rows > 1 else shared
        found += [*(shared[::-1] if tall else shared), plain]
        # teams of 64 rows of 8-bit floats read all of B for half of the rows (measurement ``narrow_teams``)
        thin = tile[0] == WGMMA_ROWS < shape.problem.m and shape.problem.operand_dtype in IMPRECISE_DTYPES
        # copies in stages have not run with two consumer groups; matmuls that round each K tile are faster without them
        # (``rounded_tiles_time`` of benchmarks/results/cute/nvidia-h200-parts.jsonl)
        if together > target.num_sms and not in_stages and not shape.problem.rounded and not thin:
            found += [replace(paired, pingpong=True)] if rows > 1 else []
            found.append(replace(plain, pingpong=True))
            if tile[:2] == SQUARE and rows > 1 and columns > 1 and _crosses_lines(shape):
                found.append(replace(plain, cluster=(2, 2), pingpong=True))
        found += _in_clusters(shape, tile, (rows, columns), copies_in, target) if not in_stages else []
        found += _of_last_wave(shape, tile, (rows, columns), target) if copies_in != "memory" else []
        if tile[0] > WGMMA_ROWS * 2 and tile[1] <= FEW_COLUMNS and copies_in not in CONVERTED:
            continue
        for splits, clusters in itertools.product((1, *SPLITS), (1, *GRID_SPLITS)):
            most = resident_clusters(splits, target) // together
            if copies_in != "registers" and 1 < most < clusters:
                clusters = max(each for each in MORE_GRID_SPLITS if each <= most)
            ctas = together * splits * clusters
            fills = clusters == 1 or 2 * ctas > target.num_sms
            split = Choice(tile=tile, splits=splits, grid_splits=clusters, copies_in=copies_in)
            if splits * clusters > 1 and fills and ctas <= target.num_sms:
                found.append(narrowed(split, min(plain.epilogue_n, tile[1] // splits)))
                if splits == 1 and columns == 2 and copies_in == "shared":
                    found.append(replace(found[-1], cluster=(1, 2)))
            several = shape.problem.n >= LEAST_OF_TWO or (copies_in == "slices" and clusters == 1)
            parted = several and ctas <= RESIDENTS * target.num_sms
            scaled = tile[0] > WGMMA_ROWS and shape.problem.scales is not None  # two of these on an SM run on request
            if copies_in in CONVERTED and ctas > target.num_sms and not scaled and (parted or splits * clusters == 1):
                resident = replace(split, ctas_per_sm=RESIDENTS)
                found.append(narrowed(resident, min(plain.epilogue_n, tile[1] // splits)))
    return [*dict.fromkeys(found)]


def _of_last_wave(
    shape: ProductShape, tile: tuple[int, int, int], tiles_of: tuple[int, int], target: Target
) -> list[Choice]:
    """Return a choice whose clusters split the tiles that whole waves leave, of all clusters that run at once."""
    problem = shape.problem
    plain = not (problem.copied or problem.terms or problem.scales or problem.ends or problem.groups or problem.runtime)
    by_rows, several = problem.epilogue.reduces_rows or problem.numbers, problem.epilogue.of_kind("product")
    if not plain or by_rows or several or tile[0] != SQUARE[0] or tile[1] < SQUARE[1]:
        return []
    cluster = (1, 2) if tile[:2] == UNEVEN and problem.b_major == "mn" else (2, 1)
    rows, columns = (-(-extent // along) for extent, along in zip(tiles_of, cluster, strict=True))
    tiles, at_once = rows * columns * problem.repeats, resident_clusters(math.prod(cluster), target)
    clusters = min(at_once // (tiles % at_once or at_once), MOST_OF_LAST)
    if not at_once < tiles < MOST_WAVES * at_once or clusters == 1 or min(tiles_of) < max(cluster):
        return []
    return [narrowed(Choice(tile=tile, cluster=cluster, grid_splits=clusters, split_last=True))]


def _crosses_lines(shape: ProductShape) -> bool:
    """Return whether rows of A begin between lines of the L2 cache. Clusters of 2 x 2 load fewer of them."""
    return shape.problem.groups is None and crosses_lines(shape.problem)


def _in_clusters(
    shape: ProductShape, tile: tuple[int, int, int], tiles_of: tuple[int, int], copies_in: CopiesIn, target: Target
) -> list[Choice]:
    """Return choices for few tiles, of clusters that share operands and split K, as many as run at once."""
    together = tiles_of[0] * tiles_of[1] * shape.problem.repeats
    if 4 * together > target.num_sms or tile[:2] not in SHARED_TILES:
        return []
    found = []
    for cluster, splits in itertools.product(SHARED_CLUSTERS, SHARED_SPLITS):
        ctas = cluster[0] * cluster[1] * splits
        if tiles_of[0] % cluster[0] or tiles_of[1] % cluster[1] or ctas > MOST_SHARING:
            continue
        most = resident_clusters(ctas, target) * cluster[0] * cluster[1] // together
        clusters = max((each for each in (1, *MORE_GRID_SPLITS) if each <= most), default=1)
        choice = Choice(tile=tile, cluster=cluster, splits=splits, grid_splits=clusters, copies_in=copies_in)
        if splits * clusters > 1:
            found.append(narrowed(choice, min(USUAL_SUBTILE, tile[1] // splits)))
    return found
