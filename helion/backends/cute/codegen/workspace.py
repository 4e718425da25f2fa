"""Split-K partials in global memory: counters, and 16-byte words of four partials per thread."""

from __future__ import annotations

from ..plan.counts import takes_turns
from ..plan.records import GemmPlan
from ..plan.workspace import MAX_COUNTERS, WORDS, sums_shape
from .epilogue import fragment

PARAMETERS = (("counters", "cute.Tensor"), ("part_sums", "cute.Tensor"))
"""Parameters of the kernel for the workspace."""


def tensors(plan: GemmPlan) -> list[str]:
    """Return the lines of the host function that make views of the workspace."""
    shape, strides = sums_shape(plan), [1]
    for extent in shape[:-1]:
        strides.append(strides[-1] * extent)
    return [
        f"counters = cute.make_tensor(cute.recast_ptr(workspace, dtype=cutlass.Int32), cute.make_layout({MAX_COUNTERS}))",
        f"part_sums = cute.make_tensor(workspace + {MAX_COUNTERS}, cute.make_layout({shape}, stride={tuple(strides)}))",
    ]


def parts_of(plan: GemmPlan) -> list[str]:
    """Return the tile and the K tiles of one work item: clusters that share a tile have adjacent items."""
    if plan.whole_tiles:
        first, parts = plan.whole_tiles, plan.grid_splits
        split = f"(work - {first})"
        return [
            f"split_tile = work >= {first}",
            f"tile = cutlass.Int32(cutlass.select_(split_tile, {first} + {split} // {parts}, work))",
            f"k_part = cutlass.Int32(cutlass.select_(split_tile, {split} % {parts}, cutlass.Int32(0)))",
            f"k_parts = cutlass.Int32(cutlass.select_(split_tile, cutlass.Int32({parts}), cutlass.Int32(1)))",
            "grid_part = k_part",
            f"k_end = cutlass.Int32(cutlass.select_(split_tile, ({plan.k_tiles + parts - 1} - k_part) // {parts},"
            f" {plan.k_tiles}))",
        ]
    item = [f"tile = work // {plan.grid_splits}", f"grid_part = work % {plan.grid_splits}"]
    if takes_turns(plan):
        return [
            *item,
            f"k_part = grid_part * {plan.splits} + place[3]",
            f"k_end = ({plan.k_tiles} - k_part + {plan.parts - 1}) // {plan.parts}",
        ]
    return [
        *item,
        f"k_begin = {plan.k_tiles} * (grid_part * {plan.splits} + place[3]) // {plan.parts}",
        f"k_end = {plan.k_tiles} * (grid_part * {plan.splits} + place[3] + 1) // {plan.parts}",
    ]


def view(plan: GemmPlan) -> list[str]:
    return [f"moved = cute.make_rmem_tensor({WORDS}, cutlass.Float32)"]


def put(plan: GemmPlan) -> list[str]:
    return [
        f"for i in cutlass.range_constexpr({fragment(plan).values // WORDS}):",
        f"    for j in cutlass.range_constexpr({WORDS}):",
        f"        moved[j] = values[i * {WORDS} + j]",
        f"    cute.autovec_copy(moved, {_word(plan, 'grid_part')})",
    ]


def count(plan: GemmPlan) -> list[str]:
    """Increment the tile counter; the fences around it order memory accesses."""
    return [
        "if lane == 0:",
        "    counted = cute.arch.atomic_add("
        f'counters.iterator + ({_tile(plan)} * {plan.ctas} + rank), cutlass.Int32(1), sem="relaxed", scope="gpu")',
        "    shared_count[0] = counted",
    ]


def take(plan: GemmPlan) -> list[str]:
    """Add the parts in a fixed order, so that the result does not depend on which CTA is last."""
    values = fragment(plan).values // WORDS

    def add(part: str, how: str) -> list[str]:
        return [
            f"for i in cutlass.range_constexpr({values}):",
            f"    cute.autovec_copy({_word(plan, part)}, moved)",
            f"    for j in cutlass.range_constexpr({WORDS}):",
            f"        values[i * {WORDS} + j] = {how}moved[j]",
        ]

    return [
        *add("0", ""),
        f"for other_part in cutlass.range(1, {plan.grid_splits}, unroll=2):",
        *(f"    {line}" for line in add("other_part", f"values[i * {WORDS} + j] + ")),
    ]


def reset(plan: GemmPlan) -> list[str]:
    return ["if lane == 0:", f"    counters[{_tile(plan)} * {plan.ctas} + rank] = cutlass.Int32(0)"]


def _word(plan: GemmPlan, part: str) -> str:
    subtile = "subtile" if plan.splits == 1 else f"subtile // {plan.splits}"
    return f"part_sums[None, store_thread, i, {subtile}, {part}, rank, {_tile(plan)}]"


def _tile(plan: GemmPlan) -> str:
    """Return the number of a tile among those that are split."""
    return f"(tile - {plan.whole_tiles})" if plan.whole_tiles else "tile"
