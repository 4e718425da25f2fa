"""Mainloops of A in registers: half of a K tile is converted, or read, while MMAs read the fragments of the other half."""

from __future__ import annotations

from typing import Literal

from ...._support.records import dataclass
from .grammar import (
    Advance,
    ClearSums,
    KLoop,
    LoadScales,
    Promote,
    ReadRaw,
    Release,
    Step,
    Wait,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)

Which = Literal["first", "previous", "last"]


@dataclass(frozen=True)
class OfKTile(Step):
    """Run the body for another K tile of this CTA than the current one: the first one, before the loop over them, the
    previous one in it, or the last one after it."""

    which: Which
    body: tuple[Step, ...]


class HalfStep(Step):
    """A step about half of a K tile."""


@dataclass(frozen=True)
class ReadHalf(HalfStep):
    """Read half number ``half`` of A from the stage of ``cursor`` to the fragments of its MMAs."""

    cursor: str
    half: int


@dataclass(frozen=True)
class OrderReads(HalfStep):
    """Order the reads of all lanes of a warp before TMA overwrites the stage."""


@dataclass(frozen=True)
class ConvertHalf(HalfStep):
    """Convert half number ``half`` of the raw tile in registers to fragments of A."""

    half: int


@dataclass(frozen=True)
class MmaHalf(HalfStep):
    """Issue the MMAs of half number ``half`` of the K tile in the stage of ``cursor``; with ``first`` the first one
    overwrites the accumulator."""

    cursor: str
    half: int
    first: bool = False


READ: tuple[Step, ...] = (Wait("raw_read"), ReadRaw("a", "raw_read"))
CONVERT: tuple[Step, ...] = (ConvertHalf(0), Wait("ab_read"), Release("raw_read"), Advance("raw_read"))
"""The conversion of the first half, and the wait for B. No load of the raw tile is pending then, for which the fence before
the release would wait."""
FREE: tuple[Step, ...] = (Release("ab_free"), Advance("ab_free"))


def _half(half: int, first: bool = False) -> tuple[Step, ...]:
    """Build the MMAs of a half, as a group of their own."""
    return WgmmaFence(), MmaHalf("ab_read", half, first=first), WgmmaCommit()


def converting_mainloop() -> tuple[Step, ...]:
    """Build the mainloop of sums in the matrix unit. Fragments of a half are overwritten after the group before the last
    one."""
    return (
        OfKTile(
            "first",
            (
                *(*READ, *CONVERT, *_half(0, first=True)),
                *(ConvertHalf(1), *_half(1), Advance("ab_read")),
            ),
        ),
        KLoop(
            (
                *(*READ, WgmmaWait(1), *CONVERT, *_half(0)),
                *(WgmmaWait(1), *FREE, ConvertHalf(1), *_half(1), Advance("ab_read")),
            ),
            first=1,
        ),
        WgmmaWait(0),
        *FREE,
    )


def promoting_mainloop(scaled: bool) -> tuple[Step, ...]:
    """Build the mainloop of sums that are promoted after each K tile, with loads of its scales if it is ``scaled``.

    During the MMAs of a K tile the next one is read, and its first half converted. The wait for B of the next one
    separates the conversion from the wait for the MMAs, which assemblers would move before it.
    """
    scales = (LoadScales(),) if scaled else ()
    multiply = (*_half(0, first=True), ConvertHalf(1), *_half(1), Advance("ab_read"))
    return (
        ClearSums(),
        OfKTile("first", (*scales, *READ, *CONVERT)),
        KLoop(
            (
                OfKTile("previous", multiply),
                *(*READ, WgmmaWait(1), *CONVERT),
                *(WgmmaWait(0), *FREE, OfKTile("previous", (Promote(),)), *scales),
            ),
            first=1,
        ),
        OfKTile("last", (*multiply, WgmmaWait(0), *FREE, Promote())),
    )


def turning_mainloop() -> tuple[Step, ...]:
    """Build the mainloop of A that warps read from the stages of the MMAs. Reads of a stage end before TMA overwrites it."""

    def read(half: int, first: bool = False) -> tuple[Step, ...]:
        return ReadHalf("ab_read", half), *_half(half, first=first)

    free = (OrderReads(), *FREE)
    return (
        *(Wait("ab_read"), *read(0, first=True), *read(1), Advance("ab_read")),
        KLoop(
            (
                *(Wait("ab_read"), WgmmaWait(1), *read(0)),
                *(WgmmaWait(1), *free, *read(1), Advance("ab_read")),
            ),
            first=1,
        ),
        WgmmaWait(0),
        *free,
    )
