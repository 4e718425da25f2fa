"""Warnings about results that depend on the sizes of tiles, which a config chooses.

A reduction along a tile of a grid covers the elements of one tile. A result for each of these elements then differs
between configs. A place that ``argmax`` finds along a tile counts from the begin of the tile. Kernels that read the
position or the size of the tile account for both. So do sums that an inner loop or an atomic operation completes.
"""

from __future__ import annotations

from collections.abc import Iterator

from .... import exc
from ...._support.records import dataclass, field
from ...ir.grammar import (
    Block,
    ForAttrs,
    IotaAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
)
from ..always.simplify import drop_dead
from ..always.vjps import erase_vjps

#: A reduction along one tile: its op, and the block of the tile.
_Reduced = tuple[Op, int]
_Found = frozenset[_Reduced]
_NONE: _Found = frozenset()
_PLACES = ("argmax", "argmin")


def results_of_tile_sizes(program: Program) -> Iterator[exc.Base]:
    """Yield a warning for each reduction along a tile of free size whose result is stored as one of the whole."""
    free = frozenset(
        block.id for block in program.blocks if block.tunable and not block.registered and not _is_one(block)
    )
    if not any(op.kind == "reduce" and _reduced_blocks(op) & free for op in program.walk()):
        return
    program = drop_dead(erase_vjps(program))
    free -= {op.attrs.block for op in program.walk() if isinstance(op.attrs, TileAttrs | IotaAttrs)}
    for root in program.roots:
        flow = _Flow(free, free & {axis.block for axis in root.axes})
        flow.region(root.body)
        for op, block, stored in flow.stored.values():
            yield _warning(program, op, block, stored).at(op.location or stored.location)


def _is_one(block: Block) -> bool:
    return isinstance(block.extent, int) and block.extent == 1


def _reduced_blocks(op: Op) -> set[int]:
    (value,) = op.values()
    return {block for at in op.attributes(ReduceAttrs).dims for block in value.dims[at].blocks}


def _warning(program: Program, op: Op, block: int, stored: Op) -> exc.BaseWarning:
    name, axis = op.attributes(ReduceAttrs).name, program.blocks[block].name
    if name in _PLACES:
        return exc.PlaceWithinTile(function=name, axis=axis)
    tensor = program.tensors[stored.attributes(MemoryAttrs).tensor].name
    return exc.ResultOfTileSize(function=name, axis=axis, name=tensor)


@dataclass
class _Flow:
    """The reductions that values depend on.

    ``free``: blocks of tiles whose position and size the kernel does not read; ``grid``: those of the grid.
    ``stored``: reductions that are stored, by number, each with its block and the store.
    """

    free: frozenset[int]
    grid: frozenset[int]
    values: dict[int, _Found] = field(default_factory=dict)
    stored: dict[int, tuple[Op, int, Op]] = field(default_factory=dict)

    def region(self, region: Region) -> None:
        for op in region.ops:
            found = self._results(op)
            for result in op.results:
                self.values[result.number] = found

    def _results(self, op: Op) -> _Found:
        if op.regions and op.kind not in ("scan", "fold"):
            return self._around(op)
        found = self._of(op.operands)
        if op.kind == "reduce":
            wanted = self.free if op.attributes(ReduceAttrs).name in _PLACES else self.grid
            return found | {(op, block) for block in _reduced_blocks(op) & wanted}
        if op.kind == "gather":
            return self._of(op.operands[:1])
        if op.kind in ("store", "atomic"):
            self._store(op, found)
        return _NONE if op.kind in ("load", "atomic") else found

    def _around(self, op: Op) -> _Found:
        """Return the reductions of the results of a loop or branch. Every carried value counts as depending on those of
        all; bounds and conditions do not count."""
        if op.kind == "if":
            found, results = _NONE, op.regions
        else:
            carried = op.attrs.carried if isinstance(op.attrs, ForAttrs) else len(op.operands)
            found, results = self._of(op.operands[:carried]), op.regions[-1:]
        while True:
            for region in op.regions:
                for param in region.params:
                    self.values[param.number] = found
                self.region(region)
            after = found.union(*(self._of(region.results) for region in results))
            if after == found:
                return found
            found = after

    def _of(self, operands: tuple[Operand, ...]) -> _Found:
        return _NONE.union(*(self.values.get(o.number, _NONE) for o in operands if isinstance(o, Value)))

    def _store(self, op: Op, found: _Found) -> None:
        blocks = {index.block for index in op.attributes(MemoryAttrs).indices}
        for reduced, block in found:
            is_place = reduced.attributes(ReduceAttrs).name in _PLACES
            if is_place or (op.kind == "store" and block in blocks):
                self.stored.setdefault(reduced.number, (reduced, block, op))


__all__ = ["results_of_tile_sizes"]
