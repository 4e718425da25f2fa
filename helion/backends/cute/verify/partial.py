"""Simulation rules of sums of matmuls, of which some terms add to a part of the accumulators."""

from __future__ import annotations

from collections.abc import Iterator

from ..roles.partial import PieceViews, TermLoop, TermMma, pieces
from .cluster import Cluster, Leaf, rule
from .rules import k_tiles_of, multiply
from .state import Fault, Sums, Tag, Warp


@rule(PieceViews)
def _(cluster: Cluster, step: PieceViews, warp: Warp) -> None:
    """Ignore views, which are not part of the protocol."""


@rule(TermLoop)
def _(cluster: Cluster, step: TermLoop, warp: Warp) -> Iterator[Leaf]:
    for warp.k_tile in k_tiles_of(cluster, step.term)[step.first : step.stop]:
        warp.k_tiles += 1
        yield from cluster.steps(step.body, warp)


@rule(TermMma)
def _(cluster: Cluster, step: TermMma, warp: Warp) -> None:
    tag = warp.tile, warp.k_tile
    if warp.k_tile not in k_tiles_of(cluster, step.term):
        raise Fault(f"K tile {tag[1]} of tile {tag[0]} is multiplied as one of term {step.term}")

    def add(sums: Sums) -> None:
        """Add the K tile to its accumulators, of which fresh ones begin with it."""
        if step.first and step.term == 0:
            sums.added, sums.of_each = [], {}
        sums.added.append(tag)
        for piece in pieces(cluster.plan, step.term, step.first):
            for at in range(piece.first, piece.first + piece.count):
                sums.of_each[at] = [*([] if piece.fresh else sums.of_each.get(at, [])), tag]

    multiply(cluster, warp, step.cursor, add)


def check_partial(cluster: Cluster, warp: Warp, sums: Sums) -> None:
    """Check that each accumulator has the K tiles of its terms. Raises ``Fault``."""
    if not cluster.plan.problem.absent:
        return
    wanted: dict[int, list[Tag]] = {}
    for term in range(1 + len(cluster.plan.problem.terms)):
        tags = [(warp.tile, k_tile) for k_tile in k_tiles_of(cluster, term)]
        for piece in pieces(cluster.plan, term) if tags else ():
            for at in range(piece.first, piece.first + piece.count):
                wanted[at] = wanted.get(at, []) + tags
    if sums.of_each != wanted:
        raise Fault(f"the accumulators of tile {warp.tile} consist of {sums.of_each}")
