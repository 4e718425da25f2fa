"""The predicted time of a proposal, before it becomes a config."""

from __future__ import annotations

from ...._compiler.facts.records import KernelFacts
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.predict import predict
from ..resources.time.launch import Launch, changed_orders, grouped
from ..resources.time.predict import Timing, timing
from ..together import TOGETHER
from .sizing import all_sizes

_WARPS = 4


def proposal_us(facts: KernelFacts, proposal: TritonProposal, target: Target) -> float:
    """Return the microseconds of a launch with the tiles, warps, stages, program order and split-K of the proposal."""
    return proposal_timing(facts, proposal, target).us


def proposal_timing(facts: KernelFacts, proposal: TritonProposal, target: Target) -> Timing:
    """Return the same with the times of each unit."""
    warps, stages = proposal.num_warps or _WARPS, proposal.num_stages or 1
    sizes = all_sizes(facts, proposal.block_sizes, proposal.reduction_loops)
    predicted = predict(facts, sizes, warps, stages, target)
    persistent = (proposal.pid_type or "").startswith("persistent")
    launch = Launch(
        sizes=sizes,
        warps=warps,
        stages=stages,
        boxed=frozenset(slot for slot, way in proposal.indexing.items() if way == "tensor_descriptor"),
        orders=changed_orders(proposal.loop_orders),
        groupings=grouped(proposal.l2_groupings),
        flattened=frozenset(root for root, flat in proposal.flatten_loops.items() if flat),
        persistent=persistent,
        per_sm=proposal.launch.get("num_sm_multiplier", 1) if persistent else None,
        together=proposal.launch.get(TOGETHER, False),
        parts=proposal.launch.get("split_k", 1),
    )
    return timing(facts, launch, predicted, target)
