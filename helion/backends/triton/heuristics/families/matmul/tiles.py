"""Tiles of plain matmuls by formula and by predicted times; ``matmul`` documents the numbers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ......_compiler.facts.records import KernelFacts, MatmulFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass, field, replace
from ......autotuner.proposal import Declined, Predicted
from ......hardware import Target
from ....proposal import TritonProposal
from ....resources.fragments import shared_operands
from ....resources.matrix import ASYNC_ROWS, is_k_major, is_transposed, partial_sum
from ....resources.predict import predict
from ....resources.time.launch import Launch
from ....resources.time.predict import Timing, timing
from ... import register_safety as safety
from ...choose import Timed, fastest, trust, unless_faster
from ...sizing import WARP_ROWS, all_sizes, clamp, estimate, nearest_size, tiles, tunables, wave_efficiency
from ...tuned import tuned
from .extents import MIN_SIDE, Extents, axes_beside, begins_with_pieces, is_branched, largest_side, product_extents
from .operand_access import WIDE_ITEMSIZE, are_k_major, count_operands, operand_access
from .spans import deeper, halves, of_branches, with_fewer_parts
from .tile_numbers import TileNumbers
from .unstaged import with_shared_rows, without_stages


@dataclass(frozen=True, kw_only=True)
class ProductTile:
    """A tile of a matmul. ``m`` counts rows of the matrix unit: with swapped A and B, columns of the output."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def single_product(facts: KernelFacts) -> Extents | Declined:
    """Return the extents of the kernel's matmul, if it has one over three tiles."""
    if len({(fact.m_block_id, fact.n_block_id, fact.k_block_id) for fact in facts.matmuls}) != 1:
        return Declined(f"the kernel has {len(facts.matmuls)} matmuls, not one")
    fact = facts.matmuls[0]
    axes = (fact.m_block_id, fact.n_block_id, fact.k_block_id)
    if None in axes or len(set(axes)) != 3:
        return Declined("M, N and K of the matmul are not three tiles")
    if any(reduction.sized and reduction.axis in axes[:2] for reduction in facts.reductions):
        return Declined("the matmul is reduced in the same program")
    extents = product_extents(facts)
    if isinstance(extents, str):
        return Declined(extents)
    beside = axes_beside(facts)
    for axis in facts.tunable_axes:
        if axis.block_id not in (*axes, *beside) and not axis.on_grid:
            return Declined(f"{axis.name} is a tile of neither the matmul nor the grid")
    return extents


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """Config keys that rewrite the kernel's matmul, and the bytes that the rewrite copies.

    The facts describe the result. ``use_descriptors``: tensor descriptors load its operands.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    copied_bytes: int = 0
    use_descriptors: bool = False


_AS_WRITTEN = Rewriting()


class ProductSizer:
    """Tiles of one matmul. ``parts`` is the split-K factor of the ``split_k`` rewrite, not of the kernel itself."""

    def __init__(
        self,
        facts: KernelFacts,
        found: Extents,
        target: Target,
        parts: int = 1,
        rewriting: Rewriting = _AS_WRITTEN,
    ) -> None:
        self.facts, self.found, self.target, self.parts = facts, found, target, parts
        self.rewriting = rewriting
        self._timings: dict[ProductTile, Timing | None] = {}
        self.tuned = tuned(TileNumbers, target)
        self.fact: MatmulFact = facts.matmuls[0]
        fact = self.fact
        self.extents = (found.m, found.n, found.k)
        self.batch, self.span = found.batch, found.span
        #: The matmul's grid loop among several, and the axes of it and the loops inside.
        self.root = facts.regions[fact.region].root if facts.num_roots > 1 else None
        self.around = {axis for region in facts.regions if region.root == self.root for axis in region.axes}
        self.summed_k = found.k * found.steps
        sides = [facts.axes[b] for b in (fact.m_block_id, fact.n_block_id) if b is not None]
        self.spread = tuple(e if side.on_grid else 1 for e, side in zip(self.extents, sides, strict=False))
        dtypes = (fact.lhs_dtype, fact.rhs_dtype)
        #: Each accumulator has an fp32 partial next to it.
        self.promoted = not fact.lhs_format and is_k_major(fact) and bool(partial_sum(dtypes, self.tuned.max_k, target))
        self.looped = any(side.extent is None for side in sides)
        self.caps = (largest_side(found.m), largest_side(found.n))
        staged = [operand.itemsize for operand in facts.staged if operand.dot == fact.number]
        self.itemsize = max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize, *staged)
        #: Left and right operands of all matmuls: an operand that several of them read is staged once. Offline, the
        #: wider tiles along K that this allows spill up to 392 bytes on sm_80 to sm_120, and none on sm_90.
        self.operands = count_operands(facts) if self.tuned.operands_once else (len(facts.matmuls),) * 2
        self.many_batches = self.batch >= self.tuned.many_batches * target.num_sms
        self.mma_v2 = self.tuned.mma_v2_for_tf32 and self.itemsize == WIDE_ITEMSIZE and not are_k_major(fact)
        self.in_pieces = begins_with_pieces(facts, fact)
        #: The matmul's loop also reduces elements of operands, for which they go to registers as well.
        self.summed = any(reduction.region == fact.region for reduction in facts.reductions)
        #: Two dots share A, and operands go through registers: each warp then has all columns of both.
        by_fragments = target.kind == "cuda" and not (target.has("wgmma") or target.has("tcgen05"))
        self.share_rows = by_fragments and shared_operands(facts).get(fact.number) == "lhs"
        self.branched = is_branched(facts, fact.region)
        #: One tile has all rows of the smaller operand, next to a long K.
        self.few = not self.looped and min(self.extents[:2]) <= ASYNC_ROWS and self.summed_k >= self.tuned.long_k
        plain = self.batch == 1 and self.span is None and not self.looped and len(facts.matmuls) == facts.num_roots == 1
        self.access = operand_access(
            facts,
            target,
            plain=plain,
            narrow=self.itemsize < WIDE_ITEMSIZE,
            rewritten=bool(rewriting.keys),
            use_descriptors=rewriting.use_descriptors,
        )

    def options(self, several: Iterable[ProductTile]) -> Iterator[tuple[TritonProposal, float]]:
        """Yield the proposal and predicted time of each given tile, alone and with split-K."""
        depth = previous_power_of_2(self.extents[2])
        for given in several:
            m, n, k = min(given.m, self.caps[0]), min(given.n, self.caps[1]), min(given.k, depth)
            # a descriptor's tile is no larger than the tensor
            fits = all(side <= extent for side, extent in zip((m, n, k), self.extents, strict=True))
            if not fits or m < WARP_ROWS * given.warps or self.looped or self.span is not None:
                continue
            few = (
                self.facts.splittable_k
                and self.summed_k >= self.tuned.long_k
                and self.blocks(m, n) <= self.target.num_sms
            )
            for sizer in (self, *(self.sharing(m, n) if few else ())):
                tile = replace(given, m=m, n=n, k=k)
                yield sizer.proposal(tile, grouped=False), sizer.time_us(tile)

    def fastest(self) -> Timed[TritonProposal]:
        """Return the fastest of tiles with and without split-K, with its predicted time."""
        first = self.tile(spread=self.tuned.long_k_first)
        first = without_stages(self, first) or first
        own = self.proposal(first, grouped=False), self.time_us(first)
        return fastest((own, *self.fastest_shared)) or own

    def proposals(self) -> tuple[TritonProposal, ...]:
        wide = with_shared_rows(self, self.tile(spread=self.tuned.long_k_first))
        first = self.less_padded(wide)
        found = [self.proposal(first, grouped=True)]
        others = (of(self, first) for of in (without_stages, with_fewer_parts, of_branches))
        if (other := next((each for each in others if each is not None), None)) is not None:
            return (self.proposal(other, grouped=True), *found)
        if not self.tuned.long_k_first and (spread := self.tile(spread=True)) != first:
            found.append(self.proposal(spread, grouped=True))
        shared = self.shared(first)
        if shared is not None:
            found.insert(0 if self.tuned.split_k_first else 1, shared)
        persistent = self.persistent(first)
        if persistent is not None and self.tuned.persistent_first:
            found.insert(0, self.beside_sums(first) if self.summed else persistent)
        transposed = self.transposed(first) if first is wide else wide
        if transposed is not None:
            found.append(self.proposal(transposed, grouped=False))
            if transposed.stages > 2:
                found.append(self.proposal(replace(transposed, stages=transposed.stages - 1), grouped=False))
        if persistent is not None and not self.tuned.persistent_first:
            found.append(persistent)
            if (specialized := self.specialized(first)) is not None:
                found.append(specialized)
        return tuple(found)

    def tile(self, *, spread: bool) -> ProductTile:
        """Return the tile of the formula, or one for few tiles and a long K (``spread``)."""
        m, n = self.fill_waves(*self.start())
        if spread:
            m, n = self.spread_reads(m, n)
        warps = self.warps(m, n)
        while True:
            k, stages = self.pipeline(m, n)
            tile = self.in_shared_memory(self.unspilled(ProductTile(m=m, n=n, k=k, warps=warps, stages=stages)))
            tile = deeper(self, tile) if self.mma_v2 else tile
            predicted = self.predict(tile)
            line = self.tuned.few_rows_line if self.few and sum(self.operands) == 2 else self.tuned.least_line
            wide = k >= min(line // self.itemsize, previous_power_of_2(self.depth(m, n) // self.tuned.pipeline))
            safe = not predicted.spills and (not self.share_rows or safety.within(predicted, safety.FRAGMENTS))
            if (wide and predicted.fits and safe) or max(m, n) <= MIN_SIDE:
                return tile
            m, n = self.smaller(m, n)
            warps = self.warps(m, n) if self.few else warps

    def smaller(self, m: int, n: int) -> tuple[int, int]:
        """Return a tile with fewer registers: half of it, or a tall one where warps have all columns of two dots."""
        if m == n and self.share_rows and 2 * m <= self.caps[0]:
            return 2 * m, n // 2
        return (m, n // 2) if n >= m else (m // 2, n)

    def in_shared_memory(self, tile: ProductTile) -> ProductTile:
        """Return the tile with fewer stages where other loads of the loop, such as a mask, leave no room for its own.

        A smaller tile would read the operands more often (measurement ``masked_operands``).
        """
        least = min(tile.stages, self.tuned.pipeline)
        fewer = (replace(tile, stages=stages) for stages in range(tile.stages, least - 1, -1))
        return next((each for each in fewer if self.predict(each).fits), tile)

    def unspilled(self, tile: ProductTile) -> ProductTile:
        """Return the tile with the usual warps where its own are fewer, may spill, and are no faster.

        The tile of two warps leaves an epilogue of fp32 little: with a residual and two outputs, a plan of 258 of 255
        for sm_90 spills 368 bytes. Four warps take 168.
        """
        wider = replace(tile, warps=max(tile.warps, self.tuned.warps))
        first = self.predict(tile)
        if wider == tile or first.spills or not first.spill_risk or self.predict(wider).spill_risk:
            return tile
        return wider if self.time_us(wider) <= self.time_us(tile) else tile

    def start(self) -> tuple[int, int]:
        cap_m, cap_n = self.caps
        m, n = min(self.tuned.start_m, cap_m), min(self.tuned.start_n, cap_n)
        n = min(n, self.tuned.promoted_n) if self.promoted else n
        if self.tuned.tall_transposed and is_transposed(self.fact, "wgmma"):
            m, n = min(self.tuned.start_n, cap_m), min(self.tuned.start_m, cap_n)
        if self.mma_v2:
            return min(self.tuned.mma_v2_tile[0], cap_m), min(self.tuned.mma_v2_tile[1], cap_n)
        if not self.access.aligned:
            return m, min(n, self.tuned.unaligned_columns)
        if not self.looped and self.summed_k <= self.tuned.short_k:
            return min(self.tuned.short_tile[0], cap_m), min(self.tuned.short_tile[1], cap_n)
        budget = self.target.registers_per_sm // (self.tuned.accumulator_share * (2 if self.promoted else 1))
        if m * n < budget:
            n = min(cap_n, max(n, budget // m))
        if m * n < budget:
            m = min(cap_m, max(m, budget // n))
        if self.many_batches:
            most_m, most_n = (
                self.tuned.many_batches_mma_tile if self.target.has("tcgen05") else self.tuned.many_batches_tile
            )
            m, n = min(m, most_m), min(n, most_n)
        return (min(m, self.tuned.looped_side), min(n, self.tuned.looped_side)) if self.looped else (m, n)

    def efficiency(self, m: int, n: int) -> float:
        return wave_efficiency(self.blocks(m, n) * self.splits(m, n) * self.parts, self.target)

    def blocks(self, m: int, n: int) -> int:
        """Return the number of programs before K is split. A side that a program loops over adds none."""
        return self.batch * cdiv(self.spread[0], m) * cdiv(self.spread[1], n)

    def splits(self, m: int, n: int) -> int:
        """Return the split-K factor of the kernel's own span, a power of two: the least that keeps the most SMs busy in
        about one wave.
        """
        if self.span is None:
            return 1
        blocks = self.blocks(m, n)
        most = max(1, min(2 * self.target.num_sms // blocks, self.extents[2] // self.tuned.least_span))
        options = [1 << i for i in range(most.bit_length())]
        return max(options, key=lambda parts: (wave_efficiency(blocks * parts, self.target), -parts))

    def depth(self, m: int, n: int) -> int:
        """Return the elements of K that one program accumulates."""
        if self.parts > 1 and self.facts.split_axis in (None, self.fact.k_block_id):
            return cdiv(self.extents[2], self.parts)
        splits = self.splits(m, n)
        return self.extents[2] if splits == 1 else next_power_of_2(cdiv(self.extents[2], splits))

    def fill_waves(self, m: int, n: int) -> tuple[int, int]:
        """Halve the longer side, else M, as long as that strictly helps and the waves are not full enough."""
        floor = self.tuned.narrow_floor if self.extents[0] <= self.tuned.narrow_rows else self.tuned.tile_floor
        while (now := self.efficiency(m, n)) < trust(self.target).full_waves:
            if n >= m and n > floor and self.efficiency(m, n // 2) > now:
                n //= 2
            elif m > floor and self.efficiency(m // 2, n) > now:
                m //= 2
            else:
                break
        return m, n

    def spread_reads(self, m: int, n: int) -> tuple[int, int]:
        """Return smaller tiles where K is long and most SMs are idle: each SM then reads less."""
        few = 2 * self.blocks(m, n) <= self.target.num_sms
        if (
            self.span is not None
            or self.looped
            or not few
            or self.summed_k < self.tuned.long_k
            or self.target.kind != "cuda"
        ):
            return m, n

        def cost(sides: tuple[int, int]) -> float:
            blocks = self.blocks(*sides)
            return sum(sides) * max(cdiv(blocks, self.target.num_sms), blocks / self.tuned.fed_sms)

        options = [(a, b) for a in halves(m, MIN_SIDE) for b in halves(n, MIN_SIDE)]
        return min(options, key=lambda sides: (cost(sides), -sides[0], -sides[1]))

    def shared(self, first: ProductTile) -> TritonProposal | None:
        """Return a larger tile with split-K where that is faster: operands are read less often, by more SMs."""
        return unless_faster((None, self.time_us(first)), self.fastest_shared, trust(self.target).split_k)

    @functools.cached_property
    def fastest_shared(self) -> tuple[Timed[TritonProposal], ...]:
        """The fastest tile with split-K and its predicted time; empty where K cannot be split."""
        m, n = self.start()
        least = self.tuned.mma_v2_floor if self.mma_v2 else self.tuned.tile_floor
        few = 2 * self.blocks(m, n) <= self.target.num_sms * (self.tuned.mma_v2_programs if self.mma_v2 else 1)
        if not self.facts.splittable_k or self.looped or not few or self.summed_k < self.tuned.long_k:
            return ()
        sides = itertools.product(halves(m, least), halves(n, least))
        best = fastest(sizer.whole(*each) for each in sides for sizer in self.sharing(*each))
        return () if best is None else (best,)

    def sharing(self, m: int, n: int) -> list[ProductSizer]:
        """Return sizers for tiles of these sides with split-K factors that fill the SMs once, or several times."""
        once = previous_power_of_2(max(1, self.target.num_sms // self.blocks(m, n)))
        most = min(self.tuned.most_parts, self.summed_k // self.tuned.least_span)
        counts = (parts for parts in (once << i for i in range(self.tuned.rounds)) if 1 < parts <= most)
        return [ProductSizer(self.facts, self.found, self.target, parts, self.rewriting) for parts in counts]

    def whole(self, m: int, n: int) -> tuple[TritonProposal, float]:
        """Return a proposal for tiles of these sides and its predicted time, infinite where it does not fit."""
        k, stages = self.pipeline(m, n)
        given = ProductTile(m=m, n=n, k=k, warps=self.warps(m, n), stages=stages)
        tile = self.unspilled(given)
        while self.time_us(tile) == math.inf and given.k > self.least_k:  # operands are in registers, too
            given = replace(given, k=given.k // 2)
            tile = self.unspilled(given)
        if self.found.steps > 1 and tile.k * self.itemsize <= self.tuned.nested_line:
            # the loop around one step of K waits for all warps in each (measurement `split_nests`)
            tile = min(replace(tile, warps=min(tile.warps, self.tuned.warps)), tile, key=self.time_us)
        return self.proposal(tile, grouped=False), self.time_us(tile)

    def time_us(self, tile: ProductTile) -> float:
        found = self.timing(tile)
        return math.inf if found is None else found.us

    def timing(self, tile: ProductTile) -> Timing | None:
        """Return the predicted time of a tile, or None where it does not fit or spills."""
        if tile not in self._timings:
            predicted = self.predict(tile)
            launch = Launch(
                sizes=all_sizes(self.facts, self.judged(tile)),
                warps=tile.warps,
                stages=tile.stages,
                boxed=self.access.slots,
                parts=self.parts,
                copied_bytes=self.rewriting.copied_bytes,
            )
            good = predicted.fits and not predicted.spills
            self._timings[tile] = timing(self.facts, launch, predicted, self.target, self.root) if good else None
        return self._timings[tile]

    def warps(self, m: int, n: int) -> int:
        if self.many_batches and self.target.has("tcgen05"):
            return self.tuned.many_batches_mma_warps
        if self.mma_v2:
            return self.tuned.mma_v2_tile[3]
        if not self.access.aligned and m * n >= self.tuned.unaligned_tile:
            return self.tuned.unaligned_warps
        return self.tuned.wide_warps if m * n >= self.tuned.wide_tile else self.tuned.warps

    @functools.cached_property
    def least_k(self) -> int:
        axis = self.facts.axes[self.fact.k_block_id]  # type: ignore[index]
        return max(axis.min_size, self.target.min_dot(self.itemsize)[2])

    def pipeline(self, m: int, n: int) -> tuple[int, int]:
        """Return the K tile for four stages, then as many stages as fit.

        Several operands on a side take three of a whole line (measurement ``lines_of_operands``). Up to two lines
        are one step, which multiplies as many padded elements as two (measurement ``one_step``).
        """
        least, depth = self.least_k, self.depth(m, n)
        short = depth <= self.tuned.short_k
        most_k = self.tuned.mma_v2_tile[2] if self.mma_v2 else self.tuned.max_k
        if self.summed and not self.access.aligned:
            # the sums hold all of an operand's tile in registers, with an address for each element
            most_k = min(most_k, self.tuned.summed_line // self.itemsize)
        line = self.tuned.whole_line // self.itemsize
        nested = self.found.steps > 1 and next_power_of_2(depth) * self.itemsize <= self.tuned.nested_line
        if nested:
            # one step along K: the loop around it is then the one that prefetches
            least, depth = next_power_of_2(depth), next_power_of_2(depth) * max(1, self.found.inner // 2)
            short, most_k = False, least
        whole = next_power_of_2(depth) if depth <= 2 * line else previous_power_of_2(depth)
        k = max(whole if short else previous_power_of_2(depth // 4), line if depth >= 3 * line else 0)
        k = max(least, min(most_k, k))

        def fits(k: int, stages: int) -> bool:
            # an upper bound for every matrix unit: some need one stage less
            left, right = self.operands
            staged = (left * m * k + right * k * n) * self.itemsize * stages
            return staged <= self.target.smem_per_block_bytes

        several = self.tuned.operands_once and sum(self.operands) > 2
        while k > least and not fits(k, self.tuned.pipeline - (several and k * self.itemsize == self.tuned.whole_line)):
            k //= 2
        usual = self.tuned.looped_stages if self.looped else self.tuned.max_stages
        usual = min(usual, self.tuned.nested_stages) if nested else usual
        most = self.tuned.many_batches_stages if self.many_batches else usual
        most = min(most, self.tuned.mma_v2_tile[4] if self.mma_v2 else most, max(2, depth // k))
        return k, next((s for s in range(most, 1, -1) if fits(k, s)), 2)

    def predict(self, tile: ProductTile) -> Predicted:
        if not self.access.slots:
            return estimate(self.facts, self.target, self.judged(tile), tile.warps, tile.stages)
        sizes = all_sizes(self.facts, self.judged(tile))
        return predict(
            self.facts, sizes, tile.warps, tile.stages, self.target, descriptor_slots=self.access.slots, once=True
        )

    def sizes(self, tile: ProductTile) -> dict[int, int]:
        fact, axes = self.fact, self.facts.axes
        sizes = {axis.block_id: axis.min_size for axis in self.facts.tunable_axes}
        for block, size in ((fact.m_block_id, tile.m), (fact.n_block_id, tile.n), (fact.k_block_id, tile.k)):
            assert block is not None
            sizes[block] = max(axes[block].min_size, size)
        sizes.update((block, clamp(self.tuned.beside * tile.k, axes[block])) for block in axes_beside(self.facts))
        if self.span is not None:
            sizes[self.span] = nearest_size(next_power_of_2(self.depth(tile.m, tile.n)), axes[self.span])
        self.rest(sizes)
        return sizes

    def judged(self, tile: ProductTile) -> dict[int, int]:
        """Return the sizes with the smallest tiles in other grid loops, which are chosen after the matmul's."""
        apart = [axis for axis in self.facts.tunable_axes if self.root is not None and axis.block_id not in self.around]
        return self.sizes(tile) | {axis.block_id: axis.min_size for axis in apart}

    def rest(self, sizes: dict[int, int]) -> None:
        """Set the tiles of grid loops without a matmul: as many elements as fit, the last axis first."""
        root = self.facts.regions[self.fact.region].root
        room = dict.fromkeys(range(self.facts.num_roots), self.tuned.rest_elements)
        for axis in reversed(self.facts.tunable_axes):
            if axis.on_grid and root not in axis.roots:
                size = clamp(min(room[axis.roots[0]], axis.padded or 1), axis)
                sizes[axis.block_id] = size
                room[axis.roots[0]] = max(1, room[axis.roots[0]] // size)

    def persistent(self, tile: ProductTile) -> TritonProposal | None:
        """Return the tile on a persistent grid with tensor descriptors, or None where that does not apply.

        The loops are fused, so that the next tile's loads begin while the last one is stored. It is an alternate where
        not measured. Where a condition leaves tiles out, a fixed share of the tiles keeps some SMs idle (measurement
        ``branched_tiles``).
        """
        fact, facts = self.fact, self.facts
        if not self.access.plain:
            return None
        if self.few or self.branched or self.blocks(tile.m, tile.n) < self.tuned.persistent_waves * self.target.num_sms:
            return None
        # partial sums are added once for each step: a longer one is worth more than stages
        longer = self.with_descriptors(replace(tile, k=2 * tile.k)) if self.promoted else None
        shorter = longer or self.with_descriptors(tile)
        if shorter is None:
            return None
        return replace(
            self.proposal(shorter, grouped=False),
            reason=f"{tile.m} x {tile.n} x {shorter.k} tiles, {shorter.stages} stages, a persistent grid with descriptors",
            l2_groupings={facts.regions[fact.region].root: self.tuned.persistent_group},
            ranges={"range_flattens": {fact.m_block_id: True}},  # type: ignore[dict-item]
            pid_type="persistent_interleaved",
            launch={"indexing": "tensor_descriptor"},
        )

    def beside_sums(self, tile: ProductTile) -> TritonProposal:
        """Return the tile with few stages, so that of two programs per SM one multiplies while the other reduces."""
        fewer = replace(tile, stages=min(tile.stages, self.tuned.summed_stages))
        boxed = (slot for slot in (self.fact.lhs_slot, self.fact.rhs_slot) if slot is not None)
        return replace(
            self.proposal(fewer, grouped=False),
            reason=f"{tile.m} x {tile.n} x {tile.k} tiles, {fewer.stages} stages, reductions of operands in the matmul's loop",
            l2_groupings={self.facts.regions[self.fact.region].root: self.tuned.persistent_group},
            indexing=dict.fromkeys(boxed, "tensor_descriptor"),
            launch=tunables(self.facts, self.sizes(fewer)),
        )

    def with_descriptors(self, tile: ProductTile) -> ProductTile | None:
        """Return the tile with as many stages as fit with descriptors for all accesses, or None."""
        most = min(tile.stages, self.tuned.persistent_stages)
        whole, slots = frozenset({self.facts.regions[self.fact.region].root}), {op.slot for op in self.facts.memory_ops}
        taken = functools.partial(predict, descriptor_slots=frozenset(slots), fused=whole, persistent=True)
        for stages in range(most, min(most, self.tuned.persistent_least_stages) - 1, -1):
            found = replace(tile, stages=stages)
            sizes = all_sizes(self.facts, self.sizes(found))
            if taken(self.facts, sizes, found.warps, stages, self.target).fits:
                return found
        return None

    def specialized(self, tile: ProductTile) -> TritonProposal | None:
        """Return the persistent proposal with warp specialization, where the accumulator is in tensor memory.

        Loads and matmuls do not wait for the epilogue warps, which read half of the columns so as not to spill.
        """
        if not (self.target.has("tcgen05") and self.target.has("warp_specialize")) or self.computes_after():
            return None
        smaller = replace(tile, n=min(tile.n, self.tuned.promoted_n), warps=self.tuned.warps)
        found = self.persistent(smaller)
        if found is None:
            return None
        block = self.fact.m_block_id
        assert block is not None
        return replace(
            found,
            reason=f"{found.reason}, warp specialized",
            ranges={"range_warp_specializes": {block: True}},
        )

    def computes_after(self) -> bool:
        """Return whether the epilogue needs registers next to the accumulator.

        Offline for sm_100 the error function of a matmul spills 172 bytes in the epilogue warps, two scales none.
        """
        both = {self.fact.m_axis, self.fact.n_axis}
        return any(work.sfu_ops for work in self.facts.work if both <= set(work.axes))

    def transposed(self, tile: ProductTile) -> ProductTile | None:
        """Return the alternate with twice the rows and half the columns, where that is possible."""
        m, n = min(tile.m * 2, self.caps[0]), max(tile.n // 2, MIN_SIDE)
        if self.looped or m == tile.m or n == tile.n or m * n < self.tuned.smallest_alternate:
            return None
        other = ProductTile(m=m, n=n, k=tile.k, warps=tile.warps, stages=tile.stages)
        return other if self.predict(other).fits else None

    def less_padded(self, tile: ProductTile) -> ProductTile:
        """Return the transposed tile if it leaves fewer columns of tiles empty and is predicted to be faster."""
        other = self.transposed(tile)
        if other is None or self.padded(tile) < self.tuned.padding * self.padded(other):
            return tile
        return other if self.time_us(other) < self.time_us(tile) else tile

    def padded(self, tile: ProductTile) -> int:
        """Return the elements of the tiles that cover the output."""
        return cdiv(self.extents[0], tile.m) * tile.m * cdiv(self.extents[1], tile.n) * tile.n

    def tf32_slots(self, tile: ProductTile) -> frozenset[int]:
        """Return the slots of TF32 operands that descriptors load faster than pointers.

        Programs of small tiles lose more by creating descriptors than they gain (measurement ``tf32_descriptors``).
        """
        many = (
            self.blocks(tile.m, tile.n) >= self.tuned.tf32_waves * self.target.num_sms
            and tile.m * tile.n >= self.tuned.tf32_tile
        )
        return self.access.wide_slots if many else frozenset()

    def turned_slots(self) -> frozenset[int]:
        """Return the slot of an MN-major left operand of the synchronous unit in TF32, as of a gradient of weights.

        Descriptors load it faster (measurement ``turned_tf32``).
        """
        fact = self.fact
        turned = self.mma_v2 and fact.lhs_layout == "mn_major" and self.access.descriptors_fit and not fact.lhs_prologue
        return frozenset((fact.lhs_slot,)) if turned and fact.lhs_slot is not None else frozenset()

    def proposal(self, tile: ProductTile, *, grouped: bool) -> TritonProposal:
        grid_m, grid_n = cdiv(self.spread[0], tile.m), cdiv(self.spread[1], tile.n)
        group, root = {}, self.facts.regions[self.fact.region].root
        if grouped and self.branched and min(grid_m, grid_n) >= self.tuned.persistent_group:
            group = {root: self.tuned.persistent_group}
        elif grouped and grid_m > 1 and grid_m >= self.tuned.tall * grid_n and not self.in_pieces:
            group = {root: self.tuned.group}
        splits = self.splits(tile.m, tile.n) * self.parts
        parts = f"split-K by {splits}, " if splits > 1 else ""
        filled = f"{100 * self.efficiency(tile.m, tile.n):.0f} % of {self.target.num_sms} SMs busy"
        sizes = self.sizes(tile)
        descriptors = {"indexing": "tensor_descriptor"} if self.access.descriptors_pay and tile.m >= ASYNC_ROWS else {}
        parted = {"split_k": self.parts} if self.parts > 1 else {}
        return TritonProposal(
            reason=f"{tile.m} x {tile.n} x {tile.k} tiles, {tile.stages} stages, {parts}{filled}",
            block_sizes=tiles(self.facts, sizes),
            l2_groupings=group,
            num_warps=tile.warps,
            num_stages=tile.stages,
            indexing=dict.fromkeys(
                self.access.slots or self.tf32_slots(tile) or self.turned_slots(), "tensor_descriptor"
            ),
            launch=tunables(self.facts, sizes) | descriptors | parted | dict(self.rewriting.keys),
        )


@functools.lru_cache(maxsize=16)
def sizer_as_written(facts: KernelFacts, extents: Extents, target: Target) -> ProductSizer:
    """Return the sizer of the matmul without a rewrite; a repeated call returns the same, with the times that it knows."""
    return ProductSizer(facts, extents, target)
