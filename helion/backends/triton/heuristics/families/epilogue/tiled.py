"""Matmuls whose output rows are reduced over tiles of N, by a loop that the kernel writes itself.

Matches dots that share an M on the grid, each with N in a loop inside of it whose tiles are reduced over N. Examples
are matmul + norm, softmax or log-sum-exp of rows of any width, or a divergence of two of them. As in a plain matmul,
the accumulator fills half of the register file and the stages fill shared memory. Rows are as many as leave each SM a
program. Further seeds put two blocks on an SM, so that one's matmuls run while the other applies its rows' statistics.
Two blocks per SM come first while K is short, and applied tiles are as wide as the matmul's (measurement
``tiled_epilogues``). fp32 uses the synchronous matrix unit, which takes operands in any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, MatmulWithTiledReductionEpilogueFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic, Predicted
from ......hardware import Target
from ....proposal import TritonProposal
from ....resources.matrix import ASYNC_ROWS
from ....resources.registers import operand_accesses
from ... import register_safety as safety
from ...sizing import all_sizes, clamp, estimate, extent_of
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "matmul_tiled_reduction_epilogue"

    #: Most rows and columns of the accumulator, and least rows where no matrix unit needs more.
    rows: int
    columns: int
    least_rows: int
    #: Fraction of the register file for the fp32 accumulator, and its elements per thread.
    accumulator_share: int
    thread_elements: int
    max_stages: int
    min_warps: int
    warps: int
    #: Most loads of a thread that may be in flight for operands: each has an address and a mask. Rows that are not
    #: aligned take one per element.
    most_ahead: int
    #: Least and most columns of an applied tile, as long as a thread has no more of them than it accumulates.
    least_apply_columns: int
    most_apply_columns: int
    #: The tiles below come first.
    swept_tiles: bool
    #: Longest K for which two blocks per SM come first.
    short_k: int
    #: Least columns of an alternate: with fewer, operands are read too often.
    least_columns: int


#: A tile is not halved below this side.
_MIN_SIDE = 16
#: Bytes of the operands' tiles along K: one line of the swizzle in which matrix units read shared memory.
_LINE_BYTES = 128
_WIDE_ITEMSIZE = 4


@dataclass(frozen=True, kw_only=True)
class _Tile:
    """A tile of the matmul. ``blocks`` of it share an SM. ``descriptors``: tensor descriptors load operands."""

    m: int
    n: int
    warps: int
    blocks: int = 1
    k: int = 0
    stages: int = 1
    descriptors: bool = False


#: Further tiles from the sweep: for bf16 while SMs are idle, and for fp32, which the synchronous matrix unit
#: multiplies.
_FLAT_TILES = (
    _Tile(m=16, n=512, warps=4, k=64, stages=4, descriptors=True),
    _Tile(m=16, n=256, warps=4, k=64, stages=4),
)
_MMA_V2_TILE = _Tile(m=64, n=64, warps=2, k=32, stages=4)
_MMA_V2_FLAT_TILE = _Tile(m=32, n=128, warps=4, k=32, stages=4)


class TritonMatmulTiledReductionEpilogueHeuristic(Heuristic):
    name: ClassVar[str] = "TritonMatmulTiledReductionEpilogueHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.matmul_with_tiled_reduction_epilogue
        if fact is None:
            return Declined("not matmuls with reductions over tiles of their output rows")
        known = (fact.m_block_id, *fact.n_block_ids, *fact.k_block_ids, *fact.apply_axes)
        for axis in facts.tunable_axes:
            if axis.block_id not in known and not axis.on_grid:
                return Declined(f"{axis.name} is a tile of neither a matmul nor its rows")
        sizer = _Sizer(facts, fact, target)
        tiles = sizer.tiles()
        return tuple(map(sizer.proposal, tiles)) or Declined("no tile of the matmul fits without spilling")


class _Sizer:
    def __init__(self, facts: KernelFacts, fact: MatmulWithTiledReductionEpilogueFact, target: Target) -> None:
        self.facts, self.fact, self.target = facts, fact, target
        self.tuned = tuned(_Numbers, target)
        read = [max(product.lhs_dtype.itemsize, product.rhs_dtype.itemsize) for product in fact.matmuls]
        self.itemsize = max(*read, *(operand.itemsize for operand in facts.staged))
        self.fast = target.has("wgmma") or target.has("tcgen05")
        self.names = "+".join(dict.fromkeys(name for reduction in fact.reductions for name in reduction.names))
        self.rows = extent_of(facts.axes[fact.m_block_id])
        self.others = 1
        for axis in facts.grid_axes:
            if axis != fact.m_block_id:
                self.others *= extent_of(facts.axes[axis])

    def tiles(self) -> Iterator[_Tile]:
        """Yield the tile that fills the accumulator's share, then ones for two blocks per SM with half of it, and a
        taller one.
        """
        first = self.first()
        if first is None:
            return
        found = [first]
        m, n = first.m, first.n
        for rows, columns, blocks in ((m, n // 2, 2), (m // 2, n, 2), (m * 2, n // 2, 1)):
            if rows < _MIN_SIDE or columns < self.tuned.least_columns or self.programs(rows) < self.target.num_sms // 2:
                continue
            other = self.piped(rows, columns, blocks)
            if other is not None:
                found.append(other)
        if self.tuned.swept_tiles:
            found = self.measured(found)
        yield from found

    def measured(self, found: list[_Tile]) -> list[_Tile]:
        """Return the tiles in the order of a sweep, with the further ones it found."""
        idle = self.programs(found[0].m) < self.target.num_sms
        if self.itemsize >= _WIDE_ITEMSIZE:
            few = self.programs(_MMA_V2_TILE.m) < self.target.num_sms
            better = [_MMA_V2_FLAT_TILE if few else _MMA_V2_TILE]
        else:
            better = list(_FLAT_TILES) if idle else []
        chosen = next(filter(self.may_replace, better), None)
        if chosen is not None:
            found.insert(0, chosen)
        first = found[0]
        depth = max((self.facts.axes[k].extent or 0 for k in self.fact.k_block_ids), default=0)
        if not idle and self.fact.apply_axes and 0 < depth <= self.tuned.short_k and (chosen or not better):
            found.sort(key=lambda tile: tile is first or tile.m >= first.m)
        return found

    def may_replace(self, tile: _Tile) -> bool:
        predicted = self.predict(tile)
        return predicted.fits and not predicted.spill_risk and not self.is_ragged(tile)

    def first(self) -> _Tile | None:
        m = self.tallest()
        most = self.target.registers_per_sm // self.tuned.accumulator_share // m
        widest = max(self.facts.axes[n].padded for n in self.fact.n_block_ids) or self.tuned.columns
        n = max(_MIN_SIDE, min(self.tuned.columns, previous_power_of_2(most), widest))
        while True:
            found = self.piped(m, n, 1)
            if found is not None or max(m, n) <= _MIN_SIDE:
                return found
            m, n = (m, n // 2) if n >= m else (m // 2, n)

    def tallest(self) -> int:
        """Return the rows of a program: as many as leave each SM one, but no fewer than the asynchronous matrix unit
        takes.
        """
        floor = ASYNC_ROWS if self.fast else self.tuned.least_rows
        m = min(self.tuned.rows, max(_MIN_SIDE, next_power_of_2(self.rows)))
        while m > floor and self.programs(m) < self.target.num_sms:
            m //= 2
        return m

    def programs(self, m: int) -> int:
        return cdiv(self.rows, m) * self.others

    def piped(self, m: int, n: int, blocks: int) -> _Tile | None:
        """Return the tile with the deepest pipeline that fits without spilling, ``blocks`` times on an SM.

        Halve K before dropping the third stage, and before dropping the second. A smaller K saves registers only where
        operands pass through them. Double the warps before giving up the tile.
        """
        fewest = max(self.tuned.min_warps, m * n // (self.tuned.thread_elements * self.target.warp_size))
        for warps in dict.fromkeys((fewest, max(fewest, min(2 * fewest, self.tuned.warps)))):
            hopeless: set[int] = set()  # registers do not depend on the stages
            any_depth = self.fast and m >= ASYNC_ROWS  # nor on K, where operands bypass registers
            for depths in (range(self.tuned.max_stages, 2, -1), (2,), (1,)):
                for k in self.k_tiles():
                    tile = _Tile(m=m, n=n, warps=warps, blocks=blocks, k=k, stages=self.tuned.max_stages)
                    if hopeless and (any_depth or k in hopeless):
                        continue
                    if not self.holds(tile):
                        hopeless.add(k)
                        continue
                    for stages in depths:
                        found = replace(tile, stages=stages)
                        if self.fits(found):
                            return found
        return None

    def k_tiles(self) -> tuple[int, ...]:
        """Return a swizzle line and half of it, within the limits of K and of the matrix unit."""
        axes = [self.facts.axes[k] for k in self.fact.k_block_ids]
        least = max((axis.min_size for axis in axes), default=1)
        least = max(least, self.target.min_dot(self.itemsize)[2])
        line = _LINE_BYTES // self.itemsize
        k = max(least, min(line, max((axis.padded for axis in axes), default=line) or line))
        return tuple(dict.fromkeys((k, max(least, k // 2))))

    def holds(self, tile: _Tile) -> bool:
        """Return whether registers suffice."""
        predicted = self.predict(tile)
        percent = safety.RAGGED if self.is_ragged(tile) else safety.ALL if self.fast else safety.FRAGMENTS
        return not predicted.spill_risk and safety.within(predicted, percent)

    def fits(self, tile: _Tile) -> bool:
        """Return whether ``blocks`` blocks fit on an SM with no more than the allowed loads in flight."""
        if self.ahead(tile) > self.tuned.most_ahead:
            return False
        predicted = self.predict(tile)
        return predicted.fits and predicted.occupancy_blocks >= tile.blocks

    def is_ragged(self, tile: _Tile) -> bool:
        """Return whether a tile of a matmul extends past the end of an axis."""
        sizes = all_sizes(self.facts, self.sizes(tile))
        axes = (self.fact.m_block_id, *self.fact.n_block_ids, *self.fact.k_block_ids)
        return any((self.facts.axes[axis].extent or 1) % sizes[axis] for axis in axes)

    def ahead(self, tile: _Tile) -> float:
        """Return the loads of a thread that are in flight, or complete, before the matmul consumes them."""
        sizes = all_sizes(self.facts, self.sizes(tile))
        return operand_accesses(self.facts, sizes, tile.warps, self.target) * max(1, tile.stages - 1)

    def predict(self, tile: _Tile) -> Predicted:
        return estimate(self.facts, self.target, self.sizes(tile), tile.warps, tile.stages)

    def sizes(self, tile: _Tile) -> dict[int, int]:
        facts, fact = self.facts, self.fact
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        sizes[fact.m_block_id] = clamp(tile.m, facts.axes[fact.m_block_id])
        sizes.update((n, clamp(tile.n, facts.axes[n])) for n in fact.n_block_ids)
        sizes.update((k, clamp(tile.k, facts.axes[k])) for k in fact.k_block_ids)
        held = self.tuned.thread_elements * tile.warps * self.target.warp_size
        columns = max(self.tuned.least_apply_columns, min(self.tuned.most_apply_columns, tile.n))
        for block in fact.apply_axes:
            sizes[block] = clamp(min(columns, max(1, held // tile.m)), facts.axes[block])
        return sizes

    def proposal(self, tile: _Tile) -> TritonProposal:
        predicted = self.predict(tile)
        return TritonProposal(
            reason=(
                f"{self.names} of {tile.m} rows by {tile.n} columns, K tiles of {tile.k}, "
                f"{tile.stages} stages take {predicted.shared_bytes} bytes; "
                f"{self.programs(tile.m)} programs, {predicted.occupancy_blocks} at once on each of {self.target.num_sms} SMs"
            ),
            block_sizes=self.sizes(tile),
            num_warps=tile.warps,
            num_stages=tile.stages,
            launch={"indexing": "tensor_descriptor"} if tile.descriptors else {},
        )
