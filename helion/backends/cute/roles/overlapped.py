"""The mainloop of two accumulators: one K tile is promoted while the matrix unit multiplies the next one."""

from __future__ import annotations

from typing import Literal

from ...._support.records import dataclass
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

Turn = Literal[0, 1]
"""The accumulator of even K tiles of a CTA, or of odd ones."""


GROUP = 8
"""Turns of an iteration, after which the warpgroup waits for all MMAs; an even number (``blockwise`` of
benchmarks/results/cute/nvidia-h200-parts.jsonl)."""


@dataclass(frozen=True)
class GroupLoop(KLoop):
    """Loop over whole groups of ``size`` K tiles; the body is for the first of a group."""

    size: int = GROUP


@dataclass(frozen=True)
class Ahead(Step):
    """Run the body for the K tile ``by`` after the current one."""

    by: int
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Rest(Step):
    """Run the body for the first of the last ``count`` K tiles, if groups of ``size`` leave so many over."""

    count: int
    body: tuple[Step, ...]
    size: int = GROUP


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


def overlapped_mainloop(scaled: bool, group: int = GROUP, span: int = 1) -> tuple[Step, ...]:
    """Return the mainloop, with scales of each K tile if ``scaled``. An accumulator is promoted after ``span`` K tiles, and
    an iteration has ``group`` turns.

    No MMA is in flight from one iteration to the next: ptxas would wait for each of them.
    """
    size = group * span
    rests = (Rest(count, _in_turn(count, scaled, span), size=size) for count in range(1, size))
    return (ClearSums(), GroupLoop(_in_turn(size, scaled, span), size=size), *rests)


def _in_turn(count: int, scaled: bool, span: int) -> tuple[Step, ...]:
    """Return the steps of ``count`` K tiles: those of a turn are promoted after the MMAs of the next one are issued."""
    turns = [range(first, min(first + span, count)) for first in range(0, count, span)]

    def of(k_tile: int, *body: Step) -> tuple[Step, ...]:
        return body if k_tile == 0 else (Ahead(k_tile, body),)

    def loads(number: int) -> tuple[Step, ...]:
        return of(turns[number][0], TurnScales(turn=_turn(number))) if scaled else ()

    def issue(number: int) -> tuple[Step, ...]:
        steps: list[Step] = []
        for k_tile in turns[number]:
            mma = TurnMma("ab_read", first=k_tile == turns[number][0], turn=_turn(number))
            steps += of(k_tile, Wait("ab_read"), WgmmaFence(), mma, WgmmaCommit(), Advance("ab_read"))
        return tuple(steps)

    def finish(number: int, pending: int) -> tuple[Step, ...]:
        free = (Release("ab_free"), Advance("ab_free")) * len(turns[number])
        return of(turns[number][0], WgmmaWait(pending), *free, TurnPromote(turn=_turn(number)))

    steps = [*loads(0), *(loads(1) if len(turns) > 1 else ()), *issue(0)]
    for number in range(1, len(turns)):
        steps += [*issue(number), *finish(number - 1, len(turns[number]))]
        steps += loads(number + 1) if number + 1 < len(turns) else ()
    return (*steps, *finish(len(turns) - 1, 0))


def _turn(number: int) -> Turn:
    return 1 if number % 2 else 0
