"""The cooperative kernel of several phases: it calls their functions in order, with a barrier between two."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping

from ..plan.records import ARRIVED, LaunchArguments, Plan, constexpr_parameters

#: The barrier of all programs. The first program adds what the others lack to 2**31. So the highest bit of the counter
#: changes once all have arrived, and its other bits are 0 again: no launch has to reset it.
GRID_BARRIER = "_grid_barrier"
HELPERS: Mapping[str, str] = {
    GRID_BARRIER: f"""\
@triton.jit
def {GRID_BARRIER}(arrived):
    tl.debug_barrier()
    own = tl.where(tl.program_id(0) == 0, 2147483647 - (tl.num_programs(0) - 2), 1)
    before = tl.atomic_add(arrived, own, sem="acq_rel", scope="gpu")
    now = before
    while (before ^ now) >= 0:
        now = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()
""",
}


def render_together(plan: Plan, launch: LaunchArguments, name: str) -> tuple[str, ...]:
    """Return the lines of the kernel for all phases of a place."""
    passed = [*(a.name for a in launch.tensors), *(a.name for a in launch.numbers)]
    constants = constexpr_parameters(plan, launch)
    parameters = [*passed, ARRIVED, *(f"{each}: tl.constexpr" for each in constants)]
    lines = [launch.decorator, f"def {name}({', '.join(parameters)}):"]
    for at, phase in enumerate(launch.phases):
        if at:
            lines.append(f"    {GRID_BARRIER}({ARRIVED})")
        lines.append(f"    {plan.kernel_names[phase]}({', '.join((*passed, *constants))})")
    return tuple(lines)


@functools.lru_cache
def called_between_barriers(source: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the functions that such a kernel calls, with the names of their arguments, by its source.

    Other kernels have none.
    """
    if GRID_BARRIER not in source:
        return ()
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    calls = [each.value for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    named = [(ast.unparse(call.func), tuple(map(ast.unparse, call.args))) for call in calls]
    return tuple(each for each in named if each[0] != GRID_BARRIER)
