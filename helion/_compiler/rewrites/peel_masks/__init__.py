"""Split loops with matmuls into ranges of tiles in which masks are known (``loops.py``), and facts of the ranges."""

from __future__ import annotations

from ....hardware import Target
from ...decisions import Decisions
from ...ir.grammar import ForAttrs, Program
from ..record import Rewrite, RuleContext
from ..steps import StepInputs
from .loops import hidden_blocks, peel_masks, peelable, window_of
from .shares import peeled_fact

__all__ = ["PEEL_MASKS", "hidden_blocks", "peel_masks", "peelable", "window_of"]


def _applies(program: Program, target: Target) -> str:
    return "" if peelable(program) else "the kernel has no innermost loop over tiles with two matmuls or more"


def _fit(context: RuleContext, value: bool, decisions: Decisions) -> bool:
    """Return False where no tile is known to need no mask, and for loops that are unrolled or warp-specialized."""
    static, special = (decisions.entries.get(key, {}) for key in ("static_ranges", "range_warp_specializes"))
    if any(static.values()) or any(special.values()):
        return False
    return any(isinstance(op.attrs, ForAttrs) and op.attrs.like for op in context.rewritten(decisions).walk())


def _apply(program: Program, value: bool, inputs: StepInputs) -> Program:
    return peel_masks(program, inputs.sizes_in(program))


PEEL_MASKS = Rewrite(
    key="peel_masks",
    doc="Split loops with several matmuls into runs of tiles that a mask leaves unchanged, that it hides, and others.",
    applies=_applies,
    fit=_fit,
    needs="no tiles are known to need no masks, or a loop is unrolled or warp-specialized",
    fact=peeled_fact,
    apply=_apply,
)
