"""The row kernels that ``auto`` takes, from benchmarks/results/cute/nvidia-h200-row-kernels.jsonl."""

from __future__ import annotations

from dataclasses import replace

from ..._compiler.ir.grammar import Program
from ...autotuner.margins import Lead
from ...hardware import Target
from .lower.rowwise.kernel import known_rows
from .plan.build import unit_of
from .plan.epilogue import Instruction
from .plan.rowwise.logs import short_logs
from .plan.rowwise.passes import demand_of, schedule_of
from .plan.rowwise.records import RowProblem
from .plan.rowwise.shorts import short_quotients

LEAST_AUTO_COLUMNS = 16385
"""Columns from which ``auto`` takes any row. The general backend holds shorter rows in registers as well, and is faster in
nine of ten kernels of 8192 and 16384 columns."""

ROWS_LEAD = Lead(ratio=0.88, saved_us=17.0)
"""The general backend's times of row kernels are over-predicted by up to a quarter (all seven jsd in bf16 of
nvidia-h200-reductions.json are faster, with 0.78 to 0.876 of its predicted times). A short launch does not repay the
compilation, which takes the DSL seconds longer."""

FEW_ROWS = 128
"""Rows up to which each has an SM of its own in the general backend. A cluster gives a row several SMs."""

LEAST_SUMMED_COLUMNS = 8192
"""Columns from which sums over few rows have that lead: such a row has several CTAs."""

FEW_ROWS_SAVED_US = 3.0
"""The lead in time of few rows: a quarter of a launch of 32768 columns, which a model repeats in each step. Both backends
predict it closely (the cells of few rows in nvidia-h200-row-kernels.jsonl). The same for sums over few rows, whose
clusters have several SMs for each row, and whose second kernel starts next to the first one."""

READS_LEAD = replace(ROWS_LEAD, ratio=0.85, corrected=0.82)
"""The same for exponentials of rows of which no element is stored. Their times are over-predicted by up to two fifths,
because the general backend reads such a row once."""

SUMS_LEAD = Lead(ratio=0.94, saved_us=7.0)
"""The same for rows that are reduced once, and of which no exponential or logarithm is taken: the general backend's times
are predicted within a tenth (row_sum and long_sum). They are the simplest kernels, and the soonest compiled. So are
searches for a position among loaded elements (row_argmax)."""
MOST_SUMMED = 131072
"""The most columns of such rows that are faster: those of 262144 are slower (row_sum of the same rows)."""

MASKS_LEAD = replace(ROWS_LEAD, ratio=0.85, corrected=1.1)
"""The same with masks whose rows repeat. Their times are under-predicted by up to a tenth."""

LOGS_LEAD = replace(ROWS_LEAD, ratio=0.85, corrected=1.22)
"""The same where the general backend's logarithm takes 22 instructions, and its times are under-predicted by a fifth."""


QUOTIENTS_LEAD = replace(ROWS_LEAD, ratio=0.92, corrected=1.2)
"""The same for quotients as arguments of exponentials, which the model counts as divisions (grpo_loss)."""

CURVES_LEAD = replace(ROWS_LEAD, ratio=0.92, corrected=1.7)
"""The same where one reduction is over polynomials that stay in registers. Facts count these in each pass, and the general
backend's loops compute them in each (measurement ``kept_polynomials``)."""

EXACT_LOGS_LEAD = replace(ROWS_LEAD, ratio=0.92)
"""The same for logarithms of 32-bit elements, whose times in the general backend are predicted within 7 %."""


def rows_on_request(program: Program, target: Target, request: str) -> str:
    """Return a reason for row kernels that have not run on a GPU, and for those that are slower than the general
    backend's: short rows, and matrices whose rows repeat, of which every row is loaded, unless these are masks.
    ``request`` says how to ask."""
    if unit_of(target) != "wgmma":
        return f"row kernels without wgmma run on request, {request}"
    problem = known_rows(program).problem
    demand = demand_of(problem)
    if demand.repeated and demand.lanes == demand.copied_lanes:
        return f"row kernels with a matrix whose rows repeat run on request, {request}"
    if demand.fewest < LEAST_AUTO_COLUMNS and not _saves_instructions(problem):
        return f"row kernels of fewer than {LEAST_AUTO_COLUMNS} columns run on request, {request}"
    return ""


def _saves_instructions(problem: RowProblem) -> bool:
    """Return whether a kernel is faster for short rows as well: sums over rows, positions, short logarithms, and quotients
    by a number of the launch as arguments of exponentials."""
    return bool(problem.sums or _finds_positions(problem) or short_logs(problem) or _multiplies_quotients(problem))


def _finds_positions(problem: RowProblem) -> bool:
    return any(made.op == "row_first" for made in problem.epilogue.instructions)


def _multiplies_quotients(problem: RowProblem) -> bool:
    """Return whether quotients are products with the reciprocal of a number of the launch."""
    epilogue = problem.epilogue
    divisors = [epilogue.instruction(value).arguments[1] for value in short_quotients(problem)]
    return any(isinstance(over, int) and 0 < over <= len(epilogue.operands) for over in divisors)


def _keeps_curves(problem: RowProblem) -> bool:
    """Return whether the last pass of two reads a polynomial of the only input from registers."""
    schedule = schedule_of(problem)
    return bool(schedule.kept) and len(problem.inputs) == 1 and len(schedule.passes) == 2


def rows_lead(program: Program) -> Lead:
    """Return the lead over the general backend from which ``auto`` takes a row kernel."""
    problem = known_rows(program).problem
    if any(problem.epilogue.instruction(value).op == "log" for value in short_logs(problem)):
        return LOGS_LEAD
    if any(made.op == "log" for made in _elementwise(problem)):
        return EXACT_LOGS_LEAD
    if _keeps_curves(problem):
        return CURVES_LEAD
    if _multiplies_quotients(problem):
        return QUOTIENTS_LEAD
    powers = any(made.op in ("exp", "exp2") for made in problem.epilogue.instructions)
    stores = problem.elements or problem.sums or problem.groups
    searched = _finds_positions(problem) and not _elementwise(problem)
    summed = problem.n <= MOST_SUMMED and not stores and (searched or not demand_of(problem).held_bytes)
    lead = SUMS_LEAD if summed else ROWS_LEAD
    lead = READS_LEAD if powers and not stores else lead
    lead = MASKS_LEAD if demand_of(problem).repeated else lead
    few = problem.m <= FEW_ROWS and problem.n >= (LEAST_SUMMED_COLUMNS if problem.sums else LEAST_AUTO_COLUMNS)
    return replace(lead, saved_us=FEW_ROWS_SAVED_US) if few else lead


def _elementwise(problem: RowProblem) -> list[Instruction]:
    """Return the instructions for each element."""
    epilogue = problem.epilogue
    first = len(epilogue.operands) + 1
    return [made for at, made in enumerate(epilogue.instructions, first) if not epilogue.per_row[at]]
