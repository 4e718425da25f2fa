"""Simulation rules of two accumulators that take turns."""

from __future__ import annotations

from collections.abc import Iterator

from ..roles.overlapped import OddTile, PairLoop, TurnMma, TurnPromote, TurnScales
from .cluster import Cluster, Leaf, rule
from .rules import block_of, check_block, multiplied_tiles, multiply
from .state import Fault, Sums, Warp


@rule(PairLoop)
def _(cluster: Cluster, step: PairLoop, warp: Warp) -> Iterator[Leaf]:
    k_tiles = multiplied_tiles(cluster, warp)
    for warp.k_tile in k_tiles[: len(k_tiles) // 2 * 2 : 2]:
        warp.k_tiles += 2
        yield from cluster.steps(step.body, warp)


@rule(OddTile)
def _(cluster: Cluster, step: OddTile, warp: Warp) -> Iterator[Leaf]:
    k_tiles = multiplied_tiles(cluster, warp)
    if len(k_tiles) % 2:
        warp.k_tile = k_tiles[-1]
        yield from cluster.steps(step.body, warp)


@rule(TurnScales)
def _(cluster: Cluster, step: TurnScales, warp: Warp) -> None:
    warp.turn_scales[step.turn] = block_of(cluster, warp)


@rule(TurnMma)
def _(cluster: Cluster, step: TurnMma, warp: Warp) -> None:
    tag = warp.tile, warp.k_tile

    def add(sums: Sums) -> None:
        if sums.of_each.get(step.turn):
            raise Fault(f"accumulator {step.turn} of {sums.of_each[step.turn]} is overwritten before it is promoted")
        sums.of_each[step.turn] = [tag]

    multiply(cluster, warp, step.cursor, add)


@rule(TurnPromote)
def _(cluster: Cluster, step: TurnPromote, warp: Warp) -> None:
    added = warp.sums.of_each.pop(step.turn, [])
    pending = [tag for group in (*warp.groups, warp.open_group) for _, tag in group]
    if set(added) & set(pending):
        raise Fault("an accumulator is promoted while the matrix unit still adds to it")
    if cluster.plan.problem.scales is not None:
        warp.scales = warp.turn_scales.get(step.turn)
        check_block(cluster, warp, added)
    warp.total += added
