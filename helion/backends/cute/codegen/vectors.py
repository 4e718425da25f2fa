"""Code of row and column operands of the epilogue: one number per column, or per row, of the tile."""

from __future__ import annotations

from collections.abc import Collection

from ..plan.counts import counts
from ..plan.records import GemmPlan
from ..roles.grammar import Role, Vector
from . import numbers
from .epilogue import dealt, fragment
from .setups import rows_of


def load(plan: GemmPlan, kinds: Collection[Vector], tile_n: str) -> list[str]:
    """Return the loads of operands to registers, with clamped indices; ``tile_n`` is the index of the columns."""
    threads, columns, epilogue = counts(plan).consumer_threads, plan.tile[1], plan.problem.epilogue
    lines = []
    for operand in epilogue.of_kind("column") if "column" in kinds else ():
        places = fragment(plan)
        row = numbers.in_group(plan, f"{rows_of(plan)} * {plan.cta_tile[0]} + {places.first_row} + {places.row_offset}")
        place = f"cutlass.min({row}, {numbers.last(plan, 'm')}){numbers.batched(plan, operand.label)}"
        lines += [
            f"for i in cutlass.range_constexpr({places.rows}):",
            f"    {operand.label}_rows[i] = {operand.label}[{place}].to(cutlass.Float32)",
        ]
    for operand in epilogue.of_kind("row") if "row" in kinds else ():
        column = f"{tile_n} * {columns} + store_thread + i * {threads}"
        place = f"cutlass.min({column}, {numbers.last(plan, 'n')}){numbers.batched(plan, operand.label)}"
        lines += [
            f"for i in cutlass.range_constexpr({-(-columns // threads)}):",
            f"    {operand.label}_loaded[i] = {operand.label}[{place}].to(cutlass.Float32)",
        ]
    return lines


def share(plan: GemmPlan, role: Role) -> list[str]:
    """Return the stores of row operands from registers to shared memory."""
    threads, columns = counts(plan).consumer_threads, plan.tile[1]
    first = numbers.of_team(plan, role, columns)
    dealt_column = "(store_thread + i * {0})" if plan.columns_stay else "store_thread + i * {0}"
    place = dealt(plan, dealt_column.format(threads))
    store = [
        f"shared_{operand.label}[{first}{place}] = {operand.label}_loaded[i]"
        for operand in plan.problem.epilogue.of_kind("row")
    ]
    if columns % threads:
        store = [f"if store_thread + i * {threads} < {columns}:", *(f"    {line}" for line in store)]
    return [f"for i in cutlass.range_constexpr({-(-columns // threads)}):", *(f"    {line}" for line in store)]
