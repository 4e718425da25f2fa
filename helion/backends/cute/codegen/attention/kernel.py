"""The kernel of an attention plan in its generated module."""

from __future__ import annotations

from ...plan.attention.build import counter_bytes, shared_bytes, workspace_bytes
from ...plan.attention.records import AttentionPlan
from ...plan.dtypes import NUMBER
from ...plan.records import WARP_THREADS
from ...roles.attention.grammar import AttentionProgram
from ...toolchain.kernel import GemmKernel
from .module import ENTRY, attention_pieces, render


def pointer_dtypes(plan: AttentionPlan) -> tuple[str, ...]:
    """Return the pointer types of a launch, in order: Q, K, V, outputs, sources, and the workspace, if any."""
    problem = plan.problem
    sources = (NUMBER if source.kind == "number" else source.dtype for source in problem.sources)
    workspace = ("float32",) if workspace_bytes(plan) else ()
    return *([problem.q.dtype] * 3), *(output.dtype for output in problem.outputs), *sources, *workspace


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
