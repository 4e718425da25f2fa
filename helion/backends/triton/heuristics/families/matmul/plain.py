"""Plain matmuls, batched or not, by formula.

Matches kernels with one dot over three tiles of its own, or several over the same three (halves of packed operands).
Other tiles must be on the grid (batch, groups, spans of K) or loop over K as well (norms of an operand's rows). The
accumulator fills half of the register file, and the tile shrinks until the last wave is full enough. The pipeline is
the deepest that fits in shared memory. Where a tile of the grid bounds K, split-K fills the wave instead. Published for
H100 and B200 as the default of both for known extents. Offline with Triton 3.7 its seeds fit on every target of the
table.

Hopper departs from the formula where a sweep says so (measurement ``plain_matmul``):

- fp32 operands that are not K-major use the synchronous matrix unit with two warps. The asynchronous one cannot read
  them.
- Rows that do not begin at multiples of 16 bytes are loaded element by element, with eight warps.
- Matmuls of three waves or more take a persistent grid with tensor descriptors.
- Matmuls whose right operand is K-major take descriptors on any grid.
- A K of at most 128 takes smaller tiles, and 8-bit integers whose right operand must be transposed take tall ones.

One measured matmul, not a sweep, says that few tiles with a long K should be smaller, which is an alternate elsewhere.
Operands are precomputed where ``precomputed.py`` says so, and the matmul is sized as if it loaded them. Where predicted
times favour larger tiles with ``split_k``, these come first on H200 and are an alternate elsewhere; that is not
measured.
"""

from __future__ import annotations

from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...amd_options import with_amd_options
from .batches import with_pipeline
from .grid_order import ordered
from .precomputed import hoisting, unhoisted
from .tiles import ProductSizer, single_product, sizer_as_written


class TritonMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "TritonMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        extents = single_product(facts)
        if isinstance(extents, Declined):
            return extents
        if not unhoisted(facts, target):
            return hoisting(facts, ProductSizer(facts.after("precompute_operands").facts, extents, target).proposals())
        sizer = sizer_as_written(facts, extents, target)
        found = with_pipeline(sizer, tuple(ordered(facts, each, target) for each in sizer.proposals()))
        return with_amd_options(found, facts, target)
