"""The mainloop of A in registers: half of a K tile is converted while MMAs read the fragments of the other half."""

from __future__ import annotations

from dataclasses import dataclass

from .grammar import (
    Advance,
    ClearSums,
    CopyStep,
    KLoop,
    Promote,
    ReadRaw,
    Release,
    Step,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)


@dataclass(frozen=True)
class ConvertHalf(CopyStep):
    """Convert half number ``half`` of the raw tile in registers to fragments of A; ``first`` is that of a tile's first K
    tile, before its loop."""

    half: int
    first: bool = False


@dataclass(frozen=True)
class MmaHalf(Step):
    """Issue the MMAs of half number ``half`` of the K tile in the stage of ``cursor``; with ``first`` the first one
    overwrites the accumulator."""

    cursor: str
    half: int
    first: bool = False


READ: tuple[Step, ...] = (Wait("raw_read"), ReadRaw("a", "raw_read"), Release("raw_read"), Advance("raw_read"))
FREE: tuple[Step, ...] = (Release("ab_free"), Advance("ab_free"))


def _half(half: int, first: bool = False) -> tuple[Step, ...]:
    """Build the MMAs of a half, as a group of their own. The first half waits for B."""
    wait: tuple[Step, ...] = () if half else (Wait("ab_read"),)
    return *wait, WgmmaFence(), MmaHalf("ab_read", half, first=first), WgmmaCommit()


def converting_mainloop(promotes: bool) -> tuple[Step, ...]:
    """Build the mainloop. Fragments of a half are overwritten after the group before the last one."""
    if promotes:
        first, second = (ConvertHalf(0), *_half(0, first=True)), (ConvertHalf(1), *_half(1))
        body = (*READ, *first, *second, WgmmaWait(0), Release("ab_read"), Advance("ab_read"), Promote())
        return ClearSums(), KLoop(body)
    return (
        *READ,
        *(ConvertHalf(0, first=True), *_half(0, first=True)),
        *(ConvertHalf(1, first=True), *_half(1)),
        Advance("ab_read"),
        KLoop(
            (
                *READ,
                *(WgmmaWait(1), ConvertHalf(0), *_half(0)),
                *(WgmmaWait(1), *FREE, ConvertHalf(1), *_half(1)),
                Advance("ab_read"),
            ),
            first=1,
        ),
        WgmmaWait(0),
        *FREE,
    )
