"""Matmuls with operands that wgmma does not read as they are: unaligned rows, or TF32 that is not K-major.

Matches the same kernels as the heuristic of plain matmuls. Unaligned rows are copied to aligned ones first, those of
batches where the copies are predicted to pay. TF32
matmuls either swap A and B or copy operands K-major, whichever is predicted to be faster. The swap needs tensor
descriptors, without which it is slower than the synchronous unit (measurements ``rewritten_operands`` and
``swapped_operands``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import replace
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ...choose import trust
from ...predicted_time import proposal_us
from .extents import Extents
from .grid_order import ordered
from .precomputed import launch_us
from .tiles import ProductSizer, ProductTile, Rewriting, single_product, sizer_as_written
from .unaligned import copy_numbers

#: Tiles with A and B swapped, each the fastest of a size in a sweep. Two programs share an SM: one runs its matmul
#: while the other waits for its result.
_TURNED = (
    ProductTile(m=128, n=128, k=32, warps=8, stages=3),
    ProductTile(m=128, n=64, k=64, warps=4, stages=3),
    ProductTile(m=64, n=64, k=64, warps=4, stages=4),
)

Option = tuple[TritonProposal, float]


class TritonRewrittenMatmulHeuristic(Heuristic):
    name: ClassVar[str] = "TritonRewrittenMatmulHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not (facts.unaligned_operands or facts.swappable_ab or facts.mn_major_slots):
            return Declined("the matrix unit reads all operands in their layout, or they cannot be copied")
        extents = single_product(facts)
        if isinstance(extents, Declined):
            return extents
        if extents.batch * extents.m * extents.n * extents.k < copy_numbers().least:
            return Declined("the matmul is small")
        if extents.batch > 1 and not _is_tf32(facts) and _has_unaligned_rows(facts):
            return _aligned_batches(facts, extents, target)
        before = sizer_as_written(facts, extents, target).fastest()[1]
        before *= copy_numbers().unaligned if facts.unaligned_operands else 1
        found = [option for option in _options(facts, target) if option[1] <= _worth(option[0], target) * before]
        if not found:
            return Declined(f"no rewrite of the operands is predicted to take less than {before:.0f} us")
        return tuple(proposal for proposal, _ in sorted(found, key=_cost))


def _has_unaligned_rows(facts: KernelFacts) -> bool:
    """Return whether rows of an operand begin anywhere, and its contiguous dimension is one of the matrix."""
    fact = facts.matmuls[0]
    operands = [op for op in facts.memory_ops if op.kind == "load" and op.slot in (fact.lhs_slot, fact.rhs_slot)]
    matrix = {fact.m_axis, fact.n_axis, fact.k_axis}
    return any(op.inner_axis in matrix and op.aligned * op.itemsize % VECTOR_BYTES for op in operands)


def _aligned_batches(facts: KernelFacts, extents: Extents, target: Target) -> tuple[TritonProposal, ...] | Declined:
    """Return the matmul of copies of the matrices with aligned rows, in the order and tiles of least predicted time.

    Each matrix is copied once. The copies pay where programs of several tiles or batches read it.
    """
    before = min(
        proposal_us(facts, ordered(facts, each, target), target)
        for each in sizer_as_written(facts, extents, target).proposals()
    )
    changed = facts.after("pack_operands")
    copied = single_product(changed.facts)
    if isinstance(copied, Declined):
        return copied
    rewriting = Rewriting(keys={"pack_operands": True}, copied_bytes=changed.copied_bytes)
    sizer = ProductSizer(changed.facts, copied, target, rewriting=rewriting)
    several = [ProductTile(m=m, n=n, k=k, warps=w, stages=stages) for m, n, k, w, stages in copy_numbers().batches]
    tiles = (sizer.fastest()[0], *(proposal for proposal, _ in sizer.options(several)))
    options = [ordered(changed.facts, each, target) for each in tiles]
    best, us = min(((each, proposal_us(changed.facts, each, target)) for each in options), key=lambda option: option[1])
    us += 2e-3 * changed.copied_bytes / target.bandwidth_gb_per_s + launch_us()
    if us > trust(target).rewritten * before:
        return Declined(f"matmuls of copies are predicted to take {us:.0f} us, as written {before:.0f}")
    root = facts.regions[facts.matmuls[0].region].root
    return (replace(best, loop_orders=dict(zip([root], best.loop_orders.values(), strict=False))),)


def _cost(option: Option) -> float:
    proposal, us = option
    copies = proposal.launch.keys() & {"pack_operands", "transpose_operands"}
    return us + copy_numbers().copy_us if copies else us


def _worth(proposal: TritonProposal, target: Target) -> float:
    both = "split_k" in proposal.launch and "swap_ab" in proposal.launch
    return trust(target).rewritten_split_k if both else trust(target).rewritten


def _options(facts: KernelFacts, target: Target) -> Iterator[Option]:
    """Yield the matmul with A and B swapped, with K-major copies, or with aligned rows."""
    packed = ("pack_operands",) if facts.unaligned_operands else ()
    if facts.swappable_ab:
        yield from sorted(_swapped(facts, (*packed, "swap_ab"), target), key=lambda option: option[1])[:1]
    if facts.mn_major_slots and _is_tf32(facts):
        yield from _fastest(facts, ("transpose_operands", *packed), target)
    if packed and not facts.mn_major_slots:
        yield from _fastest(facts, packed, target)


def _is_tf32(facts: KernelFacts) -> bool:
    return all(fact.lhs_dtype.itemsize == 4 for fact in facts.matmuls)


def _fastest(facts: KernelFacts, keys: tuple[str, ...], target: Target) -> Iterator[Option]:
    changed = facts.after(*keys)
    extents = single_product(changed.facts)
    if not isinstance(extents, Declined):
        rewriting = Rewriting(keys=dict.fromkeys(keys, True), copied_bytes=changed.copied_bytes)
        proposal, us = ProductSizer(changed.facts, extents, target, rewriting=rewriting).fastest()
        yield _batches_last(facts, proposal) if "pack_operands" in keys else proposal, us


def _batches_last(facts: KernelFacts, proposal: TritonProposal) -> TritonProposal:
    """Return the proposal in the order of one matrix after the other, where those of a batch lie between each other.

    Their copies do not, and programs that run at the same time share rows of a few matrices (measurement
    ``packed_batches``).
    """
    fact = facts.matmuls[0]
    root = facts.regions[fact.region].root
    (grid,) = [region for region in facts.regions if region.kind == "root" and region.root == root]
    m, n, own = fact.m_axis, fact.n_axis, {fact.m_axis, fact.n_axis, fact.k_axis}
    batch = [axis for axis in grid.axes if axis not in own]
    loads = [op for op in facts.memory_ops if op.slot in (fact.lhs_slot, fact.rhs_slot) and op.kind == "load"]
    between = [
        op
        for op in loads
        if all(axis not in own for axis, step in zip(op.subscript_axes, op.strides, strict=True) if step == 1)
    ]
    if not batch or m not in grid.axes or n not in grid.axes or len(between) != 2 or proposal.loop_orders:
        return proposal
    order = tuple(grid.axes.index(axis) for axis in (n, m, *reversed(batch)))
    return replace(proposal, loop_orders={root: order}, reason=f"{proposal.reason}, one matrix after the other")


def _swapped(facts: KernelFacts, keys: tuple[str, ...], target: Target) -> Iterator[Option]:
    changed = facts.after(*keys)
    extents = single_product(changed.facts)
    if isinstance(extents, Declined):
        return
    rewriting = Rewriting(keys=dict.fromkeys(keys, True), copied_bytes=changed.copied_bytes, use_descriptors=True)
    sizer = ProductSizer(changed.facts, extents, target, rewriting=rewriting)
    if sizer.access.descriptors_fit:
        yield from sizer.options(_TURNED)
