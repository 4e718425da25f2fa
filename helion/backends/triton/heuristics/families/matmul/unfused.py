"""Matmuls whose rows are reduced, computed by a kernel of their own first: the default where two kernels are predicted
to be faster.

Matches kernels all of whose matmuls can be unfused (``rewrites/unfuse_matmul``) and have rows that are reduced. The
matmuls take the tiles of a plain matmul of the same size. TF32 matmuls that wgmma takes with A and B swapped are
swapped. Where that is cheap, their operands are copied K-major instead. Rows of the rest, and warps, come from the
budget over live tiles for reductions without matmuls (measurement ``unfused_matmul``). Passes over rows in loops of the
kernel's own were not measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from ......_compiler.facts.records import KernelFacts, UnfusedMatmulFact
from ......_shapes import cdiv
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ....resources.unfused import ProductLaunch, one_product, predict_products
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import extent_of
from ...tuned import Tuned, tuned
from ..reduction.budget import allocate
from ..reduction.launch import launch
from .tiles import ProductSizer, single_product


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "products_first"

    #: Warps of the matmul.
    warps: int
    #: Tiles of matmuls with A and B swapped, with stages, for four warps and operands loaded by descriptors; and the
    #: least fraction of the SMs that have a tile.
    turned: tuple[tuple[tuple[int, int, int], int], ...]
    full: float
    #: Most elements along K that take a few steps.
    short_depth: int
    #: The tile of matmuls whose operands are copied K-major, warps and stages, with two programs per SM.
    copied: tuple[tuple[int, int, int], int, int]


_TUNED = tuned(_Numbers)


class TritonProductsFirstHeuristic(Heuristic):
    name: ClassVar[str] = "TritonProductsFirstHeuristic"
    promote_seed_to_default: ClassVar[bool] = False

    def competes_within(self, facts: KernelFacts, target: Target) -> float:
        """Return the ratio by the length of K: the fused kernel restarts its pipeline for every tile of columns.

        Predictions leave that out. Over a long K they are too long for the fused kernel instead.
        """
        apart = facts.unfused
        if isinstance(apart, UnfusedMatmulFact) and _depth(apart) <= _TUNED.short_depth:
            return trust(target).unfused_short
        return trust(target).unfused

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if target.kind == "cpu":
            return Declined("a CPU keeps rows of any length")
        if facts.attention is not None or facts.attention_gradients:
            return Declined("scores of attention are larger than their operands")
        apart = facts.unfused
        if isinstance(apart, str):
            return Declined(apart)
        if apart.rest.primary_reduction is None:
            return Declined("rows of the matmuls are not reduced, or over a range from data")
        first = _products(apart, target)
        if isinstance(first, Declined):
            return first
        return (_both(facts, apart.rest, first, target),)


def _depth(apart: UnfusedMatmulFact) -> int:
    """Return the elements along K of the longest matmul."""
    return max(extent_of(apart.products.axes[axis]) for axis in apart.depths)


def _products(apart: UnfusedMatmulFact, target: Target) -> ProductLaunch | Declined:
    """Return the launch of the matmuls as a kernel of their own."""
    if apart.products.swappable_ab and target.has("wgmma"):
        turned, along = _turned(apart, target), _along_depth(apart, target)
        if along is None:
            return turned
        first, other = ((each, predict_products(apart, each, {}, target).time_us) for each in (turned, along))
        return unless_faster(first, (other,), trust(target).copied)
    facts = one_product(apart.products)
    extents = single_product(facts)
    if isinstance(extents, Declined):
        return extents
    proposal, _ = ProductSizer(facts, extents, target).fastest()
    rows, columns, depth = (
        max(proposal.block_sizes[block] for block in of) for of in (apart.rows, apart.columns, apart.depths)
    )
    return ProductLaunch(
        tile=(rows, columns, depth), warps=proposal.num_warps or _TUNED.warps, stages=proposal.num_stages or 1
    )


def _turned(apart: UnfusedMatmulFact, target: Target) -> ProductLaunch:
    """Return the launch with A and B swapped: the largest tile with which the first wave of programs is full enough."""
    axes = apart.products.axes
    extents = [extent_of(axes[of[0]]) for of in (apart.rows, apart.columns)]
    others = [axis for axis in apart.products.grid_axes if axis not in (*apart.rows, *apart.columns)]
    batch = math.prod(extent_of(axes[axis]) for axis in others)

    def programs(launch: ProductLaunch) -> int:
        return batch * math.prod(cdiv(extent, side) for extent, side in zip(extents, launch.tile, strict=False))

    boxed = _boxed(apart)
    made = [
        ProductLaunch(tile=tile, warps=_TUNED.warps, stages=stages, turned=True, boxed=boxed)
        for tile, stages in _TUNED.turned
    ]
    return next((each for each in made if programs(each) >= _TUNED.full * target.num_sms), made[-1])


def _fewest_rows(rest: KernelFacts, target: Target) -> TritonProposal:
    """Return the launch of the remaining kernel, with fewer rows per program where that is predicted faster.

    The budget over live tiles gives the most rows. Where rows are read again, or back after a store, fewer of them
    still are in the cache.
    """
    usual = launch(allocate(rest, target), rest, target)
    grid = [axis.block_id for axis in rest.tunable_axes if axis.on_grid]

    def options() -> Iterator[tuple[TritonProposal, float]]:
        most = max((usual.sizes.get(axis, 1) for axis in grid), default=1)
        for shift, warps in itertools.product(range(most.bit_length()), (usual.num_warps, usual.num_warps // 2)):
            if warps:
                fewer = {axis: max(rest.axes[axis].min_size, usual.sizes[axis] >> shift) for axis in grid}
                sizes = usual.sizes | fewer
                made = TritonProposal(reason="", block_sizes=sizes, num_warps=warps, num_stages=1)
                yield made, proposal_us(rest, made, target)

    first, *others = options()
    return unless_faster(first, others, trust(target).fewer_rows)


def _along_depth(apart: UnfusedMatmulFact, target: Target) -> ProductLaunch | None:
    """Return the launch of the matmuls from K-major copies of operands; None where descriptors could not load the
    copies.
    """
    if not apart.products.mn_major_slots:
        return None
    copied = one_product(apart.products.after("transpose_operands").facts)
    extents = single_product(copied)
    if isinstance(extents, Declined) or not ProductSizer(copied, extents, target).access.descriptors_fit:
        return None
    tile, warps, stages = _TUNED.copied
    return ProductLaunch(tile=tile, warps=warps, stages=stages, crosswise=True, boxed=_boxed(apart))


def _boxed(apart: UnfusedMatmulFact) -> frozenset[int]:
    return frozenset(op.slot for op in apart.products.memory_ops if op.matmul_operand)


def _both(facts: KernelFacts, rest: KernelFacts, first: ProductLaunch, target: Target) -> TritonProposal:
    chosen = _fewest_rows(rest, target)
    keys: dict[str, Any] = {
        "unfuse_matmul": list(first.tile),
        "matmul_num_warps": first.warps,
        "matmul_num_stages": first.stages,
    }
    if first.turned:
        keys["swap_ab"] = True
    if first.crosswise:
        keys["transpose_operands"] = True
    if first.boxed:
        slots = range(1 + max(op.slot for op in facts.memory_ops))
        keys["indexing"] = ["tensor_descriptor" if slot in first.boxed else "pointer" for slot in slots]
    rows, columns, depth = first.tile
    return TritonProposal(
        reason=(
            f"matmuls first, in tiles of {rows} x {columns} x {depth}, {first.stages} stages; their rows in "
            f"{chosen.num_warps} warps"
        ),
        block_sizes=chosen.block_sizes,
        num_warps=chosen.num_warps,
        num_stages=1,
        launch=keys,
    )
