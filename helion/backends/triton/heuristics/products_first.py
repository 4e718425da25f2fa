"""Matrix products whose rows are reduced, computed by a kernel of their own in front: the default where the two are predicted to be
faster than one.

Matches kernels all of whose products can be computed first (``passes/materialize.py``) and have rows that are reduced. Tiles of the
products are those of a plain product of the same size; products of TF32 that Hopper's matrix unit takes turned around are turned, or their
operands are copied along K where that is little beside the product. Rows
of the rest, and warps, come from the budget over live tiles that sizes reductions without products. Measured on an H200 (CUDA 13.0,
Triton 3.6, 2026-11-23), in microseconds, as two kernels with a layer norm in the second, beside the fastest measured config of one kernel: in fp32
2048 x 2048 x 2048 takes 70 and 352, 1024 x 1024 x 1024 27 and 54, 131072 x 512 x 512 436 and 506; whole rows of 131072 x 512 x 4096 in
bf16 1940 and 15114. Passes over rows in loops of the kernel's own were not measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from ...._compiler.facts.records import ApartFact, KernelFacts
from ...._shapes import cdiv
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import MemoryClass, Target
from ..proposal import TritonProposal
from ..resources import rewritten
from ..resources.materialized import ProductLaunch, one_product, predict_products
from .product_tiles import ProductSizer, single_product
from .reduction_budget import allocate
from .reduction_launch import launch
from .sizing import extent_of
from .timed import proposal_us

_WARPS = 4
#: Part of the time of as many rows as the budget allows that fewer are predicted to take at most to replace them.
_FEWER = 0.9
#: Tiles of products that are turned around, with stages, for four warps and operands that descriptors move, and the part of the
#: SMs that have one at least. On an H200 the first takes 63 us for 2048 x 2048 x 2048, with pointers 95,
#: and 256 x 128 in eight warps 73; the second 24 us for 1024 x 1024 x 1024, where the first takes 31 (2026-11-23).
_TURNED, _FULL = (((128, 128, 32), 4), ((128, 64, 32), 5), ((64, 64, 32), 6)), 0.8
#: The tile of products whose operands are copied along K, warps and stages, of which an SM has two programs; and how many times as long as
#: turned around it is predicted to take at most, copies included, to come first: what goes through registers is not counted. On an H200
#: 2048 x 2048 x 2048 takes 61.8 us so and 60.3 turned around, where 79 and 67 are predicted (2026-11-23).
_COPIED, _TURNING = ((128, 128, 32), 4, 3), 1.1


class TritonProductsFirstHeuristic(Heuristic):
    name: ClassVar[str] = "TritonProductsFirstHeuristic"
    promote_seed_to_default: ClassVar[bool] = False

    def contends(self, target: Target) -> bool:
        return target.has("wgmma") and target.memory is MemoryClass.FAST

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if target.kind == "cpu":
            return Declined("a CPU holds rows of any length")
        if facts.attention is not None or facts.attention_gradients:
            return Declined("scores of attention are larger than what they are made of")
        apart = facts.apart.value
        if isinstance(apart, str):
            return Declined(apart)
        if apart.rest.primary_reduction is None:
            return Declined("rows of the products are not reduced, or by data")
        first = _products(apart, target)
        return first if isinstance(first, Declined) else (_both(facts, apart.rest, first, target),)


def _products(apart: ApartFact, target: Target) -> ProductLaunch | Declined:
    """The launch of the products as a kernel of their own."""
    if apart.products.turnable and target.has("wgmma"):
        turned, along = _turned(apart, target), _along_depth(apart, target)
        if along is None:
            return turned
        us = [predict_products(apart, each, {}, target).time_us for each in (along, turned)]
        return along if us[0] <= _TURNING * us[1] else turned
    facts = one_product(apart)
    extents = single_product(facts)
    if isinstance(extents, Declined):
        return extents
    proposal, _ = ProductSizer(facts, extents, target).fastest()
    rows, columns, depth = (
        max(proposal.block_sizes[block] for block in of) for of in (apart.rows, apart.columns, apart.depths)
    )
    return ProductLaunch(
        tile=(rows, columns, depth), warps=proposal.num_warps or _WARPS, stages=proposal.num_stages or 1
    )


def _turned(apart: ApartFact, target: Target) -> ProductLaunch:
    """The largest tile of those that are turned around with which the first wave of programs is full enough."""
    axes = apart.products.axes
    extents = [extent_of(axes[of[0]]) for of in (apart.rows, apart.columns)]
    others = [axis for axis in apart.products.grid_axes if axis not in (*apart.rows, *apart.columns)]
    batch = math.prod(extent_of(axes[axis]) for axis in others)

    def programs(launch: ProductLaunch) -> int:
        return batch * math.prod(cdiv(extent, side) for extent, side in zip(extents, launch.tile, strict=False))

    boxed = _boxed(apart)
    made = [ProductLaunch(tile=tile, warps=_WARPS, stages=stages, turned=True, boxed=boxed) for tile, stages in _TURNED]
    return next((each for each in made if programs(each) >= _FULL * target.num_sms), made[-1])


def _fewest_rows(rest: KernelFacts, target: Target) -> TritonProposal:
    """The budget over live tiles says how many rows a program has. Where it reads them again, or what it has stored, fewer of them
    are still in the cache by then."""
    usual = launch(allocate(rest, target), rest, target)
    grid = [axis.block_id for axis in rest.tunable_axes if axis.on_grid]

    def options() -> Iterator[tuple[float, TritonProposal]]:
        most = max((usual.sizes.get(axis, 1) for axis in grid), default=1)
        for shift, warps in itertools.product(range(most.bit_length()), (usual.num_warps, usual.num_warps // 2)):
            if warps:
                fewer = {axis: max(rest.axes[axis].min_size, usual.sizes[axis] >> shift) for axis in grid}
                sizes = usual.sizes | fewer
                made = TritonProposal(reason="", block_sizes=sizes, num_warps=warps, num_stages=1)
                yield proposal_us(rest, made, target), made

    (before, first), *others = options()
    fastest = min(others, key=lambda option: option[0], default=(before, first))
    return fastest[1] if fastest[0] <= _FEWER * before else first


def _along_depth(apart: ApartFact, target: Target) -> ProductLaunch | None:
    """The products from copies of operands along K; None where descriptors would not move what is read then."""
    if not apart.products.crosswise:
        return None
    copied = rewritten.transposed(one_product(apart))
    extents = single_product(copied)
    if isinstance(extents, Declined) or not ProductSizer(copied, extents, target).movable:
        return None
    tile, warps, stages = _COPIED
    return ProductLaunch(tile=tile, warps=warps, stages=stages, crosswise=True, boxed=_boxed(apart))


def _boxed(apart: ApartFact) -> frozenset[int]:
    return frozenset(op.slot for op in apart.products.memory_ops if op.matmul_operand)


def _both(facts: KernelFacts, rest: KernelFacts, first: ProductLaunch, target: Target) -> TritonProposal:
    chosen = _fewest_rows(rest, target)
    keys: dict[str, Any] = {
        "materialize_products": list(first.tile),
        "product_num_warps": first.warps,
        "product_num_stages": first.stages,
    }
    if first.turned:
        keys["turn_products"] = True
    if first.crosswise:
        keys["transpose_operands"] = True
    if first.boxed:
        slots = range(1 + max(op.slot for op in facts.memory_ops))
        keys["indexing"] = ["tensor_descriptor" if slot in first.boxed else "pointer" for slot in slots]
    rows, columns, depth = first.tile
    return TritonProposal(
        reason=(
            f"products in tiles of {rows} x {columns} x {depth} first, {first.stages} stages; their rows in "
            f"{chosen.num_warps} warps"
        ),
        block_sizes=chosen.block_sizes,
        num_warps=chosen.num_warps,
        num_stages=1,
        launch=keys,
    )
