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

from ...._compiler.facts.records import KernelFacts
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources import rewritten

#: The part of a product's time at the full rate that computing operands in its loop adds at least: in place, and where lanes of
#: several elements are merged.
_ADDED, _UNPACKED = 0.5, 2.0
#: Microseconds of a launch that waits for another one.
_LAUNCH_US = 4.0


def unhoisted(facts: KernelFacts, target: Target) -> str:
    """Why no operands had better be computed first; empty where they had."""
    if not facts.hoistable:
        return "no operand of a product can be computed first"
    product = math.fsum(_product_us(facts, number, target) for number in {each.dot for each in facts.hoistable})
    first = 2e-3 * rewritten.hoisted_bytes(facts) / target.bandwidth_gb_per_s + _LAUNCH_US
    merged = any(lanes > 1 for each in facts.hoistable for lanes in each.lanes)
    worth = first <= (_UNPACKED if merged else _ADDED) * product
    return "" if worth else f"computing operands first takes {first:.0f} us, the product {product:.0f}"


def hoisting(proposals: Iterable[TritonProposal]) -> tuple[TritonProposal, ...]:
    """Proposals for facts of hoisted operands, as what the kernel is asked for."""
    return tuple(replace(each, launch={**each.launch, "hoist_operands": True}) for each in proposals)


def _product_us(facts: KernelFacts, number: int, target: Target) -> float:
    """Of product ``number`` at the full rate of the matrix units, as far as its extents are known."""
    fact = facts.matmuls[number]
    each = next(each for each in facts.hoistable if each.dot == number)
    rows = (fact.static_m if each.role == "rhs" else fact.static_n) or 1
    return 2e-6 * rows * each.numel / target.matrix_tflops_for(str(each.dtype).removeprefix("torch."))
