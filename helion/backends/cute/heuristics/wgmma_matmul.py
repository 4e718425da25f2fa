"""One matrix product on Hopper's matrix unit: the tile that rounds of tiles and time per tile speak for.

Tiles of 128 x 256 and 256 x 128 feed the unit from the L2 cache at nearly its rate; smaller ones are for products whose
larger tiles would leave SMs without work. Two CTAs of a cluster that share B save loads: 4096^3 in bf16 takes 177 us
instead of 181 with them in the largest tiles, and 183 instead of 231 in tiles of 128 x 128. Two warpgroups in turn, in
clusters, hide the epilogues of short main loops and the gaps between tiles: 131072 x 512 x 512 takes 101 us instead of 118,
8192 x 14336 x 4096 takes 1340 instead of 1420. Where even small tiles leave SMs without
work, CTAs of a cluster share the K of a tile, and clusters do where one is not enough (an H200, 2026-11-22, benchmarks/cute.py).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..plan.records import Choice
from ..resources.shape import ProductShape, shape_of
from .tiles import narrowed, options, proposals, tiles

WIDE = (128, 256)
SPLITS = (2, 4, 8)
GRID_SPLITS = (2, 3, 4, 6, 8, 16)


class CuteWgmmaMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "CuteWgmmaMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not target.has("wgmma"):
            return Declined(f"{target} has no wgmma")
        shape = shape_of(facts)
        if isinstance(shape, str):
            return Declined(shape)
        if shape.whole_rows:
            return Declined("N is no tile of the kernel's")
        ranked = options(shape, target, choices(shape, target))
        return proposals(shape, target, ranked) or Declined("no tile of the product fits")


def choices(shape: ProductShape, target: Target) -> list[Choice]:
    """What has a plan or not; of equally fast ones the first is taken."""
    found: list[Choice] = []
    for tile in sorted(tiles(shape, target), key=lambda tile: tile[:2] != WIDE):
        rows, columns = -(-shape.problem.m // tile[0]), -(-shape.problem.n // tile[1])
        together = rows * columns * shape.problem.batches
        plain = narrowed(Choice(tile=tile))
        paired = dataclasses.replace(plain, cluster=(2, 1))
        found += [paired] if rows > 1 else []
        found.append(plain)
        if together > target.num_sms:
            found += [dataclasses.replace(paired, pingpong=True)] if rows > 1 else []
            found.append(dataclasses.replace(plain, pingpong=True))
        for splits, clusters in itertools.product((1, *SPLITS), (1, *GRID_SPLITS)):
            ctas = together * splits * clusters
            fills = clusters == 1 or 2 * ctas > target.num_sms
            if splits * clusters > 1 and fills and ctas <= target.num_sms:
                split = Choice(tile=tile, splits=splits, grid_splits=clusters)
                found.append(narrowed(split, min(plain.epilogue_n, tile[1] // splits)))
    return found
