"""Builder of a loop over the chunks of a row: its ops and carried values."""

from __future__ import annotations

import torch

from ...._shapes import Dims, Expr
from ...._support.records import dataclass
from ...ir.build import Builder, Numbers
from ...ir.grammar import Block, ForAttrs, LoopAxis, Op, Region, TileAttrs, TileField, Value
from ...source import Location


@dataclass(kw_only=True)
class Carried:
    """A value that the loop carries: before the loop, before and after one chunk, and after the loop."""

    initial: Value
    before: Value
    total: Value
    after: Value | None = None


class Pass:
    """One pass over the chunks of a block. ``body`` gets the ops of one chunk."""

    def __init__(self, block: Block, index_dtype: torch.dtype, numbers: Numbers, location: Location | None) -> None:
        self.block = block.id
        self.extent = block.extent
        self.index_dtype = index_dtype
        self.location = location
        self.setup = Builder(numbers, location, [])
        self.body = Builder(numbers, location, [])
        self.carried: list[Carried] = []

    def locate(self, location: Location | None) -> None:
        """Set the location of the ops that follow."""
        self.setup.location = self.body.location = location

    def carry(self, name: str, dtype: torch.dtype, dims: Dims, start: float) -> Carried:
        """Return a new carried value, ``start`` before the first chunk; its ``after`` must be set."""
        initial, before, total = (self.setup.value(dtype, dims, name) for _ in range(3))
        self.setup.append("full", (start,), (initial,))
        carried = Carried(initial=initial, before=before, total=total)
        self.carried.append(carried)
        return carried

    def tile(self, field: TileField, out: Builder) -> Value:
        """Return the begin or the end of the current chunk."""
        return out.emit("tile", (), self.index_dtype, (), TileAttrs(self.block, field))

    def ops(self) -> list[Op]:
        """Return the ops of the initial values, and the loop."""
        assert isinstance(self.extent, (int, Expr))
        attrs = ForAttrs((LoopAxis(self.block, 0, self.extent),), len(self.carried), chunked=True)
        afters = [c.after for c in self.carried if c.after is not None]
        assert len(afters) == len(self.carried)
        region = Region(tuple(c.before for c in self.carried), tuple(self.body.ops), tuple(afters))
        totals = tuple(c.total for c in self.carried)
        self.setup.location = self.location
        self.setup.append("for", tuple(c.initial for c in self.carried), totals, attrs, (region,))
        return self.setup.ops
