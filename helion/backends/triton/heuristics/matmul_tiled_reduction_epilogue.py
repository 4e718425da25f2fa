"""Matrix products whose output rows are reduced over tiles of N, by a loop that the kernel spells out.

Matches dots that share an M on the grid, each with N in a loop inside of it, whose tiles are reduced over N (matmul +
norm, softmax or log-sum-exp of rows of any width, or a divergence of two of them). As in a plain product, the accumulator fills half of the
register file and operands as many stages as shared memory holds; rows are as many as leave each SM a program. Further
seeds put two blocks on an SM, so that one's matrix products run while the other applies its rows' statistics. Compiled
offline with Triton 3.7 by scripts/prove_seeds.py for sm_90 and sm_100, none of them spills.

On H200 (CUDA 13.0, Triton 3.6, 2026-11-20) the seeds of bf16 reach 0.7 to 1.6 of torch.compile's speed at N = 512 to
4096. A sweep there puts two blocks on an SM first while K is short, applies tiles as wide as the product's, and leaves
products of fp32 to the older matrix unit, which takes operands in any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, MatmulWithTiledReductionEpilogueFact
from ...._shapes import cdiv, next_power_of_2, previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic, Predicted
from ....hardware import MemoryClass, Target
from ..proposal import TritonProposal
from ..resources.matrix import ASYNC_ROWS
from ..resources.registers import operand_accesses
from . import register_safety as safety
from .sizing import all_sizes, clamp, estimate, extent_of

#: Rows and columns of the accumulator at most, and rows at least where no matrix unit asks for more.
_ROWS, _COLUMNS, _LEAST_ROWS = 128, 256, 32
#: Part of the register file that the fp32 accumulator may take, and how many of its elements a thread holds.
_ACCUMULATOR_SHARE, _THREAD_ELEMENTS = 2, 128
#: A tile is not halved below this side.
_MIN_SIDE = 16
#: Bytes of the operands' tiles along K: one line of the swizzle in which matrix units read shared memory.
_LINE_BYTES = 128
_MAX_STAGES, _MIN_WARPS, _WARPS = 4, 4, 8
#: Loads of a thread for operands that may be ahead of the product: each has an address and a mask. Rows that are not
#: aligned take one per element; offline, 40 loads in 4 stages spill up to 1824 bytes.
_MOST_AHEAD = 36
#: Columns of a tile that is applied, as long as a thread holds no more of them than it accumulates: runs of at least
#: 256 bytes, and by the assembler's figures the fewest registers (64 or 256 columns take up to 45 more).
_APPLY_COLUMNS = 128
#: On H200: columns at most, and the longest K for which two blocks on an SM come first.
_H200_APPLY_COLUMNS, _H200_SHORT_K = 256, 1024
_WIDE_ITEMSIZE = 4
#: Columns of an alternate at least: below, operands are read too often.
_LEAST_COLUMNS = 64


@dataclass(frozen=True, kw_only=True)
class _Tile:
    """``blocks`` are to share an SM. ``descriptors``: tensor descriptors move operands."""

    m: int
    n: int
    warps: int
    blocks: int = 1
    k: int = 0
    stages: int = 1
    descriptors: bool = False


#: What the sweep found besides: for bf16 while SMs are idle, and for fp32, which the older matrix unit multiplies.
_FLAT_TILES = (
    _Tile(m=16, n=512, warps=4, k=64, stages=4, descriptors=True),
    _Tile(m=16, n=256, warps=4, k=64, stages=4),
)
_SYNC_TILE = _Tile(m=64, n=64, warps=2, k=32, stages=4)
_SYNC_FLAT_TILE = _Tile(m=32, n=128, warps=4, k=32, stages=4)


class TritonMatmulTiledReductionEpilogueHeuristic(Heuristic):
    name: ClassVar[str] = "TritonMatmulTiledReductionEpilogueHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.matmul_with_tiled_reduction_epilogue
        if fact is None:
            return Declined("not matrix products with reductions over tiles of their output rows")
        known = (fact.m_block_id, *fact.n_block_ids, *fact.k_block_ids, *fact.apply_axes)
        for axis in facts.tunable_axes:
            if axis.block_id not in known and not axis.on_grid:
                return Declined(f"{axis.name} is a tile of neither a product nor its rows")
        sizer = _Sizer(facts, fact, target)
        tiles = sizer.tiles()
        return tuple(map(sizer.proposal, tiles)) or Declined("no tile of the product fits without spilling")


class _Sizer:
    def __init__(self, facts: KernelFacts, fact: MatmulWithTiledReductionEpilogueFact, target: Target) -> None:
        self.facts, self.fact, self.target = facts, fact, target
        #: Whether the choices that were swept on H200 hold.
        self.swept = target.has("wgmma") and target.memory is MemoryClass.FAST
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
        """The first fills the accumulator's share; the others give two blocks half of it each, or are taller."""
        first = self.first()
        if first is None:
            return
        found = [first]
        m, n = first.m, first.n
        for rows, columns, blocks in ((m, n // 2, 2), (m // 2, n, 2), (m * 2, n // 2, 1)):
            if rows < _MIN_SIDE or columns < _LEAST_COLUMNS or self.programs(rows) < self.target.num_sms // 2:
                continue
            other = self.piped(rows, columns, blocks)
            if other is not None:
                found.append(other)
        if self.swept:
            found = self.measured(found)
        yield from found

    def measured(self, found: list[_Tile]) -> list[_Tile]:
        """In the order of a sweep, with what it found besides."""
        idle = self.programs(found[0].m) < self.target.num_sms
        if self.itemsize >= _WIDE_ITEMSIZE:
            few = self.programs(_SYNC_TILE.m) < self.target.num_sms
            better = [_SYNC_FLAT_TILE if few else _SYNC_TILE]
        else:
            better = list(_FLAT_TILES) if idle else []
        chosen = next(filter(self.may_replace, better), None)
        if chosen is not None:
            found.insert(0, chosen)
        first = found[0]
        depth = max((self.facts.axes[k].extent or 0 for k in self.fact.k_block_ids), default=0)
        if not idle and self.fact.apply_axes and 0 < depth <= _H200_SHORT_K and (chosen or not better):
            found.sort(key=lambda tile: tile is first or tile.m >= first.m)
        return found

    def may_replace(self, tile: _Tile) -> bool:
        predicted = self.predict(tile)
        return predicted.fits and not predicted.spill_risk and not self.is_ragged(tile)

    def first(self) -> _Tile | None:
        m = self.tallest()
        most = self.target.registers_per_sm // _ACCUMULATOR_SHARE // m
        widest = max(self.facts.axes[n].padded for n in self.fact.n_block_ids) or _COLUMNS
        n = max(_MIN_SIDE, min(_COLUMNS, previous_power_of_2(most), widest))
        while True:
            found = self.piped(m, n, 1)
            if found is not None or max(m, n) <= _MIN_SIDE:
                return found
            m, n = (m, n // 2) if n >= m else (m // 2, n)

    def tallest(self) -> int:
        """Rows of a program: as many as leave each SM one, but no fewer than the fast matrix unit takes."""
        floor = ASYNC_ROWS if self.fast else _LEAST_ROWS
        m = min(_ROWS, max(_MIN_SIDE, next_power_of_2(self.rows)))
        while m > floor and self.programs(m) < self.target.num_sms:
            m //= 2
        return m

    def programs(self, m: int) -> int:
        return cdiv(self.rows, m) * self.others

    def piped(self, m: int, n: int, blocks: int) -> _Tile | None:
        """The tile with the deepest pipeline that fits without spilling, ``blocks`` times on an SM. Rather than give up
        the third stage, or the second, K is halved, which saves registers only where operands go through them; rather
        than give up the tile, twice the warps share it."""
        fewest = max(_MIN_WARPS, m * n // (_THREAD_ELEMENTS * self.target.warp_size))
        for warps in dict.fromkeys((fewest, max(fewest, min(2 * fewest, _WARPS)))):
            hopeless: set[int] = set()  # registers do not depend on the stages
            any_depth = self.fast and m >= ASYNC_ROWS  # nor on K, where operands go through shared memory alone
            for depths in (range(_MAX_STAGES, 2, -1), (2,), (1,)):
                for k in self.k_tiles():
                    tile = _Tile(m=m, n=n, warps=warps, blocks=blocks, k=k, stages=_MAX_STAGES)
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
        """A line of the swizzle and half of it, as far as K and the matrix unit go."""
        axes = [self.facts.axes[k] for k in self.fact.k_block_ids]
        least = max((axis.min_size for axis in axes), default=1)
        least = max(least, self.target.min_dot(self.itemsize)[2])
        line = _LINE_BYTES // self.itemsize
        k = max(least, min(line, max((axis.padded for axis in axes), default=line) or line))
        return tuple(dict.fromkeys((k, max(least, k // 2))))

    def holds(self, tile: _Tile) -> bool:
        """Whether registers suffice."""
        predicted = self.predict(tile)
        percent = safety.RAGGED if self.is_ragged(tile) else safety.ALL if self.fast else safety.FRAGMENTS
        return not predicted.spill_risk and safety.within(predicted, percent)

    def fits(self, tile: _Tile) -> bool:
        """Whether as many blocks as wanted fit on an SM, and not too many loads run ahead."""
        if self.ahead(tile) > _MOST_AHEAD:
            return False
        predicted = self.predict(tile)
        return predicted.fits and predicted.occupancy_blocks >= tile.blocks

    def is_ragged(self, tile: _Tile) -> bool:
        """Whether a tile of a product reaches past the end of an axis."""
        sizes = all_sizes(self.facts, self.sizes(tile))
        axes = (self.fact.m_block_id, *self.fact.n_block_ids, *self.fact.k_block_ids)
        return any((self.facts.axes[axis].extent or 1) % sizes[axis] for axis in axes)

    def ahead(self, tile: _Tile) -> float:
        """Loads of a thread that are in flight, or done, before the product takes them."""
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
        held = _THREAD_ELEMENTS * tile.warps * self.target.warp_size
        columns = min(_H200_APPLY_COLUMNS, tile.n) if self.swept else _APPLY_COLUMNS
        for block in fact.apply_axes:
            sizes[block] = clamp(min(columns, max(1, held // tile.m)), facts.axes[block])
        return sizes

    def proposal(self, tile: _Tile) -> TritonProposal:
        predicted = self.predict(tile)
        return TritonProposal(
            reason=(
                f"{self.names} of {tile.m} rows by {tile.n} columns, K in tiles of {tile.k}, "
                f"{tile.stages} stages take {predicted.shared_bytes} bytes; "
                f"{self.programs(tile.m)} programs, {predicted.occupancy_blocks} at once on each of {self.target.num_sms} SMs"
            ),
            block_sizes=self.sizes(tile),
            num_warps=tile.warps,
            num_stages=tile.stages,
            launch={"indexing": "tensor_descriptor"} if tile.descriptors else {},
        )
