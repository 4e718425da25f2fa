"""``check_problem``: what row kernels do not compute, for all layouts."""

from __future__ import annotations

from ...plan.dtypes import COLUMN_DTYPES, EPILOGUE_DTYPES, ROW_DTYPES, ROW_NUMBER_DTYPES, ROW_OUTPUT_DTYPES
from ...plan.epilogue import COLUMN_NUMBER, MAX_NUMBERED, ROW_NUMBER, Constant, Epilogue
from ...plan.refusal import Refusal
from ...plan.rowwise.choice import WARP_LANES
from ...plan.rowwise.records import RowProblem
from ...plan.runtime import MAX_EXTENT


def check_problem(problem: RowProblem) -> None:
    """Check types, extents and reductions. Raises ``Refusal``."""
    problem.epilogue.check()
    if not 0 < problem.n <= MAX_EXTENT or problem.m > MAX_EXTENT:
        raise Refusal(f"{problem.m} rows of {problem.n} columns; extents of 1 to {MAX_EXTENT} are implemented")
    if not problem.inputs:
        raise Refusal("the kernel reads no tensor of rows")
    if not problem.epilogue.reduces_rows and not any(problem.epilogue.grouped):
        raise Refusal("the kernel reduces no row")
    for output in problem.sums:
        if problem.epilogue.per_row[output.value]:
            raise Refusal(f"{output.name} sums one number of each row for all columns")
    for what, op, extent in (("rows", ROW_NUMBER, problem.m), ("columns", COLUMN_NUMBER, problem.n)):
        if extent > MAX_NUMBERED and problem.epilogue.numbers(op):
            raise Refusal(f"indices of {extent} {what}; up to {MAX_NUMBERED} are exact in float32")
    for operand in problem.epilogue.operands:
        known = {"column": COLUMN_DTYPES, "exact": ROW_DTYPES}.get(operand.kind, EPILOGUE_DTYPES)
        if operand.dtype not in known:
            raise Refusal(f"{operand.name} is of {operand.dtype}; {', '.join(known)} are implemented")
    for output in problem.outputs:
        allowed = ROW_NUMBER_DTYPES if output.kind in ("column", "group", "sum", "total") else ROW_OUTPUT_DTYPES
        if output.dtype not in allowed:
            raise Refusal(f"output {output.name} is of {output.dtype}; {', '.join(allowed)} are implemented")
    _check_groups(problem)


def _check_groups(problem: RowProblem) -> None:
    """Check that threads have columns of one group, and that nothing but outputs reads reductions of wide groups, next to
    groups of no other width."""
    epilogue = problem.epilogue
    for operand in epilogue.of_kind("group"):
        if operand.group % problem.lanes:
            raise Refusal(
                f"{operand.name} has a number for each {operand.group} columns, no multiple of {problem.lanes}"
            )
    if not problem.wide:
        return
    sizes = {each for each in epilogue.grouped if each}
    if len(sizes) > 1:
        raise Refusal(
            f"groups of {' and of '.join(map(str, sorted(sizes)))} columns, of which some are wider than a warp"
        )
    group, most = sizes.pop(), WARP_LANES * problem.lanes
    stored = {output.value for output in problem.outputs if output.kind == "group"}
    read = {x for made in epilogue.instructions for x in made.arguments if not isinstance(x, Constant)}
    for value in problem.after_wide:
        if not epilogue.grouped[value] or (value not in read and value not in stored):
            raise Refusal(
                f"reductions of groups of {group} columns are stored, and read by nothing else; powers of two up to {most}"
                " columns may be"
            )
    if any(epilogue.grouped[_reduced(epilogue, value)] for value in problem.wide):
        raise Refusal(f"a reduction of groups of {group} columns of a value that is the same in each of them")


def _reduced(epilogue: Epilogue, value: int) -> int:
    reduced = epilogue.instruction(value).arguments[0]
    assert not isinstance(reduced, Constant)
    return reduced
