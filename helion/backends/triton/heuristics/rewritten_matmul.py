"""Products with operands that Hopper's asynchronous matrix unit does not read as they are: in rows that begin anywhere, or of
TF32 and not contiguous along K.

Matches what the heuristic of plain products does. Rows that begin anywhere are copied to aligned ones first. Products of TF32
are turned around, through tensor descriptors, without which that takes longer than the synchronous unit, or copied contiguous along
K, whichever is predicted to take less: 4096 x 4096 x 4096 take 394 us with a copy and 443 turned. Measured on an H200 (CUDA 13.0, Triton 3.6, 2026-11-23),
in microseconds with copies and without, of bf16: 4097 x 4097 x 4097 284 and 1196, 4096 x 777 x 4096 63 and 115,
4097 x 64 x 4097 39 and 67, 17 x 4097 x 4097 41 and 144, 513 x 511 x 65537 211 and 388, 1001 x 1001 x 1001 15 and 26,
333 x 333 x 333 10 and 14; of fp32 turned around and as it is: 1024 x 1024 x 1024 22 and 27, 2048 x 2048 x 2048 62 and 93,
4096 x 4096 x 4096 443 and 683, 8192 x 8192 x 8192 3596 and 6814, 1000 x 2048 x 3000 61 and 85, 300 x 1000 x 4096 27 and 30,
1024 x 65536 x 1024 440 and 1254; 512 x 512 x 512 13 and 13. Elsewhere nothing is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.rewritten import changed_bytes, packed, transposed, turned
from .product_tiles import ProductSizer, ProductTile, Rewriting, single_product

#: Products whose rows begin anywhere take so many times as long as predicted (4097 x 4097 x 4097 on an H200).
_UNALIGNED = 3
#: Multiplications of the smallest product that was measured to gain, 333 x 333 x 333.
_LEAST = 2**25
#: Part of the time of the product as it is that may be predicted at most, and of turned ones whose sums programs share: of 1024 x
#: 65536 x 1024, 440 us on an H200 where the synchronous unit takes 739, 0.74 were predicted.
_WORTH, _PARTED = 0.9, 0.8
#: Tiles of turned products, each the fastest of a size that was swept: two programs on an SM, of which one multiplies while the
#: other waits for what it multiplied.
_TURNED = (
    ProductTile(m=128, n=128, k=32, warps=8, stages=3),
    ProductTile(m=128, n=64, k=64, warps=4, stages=3),
    ProductTile(m=64, n=64, k=64, warps=4, stages=4),
)

Option = tuple[TritonProposal, float]


class TritonRewrittenMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "TritonRewrittenMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not (facts.packable or facts.turnable or facts.crosswise):
            return Declined("the matrix unit reads all operands as they are, or they cannot be copied")
        extents = single_product(facts)
        if isinstance(extents, Declined):
            return extents
        plain = ProductSizer(facts, extents, target)
        if not plain.swept:
            return Declined(f"not measured on {target}")
        if extents.batch * extents.m * extents.n * extents.k < _LEAST:
            return Declined("the product is small")
        before = plain.fastest()[1] * (_UNALIGNED if facts.packable else 1)
        found = [option for option in _options(facts, target) if option[1] <= _worth(option[0]) * before]
        if not found:
            return Declined(f"no other operands are predicted to take less than {before:.0f} us")
        return tuple(proposal for proposal, _ in sorted(found, key=lambda option: option[1]))


def _worth(proposal: TritonProposal) -> float:
    both = "split_k" in proposal.launch and "turn_products" in proposal.launch
    return _PARTED if both else _WORTH


def _options(facts: KernelFacts, target: Target) -> Iterator[Option]:
    """The product turned around, with rows along K, or with aligned rows."""
    aligned, keys = (packed(facts), {"pack_operands": True}) if facts.packable else (facts, {})
    if facts.turnable:
        options = _turned(facts, aligned, keys | {"turn_products": True}, target)
        yield from sorted(options, key=lambda option: option[1])[:1]
    if facts.crosswise and _is_tf32(facts):
        yield from _fastest(facts, transposed(aligned), keys | {"transpose_operands": True}, target)
    if facts.packable and not facts.crosswise:
        yield from _fastest(facts, aligned, keys, target)


def _is_tf32(facts: KernelFacts) -> bool:
    return all(fact.lhs_dtype.itemsize == 4 for fact in facts.matmuls)


def _fastest(facts: KernelFacts, changed: KernelFacts, keys: dict[str, bool], target: Target) -> Iterator[Option]:
    extents = single_product(changed)
    if not isinstance(extents, Declined):
        rewriting = Rewriting(keys=keys, copied_bytes=changed_bytes(facts, changed))
        yield ProductSizer(changed, extents, target, rewriting=rewriting).fastest()


def _turned(facts: KernelFacts, aligned: KernelFacts, keys: dict[str, bool], target: Target) -> Iterator[Option]:
    changed = turned(aligned)
    extents = single_product(changed)
    if isinstance(extents, Declined):
        return
    rewriting = Rewriting(keys=keys, copied_bytes=changed_bytes(facts, changed), boxed=True)
    sizer = ProductSizer(changed, extents, target, rewriting=rewriting)
    if sizer.movable:
        yield from sizer.options(_TURNED)
