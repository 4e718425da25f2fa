"""The kernel of an attention plan in its generated module."""

from __future__ import annotations

from ...plan.attention.build import counter_bytes, shared_bytes, workspace_bytes
from ...plan.attention.numbers import launch_integers
from ...plan.attention.records import AttentionPlan, ScoreProblem
from ...plan.records import WARP_THREADS
from ...roles.attention.grammar import AttentionProgram
from ...toolchain.kernel import GemmKernel
from .module import ENTRY, attention_pieces, render


def pointer_dtypes(plan: AttentionPlan) -> tuple[str, ...]:
    """Return the types of a launch, in order: Q, K, V, outputs, sources, integers, and the workspace, if any."""
    problem = plan.problem
    sources = (source.argument for source in problem.sources)
    workspace = ("float32",) if workspace_bytes(plan) else ()
    outputs = (output.dtype for output in problem.outputs)
    return *([problem.q.dtype] * (3 + len(problem.rests))), *outputs, *sources, *integer_kinds(problem), *workspace


def integer_kinds(problem: ScoreProblem) -> tuple[str, ...]:
    """Return the kinds of the integers of a launch, in order."""
    return tuple(each.kind for each in launch_integers(problem))


def attention_kernel(name: str, program: AttentionProgram) -> GemmKernel:
    """Return the kernel named ``name`` of a program."""
    plan = program.plan
    return GemmKernel(
        name=name,
        unit="wgmma",
        pointers=pointer_dtypes(plan),
        ctas=1,
        threads=program.warps * WARP_THREADS,
        shared_bytes=shared_bytes(plan),
        problem=repr(plan.problem),
        source=render(program, attention_pieces(plan)),
        entry=ENTRY,
        workspace_bytes=workspace_bytes(plan),
        counter_bytes=counter_bytes(plan),
    )
