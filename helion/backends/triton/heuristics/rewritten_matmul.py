"""Products with operands whose rows begin anywhere, which are copied to aligned rows first.

Matches what the heuristic of plain products does, in tiles of those for the facts of what is multiplied then; operands of
TF32 that Hopper's asynchronous matrix unit takes turned around only are turned as well. Measured on an H200 (CUDA 13.0, Triton 3.6,
2026-11-23), in microseconds with copies and without, of bf16: 4097 x 4097 x 4097 284 and 1196, 4096 x 777 x 4096 63 and 115,
4097 x 64 x 4097 39 and 67, 17 x 4097 x 4097 41 and 144, 513 x 511 x 65537 211 and 388, 1001 x 1001 x 1001 15 and 26,
333 x 333 x 333 10 and 14; of fp32, turned around, 4097 x 4097 x 4097 714 and 3762, 1001 x 1001 x 1001 37 and 45. Elsewhere
nothing is proposed.
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.rewritten import changed_bytes, packed, turned
from .product_tiles import ProductSizer, Rewriting, single_product

#: Products whose rows begin anywhere take so many times as long as predicted (4097 x 4097 x 4097 on an H200).
_UNALIGNED = 3
#: Multiplications of the smallest product that was measured to gain, 333 x 333 x 333.
_LEAST = 2**25
#: Part of the time without copies that may be predicted with them at most.
_WORTH = 0.9


class TritonRewrittenMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "TritonRewrittenMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.packable:
            return Declined("rows of operands begin at multiples of 16 bytes, or cannot be copied")
        extents = single_product(facts)
        if isinstance(extents, Declined):
            return extents
        plain = ProductSizer(facts, extents, target)
        if not plain.swept:
            return Declined(f"not measured on {target}")
        if extents.m * extents.n * extents.k < _LEAST:
            return Declined("the product is small")
        changed = packed(facts)
        keys = {"pack_operands": True}
        rewriting = Rewriting(keys=keys, copied_bytes=changed_bytes(facts, changed))
        if facts.turnable:
            changed = turned(changed)
            keys["turn_products"] = True
        found = single_product(changed)
        if isinstance(found, Declined):
            return found
        proposal, us = ProductSizer(changed, found, target, rewriting=rewriting).fastest()
        before = _UNALIGNED * plain.fastest()[1]
        if us > _WORTH * before:
            return Declined(f"{us:.0f} us are predicted with copies, {before:.0f} us without")
        return (proposal,)
