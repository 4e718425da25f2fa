"""Tiles of matmuls of a large batch, of which each program has many steps along K.

Few steps need a short pipeline alone, and small tiles leave room for programs that load meanwhile. With many steps, three
stages of a line are faster than two of wide tiles, and so are twice the rows (measurement ``batched_steps``). Twice the
columns may be faster in half of the line (measurement ``wider_batches``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ......_support.records import dataclass, replace
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import estimate
from ...tuned import Tuned, tuned

if TYPE_CHECKING:
    from .tiles import ProductSizer


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "batches"

    #: Fewest lines along K of a program, and the stages of its pipeline.
    lines: int
    stages: int


def with_pipeline(sizer: ProductSizer, found: tuple[TritonProposal, ...]) -> tuple[TritonProposal, ...]:
    """Return the proposals after one with a longer pipeline, where it is predicted to be faster than the first."""
    ratio = trust(sizer.target).pipelined
    line = sizer.tuned.whole_line // sizer.itemsize
    few = sizer.extents[2] < tuned(_Numbers).lines * line or sizer.parts > 1 or sizer.span is not None
    if not found or not sizer.many_batches or sizer.looped or few or not ratio:
        return found
    facts, target = sizer.facts, sizer.target
    first, *others = ((each, proposal_us(facts, each, target)) for each in (found[0], *_options(sizer, found[0], line)))
    best = unless_faster(first, others, ratio)
    return found if best is found[0] else (best, *found)


def _options(sizer: ProductSizer, first: TritonProposal, whole: int) -> Iterator[TritonProposal]:
    m, n, k, stages = sizer.fact.m_block_id, sizer.fact.n_block_id, sizer.fact.k_block_id, tuned(_Numbers).stages
    assert m is not None and n is not None and k is not None
    height, width = first.block_sizes[m], first.block_sizes[n]
    for rows, columns, line in ((height, width, whole), (2 * height, width, whole), (height, 2 * width, whole // 2)):
        sizes = {**first.block_sizes, m: rows, n: columns, k: line}
        too_large = rows > sizer.caps[0] or columns > sizer.caps[1] or line < sizer.least_k
        if too_large or (sizes == first.block_sizes and stages == first.num_stages):
            continue
        predicted = estimate(sizer.facts, sizer.target, sizes, first.num_warps or 1, stages)
        if predicted.fits and not predicted.spill_risk:
            shape = f"{rows} x {columns}" if columns > width else f"{rows} rows"
            reason = f"{first.reason}; {shape} and {stages} stages of {line} along K are predicted to be faster"
            yield replace(first, block_sizes=sizes, num_stages=stages, reason=reason)
