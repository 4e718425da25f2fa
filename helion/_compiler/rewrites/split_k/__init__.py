"""Split-K: programs share a reduction loop, each for a part of it; see ``partials``."""

from __future__ import annotations

import math

import torch

from ...._shapes import cdiv, hint_of, previous_power_of_2
from ....fields import PowerOfTwoFragment
from ....hardware import Target
from ...decisions import Decisions
from ...ir.grammar import Bound, LoopAxis, OperandRef, Program
from ...ir.rewrite import Declined
from ..record import FactContext, Rewrite, RuleContext, Values
from ..steps import StepInputs
from .fact import SplitFact
from .legality import OPEN_GRID, accumulation_loop, axis_to_split, split_epilogue_loops, split_root
from .partials import split_accumulation

#: Largest factor: the reduction kernel has this many loads in flight at once.
MOST_PARTS = 64
#: The same where programs share the loops after the accumulation too: a grid of one tile must fill all SMs a few times.
MOST_SPREAD = 512
#: Least elements of a split that searches try, sides of the tiles that they assume, and most waves of programs.
_LEAST_PART, _LARGE_TILE, _WAVES = 128, 128, 4


def split_axis(program: Program) -> LoopAxis:
    """Return the axis of the accumulation loop of a program that can be split."""
    loop = accumulation_loop(program)
    return axis_to_split(next(op for op in program.walk() if op.number == loop))


def _applies(program: Program, target: Target | None) -> str:
    try:
        accumulation_loop(program)
    except Declined as declined:
        return str(declined)
    return ""


def _has_open_grid(program: Program) -> bool:
    """Return whether only sizes that differ from call to call keep the program from being split."""
    try:
        accumulation_loop(program)
    except Declined as declined:
        return str(declined) == OPEN_GRID
    return False


def _fact(context: FactContext) -> SplitFact | None:
    """Return the axes of the loops that programs then share; None where the sums cannot be split."""
    program = context.program
    if _applies(program, None):
        return None
    return SplitFact(axis=split_axis(program).block, epilogue=split_epilogue_loops(program))


def _values(program: Program, target: Target) -> Values:
    most = MOST_SPREAD if split_epilogue_loops(program) else MOST_PARTS
    searched = PowerOfTwoFragment(1, _worth_trying(program, target, most))
    return Values(legal=PowerOfTwoFragment(1, most), searched=searched)


def _worth_trying(program: Program, target: Target, most: int) -> int:
    """Return the largest factor that searches try.

    Each split must be long enough, and the programs must not exceed a few waves of the target with large tiles.
    """
    root = split_root(program)
    extents = [_bound_seen(axis.end) for axis in root.axes]
    programs = math.prod(cdiv(extent, _LARGE_TILE) for extent in extents)
    longest = _bound_seen(split_axis(program).end)
    return previous_power_of_2(min(most, longest // _LEAST_PART, _WAVES * target.num_sms // max(1, programs)))


def _fit(context: RuleContext, value: int, decisions: Decisions) -> int:
    """Return the factor, limited to the number of tiles; 1 where tiles leave no room for a split."""
    value = min(value, _most_parts(context.program, decisions))
    split = context.rewritten(decisions.with_values(split_k=value))
    return value if len(split.roots) > len(context.program.roots) else 1


def _most_parts(program: Program, decisions: Decisions) -> int:
    """Return the largest factor, a power of two: each split has a tile, for the extent seen when binding.

    The end of each split must also fit in a 32-bit index.
    """
    axis = split_axis(program)
    end, size = _bound_seen(axis.end), decisions.sizes[axis.block]
    parts = previous_power_of_2(cdiv(end, size))
    narrow = program.index_dtype == torch.int32
    while narrow and parts > 1 and end + parts * size > 2**31:
        parts //= 2  # the end of the last split is computed before it is clamped
    return parts


def _bound_seen(bound: Bound) -> int:
    """Return the value of a host bound, as seen when binding."""
    assert not isinstance(bound, OperandRef)
    return int(hint_of(bound))


def _apply(program: Program, value: int, inputs: StepInputs) -> Program:
    return split_accumulation(program, value, inputs.sizes_in(program))


SPLIT_K = Rewrite(
    key="split_k",
    doc="Number of programs that share the reduction of a matmul, or of a loop, each for a part of it. A second kernel combines the split-K partials in a fixed order and runs the epilogue.",
    off=1,
    range=PowerOfTwoFragment(1, MOST_SPREAD),
    values=_values,
    applies=_applies,
    varies=_has_open_grid,
    fit=_fit,
    needs="split-K needs a tile per split, a pid_type other than 'xyz' and a loop of its own, and moves the epilogue to another kernel",
    resets={"epilogue_subtile": None, "static_ranges": False, "range_flattens": None, "range_warp_specializes": None},
    numbered=True,
    after=("unfuse_matmul", "flatten", "fuse_loops"),  # steps that change the axes of a grid
    fact=_fact,
    apply=_apply,
)
