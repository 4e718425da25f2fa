"""What the backend cannot do on a target at all, known before anything is generated."""

from __future__ import annotations

from ... import exc
from ..._compiler.ir.grammar import Program
from ...hardware import Target
from .lower.kernel import known_product
from .plan.build import check_problem, unit_of
from .plan.refusal import Refusal


def refusal(program: Program, target: Target) -> exc.Base | None:
    """It takes programs that are one matrix product with a pointwise epilogue, on GPUs with wgmma or tcgen05."""
    try:
        unit_of(target)
        check_problem(known_product(program).problem)
    except Refusal as error:
        return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=error)
    return None
