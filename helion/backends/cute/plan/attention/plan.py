"""The plan of one user kernel that is attention, or computes its gradients, and a printable report."""

from __future__ import annotations

import functools

from ....._support.records import dataclass
from ...roles.attention.backward import backward_program
from ...roles.attention.grammar import AttentionProgram, BackwardProgram, ScoreProgram
from ...roles.attention.programs import attention_program
from ...roles.attention.umma import UmmaProgram, umma_program
from ...roles.attention.umma_backward import UmmaBackwardProgram, umma_backward_program
from ..launch import LaunchPlan
from ..report import memory_lines, pipeline_lines, role_lines
from ..shared import Allocation
from .backward import BackwardPlan, backward_bytes, backward_memory
from .build import shared_bytes, shared_memory
from .gradients import BackwardProblem
from .numbers import text_of
from .records import AttentionPlan, ScorePlan
from .umma import EXPONENTIALS, UmmaPlan, allocated_columns, umma_bytes, umma_memory
from .umma_backward import UmmaBackwardPlan, umma_backward_bytes, umma_backward_memory


@dataclass(frozen=True, kw_only=True)
class CuteAttentionPlan(LaunchPlan):
    """The plan of a kernel whose attention has the plan ``attention``."""

    attention: AttentionPlan

    @functools.cached_property
    def roles(self) -> AttentionProgram | UmmaProgram:
        """The programs of the warps, the pipelines between them and their barriers."""
        plan = self.attention
        return umma_program(plan) if isinstance(plan, UmmaPlan) else attention_program(plan)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA."""
        plan = self.attention
        return umma_bytes(plan) if isinstance(plan, UmmaPlan) else shared_bytes(plan)

    @property
    def tensor_memory_columns(self) -> int:
        """Columns of tensor memory of one CTA."""
        return allocated_columns(self.attention) if isinstance(self.attention, UmmaPlan) else 0

    def __str__(self) -> str:
        plan = self.attention
        lines = _attention_lines(self.kernel_names[0], plan)
        memory = umma_memory(plan) if isinstance(plan, UmmaPlan) else shared_memory(plan)
        return "\n".join([*lines, *_program_lines(self.roles, memory), *_tensor_memory_lines(plan)])


@dataclass(frozen=True, kw_only=True)
class CuteBackwardPlan(LaunchPlan):
    """The plan of a kernel whose gradients of attention have the plan ``backward``."""

    backward: BackwardPlan

    @functools.cached_property
    def roles(self) -> BackwardProgram | UmmaBackwardProgram:
        """The programs of the warps, the pipelines between them and their barriers."""
        plan = self.backward
        return umma_backward_program(plan) if isinstance(plan, UmmaBackwardPlan) else backward_program(plan)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA."""
        plan = self.backward
        return umma_backward_bytes(plan) if isinstance(plan, UmmaBackwardPlan) else backward_bytes(plan)

    @property
    def tensor_memory_columns(self) -> int:
        """Columns of tensor memory of one CTA."""
        return allocated_columns(self.backward) if isinstance(self.backward, UmmaBackwardPlan) else 0

    def __str__(self) -> str:
        plan = self.backward
        lines = _backward_lines(self.kernel_names[0], plan)
        if not isinstance(plan, UmmaBackwardPlan):
            return "\n".join([*lines, *_program_lines(self.roles, backward_memory(plan))])
        of_memory = f"tensor memory: {plan.memory_columns} of {plan.tensor_memory_limit_columns} columns"
        return "\n".join([*lines, *_program_lines(self.roles, umma_backward_memory(plan)), of_memory])


def _tensor_memory_lines(plan: AttentionPlan) -> list[str]:
    if not isinstance(plan, UmmaPlan):
        return []
    return [
        f"tensor memory: {plan.memory_columns} of {plan.tensor_memory_limit_columns} columns",
        f"  scores and weights: {plan.score_columns} columns at 0",
        f"  outputs: {plan.memory_columns - plan.score_columns} columns at {plan.score_columns}",
    ]


def _program_lines(program: ScoreProgram, memory: tuple[Allocation, ...]) -> list[str]:
    return [
        *role_lines(program.warps, program.roles, program.registers),
        *pipeline_lines(program.pipelines),
        *memory_lines(memory, program.plan.shared_limit_bytes),
    ]


def _band_lines(plan: ScorePlan, row: str, streamed: str) -> list[str]:
    band = plan.problem.band
    sees = [] if band.last is None else [f"{streamed} <= {row} + {text_of(band.last)}"]
    if band.prefix is not None:
        sees = [f"({sees[0]} or {streamed} < {band.prefix.text(tuple(f'head[{at}]' for at in range(9)))})"]
    sees += [] if band.first is None else [f"{streamed} >= {row} + {text_of(band.first)}"]
    sees += [f"{streamed} >= {row} // {text_of(band.chunk)} * {text_of(band.chunk)}"] if band.chunk else []
    return [f"  a {row} sees {' and '.join(sees)}: blocks {', '.join(('first', *plan.parts))}"] if sees else []


