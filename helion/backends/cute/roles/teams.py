"""Ping-pong: two consumer groups alternate between tiles, so that one stores while the other multiplies."""

from __future__ import annotations

import dataclasses
import functools

from ..plan.counts import counts
from .edits import contains, rewrite
from .grammar import (
    BarrierArrive,
    BarrierSync,
    Cursor,
    KernelProgram,
    Mma,
    NamedBarrier,
    ReadResiduals,
    Role,
    Skip,
    Slots,
    Step,
    SubtileLoop,
    TileLoop,
    Wait,
    WgmmaWait,
)


def with_teams(program: KernelProgram) -> KernelProgram:
    """Give each consumer group its buffers, a barrier, and pipeline states that skip the other group's tiles.

    A mainloop starts after the other group has issued its own: two at once would slow both. A wait for a stage only
    sees the phase parity, so sub-tiles that wait for residuals alternate as well.
    """
    store = program.role("store")
    others = tuple(role for role in program.roles if role is not store)
    epilogue = counts(program.plan).consumer_threads
    barriers: list[NamedBarrier] = []
    for team in range(2):
        barriers.append(NamedBarrier(name=f"epilogue_{team}", number=1 + team, threads=epilogue))
        barriers.append(NamedBarrier(name=f"turn_{team}", number=3 + team, threads=2 * epilogue))
        if program.plan.has_residual:
            barriers.append(NamedBarrier(name=f"stores_{team}", number=5 + team, threads=2 * epilogue))
    teams = tuple(_team(store, team) for team in range(2))
    return dataclasses.replace(program, roles=(*others, *teams), barriers=tuple(barriers))


def _team(store: Role, team: int) -> Role:
    return dataclasses.replace(
        store,
        name=f"store_{team}",
        first_warp=store.first_warp + team * store.warps,
        program=rewrite(store.program, functools.partial(_edit, store=store, team=team)),
        team=team,
    )


def _edit(step: Step, store: Role, team: int) -> tuple[Step, ...]:
    if isinstance(step, SubtileLoop) and contains(step, ReadResiduals):
        return (BarrierSync(f"stores_{team}"), step, BarrierArrive(f"stores_{1 - team}"))
    if isinstance(step, BarrierSync):
        return (BarrierSync(f"epilogue_{team}"),)
    if not isinstance(step, TileLoop):
        return (step,)
    skips = tuple(_skip(cursor) for cursor in store.program if isinstance(cursor, Cursor))
    loop = TileLoop((*_in_turn(step.body, team), *skips), first=team, every=2)
    first = tuple(BarrierArrive(step.barrier) for step in loop.body if isinstance(step, BarrierArrive))
    return (loop,) if team == 0 else (*skips, *first, loop)


def _skip(cursor: Cursor) -> Skip:
    slots: Slots = "k_tiles" if cursor.pipeline == "ab" else "subtiles"
    return Skip(cursor.name, slots)


def _in_turn(body: tuple[Step, ...], team: int) -> tuple[Step, ...]:
    """Insert a wait for the group's turn before the first MMA, and an arrive for the other group after the last."""
    products = [i for i, step in enumerate(body) if isinstance(step, Mma) or contains(step, Mma)]
    first, last = products[0], products[-1] + 1
    if isinstance(body[products[0]], Mma):
        first = max(i for i in range(first) if isinstance(body[i], Wait))
    assert all(not isinstance(step, WgmmaWait) for step in body[first:last])
    return (
        *body[:first],
        BarrierSync(f"turn_{team}"),
        *body[first:last],
        BarrierArrive(f"turn_{1 - team}"),
        *body[last:],
    )
