"""Row kernels: the layout of the shortest predicted time (``plan.rowwise.time``), and others that come close.

Times on an H100 are in benchmarks/results/cute/nvidia-h100-row-kernels.jsonl, by benchmarks/row_kernels.py. No layout changes
the time of torch's launches after the kernel, which a call has (measurement ``losses_on_host``).
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic, Proposal
from ....hardware import Target
from ..plan.refusal import Refusal
from ..plan.rowwise.choices import varied
from ..plan.rowwise.records import RowLayout
from ..plan.rowwise.time import described, fastest_span, predicted_us
from ..proposal import CuteProposal
from ..resources.rowwise.shape import RowShape, describes_rows, row_shape_of


class CuteRowKernelHeuristic(Heuristic):
    name: ClassVar[str] = "CuteRowKernelHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        if not describes_rows(facts):
            return Declined("the kernel has a matmul, or reduces nothing")
        shape = row_shape_of(facts)
        if isinstance(shape, str):
            return Declined(shape)
        try:
            layouts = varied(shape.demand, shape.m, target, tiled=shape.tile is not None)
        except Refusal as refusal:
            return Declined(str(refusal))
        return tuple(_proposal(shape, layout, target) for layout in layouts)


def _proposal(shape: RowShape, layout: RowLayout, target: Target) -> CuteProposal:
    span, us = fastest_span(layout, shape.m, target)
    if shape.blocks is not None and shape.blocks in shape.fixed:
        span = shape.fixed[shape.blocks]
        us = predicted_us(layout, shape.m, target, span=span)
    blocks = f", blocks of {span} rows" if shape.blocks is not None else ""
    sizes = {shape.tile: layout.choice.rows, shape.blocks: span}
    return CuteProposal(
        reason=f"{described(layout)}{blocks}: {us:.0f} us",
        block_sizes={block: size for block, size in sizes.items() if block is not None and block not in shape.fixed},
        unit={
            "cute_row_cluster": layout.choice.cluster,
            "cute_row_warps": layout.choice.warps,
            "cute_row_ctas_per_sm": layout.choice.ctas_per_sm,
            "cute_row_keep": layout.choice.keep,
            "cute_row_ahead": layout.choice.ahead,
            "cute_row_overlap": layout.choice.overlap,
        },
    )
