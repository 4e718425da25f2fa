"""Plain matrix products, batched or not, by formula.

Matches kernels with exactly one dot of known extents over three tiles of their own, whose other tiles are on the grid
(batch). The tile fills half of the register file with its accumulator, shrinks until the last wave of blocks is full
enough, and takes the deepest pipeline that fits in shared memory. Published for H100 and B200 as the default of both;
not measured on a GPU here. Offline with Triton 3.7 its seeds fit on every target of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..._compiler.facts.records import KernelFacts, MatmulFact
from ..._compiler.resources.predict import Predicted
from ..._shapes import cdiv, previous_power_of_2
from ...hardware import Target
from .base import Proposal, Verdict
from .sizing import estimate, extent_of, wave_efficiency

#: Caps of the starting tile, and of K.
_START_M, _START_N, _MAX_K = 128, 256, 256
#: Part of the register file that fp32 accumulators may take.
_ACCUMULATOR_SHARE = 2
_ACCUMULATOR_BYTES = 4
#: Stages the K tile is chosen for, and the most there are.
_PIPELINE, _MAX_STAGES = 4, 6
#: Waves are full enough at this efficiency; tiles do not shrink below the floor for it, less for few rows.
_WAVE_TARGET, _TILE_FLOOR, _NARROW_FLOOR, _NARROW_ROWS = 0.8, 64, 16, 16
#: Elements of the tile from which 8 warps share it.
_WIDE_TILE, _WIDE_WARPS, _WARPS = 16384, 8, 4
#: With this many products per SM, one tile per product is enough: small tiles, a short pipeline.
_SATURATED = 4
_SATURATED_TILE, _SATURATED_STAGES = (64, 128), 2
#: Where accumulators live in tensor memory from 64 rows on, small products stay below that, with one warp.
_SATURATED_MMA_TILE, _SATURATED_MMA_WARPS = (32, 64), 1
#: Blocks of rows are grouped for the L2 cache when the grid is this much taller than wide.
_TALL, _GROUP = 3, 2
#: Smallest transposed alternate.
_SMALLEST_ALTERNATE = 4096
_MIN_SIDE = 16


@dataclass(frozen=True, kw_only=True)
class _Tile:
    m: int
    n: int
    k: int
    warps: int
    stages: int


class TritonMatmulHeuristic:
    name: ClassVar[str] = "TritonMatmulHeuristic"
    backend: ClassVar[str] = "triton"
    promote_seed_to_default: ClassVar[bool] = True

    def is_eligible(self, facts: KernelFacts, target: Target) -> Verdict:
        if len(facts.matmuls) != 1:
            return Verdict(eligible=False, reason=f"the kernel has {len(facts.matmuls)} matrix products, not one")
        fact = facts.matmuls[0]
        axes = (fact.m_block_id, fact.n_block_id, fact.k_block_id)
        if None in axes or len(set(axes)) != 3:
            return Verdict(eligible=False, reason="M, N and K of the product are not three tiles")
        if None in (fact.static_m, fact.static_n, fact.static_k):
            return Verdict(eligible=False, reason="an extent of the product is not known when the kernel is compiled")
        for axis in facts.tunable_axes:
            if axis.block_id not in axes and not axis.on_grid:
                return Verdict(eligible=False, reason=f"{axis.name} is a tile of neither the product nor the grid")
        m, n, k = fact.static_m, fact.static_n, fact.static_k
        return Verdict(eligible=True, reason=f"one product of {m} x {n} x {k}")

    def get_seed_configs(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
        sizer = _Sizer(facts, target)
        first = sizer.tile()
        proposals = [sizer.proposal(first, grouped=True)]
        turned = sizer.turned(first)
        if turned is not None:
            proposals.append(sizer.proposal(turned, grouped=False))
            if turned.stages > 2:
                shorter = _Tile(m=turned.m, n=turned.n, k=turned.k, warps=turned.warps, stages=turned.stages - 1)
                proposals.append(sizer.proposal(shorter, grouped=False))
        return tuple(proposals)


class _Sizer:
    def __init__(self, facts: KernelFacts, target: Target) -> None:
        self.facts, self.target = facts, target
        self.fact: MatmulFact = facts.matmuls[0]
        fact = self.fact
        assert fact.static_m is not None and fact.static_n is not None and fact.static_k is not None
        self.extents = (fact.static_m, fact.static_n, fact.static_k)
        self.batch = 1
        for block in facts.grid_axes:
            if block not in (fact.m_block_id, fact.n_block_id):
                self.batch *= extent_of(facts.axes[block])
        self.caps = (_cap(fact.static_m), _cap(fact.static_n))
        staged = [operand.itemsize for operand in facts.staged if operand.dot == fact.number]
        self.itemsize = max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize, *staged)
        self.saturated = self.batch >= _SATURATED * target.num_sms

    def tile(self) -> _Tile:
        m, n = self.start()
        m, n = self.fill_waves(m, n)
        warps = self.warps(m, n)
        while True:
            k, stages = self.pipeline(m, n)
            predicted = self.predict(_Tile(m=m, n=n, k=k, warps=warps, stages=stages))
            if (predicted.fits and predicted.spill_risk < 1) or max(m, n) <= _MIN_SIDE:
                return _Tile(m=m, n=n, k=k, warps=warps, stages=stages)
            m, n = (m, n // 2) if n >= m else (m // 2, n)

    def start(self) -> tuple[int, int]:
        cap_m, cap_n = self.caps
        m, n = min(_START_M, cap_m), min(_START_N, cap_n)
        budget = self.target.registers_per_sm // _ACCUMULATOR_SHARE
        if m * n < budget:
            n = min(cap_n, max(n, budget // m))
        if m * n < budget:
            m = min(cap_m, max(m, budget // n))
        if self.saturated:
            most_m, most_n = _SATURATED_MMA_TILE if self.target.has("tcgen05") else _SATURATED_TILE
            m, n = min(m, most_m), min(n, most_n)
        return m, n

    def efficiency(self, m: int, n: int) -> float:
        return wave_efficiency(self.batch * cdiv(self.extents[0], m) * cdiv(self.extents[1], n), self.target)

    def fill_waves(self, m: int, n: int) -> tuple[int, int]:
        """Halve the longer side, else M, as long as that strictly helps and the waves are not full enough."""
        floor = _NARROW_FLOOR if self.extents[0] <= _NARROW_ROWS else _TILE_FLOOR
        while (now := self.efficiency(m, n)) < _WAVE_TARGET:
            if n >= m and n > floor and self.efficiency(m, n // 2) > now:
                n //= 2
            elif m > floor and self.efficiency(m // 2, n) > now:
                m //= 2
            else:
                break
        return m, n

    def warps(self, m: int, n: int) -> int:
        if self.saturated and self.target.has("tcgen05"):
            return _SATURATED_MMA_WARPS
        return _WIDE_WARPS if m * n >= _WIDE_TILE else _WARPS

    def pipeline(self, m: int, n: int) -> tuple[int, int]:
        """The K tile for four stages, then as many stages as fit."""
        axis = self.facts.axes[self.fact.k_block_id]  # type: ignore[index]
        least = max(axis.min_size, self.target.min_dot(self.itemsize)[2])
        k = max(least, min(_MAX_K, previous_power_of_2(self.extents[2] // 4)))

        def fits(k: int, stages: int) -> bool:
            # a bound for every matrix unit: some need one stage less
            staged = (m * k + k * n) * self.itemsize * stages
            return max(staged, m * n * _ACCUMULATOR_BYTES) <= self.target.smem_per_block_bytes

        while k > least and not fits(k, _PIPELINE):
            k //= 2
        most = _SATURATED_STAGES if self.saturated else _MAX_STAGES
        most = min(most, max(2, self.extents[2] // k))
        return k, next((s for s in range(most, 1, -1) if fits(k, s)), 2)

    def predict(self, tile: _Tile) -> Predicted:
        return estimate(self.facts, self.target, self.sizes(tile), tile.warps, tile.stages)

    def sizes(self, tile: _Tile) -> dict[int, int]:
        fact, axes = self.fact, self.facts.axes
        sizes = {axis.block_id: axis.min_size for axis in self.facts.tunable_axes}
        for block, size in ((fact.m_block_id, tile.m), (fact.n_block_id, tile.n), (fact.k_block_id, tile.k)):
            assert block is not None
            sizes[block] = max(axes[block].min_size, size)
        return sizes

    def turned(self, tile: _Tile) -> _Tile | None:
        """The alternate with rows doubled and columns halved, where that is possible."""
        m, n = min(tile.m * 2, self.caps[0]), max(tile.n // 2, _MIN_SIDE)
        if m == tile.m or n == tile.n or m * n < _SMALLEST_ALTERNATE:
            return None
        other = _Tile(m=m, n=n, k=tile.k, warps=tile.warps, stages=tile.stages)
        return other if self.predict(other).fits else None

    def proposal(self, tile: _Tile, *, grouped: bool) -> Proposal:
        grid_m, grid_n = cdiv(self.extents[0], tile.m), cdiv(self.extents[1], tile.n)
        group = {}
        if grouped and grid_m > 1 and grid_m >= _TALL * grid_n:
            group = {root: _GROUP for root in range(self.facts.num_roots)}
        filled = f"{100 * self.efficiency(tile.m, tile.n):.0f} % of {self.target.num_sms} SMs busy"
        return Proposal(
            reason=f"{tile.m} x {tile.n} x {tile.k} tiles, {tile.stages} stages, {filled}",
            block_sizes=self.sizes(tile),
            l2_groupings=group,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def _cap(extent: int) -> int:
    return max(_MIN_SIDE, previous_power_of_2(extent))
