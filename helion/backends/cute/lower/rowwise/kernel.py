"""The lowering from a program over rows and the decisions of a config to the plan of its kernel."""

from __future__ import annotations

from dataclasses import replace

from ..... import exc
from ....._compiler.decisions import Decisions
from ....._compiler.host.analysis import overwritten
from ....._compiler.host.build import HostBuilder
from ....._compiler.ir.grammar import Program
from ....._shapes import Expr, NeedsValue
from .....hardware import Target
from .....settings import Settings
from ...plan.build import unit_of
from ...plan.refusal import Refusal
from ...plan.rowwise.choice import RowChoice
from ...plan.rowwise.choices import layouts
from ...plan.rowwise.kernel import RowsPlan
from ...plan.rowwise.layout import layout_of
from ...plan.rowwise.passes import demand_of
from ...plan.rowwise.records import RowPlan, interned
from ..names import as_written
from .channels import with_flat_columns
from .grids import with_row_tiles
from .rows import RowKernel, rows_of
from .totals import without_totals

KEPT = 64
_KERNELS: dict[int, tuple[Program, RowKernel]] = {}


def known_rows(program: Program) -> RowKernel:
    """Return ``rows_of``, cached per program by identity. Raises ``Refusal``."""
    known = _KERNELS.get(id(program))
    if known is None or known[0] is not program:
        if len(_KERNELS) >= KEPT:
            _KERNELS.clear()
        known = _KERNELS[id(program)] = (program, rows_of(program))
    return known[1]


def with_tiles(program: Program) -> Program:
    """Return the program that facts describe: of tiles of rows, if it is one over single rows that can be."""
    try:
        return with_flat_columns(with_row_tiles(without_totals(program)[0]))
    except Refusal:
        return program


def reads_rows(program: Program) -> bool:
    """Return whether a program reduces something, and has no matmul."""
    kinds = {op.kind for op in program.walk()}
    return "dot" not in kinds and "reduce" in kinds


def refusal(program: Program, target: Target) -> exc.Base | None:
    """Return why the backend cannot run a program on a target, or None."""
    try:
        unit_of(target)
        if program.tunables:
            raise Refusal(f"it has tunables of its own: {', '.join(name for name, _ in program.tunables)}")
        layouts(demand_of(known_rows(program).problem), target)
    except Refusal as error:
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, error))
    except NeedsValue as error:
        reason = f"a size that rows depend on is known only when it runs ({error})"
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=reason)
    return None


def multiples(program: Program) -> dict[str, int]:
    """Return the divisors of host numbers on which strides of rows depend; none for refused programs."""
    try:
        return dict(known_rows(program).multiples)
    except (Refusal, NeedsValue):
        return {}


def ranges(program: Program) -> dict[str, range]:
    """Return the values of host numbers that a kernel is for; none for refused programs."""
    try:
        return dict(known_rows(program).ranges)
    except (Refusal, NeedsValue):
        return {}


def choice_of(decisions: Decisions, tile: int | None) -> RowChoice:
    """Return the decisions about a row kernel as a choice; ``tile`` is the tunable block of rows, if it is one.

    A kernel that fixes its tile has one row at a time: no result depends on the rows of a tile.
    """
    values = decisions.values
    return RowChoice(
        cluster=values["cute_row_cluster"],
        warps=values["cute_row_warps"],
        rows=1 if tile is None else decisions.sizes[tile],
        ctas_per_sm=values["cute_row_ctas_per_sm"],
        keep=values["cute_row_keep"],
        ahead=values["cute_row_ahead"],
        overlap=values["cute_row_overlap"],
    )


def build_plan(program: Program, decisions: Decisions, target: Target, settings: Settings) -> RowsPlan:
    """Build the plan of a program. Raises ``exc.InvalidConfig`` for decisions that do not fit."""
    kernel = known_rows(program)
    try:
        layout = layout_of(demand_of(kernel.problem), choice_of(decisions, kernel.tile), target)
    except Refusal as error:
        raise exc.InvalidConfig(f"{program.host.name} on {target}: {as_written(program, error)}.") from error
    span = 0 if kernel.blocks is None else decisions.sizes[kernel.blocks]
    plan = RowPlan(
        problem=interned(replace(kernel.problem, span=span, late_sums=layout.choice.overlap)),
        layout=layout,
        unit=unit_of(target),
        shared_limit_bytes=target.smem_per_block_bytes,
        registers_per_sm=target.registers_per_sm,
    )
    return RowsPlan(
        program=program,
        rows=plan,
        arguments=tuple(at if isinstance(at, Expr) else program.tensors[at] for at in kernel.arguments),
        runtime=kernel.runtime,
        is_empty=kernel.is_empty,
        sizes=tuple(decisions.sizes[block.id] for block in program.blocks),
        overwritten=tuple(dict.fromkeys(tensor.source for tensor in overwritten(program, program))),
        origin_lines=settings.output_origin_lines,
    )


def row_pieces(plan: RowsPlan, host: HostBuilder) -> str:
    """Return the number of tiles of rows, or of blocks of rows that have sums."""
    problem = plan.rows.problem
    rows = dict(plan.runtime).get("size_m", problem.m)
    return host.number(-(-rows // (plan.rows.layout.choice.rows * max(1, problem.span))))
