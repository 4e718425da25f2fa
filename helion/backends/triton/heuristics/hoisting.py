"""Whether operands of products that are computed, such as weights of few bits, had better be computed once, in front.

What stands in a loop between memory and the matrix unit takes registers, instructions and passes through shared memory, for each
tile of the output. On an H200 (Triton 3.6, 2026-11-23), bf16 by int8 weights of 4096 x 4096 x 4096 takes 306 us at best so, and 18 us for
the weights plus the 190 us of a plain product otherwise; bf16 by int4 weights of 2048 x 4096 x 11008 704 us, and 34 us plus 245.
Of 1024 rows by 4096 x 4096 int8 weights the loop takes 81 us, computing them first 67, of 512 rows both 50; with 256 rows by int4 weights
of 4096 x 11008 the loop takes 93, computing them first 80. So a cast takes at least half as long again, and unpacking three times as long
as the product, which is what computing first is compared with; few rows keep the narrow weights, whose bytes are all that counts there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ...._compiler.facts.records import HoistableFact, KernelFacts
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources import rewritten

#: The part of a product's time at the full rate that computing operands in its loop adds at least: a right one in place, a left one,
#: which the matrix unit takes from registers (not measured), and one where lanes of several elements are merged.
_ADDED, _LEFT, _UNPACKED = 0.5, 0.25, 2.0
#: Microseconds of a launch that waits for another one.
_LAUNCH_US = 4.0


def unhoisted(facts: KernelFacts, target: Target) -> str:
    """Why no operands had better be computed first; empty where they had."""
    if not facts.hoistable:
        return "no operand of a product can be computed first"
    added = math.fsum(_added_us(facts, each, target) for each in facts.hoistable)
    first = 2e-3 * rewritten.hoisted_bytes(facts) / target.bandwidth_gb_per_s + _LAUNCH_US
    return "" if first <= added else f"operands computed first take {first:.0f} us, in the loop {added:.0f} at least"


def hoisting(proposals: Iterable[TritonProposal]) -> tuple[TritonProposal, ...]:
    """Proposals for facts of hoisted operands, as what the kernel is asked for."""
    return tuple(replace(each, launch={**each.launch, "hoist_operands": True}) for each in proposals)


def _added_us(facts: KernelFacts, each: HoistableFact, target: Target) -> float:
    """What an operand adds to its product's loop, as far as extents are known."""
    fact = facts.matmuls[each.dot]
    side = (fact.static_m if each.role == "rhs" else fact.static_n) or 1
    product = 2e-6 * side * each.numel / target.matrix_tflops_for(str(each.dtype).removeprefix("torch."))
    return product * (_UNPACKED if max(each.lanes) > 1 else _ADDED if each.role == "rhs" else _LEFT)
