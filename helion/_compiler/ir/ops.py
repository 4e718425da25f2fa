"""The table of ops: what passes, facts and backends ask of an op by its kind. Names no backend.

A new op is one row here, a rule of the front end that records it, and its spelling in each backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Literal

from . import grammar as g

#: Rewrites that take an op apart along a dimension.
Division = Literal["roll", "flatten", "subtile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One row.

    Attributes:
        attrs: the class of its attributes.
        regions: how many regions it has.
        reads: whether it may read the host tensors that it names; ``writes`` the same.
        stays: whether it must stay where nothing reads its results.
        mergeable: whether two of it with equal operands and attributes give the same.
        combines: whether its region combines single elements, and is no region of the program.
        per_lane: whether its only result has the lanes of its operands, each computed from one lane of each.
        is_view: whether its result is its first operand in another form, which needs no registers of its own.
        free: whether its results cost no registers: they are made again wherever they are needed.
        needs_whole: whether it needs all elements of its operands before anything can follow it.
        tile_independent: whether its results are the same however large the tiles are.
        is_loop: whether its last region runs any number of times.
        divided_by: the rewrites that may do it for a part of a dimension at a time.
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
        """Whether its result is made of its operands lane by lane, wherever the lanes stand then."""
        return self.per_lane or self.is_view


_ALL: frozenset[Division] = frozenset(("roll", "flatten", "subtile"))
_ROWS: frozenset[Division] = frozenset(("roll", "subtile"))

OPS: Mapping[str, OpSpec] = {
    "number": OpSpec(attrs=g.NumberAttrs, mergeable=True, free=True, tile_independent=True),
    "tile": OpSpec(attrs=g.TileAttrs, mergeable=True, free=True, tile_independent=True),
    "iota": OpSpec(attrs=g.IotaAttrs, mergeable=True, free=True, tile_independent=True, divided_by=_ROWS),
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
    # its first operand, as the value of a function of the others with a derivative of its own; ``erase_vjps`` takes it out
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
