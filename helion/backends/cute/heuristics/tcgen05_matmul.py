"""One GEMM on Blackwell's matrix unit: pairs of CTAs where there is enough work, one CTA elsewhere.

Each CTA of a pair holds half of B, so it reads a third less for the same tile of 256 rows. The choice follows the data
sheet's rates, without measurements.
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._support.records import replace
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..bounds import ctas_per_mma, places_of_copies
from ..plan.records import Choice, CopiesIn
from ..resources.shape import ProductShape
from .tiles import narrowed, proposed, tiles

GRID_SPLITS = (2, 3, 4, 6, 8, 16, 32)


class CuteTcgen05MatmulHeuristic(Heuristic):
    name: ClassVar[str] = "CuteTcgen05MatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        return proposed(facts, target, "tcgen05", choices)


def choices(shape: ProductShape, target: Target) -> list[Choice]:
    """Return choices, with a plan or without; among equally fast ones the first wins."""
    found = []
    places = places_of_copies(shape.problem, target) if shape.problem.copied else ()
    place: CopiesIn = (*places, "shared")[0]
    for tile in tiles(shape, target):
        pair = ctas_per_mma(tile[0], target)
        choice = narrowed(Choice(tile=tile, cluster=(pair, 1), ctas_per_mma=pair, copies_in=place))
        found.append(choice)
        ctas = shape.problem.repeats * pair * -(-shape.problem.m // tile[0]) * -(-shape.problem.n // tile[1])
        for clusters in GRID_SPLITS:
            if target.num_sms < 2 * clusters * ctas <= 2 * target.num_sms:
                found.append(replace(choice, grid_splits=clusters))
    return found
