"""GEMMs whose whole rows a cluster of CTAs along N holds, to reduce them in registers or because N has no tile to
choose.

Tiles of 128 x 256 use the matrix unit best, and a CTA of a larger cluster loads less of A.

Up to clusters of 8, the exchange is small. There, store buffers for a whole tile, in place of one stage, overlap stores
with the next loads. Two CTAs of 128 x 128 per SM hide each other's epilogue where waves are few. Tiles of 64 rows are
for so few rows that larger tiles would leave SMs idle. Where one wave of clusters covers all tiles, stages are worth
more than such buffers (measurement ``row_clusters``). The MMAs of a next tile hide no epilogue of a cluster, since its
accumulators stay until rows are reduced (measurement ``row_products``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..bounds import columns_of, ctas_per_mma, held_by_cluster, lies_in_memory, row_clusters, tile_bounds
from ..plan.build import unit_of
from ..plan.records import Choice, Unit
from ..resources.shape import ProductShape, shape_of
from ..subtiles import subtile_of
from .rows_in_memory import choices
from .tiles import Option, handicapped_us, options, proposals

#: Minimum columns of a tile in larger clusters, and columns of sub-tiles.
LEAST_COLUMNS, WIDTHS = 128, (32, 16)
#: Waves up to which two CTAs per SM are better than one with twice the columns.
FEW_ROUNDS = 4
#: Rows of a tile, the preferred first; 256 are those of a pair of CTAs.
ROWS: dict[Unit, tuple[int, ...]] = {"wgmma": (128, 64), "tcgen05": (256, 128, 64)}
#: Minimum stages of a mainloop where two CTAs share an SM.
LEAST_STAGES = 3
MOST_CTAS, LONG_K, SHARING_GAINS = 8, 2048, 1.04
"""The most CTAs of a cluster of two tiles of rows, the least K for it, and what it gains over its predicted time: both load
B once (measurement ``row_clusters_of_two``)."""


class CuteClusterEpilogueHeuristic(Heuristic):
    name: ClassVar[str] = "CuteClusterEpilogueHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not target.has("wgmma") and not target.has("tcgen05"):
            return Declined(f"{target} has neither wgmma nor tcgen05")
        shape = shape_of(facts)
        if isinstance(shape, str):
            return Declined(shape)
        if not shape.whole_rows:
            return Declined("N is tiled in the kernel, so no cluster has to hold whole rows")
        held = options(shape, target, [*_choices(shape, target)])
        stored = options(shape, target, [*choices(shape, target)]) if lies_in_memory(shape.problem) else []
        ranked = sorted((*held, *stored), key=_ranked_us)
        return proposals(shape, target, ranked) or Declined(
            f"rows of {shape.problem.n} columns fit no cluster, of {row_clusters(shape.problem, target)} CTAs with tiles of"
            f" {' or '.join(map(str, ROWS[unit_of(target)]))} rows, and no tile of a matmul that stores them in memory fits"
        )


def _choices(shape: ProductShape, target: Target) -> Iterator[Choice]:
    """Yield choices, with a plan or without; among equally fast ones the first wins."""
    if not held_by_cluster(shape.problem, target):
        return
    least, *more = row_clusters(shape.problem, target)
    for ctas in (least, *more):
        columns = columns_of(shape.problem, ctas, target)
        if ctas > least and columns < LEAST_COLUMNS:
            continue
        for rows in ROWS[unit_of(target)]:
            tile = (rows, columns, shape.fixed.get(shape.blocks[2], tile_bounds(shape.problem, target)[2][0]))
            pair = ctas_per_mma(rows, target)
            width = subtile_of(columns, WIDTHS[0])
            plain = Choice(tile=tile, cluster=(pair, ctas), ctas_per_mma=pair, epilogue_n=width)
            few = -(-shape.problem.m // rows) * ctas <= FEW_ROUNDS * target.num_sms
            sharing = _sharing(plain, shape, target)
            yield from (*sharing, plain) if few else (plain, *_sharing_b(plain, shape, target), *sharing)
            yield from _in_turn(plain, shape, target)


def _sharing_b(plain: Choice, shape: ProductShape, target: Target) -> Iterator[Choice]:
    """Yield a cluster of two tiles of rows."""
    rows, ctas = plain.cluster
    tall = target.has("wgmma") and plain.tile[0] == ROWS["wgmma"][0] and shape.problem.k >= LONG_K
    if tall and 2 * rows * ctas <= MOST_CTAS and shape.problem.epilogue.reduces_rows:
        yield replace(plain, cluster=(2 * rows, ctas))


def _in_turn(plain: Choice, shape: ProductShape, target: Target) -> Iterator[Choice]:
    """Yield choices for rows that are not reduced: ping-pong, and two tiles of rows that share B."""
    rows, ctas = plain.cluster
    if target.has("wgmma") and not shape.problem.epilogue.reduces_rows:
        paired = replace(plain, cluster=(2 * rows, ctas))
        yield from (replace(paired, pingpong=True), replace(plain, pingpong=True), paired)


def _ranked_us(option: Option) -> float:
    """Return the time that ranks options, in which two tiles of rows that share B gain."""
    (rows, ctas), pair = option.choice.cluster, option.choice.ctas_per_mma
    shares = option.choice.rows_in != "memory" and rows > pair and ctas > 1
    return handicapped_us(option) / (SHARING_GAINS if shares else 1.0)


def _sharing(plain: Choice, shape: ProductShape, target: Target) -> Iterator[Choice]:
    """Yield two CTAs per SM, with the widest sub-tiles that leave room for enough stages."""
    if target.has("wgmma") and shape.problem.epilogue.reduces_rows:
        for width in WIDTHS:
            columns = subtile_of(plain.tile[1], width)
            yield replace(plain, ctas_per_sm=2, ab_stages=LEAST_STAGES, epilogue_n=columns)
