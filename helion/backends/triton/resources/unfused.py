"""The prediction of a kernel with unfused matmuls: the matmul kernel and the remaining kernel, run consecutively."""

from __future__ import annotations

from collections.abc import Mapping

from ...._compiler.facts.records import KernelFacts, UnfusedMatmulFact
from ...._support.records import dataclass, replace
from ....autotuner.proposal import Predicted
from ....hardware import Target
from .predict import predict
from .time.launch import Launch
from .time.predict import timing

#: Tiles of rows that run consecutively in the matmul kernel (``plan/build.py`` prints it so).
GROUP = 8


@dataclass(frozen=True, kw_only=True)
class ProductLaunch:
    """The launch of the matmul kernel: ``tile`` has rows, columns and elements along K.

    ``turned``: it computes the transpose, with A and B swapped. ``crosswise``: operands are copied K-major first.
    ``boxed`` are the slots of accesses with descriptors.
    """

    tile: tuple[int, int, int]
    warps: int
    stages: int
    turned: bool = False
    crosswise: bool = False
    boxed: frozenset[int] = frozenset()
    persistent: bool = False
    per_sm: int | None = None


def one_product(facts: KernelFacts) -> KernelFacts:
    """Return the facts of the matmul kernel with its first matmul alone, whose tiles are those of all, and without
    split-K.
    """
    kept = facts.matmuls[0]
    return replace(
        facts,
        matmuls=(kept,),
        staged=tuple(each for each in facts.staged if each.dot == kept.number),
    ).with_rewrites(split_k=None)


def product_sizes(
    apart: UnfusedMatmulFact[KernelFacts], tile: tuple[int, int, int], known: Mapping[int, int]
) -> dict[int, int]:
    """Return the size of every axis of the matmul kernel; ``known`` are those of the kernel as written."""
    sizes = {axis.block_id: known.get(axis.block_id, axis.size or 1) for axis in apart.products.axes}
    for axes, size in zip((apart.rows, apart.columns, apart.depths), tile, strict=True):
        sizes.update(dict.fromkeys(axes, size))
    return sizes


def predict_products(
    apart: UnfusedMatmulFact[KernelFacts], launch: ProductLaunch, known: Mapping[int, int], target: Target
) -> Predicted:
    """Return the prediction of the matmul kernel alone."""
    keys = ("swap_ab",) if launch.turned else ("transpose_operands",) if launch.crosswise else ()
    changed = apart.products.after(*keys)
    facts = changed.facts
    boxed = launch.boxed
    if not launch.crosswise and {op.slot for op in facts.memory_ops if op.kind == "load"} <= boxed:
        # results are stored the way the operands are loaded
        boxed = frozenset(op.slot for op in facts.memory_ops)
    sizes = product_sizes(apart, launch.tile, known)
    taken = predict(
        facts,
        sizes,
        launch.warps,
        launch.stages,
        target,
        descriptor_slots=boxed,
        once=bool(boxed) and not launch.persistent,
    )
    rank = max(len(region.axes) for region in facts.regions if region.kind == "root")
    order = (rank - 2, rank - 1, *reversed(range(rank - 2)))
    found = timing(
        facts,
        Launch(
            sizes=sizes,
            warps=launch.warps,
            stages=launch.stages,
            boxed=boxed,
            orders=dict.fromkeys(range(facts.num_roots), order),
            groupings=dict.fromkeys(range(facts.num_roots), GROUP),
            persistent=launch.persistent,
            per_sm=launch.per_sm,
            copied_bytes=changed.copied_bytes,
        ),
        taken,
        target,
    )
    return replace(taken, time_us=found.us, units=found.units, error=found.error)


def one_after_the_other(first: Predicted, second: Predicted) -> Predicted:
    """Return two kernels as one: the sum of times and bytes, and for each resource the kernel that takes more."""
    full = max(first, second, key=lambda each: each.registers_per_thread / each.register_limit)
    return Predicted(
        registers_per_thread=full.registers_per_thread,
        register_limit=full.register_limit,
        spill_risk=max(first.spill_risk, second.spill_risk),
        shared_bytes=max(first.shared_bytes, second.shared_bytes),
        least_shared_bytes=max(first.least_shared_bytes, second.least_shared_bytes),
        tensor_memory_columns=max(first.tensor_memory_columns, second.tensor_memory_columns),
        waves=first.waves + second.waves,
        occupancy_blocks=min(first.occupancy_blocks, second.occupancy_blocks),
        fits=first.fits and second.fits,
        bytes_moved=first.bytes_moved + second.bytes_moved,
        flops=first.flops + second.flops,
        time_us=first.time_us + second.time_us,
        reason=first.reason or second.reason,
        units=tuple((name, us + more) for (name, us), (_, more) in zip(first.units, second.units, strict=True)),
        error=max(first.error, second.error),
    )