def _tiles(plan: ScorePlan) -> str:
    return "tiles" if plan.problem.runtime else f"{plan.tiles} tiles"


def _backward_lines(name: str, plan: BackwardPlan) -> list[str]:
    problem = plan.problem
    heads = " x ".join(map(text_of, problem.heads))
    repeats = f", streamed for {text_of(problem.repeats)} heads each" if problem.is_repeated else ""
    owned, streamed = (", ".join(each.name for each in matrices) for matrices in (problem.owned, problem.streamed))
    columns = " and ".join(str(matrix.columns) for matrix in problem.owned)
    formula = problem.formula
    read = ", ".join(f"{each.name} ({each.kind}, {each.dtype})" for each in formula.sources) or "none"
    outputs = (f"{each.output.name} (of {problem.streamed[each.right].name})" for each in problem.gradients)
    return [
        f"{name}: gradients of attention, {heads} heads, {text_of(problem.queries)} rows of {owned} x {text_of(problem.keys)} of {streamed},"
        f" dimensions {columns}, {problem.owned[0].dtype}",
        f"  wgmma, {_tiles(plan)} of {plan.rows} rows, blocks of {plan.keys}, {plan.stages} stages of {streamed}{repeats};"
        f" {plan.scheduler} tile scheduler",
        *_band_lines(plan, "row", "streamed"),
        *_row_values_lines(problem),
        f"  left operands: {', '.join(made.op for made in formula.instructions)}; operands: {read}",
        f"  outputs: {', '.join(outputs)}",
    ]


def _row_values_lines(problem: BackwardProblem) -> list[str]:
    """Return a line for each kernel before."""
    return [
        f"  a kernel before: {each.name}, {'sums' if each.sums else 'rows'} of {', '.join(x.name for x in each.reads)}:"
        f" {', '.join(made.op for made in each.formula.instructions)}; {each.bytes} bytes of the workspace"
        for each in problem.values
    ]


def _attention_lines(name: str, plan: AttentionPlan) -> list[str]:
    problem = plan.problem
    heads = " x ".join(map(text_of, problem.heads))
    on_umma = isinstance(plan, UmmaPlan)
    chosen = [name for name, on in (("ping-pong", plan.pingpong), ("lazy rescaling", plan.lazy)) if on]
    at_once = f", of which {plan.combining} combine columns" if plan.combining > 1 else ""
    chosen += [f"keys split among {plan.splits} CTAs{at_once}"] * (plan.splits > 1)
    chosen.append(f"{plan.scheduler} tile scheduler")
    lines = [
        f"{name}: {heads} heads, {text_of(problem.queries)} queries x {text_of(problem.keys)} keys, dimensions {problem.q.columns} and"
        f" {problem.v.columns}, {problem.q.dtype}",
        f"  {'tcgen05' if on_umma else 'wgmma'}, {_tiles(plan)} of {plan.rows} queries, blocks of {plan.keys} keys,"
        f" {plan.stages} stages of K and V; {', '.join(chosen)}",
    ]
    if isinstance(plan, UmmaPlan):
        lines.append(
            f"  of {EXPONENTIALS} exponentials {plan.polynomial} by a polynomial; predicted share of the tensor pipe in a block:"
            f" {plan.tensor_share:.2f}"
        )
    lines += _band_lines(plan, "query", "key")
    for name, span in (("keys", problem.key_span), ("queries", problem.query_span)):
        if span is not None:
            axes = tuple(f"head_{at}" for at in range(len(problem.coordinates)))
            begin = "0" if span.begin is None else span.begin.text(axes)
            lines.append(
                f"  {name} of a head: from {begin} to {' and '.join(each.text(axes) for each in span.ends) or 'the last'}"
            )
    if problem.loaded:
        first = len(problem.coordinates) - len(problem.loaded)
        integers = (f"head_{first + at} of {source.name}" for at, source in enumerate(problem.loaded))
        lines.append(f"  loaded for each head: {', '.join(integers)}")
    if problem.key_range is not None:
        loaded = ", ".join(f"{name} {source.name}" for name, (source, _) in problem.key_range.bounds.items())
        lines.append(f"  the keys of a query: {loaded}: blocks {', '.join(('first', *plan.parts))}")
    if problem.score.instructions:
        read = ", ".join(f"{each.name} ({each.kind}, {each.dtype})" for each in problem.score.sources) or "none"
        lines.append(
            f"  {'scores' if problem.softmax else 'weights'}: {', '.join(made.op for made in problem.score.instructions)}; operands: {read}"
        )
    outputs = ", ".join(f"{each.name} ({each.kind}, {each.dtype})" for each in problem.outputs)
    return [*lines, f"  outputs: {', '.join(made.op for made in problem.finish.instructions)}; {outputs}"]
