"""K of 8-bit operands in shared memory: of each four consecutive keys, the first two are in the first half of the rows.

The MMA of the scores gives a thread two neighbouring columns of each 8, 8-bit operand A of the next MMA takes four. In this
order both halves together are four consecutive keys, and weights go from one MMA to the other in their own registers. TMA
loads a half as the rows ``(2, keys / 4)`` of a matrix whose rows are ``(4, keys / 4)``.
"""

from __future__ import annotations

from ...plan.attention.build import QUAD
from ...plan.attention.numbers import is_known, text_of
from ...plan.attention.records import AttentionPlan

PAIR = 2
SWIZZLES = (128, 64, 32)
"""Bytes of a row of a swizzled tile with contiguous K, the longest that divides a row first."""


def _chunk(plan: AttentionPlan) -> int:
    """Return the columns of a tile of K that are one swizzled row."""
    return next(each for each in SWIZZLES if plan.problem.k.columns % each == 0)


def _rows(plan: AttentionPlan, stages: int = 0) -> str:
    """Return the layout of a half in shared memory, in one stage or in all."""
    keys, columns, chunk = plan.keys, plan.problem.k.columns, _chunk(plan)
    shape = f"{PAIR}, {keys // QUAD}, ({chunk}, {columns // chunk})"
    stride = f"{chunk}, {PAIR * chunk}, (1, {keys * chunk})"
    if stages:
        shape, stride = f"{shape}, {stages}", f"{stride}, {keys * columns}"
    return f"cute.make_layout(({shape}), stride=({stride}))"


def _box(plan: AttentionPlan) -> str:
    return f"({PAIR}, {plan.keys // QUAD}, {plan.problem.k.columns})"


def descriptor(plan: AttentionPlan) -> list[str]:
    """Return the lines that make the tensor of K and its descriptor."""
    k = plan.problem.k
    pitch, keys = text_of(k.pitch), plan.problem.keys
    count = str(keys // QUAD) if is_known(keys) else f"{text_of(keys)} // {QUAD}"
    shape = [f"cutlass.Int32({QUAD})", f"cutlass.Int32({count})", str(k.columns)]
    stride = [pitch, f"{QUAD} * {pitch}", "1", *(text_of(mode.stride) for mode in k.modes)]
    shape += [f"cutlass.Int32({text_of(mode.size)})" for mode in k.modes]
    moved = f"k + {text_of(k.offset)}" if k.offset != 0 else "k"
    return [
        f"matrix_k = cute.make_tensor({moved}, cute.make_layout(({', '.join(shape)}), stride=({', '.join(stride)})))",
        f"half_k = cute.make_composed_layout(layout_k.inner, 0, {_rows(plan)})",
        f"tma_k, tensor_k = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), matrix_k, half_k, {_box(plan)})",
    ]


def partition(plan: AttentionPlan) -> list[str]:
    """Return the partitions of K in global memory, and of both halves in shared memory."""
    others = "".join(", None" for _ in plan.problem.k.modes)
    lines = [f"tiles_k = cute.local_tile(tensor_k, {_box(plan)}, (None, None, 0{others}))"]
    for half in range(2):
        first = f" + {plan.keys // 2 * _chunk(plan)}" if half else ""
        lines += [
            f"half_k = cute.make_tensor(shared_k.iterator{first}, {_rows(plan, plan.stages)})",
            f"to_k_{half}, from_k = cpasync.tma_partition(",
            "    tma_k, 0, cute.make_layout(1), cute.group_modes(half_k, 0, 3), cute.group_modes(tiles_k, 0, 3)",
            ")",
        ]
    return lines


def halves(source: str) -> list[tuple[str, str]]:
    """Return the source and the destination of each half, given the index of a block of whole rows."""
    every, rest = source.split(", ", 1)
    return [(f"{every}, {half}, {rest}", f"to_k_{half}") for half in range(2)]
