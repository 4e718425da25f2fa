"""A persistent grid for matmuls of which one side is fixed, such as heads whose columns are reduced.

With loops fused, the loads of the next tile begin while the last one is reduced and stored. A program of one tile waits
for both. Twice the rows in twice the warps read the other operand half as often (measurement ``persistent_heads``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import dataclass, replace
from ......hardware import Target
from ....proposal import TritonProposal
from ....resources.predict import predict
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import all_sizes, programs_of
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "persistent_matmul"

    #: Fewest waves of programs, rows of tiles that run consecutively, and most warps.
    waves: int
    group: int
    most_warps: int


def on_persistent_grid(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile, or twice its rows, on a persistent grid, if all operands have descriptors and it is faster."""
    ratio = trust(target).persistent
    if not ratio or tile.launch or tile.pid_type is not None or len(facts.matmuls) != 1:
        return None
    (fact,), boxed = facts.matmuls, {slot for slot, way in tile.indexing.items() if way == "tensor_descriptor"}
    loaded = {fact.lhs_slot, fact.rhs_slot}
    if None in loaded or loaded != boxed or facts.num_roots != 1 or facts.regions[fact.region].kind != "loop":
        return None
    first = tile, proposal_us(facts, tile, target)
    found = [(each, proposal_us(facts, each, target)) for each in _options(facts, tile, target)]
    best = unless_faster(first, found, ratio)
    return None if best is tile else best


def _options(facts: KernelFacts, tile: TritonProposal, target: Target) -> Iterator[TritonProposal]:
    """Yield the tile and one of twice the rows on a persistent grid, where they fit in several waves."""
    numbers, (fact,) = tuned(_Numbers), facts.matmuls
    m, warps, stages = fact.m_block_id, tile.num_warps or 1, tile.num_stages or 1
    if m is None or m not in tile.block_sizes:
        return
    root = facts.regions[fact.region].root
    for factor in (1, 2):
        sizes = {**tile.block_sizes, m: factor * tile.block_sizes[m]}
        every = all_sizes(facts, sizes)
        if factor * warps > numbers.most_warps or every[m] != sizes[m]:
            continue
        if programs_of(facts, sizes) < numbers.waves * target.num_sms:
            continue
        slots, whole = frozenset(tile.indexing), frozenset({root})
        predicted = predict(
            facts, every, factor * warps, stages, target, descriptor_slots=slots, fused=whole, persistent=True
        )
        if predicted.fits and not predicted.spill_risk:
            yield replace(
                tile,
                reason=f"{tile.reason}; a persistent grid of {sizes[m]} rows",
                block_sizes=sizes,
                num_warps=factor * warps,
                loop_orders={},
                l2_groupings={root: numbers.group},
                ranges={"range_flattens": {m: True}},
                pid_type="persistent_interleaved",
            )
