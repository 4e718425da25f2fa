"""The kernels of attention and of its gradients in their generated modules."""

from __future__ import annotations

from ...plan.attention.build import counter_bytes
from ...plan.attention.numbers import launch_integers
from ...plan.attention.records import AttentionPlan
from ...plan.records import WARP_THREADS
from ...roles.attention.grammar import AttentionProgram, ScoreProgram
from ...toolchain.kernel import GemmKernel
from .module import ENTRY, Pieces, attention_pieces, render


def score_kernel(
    name: str,
    program: ScoreProgram,
    pieces: Pieces,
    matrices: tuple[str, ...],
    counter: int = 0,
    reads: tuple[str, ...] = (),
) -> GemmKernel:
    """Return the kernel named ``name`` of a program. ``matrices`` are the types of its first arguments, before sources,
    those that kernels before read, ``reads``, integers, and the workspace, if any; ``counter`` is the number of bytes of its
    counters."""
    problem = program.plan.problem
    sources = (source.argument for source in problem.sources)
    integers = (each.kind for each in launch_integers(problem))
    return GemmKernel(
        name=name,
        unit=program.unit,
        pointers=(*matrices, *sources, *reads, *integers, *(("float32",) if pieces.workspace_bytes else ())),
        ctas=1,
        threads=program.warps * WARP_THREADS,
        shared_bytes=pieces.shared_bytes,
        problem=repr(problem),
        source=render(program, pieces),
        entry=ENTRY,
        workspace_bytes=pieces.workspace_bytes,
        counter_bytes=counter,
    )


def matrix_dtypes(plan: AttentionPlan) -> tuple[str, ...]:
    """Return the types of Q, K, V and outputs."""
    problem = plan.problem
    return *([problem.q.dtype] * (3 + len(problem.rests))), *(output.dtype for output in problem.outputs)


def attention_kernel(name: str, program: AttentionProgram) -> GemmKernel:
    """Return the kernel named ``name`` of a program."""
    plan = program.plan
    return score_kernel(name, program, attention_pieces(plan), matrix_dtypes(plan), counter_bytes(plan))
