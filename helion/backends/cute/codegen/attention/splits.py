"""Keys split among CTAs: partials in global memory, and their combination by the last CTA to arrive."""

from __future__ import annotations

from ...plan.attention.records import AttentionPlan
from ...plan.records import WARPGROUP_THREADS
from ...plan.workspace import MAX_COUNTERS
from .softmax import NEGATIVE_INFINITY


def tensors(plan: AttentionPlan) -> list[tuple[str, str, str]]:
    """Return (name, annotation, expression of the host) of the workspace's tensors."""
    values = plan.partial_values
    shape = f"({WARPGROUP_THREADS}, {values}, {plan.pieces * plan.consumer_groups})"
    strides = f"(1, {WARPGROUP_THREADS}, {WARPGROUP_THREADS * values})"
    counters = f"cute.make_tensor(cute.recast_ptr(workspace, dtype=cutlass.Int32), cute.make_layout({MAX_COUNTERS}))"
    partials = f"cute.make_tensor(workspace + {MAX_COUNTERS}, cute.make_layout({shape}, stride={strides}))"
    return [("counters", "cute.Tensor", counters), ("partials", "cute.Tensor", partials)]


def part_of_keys(plan: AttentionPlan) -> list[str]:
    """Return the definitions of a part's blocks, after those of the tile. A part without blocks visits one, whose keys are
    all masked."""
    lines = [
        f"split = work % {plan.splits}",
        "first_block, blocks = begin, end - begin",
        f"begin = first_block + blocks * split // {plan.splits}",
        f"end = first_block + blocks * (split + 1) // {plan.splits}",
    ]
    if plan.is_limited:
        lines += [f"limit = cutlass.min(limit, end * {plan.keys})", "end = cutlass.max(end, begin + 1)"]
    return lines


def place(plan: AttentionPlan, part: str) -> str:
    """Return the index of a part's partial of the group."""
    return f"(work // {plan.splits} * {plan.splits} + {part}) * {plan.consumer_groups} + group"


def put(plan: AttentionPlan) -> list[str]:
    """Store the partial, each value of all threads together. Rows past the last query are left out."""
    values = plan.output_columns // 2
    return [
        f"own_part = {place(plan, 'split')}",
        "for row in cutlass.range_constexpr(2):",
        f"    if first_query + 8 * row < {plan.problem.queries}:",
        f"        for e in cutlass.range_constexpr({values // 2}):",
        "            at = e // 2 * 4 + row * 2 + e % 2",
        "            partials[group_thread, at, own_part] = output[at]",
        f"        partials[group_thread, {values} + row, own_part] = highest[row]",
        f"        partials[group_thread, {values + 2} + row, own_part] = total[row]",
    ]


def _counter(plan: AttentionPlan) -> str:
    return f"work // {plan.splits} * {plan.consumer_groups} + group"


def count(plan: AttentionPlan) -> list[str]:
    """Increment the counter of the tile; the fences around it order memory accesses."""
    return [
        "if lane == 0:",
        f"    counted = cute.arch.atomic_add(counters.iterator + ({_counter(plan)}), cutlass.Int32(1),"
        ' sem="relaxed", scope="gpu")',
        "    shared_counts[group] = counted",
    ]


def reset(plan: AttentionPlan) -> list[str]:
    return ["if lane == 0:", f"    counters[{_counter(plan)}] = cutlass.Int32(0)"]


def factor_of(plan: AttentionPlan, part: str, highest: str) -> str:
    """Return the factor that makes a partial relative to the largest maximum, in place of that of the part."""
    exponent = f"({part} - {highest}) * {plan.problem.unit * plan.problem.scale!r}"
    seen = f"{part} == {NEGATIVE_INFINITY}, cutlass.Float32(0.0)"
    return f"cutlass.Float32(cutlass.select_({seen}, exp2({exponent})))"


def combine(plan: AttentionPlan) -> list[str]:
    """Combine partials relative to the largest maximum, in the order of the keys, so that all launches agree."""
    values = plan.output_columns // 2
    inside = f"    if first_query + 8 * row < {plan.problem.queries}:"
    return [
        "for row in cutlass.range_constexpr(2):",
        f"    highest[row] = {NEGATIVE_INFINITY}",
        "    total[row] = cutlass.Float32(0.0)",
        "output.fill(0.0)",
        "for row in cutlass.range_constexpr(2):",
        inside,
        f"        for part in cutlass.range({plan.splits}, unroll=4):",
        f"            place_of_part = {place(plan, 'part')}",
        f"            highest[row] = cute.arch.fmax(highest[row], partials[group_thread, {values} + row, place_of_part])",
        f"        for part in cutlass.range({plan.splits}, unroll=2):",
        f"            place_of_part = {place(plan, 'part')}",
        f"            former = partials[group_thread, {values} + row, place_of_part]",
        f"            factor = {factor_of(plan, 'former', 'highest[row]')}",
        f"            total[row] = total[row] + factor * partials[group_thread, {values + 2} + row, place_of_part]",
        f"            for e in cutlass.range_constexpr({values // 2}):",
        "                at = e // 2 * 4 + row * 2 + e % 2",
        "                output[at] = output[at] + factor * partials[group_thread, at, place_of_part]",
    ]
