"""Simulation rules of two accumulators that take turns."""

from __future__ import annotations

from collections.abc import Iterator

from ..roles.overlapped import Ahead, GroupLoop, Rest, TurnMma, TurnPromote, TurnScales
from .cluster import Cluster, Leaf, rule
from .rules import block_of, check_block, multiplied_tiles, multiply
from .state import Fault, Sums, Warp


@rule(GroupLoop)
def _(cluster: Cluster, step: GroupLoop, warp: Warp) -> Iterator[Leaf]:
    k_tiles = multiplied_tiles(cluster, warp)
    for warp.k_tile in k_tiles[: len(k_tiles) // step.size * step.size : step.size]:
        warp.k_tiles += step.size
        yield from cluster.steps(step.body, warp)


@rule(Ahead)
def _(cluster: Cluster, step: Ahead, warp: Warp) -> Iterator[Leaf]:
    warp.k_tile += step.by
    yield from cluster.steps(step.body, warp)
    warp.k_tile -= step.by


@rule(Rest)
def _(cluster: Cluster, step: Rest, warp: Warp) -> Iterator[Leaf]:
    k_tiles = multiplied_tiles(cluster, warp)
    if len(k_tiles) % step.size == step.count:
        warp.k_tile = k_tiles[-step.count]
        yield from cluster.steps(step.body, warp)


@rule(TurnScales)
def _(cluster: Cluster, step: TurnScales, warp: Warp) -> None:
    warp.turn_scales[step.turn] = block_of(cluster, warp)


@rule(TurnMma)
def _(cluster: Cluster, step: TurnMma, warp: Warp) -> None:
    tag = warp.tile, warp.k_tile

    def add(sums: Sums) -> None:
        if not step.first:
            sums.of_each.setdefault(step.turn, []).append(tag)
            return
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
