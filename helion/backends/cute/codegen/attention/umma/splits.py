"""Keys split among CTAs on tcgen05: a correcting thread stores the partial of its row, and combines those of all parts."""

from __future__ import annotations

from ....plan.attention.numbers import text_of
from ....plan.attention.umma import UMMA_ROWS, UmmaPlan
from ...attention import splits
from ..softmax import NEGATIVE_INFINITY
from .finish import chunk_of

GIVEN = "partials, correction_thread"


def put(plan: UmmaPlan) -> list[str]:
    """Store the partial of a row, a chunk of its columns at a time. Rows past the last query are left out."""
    columns = plan.problem.v.columns
    return [
        f"has_query = tile_m * {plan.rows} + group * {UMMA_ROWS} + correction_thread < {text_of(plan.problem.queries)}",
        f"own_part = {splits.place(plan, 'split')}",
        f"for part in cutlass.range({columns // chunk_of(columns)}, unroll=1):",
        "    cute.copy(output_reads, from_parts[None, None, part, group], values)",
        "    cute.arch.fence_view_async_tmem_load()",
        f"    put_chunk({GIVEN}, own_part, values, message, part, has_query)",
        f"put_row({GIVEN}, own_part, message, has_query)",
    ]


def combine(plan: UmmaPlan) -> list[str]:
    """Combine the maxima and sums of the parts, relative to the largest maximum, in the message of the row."""
    return [
        f"first_part = {splits.place(plan, '0')}",
        f"combine_row({GIVEN}, first_part, message, has_query)",
    ]


def functions(plan: UmmaPlan) -> list[list[str]]:
    """Return the functions of partials: those of a row lie a value of all threads after the other."""
    if plan.splits == 1:
        return []
    columns, chunk = plan.problem.v.columns, chunk_of(plan.problem.v.columns)
    restored = " * message[2]" if plan.restores_maxima else ""
    of_part = f"first_part + split * {plan.groups}"
    factor = splits.factor_of(plan, f"partials[thread, {columns}, {of_part}]", "message[1]")
    return [
        [
            "@cute.jit",
            "def put_chunk(partials, thread, own_part, values, message, part, inside):",
            "    if inside:",
            f"        for e in cutlass.range_constexpr({chunk}):",
            f"            partials[thread, {chunk} * part + e, own_part] = values[e]{restored}",
        ],
        [
            "@cute.jit",
            "def put_row(partials, thread, own_part, message, inside):",
            "    if inside:",
            f"        partials[thread, {columns}, own_part] = message[1]",
            f"        partials[thread, {columns + 1}, own_part] = message[0]",
        ],
        [
            "@cute.jit",
            "def combine_row(partials, thread, first_part, message, inside):",
            f"    message[1] = {NEGATIVE_INFINITY}",
            "    message[0] = cutlass.Float32(0.0)",
            "    if inside:",
            f"        for split in cutlass.range({plan.splits}, unroll=4):",
            f"            message[1] = cute.arch.fmax(message[1], partials[thread, {columns}, {of_part}])",
            f"        for split in cutlass.range({plan.splits}, unroll=4):",
            f"            factor = {factor}",
            f"            message[0] = message[0] + factor * partials[thread, {columns + 1}, {of_part}]",
        ],
        [
            "@cute.jit",
            "def combine_chunk(partials, thread, first_part, values, message, part, inside):",
            f"    for e in cutlass.range_constexpr({chunk}):",
            "        values[e] = cutlass.Float32(0.0)",
            "    if inside:",
            f"        for split in cutlass.range({plan.splits}, unroll=1):",
            f"            factor = {factor}",
            f"            for e in cutlass.range_constexpr({chunk}):",
            f"                values[e] = values[e] + factor * partials[thread, {chunk} * part + e, {of_part}]",
        ],
    ]
