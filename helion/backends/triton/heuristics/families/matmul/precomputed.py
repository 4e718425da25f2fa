"""The decision whether computed operands, such as low-bit weights, are computed once before the matmul.

An operand computed between the load and the matrix unit costs registers, instructions and shared memory traffic for
each tile of the output. In the loop, a cast adds at least half of the matmul's time, and unpacking twice its time
(measurement ``precomputed_operands``). The cost of precomputing is compared with that. Few rows keep the narrow weights,
whose bytes bound them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, PrecomputableFact
from ......_support.records import dataclass, replace
from ......hardware import Target
from ....proposal import TritonProposal
from ...tuned import Tuned, tuned
from .operand_access import reads_elements


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "hoisting"

    #: Least time that a computed operand adds to the loop, as a fraction of the matmul's time at full rate.
    #: For the right operand; for the left one, which the matrix unit takes from registers; for merged lanes; and for
    #: loads with an index for each element (measurement ``gathered_first``).
    added: float
    left: float
    unpacked: float
    gathered: float
    #: Most bytes of operands with an index for each element, as a multiple of those of all tensors of the kernel.
    gathered_bytes: int
    #: Microseconds of a dependent launch.
    launch_us: float


_TUNED = tuned(_Numbers)


def unhoisted(facts: KernelFacts, target: Target) -> str:
    """Return the reason not to precompute operands; empty where precomputing pays."""
    if not facts.precomputable:
        return "no operand of a matmul can be precomputed"
    sizes = {op.storage: op.itemsize * math.prod(op.extents) for op in facts.memory_ops}
    made = sum(each.numel * each.dtype.itemsize for each in facts.precomputable if each.gathered is not None)
    if made > _TUNED.gathered_bytes * sum(sizes.values()):
        return f"gathered operands take {made / 2**20:.0f} MiB"
    added = math.fsum(_added_us(facts, each, target) for each in facts.precomputable)
    first = 2e-3 * facts.after("precompute_operands").copied_bytes / target.bandwidth_gb_per_s + _TUNED.launch_us
    return "" if first <= added else f"precomputed operands take {first:.0f} us, in the loop at least {added:.0f}"


def launch_us() -> float:
    """Return the microseconds of a dependent launch."""
    return _TUNED.launch_us


def hoisting(facts: KernelFacts, proposals: Iterable[TritonProposal]) -> tuple[TritonProposal, ...]:
    """Return the proposals, made for facts of precomputed operands, with the config key that precomputes them.

    ``facts`` are those without: configs have no entries for the accesses of precomputed operands.
    """
    slots = {op.slot for op in facts.memory_ops}
    return tuple(
        replace(
            each,
            indexing={slot: way for slot, way in each.indexing.items() if slot in slots},
            launch={**each.launch, "precompute_operands": True},
        )
        for each in proposals
    )


def _added_us(facts: KernelFacts, each: PrecomputableFact, target: Target) -> float:
    """Return the microseconds that an operand adds to its matmul's loop; unknown extents count as 1."""
    fact = facts.matmuls[each.dot]
    side = (fact.static_m if each.role == "rhs" else fact.static_n) or 1
    product = 2e-6 * side * each.numel / target.matrix_tflops_for(str(each.dtype).removeprefix("torch."))
    if each.gathered is not None:
        (load,) = [op for op in facts.memory_ops if op.slot == each.gathered]
        return product * _TUNED.gathered if reads_elements(load, fact) else 0.0
    return product * (_TUNED.unpacked if max(each.lanes) > 1 else _TUNED.added if each.role == "rhs" else _TUNED.left)
