"""The mainloop of two accumulators: one K tile is promoted while the matrix unit multiplies the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .grammar import (
    Advance,
    ClearSums,
    KLoop,
    LoadScales,
    Mma,
    Promote,
    Release,
    Step,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from .halves import OfKTile

Turn = Literal[0, 1]
"""The accumulator of even K tiles of a CTA, or of odd ones."""


@dataclass(frozen=True)
class PairLoop(KLoop):
    """Loop over pairs of K tiles; the body is for the first of a pair."""


@dataclass(frozen=True)
class OddTile(Step):
    """Run the body for the last K tile if pairs leave one over."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class TurnMma(Mma):
    """Issue all MMAs of the K tile in the stage of ``cursor``, which overwrite accumulator number ``turn``."""

    turn: Turn = 0


@dataclass(frozen=True)
class TurnScales(LoadScales):
    """Load the scales of the current block of K into registers of their own for accumulator number ``turn``."""

    turn: Turn = 0


@dataclass(frozen=True)
class TurnPromote(Promote):
    """Add accumulator number ``turn`` to fp32 registers outside of the matrix unit."""

    turn: Turn = 0


def overlapped_mainloop(scaled: bool) -> tuple[Step, ...]:
    """Return the mainloop, with scales of each K tile if ``scaled``.

    No MMA is in flight from one iteration to the next: ptxas would wait for each of them.
    """

    def loads(turn: Turn) -> tuple[Step, ...]:
        return (TurnScales(turn=turn),) if scaled else ()

    def issue(turn: Turn) -> tuple[Step, ...]:
        mma = TurnMma("ab_read", first=True, turn=turn)
        return (Wait("ab_read"), WgmmaFence(), mma, WgmmaCommit(), Advance("ab_read"))

    def finish(turn: Turn, pending: int) -> tuple[Step, ...]:
        return (WgmmaWait(pending), Release("ab_free"), Advance("ab_free"), TurnPromote(turn=turn))

    pair = (
        *loads(0),
        *((OfKTile("next", loads(1)),) if scaled else ()),
        *issue(0),
        OfKTile("next", issue(1)),
        *finish(0, 1),
        OfKTile("next", finish(1, 0)),
    )
    return (ClearSums(), PairLoop(pair), OddTile((*loads(0), *issue(0), *finish(0, 0))))
