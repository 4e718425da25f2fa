"""What the backend cannot do on a target at all, known before anything is generated."""

from __future__ import annotations

from ... import exc
from ..._compiler.ir.grammar import Program
from ...hardware import Target
from .bounds import smallest
from .lower.kernel import known_product
from .plan.build import plan_gemm, unit_of
from .plan.refusal import Refusal


def refusal(program: Program, target: Target) -> exc.Base | None:
    """It takes programs that are one matrix product with a pointwise epilogue, on GPUs with wgmma or tcgen05, of which the
    smallest tile has a plan."""
    try:
        unit_of(target)
        problem = known_product(program).problem
        plan_gemm(problem, smallest(problem, target), target)
    except Refusal as error:
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=error)
    return None
