"""The plan of one user kernel that is attention, and a printable report."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ...roles.attention.grammar import AttentionProgram
from ...roles.attention.programs import attention_program
from ..launch import LaunchPlan
from ..report import memory_lines, pipeline_lines, role_lines
from .build import shared_bytes, shared_memory
from .records import AttentionPlan


@dataclass(frozen=True, kw_only=True)
class CuteAttentionPlan(LaunchPlan):
    """The plan of a kernel whose attention has the plan ``attention``."""

    attention: AttentionPlan

    @functools.cached_property
    def roles(self) -> AttentionProgram:
        """The programs of the warps, the pipelines between them and their barriers."""
        return attention_program(self.attention)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA."""
        return shared_bytes(self.attention)

    def __str__(self) -> str:
        plan, program = self.attention, self.roles
        return "\n".join(
            [
                *_attention_lines(self.kernel_names[0], plan),
                *role_lines(program.warps, program.roles, program.registers),
                *pipeline_lines(program.pipelines),
                *memory_lines(shared_memory(plan), plan.shared_limit_bytes),
            ]
        )


def _attention_lines(name: str, plan: AttentionPlan) -> list[str]:
    problem = plan.problem
    band = problem.band
    sees = [f"key <= query + {band.last}"] * (band.last is not None)
    sees += [f"key >= query + {band.first}"] * (band.first is not None)
    heads = " x ".join(map(str, problem.heads))
    chosen = [name for name, on in (("ping-pong", plan.pingpong), ("lazy rescaling", plan.lazy)) if on]
    chosen += [f"keys split among {plan.splits} CTAs"] * (plan.splits > 1)
    chosen.append(f"{plan.scheduler} tile scheduler")
    lines = [
        f"{name}: {heads} heads, {problem.queries} queries x {problem.keys} keys, dimensions {problem.q.columns} and"
        f" {problem.v.columns}, {problem.q.dtype}",
        f"  wgmma, {plan.tiles} tiles of {plan.rows} queries, blocks of {plan.keys} keys, {plan.stages} stages of K and V;"
        f" {', '.join(chosen)}",
    ]
    if sees:
        lines.append(f"  a query sees {' and '.join(sees)}: blocks {', '.join(('first', *plan.parts))}")
    if problem.score.instructions:
        read = ", ".join(f"{each.name} ({each.kind}, {each.dtype})" for each in problem.score.sources) or "none"
        lines.append(f"  scores: {', '.join(made.op for made in problem.score.instructions)}; operands: {read}")
    outputs = ", ".join(f"{each.name} ({each.kind}, {each.dtype})" for each in problem.outputs)
    return [*lines, f"  outputs: {', '.join(made.op for made in problem.finish.instructions)}; {outputs}"]
