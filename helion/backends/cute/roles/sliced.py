"""The mainloop of sliced K: each warp multiplies every n-th K tile for some rows of the tile, and the sums of all warps are
added at its end.

A warp reads the columns of B of a K tile once for its rows. It converts elements of A next to the instructions that
multiply them (mma.sync), which wait for no other warp.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.counts import counts, keeps_columns, slicing_warps
from ..plan.records import WARP_THREADS, GemmPlan
from .common import last_stores, store_subtile
from .grammar import (
    Acquire,
    Advance,
    BarrierSync,
    Commit,
    Cursor,
    FenceShared,
    KernelProgram,
    KLoop,
    LoadRaw,
    LoadScales,
    NamedBarrier,
    Pipeline,
    ReadSums,
    Release,
    Role,
    SetUp,
    Step,
    SubtileLoop,
    Tail,
    TileLoop,
    TmaLoad,
    Wait,
    WarpSync,
)


class SliceStep(Step):
    """A step of a warp about K tiles of its own."""


@dataclass(frozen=True)
class SliceLoop(KLoop):
    """Loop over the warp's own K tiles: the one of its number among all, and those that follow by as many as warps."""


@dataclass(frozen=True)
class SliceCursors(SliceStep):
    """Point the cursors ``ab_read``, if B is in stages, and ``raw_read`` to the stages of the current K tile."""


@dataclass(frozen=True)
class ReadColumns(SliceStep):
    """Read B of the current K tile to the fragments of all MMAs: from the stage of ``cursor``, or without one from memory,
    through the L1 cache."""

    cursor: str = ""


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


def sliced_program(plan: GemmPlan) -> KernelProgram:
    """Build the roles: warps that multiply K tiles, those of the epilogue, and one that loads.

    The epilogue adds the sums of a tile, and stores it, while the others multiply the next one.
    """
    warps, raw, cached = plan.consumer_warps, counts(plan).raw, keeps_columns(plan)
    slicing = slicing_warps(plan)
    assert raw is not None
    multiplied = Role(
        name="slice",
        first_warp=warps,
        warps=slicing,
        program=(
            *(SetUp("slices"), *((SetUp("scales"),) if plan.problem.scales is not None else ())),
            TileLoop((*_mainloop(plan, cached), BarrierSync("slices"), StoreSlice(), BarrierSync("slices"))),
        ),
    )
    both = (BarrierSync("slices"), BarrierSync("slices"))
    store = Role(
        name="store",
        first_warp=0,
        warps=warps,
        program=(
            SetUp("wgmma_sums"),
            TileLoop((*both, AddSlices(), SubtileLoop((ReadSums(), *store_subtile(plan))))),
            *last_stores(plan),
        ),
    )
    barriers = (
        NamedBarrier(name="epilogue", number=1, threads=counts(plan).consumer_threads),
        NamedBarrier(name="slices", number=2, threads=(warps + slicing) * WARP_THREADS),
    )
    pipelines = (
        () if cached else (Pipeline(name="ab", kind="tma_wgmma", counts=counts(plan).ab, barriers="ab_barriers"),)
    )
    return KernelProgram(
        plan=plan,
        warps=warps + slicing + 1,
        spare_warp=warps + slicing + 1,
        pipelines=(*pipelines, Pipeline(name="raw", kind="tma_epilogue", counts=raw, barriers="raw_barriers")),
        barriers=barriers,
        roles=(store, multiplied, _load(warps + slicing, cached)),
        host=("wgmma", "output", "raw_tiles"),
        registers=(),
    )


def _load(warp: int, cached: bool) -> Role:
    """Return the warp that loads raw tiles of A, and B where it has stages."""
    views, fill, tail = [SetUp("raw_loads"), Cursor("raw_fill", "raw", "producer")], list[Step](), [Tail("raw_fill")]
    if not cached:
        views += [SetUp("wgmma_loads"), Cursor("ab_fill", "ab", "producer")]
        fill += [Acquire("ab_fill"), TmaLoad("b", "ab_fill"), Commit("ab_fill"), Advance("ab_fill")]
        tail += [Tail("ab_fill")]
    fill += [Acquire("raw_fill"), LoadRaw("a", "raw_fill"), Commit("raw_fill"), Advance("raw_fill")]
    return Role(name="load", first_warp=warp, warps=1, program=(*views, TileLoop((KLoop(tuple(fill)),)), *tail))


def _mainloop(plan: GemmPlan, cached: bool) -> tuple[Step, ...]:
    """Return the mainloop of a warp.

    The scales of a K tile are loaded during the one before. The fence before a stage is released would wait for later loads.
    """
    scaled = plan.problem.scales is not None
    columns = (ReadColumns(),) if cached else (Wait("ab_read"), ReadColumns("ab_read"))
    return (
        ClearSlice(),
        *((SliceScales(first=True),) if scaled else ()),
        SliceLoop(
            (
                SliceCursors(),
                *columns,
                *(Wait("raw_read"), MultiplySlice("raw_read")),
                *(FenceShared(), WarpSync(), Release("raw_read")),
                *(() if cached else (Release("ab_read"),)),
                *((SliceScales(),) if scaled else ()),
            )
        ),
        PassSlices(),
    )
