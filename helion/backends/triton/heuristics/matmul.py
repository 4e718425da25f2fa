"""Plain matrix products, batched or not, by formula.

Matches kernels with one dot over three tiles of their own, or several over the same three (halves of packed operands),
whose other tiles are on the grid (batch, groups, spans of K) or walk over K as well (norms of an operand's rows). The
tile fills half of the register file with its accumulator, shrinks until the last wave of blocks is full enough, and
takes the deepest pipeline that fits in shared memory. Where a tile of the grid bounds K, that is split instead until
the wave is full. Published for H100 and B200 as the default of both for products of known extents. Offline with Triton
3.7 its seeds fit on every target of the table.

Where H200 departs from the formula, a sweep says so (CUDA 13.0, Triton 3.6, 2026-11-20): fp32 operands whose
contiguous dimension is not K cannot be read by the asynchronous matrix unit and are multiplied by the older one, by two
warps (2.2 times as fast); rows that do not begin at multiples of 16 bytes are loaded element by element, by eight warps
(1.4 times); products of three waves or more take a persistent grid with tensor descriptors (1.01 to 1.15 times), and those
whose right operand is contiguous along K take descriptors on any grid; products with a K of at most 128 take smaller
tiles; and 8-bit integers whose right operand must be transposed take tall ones. One measured product, not a sweep, says
that those of few tiles and a long K want smaller ones, which are an alternate elsewhere. Operands that had better be computed once
(``hoisting.py``) are, and the product is sized as if it loaded them. Where predicted times say that
programs had better share the sums of larger tiles (``split_k``), those come first on H200, and as an alternate elsewhere; that is not
measured.
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources import rewritten
from .grid_order import ordered
from .hoisting import hoisting, unhoisted
from .product_tiles import ProductSizer, single_product


class TritonMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "TritonMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        extents = single_product(facts)
        if isinstance(extents, Declined):
            return extents
        if not unhoisted(facts, target):
            return hoisting(ProductSizer(rewritten.hoisted(facts), extents, target).proposals())
        sizer = ProductSizer(facts, extents, target)
        found = sizer.proposals()
        return tuple(ordered(facts, each, target) for each in found) if sizer.swept else found
