"""The mainloop of sliced K: each warp multiplies every n-th K tile for all rows of the tile, and the sums of all warps are
added at its end.

A warp reads the columns of B of a K tile once for 64 rows. It converts elements of A next to the instructions that
multiply them (mma.sync), which wait for no other warp. More
warps, with others for the epilogue, are slower with more than one row (measurement ``sliced_warps``). So are warps that hold B
and multiply blocks of lines, which bulk copies load (measurement ``bulk_weights``). Warps that load weights straight to
registers, with no barrier before the last sums, are faster with one row alone (measurement ``streamed_weights``).
"""

from __future__ import annotations

from ...._support.records import dataclass
from .grammar import BarrierSync, KLoop, LoadScales, Release, Step, Wait


class SliceStep(Step):
    """A step of a warp about K tiles of its own."""


@dataclass(frozen=True)
class SliceLoop(KLoop):
    """Loop over the warp's own K tiles: the one of its number among all, and those that follow by as many as warps."""


@dataclass(frozen=True)
class SliceCursors(SliceStep):
    """Point the cursors ``ab_read`` and ``raw_read`` to the stages of the current K tile."""


@dataclass(frozen=True)
class ReadColumns(SliceStep):
    """Read B of the current K tile from the stage of ``cursor`` to the fragments of all MMAs."""

    cursor: str


@dataclass(frozen=True)
class MultiplySlice(SliceStep):
    """Read A of the current K tile from the stage of ``cursor``, convert it, and multiply it by the columns in registers. With
    scales of the K tile, sums of 16 rows are promoted before the next rows follow."""

    cursor: str


@dataclass(frozen=True)
class SliceScales(LoadScales):
    """Load the scales of the warp's first K tile of a tile, or those of its next one after the current one."""

    first: bool = False


@dataclass(frozen=True)
class ClearSlice(SliceStep):
    """Clear the sums of the warp."""


@dataclass(frozen=True)
class PassSlices(SliceStep):
    """Count the K tiles of the tile, after which stages of the next one follow."""


@dataclass(frozen=True)
class StoreSlice(SliceStep):
    """Store the warp's sums of all rows to shared memory."""


@dataclass(frozen=True)
class AddSlices(SliceStep):
    """Add the sums that all warps have stored, of the rows that this warp has in the epilogue."""


def sliced_mainloop(scaled: bool) -> tuple[Step, ...]:
    """Build the mainloop.

    The scales of a K tile are loaded during the one before. The fence before a stage is released would wait for later loads.
    """
    return (
        ClearSlice(),
        *((SliceScales(first=True),) if scaled else ()),
        SliceLoop(
            (
                SliceCursors(),
                *(Wait("ab_read"), ReadColumns("ab_read")),
                *(Wait("raw_read"), MultiplySlice("raw_read")),
                *(Release("raw_read"), Release("ab_read")),
                *((SliceScales(),) if scaled else ()),
            )
        ),
        PassSlices(),
        BarrierSync("epilogue"),
        StoreSlice(),
        BarrierSync("epilogue"),
        AddSlices(),
    )
