"""The table of ops: the properties of each kind that passes, facts and backends read. Names no backend.

A new op is one row here, a front-end rule that records it, and its spelling in each backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Literal

from ..._support.records import dataclass
from . import grammar as g

#: Rewrites that split an op along a dimension.
Division = Literal["roll", "flatten", "subtile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """A row of the table.

    Attributes:
        attrs: the class of its attributes.
        regions: the number of its regions.
        reads: true if it may read the host tensors that it names; ``writes`` likewise.
        stays: true if it must not be removed when its results have no use.
        mergeable: true if two ops with equal operands and attributes compute equal results.
        combines: true if its region combines single elements, and is no region of the program.
        per_lane: true if its only result has the lanes of its operands, each computed from one lane of each.
        is_view: true if its result is another form of its first operand and needs no registers of its own.
        free: true if its results cost no registers: each use computes them again.
        needs_whole: true if it needs all elements of its operands before its users can start.
        tile_independent: true if its results do not depend on tile sizes.
        is_loop: true if its last region runs any number of times.
        divided_by: the rewrites that may split it into chunks of a dimension.
    """

    attrs: type = NoneType
    regions: int = 0
    reads: bool = False
    writes: bool = False
    stays: bool = False
    mergeable: bool = False
    combines: bool = False
    per_lane: bool = False
    is_view: bool = False
    free: bool = False
    needs_whole: bool = False
    tile_independent: bool = False
    is_loop: bool = False
    divided_by: frozenset[Division] = frozenset()

    @property
    def keeps_lanes(self) -> bool:
        """True if its result is computed lane by lane, wherever a reshape puts the lanes."""
        return self.per_lane or self.is_view


_ALL: frozenset[Division] = frozenset(("roll", "flatten", "subtile"))
_ROWS: frozenset[Division] = frozenset(("roll", "subtile"))

OPS: Mapping[str, OpSpec] = {
    "number": OpSpec(attrs=g.NumberAttrs, mergeable=True, free=True, tile_independent=True),
    "tile": OpSpec(attrs=g.TileAttrs, mergeable=True, free=True, tile_independent=True),
    "iota": OpSpec(attrs=g.IotaAttrs, mergeable=True, free=True, tile_independent=True, divided_by=_ALL),
    "full": OpSpec(mergeable=True, tile_independent=True, divided_by=_ALL),
    "load": OpSpec(attrs=g.MemoryAttrs, reads=True, divided_by=_ALL),
    "store": OpSpec(attrs=g.MemoryAttrs, writes=True, stays=True, free=True, needs_whole=True, divided_by=_ALL),
    "atomic": OpSpec(
        attrs=g.MemoryAttrs, reads=True, writes=True, stays=True, needs_whole=True, divided_by=frozenset(("flatten",))
    ),
    "load_at": OpSpec(attrs=g.AddressAttrs, reads=True, needs_whole=True),
    "store_at": OpSpec(attrs=g.AddressAttrs, writes=True, stays=True, free=True, needs_whole=True),
    "pointwise": OpSpec(
        attrs=g.PointwiseAttrs, mergeable=True, per_lane=True, tile_independent=True, divided_by=_ALL
    ),
    "reduce": OpSpec(attrs=g.ReduceAttrs, mergeable=True, needs_whole=True, divided_by=frozenset(("roll",))),
    # The first operand, as the value of a function of the other operands that has its own derivative. ``erase_vjps``
    # removes the op.
    "vjp": OpSpec(attrs=g.VjpAttrs, mergeable=True, is_view=True, free=True, tile_independent=True),
    "dot": OpSpec(attrs=g.DotAttrs, needs_whole=True),
    "view": OpSpec(attrs=g.ViewAttrs, mergeable=True, is_view=True, tile_independent=True, divided_by=_ALL),
    "mask": OpSpec(attrs=g.MaskAttrs, mergeable=True, is_view=True, tile_independent=True, divided_by=_ROWS),
    "scan": OpSpec(
        attrs=g.ScanAttrs, regions=1, combines=True, needs_whole=True, divided_by=frozenset(("roll",))
    ),
    "fold": OpSpec(attrs=g.FoldAttrs, regions=1, combines=True, needs_whole=True),
    "gather": OpSpec(attrs=g.GatherAttrs, mergeable=True, needs_whole=True),
    "sort": OpSpec(mergeable=True, needs_whole=True),
    "join": OpSpec(mergeable=True, tile_independent=True),
    "split": OpSpec(tile_independent=True),
    "seed": OpSpec(attrs=g.SeedAttrs, mergeable=True, tile_independent=True),
    "random": OpSpec(
        attrs=g.RandomAttrs, mergeable=True, tile_independent=True, divided_by=frozenset(("subtile",))
    ),
    "random4": OpSpec(tile_independent=True),
    "print": OpSpec(attrs=g.PrintAttrs, stays=True),
    "check": OpSpec(attrs=g.CheckAttrs, stays=True),
    "asm": OpSpec(attrs=g.AsmAttrs, stays=True),
    "inline": OpSpec(attrs=g.InlineAttrs, reads=True, writes=True, stays=True),
    "barrier": OpSpec(stays=True),
    "for": OpSpec(attrs=g.ForAttrs, regions=1, is_loop=True, tile_independent=True),
    "while": OpSpec(attrs=g.WhileAttrs, regions=2, is_loop=True),
    "if": OpSpec(regions=2, tile_independent=True),
}  # fmt: skip
