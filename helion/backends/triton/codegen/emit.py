"""Prints a plan as a Triton kernel. Decides nothing: every choice stands in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..plan.records import Plan, constexpr_parameters
from . import grid, ops_checks, ops_control, ops_inline, ops_lanes, ops_matmul, ops_memory, ops_values
from .combine import Function
from .emission import Emission, Printer

#: By kind of op.
_OPS: Mapping[str, Printer] = {
    **ops_values.OPS,
    **ops_memory.OPS,
    **ops_checks.OPS,
    **ops_matmul.OPS,
    **ops_lanes.OPS,
    **ops_inline.OPS,
    **ops_control.OPS,
}


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The ``lines`` of a kernel and of the functions before it, and what they take for granted: ``libdevice`` and helpers
    by name, and names of block sizes."""

    lines: tuple[str, ...]
    needs: frozenset[str]
    symbols: frozenset[str]


def render_kernel(plan: Plan, phase: int) -> Kernel:
    """The ``@triton.jit`` function of one phase, after the functions it calls."""
    e = Emission(plan, phase, _OPS)
    kernel = _kernel(e)
    functions = [line for each, name in e.functions.items() for line in (*_function(each, name), "", "")]
    return Kernel(lines=(*functions, *kernel), needs=frozenset(e.needs), symbols=frozenset(e.symbols))


def _function(function: Function | str, name: str) -> list[str]:
    return function.split("\n") if isinstance(function, str) else function.lines(name)


def _kernel(e: Emission) -> list[str]:
    parameters = [*(a.name for a in e.launch.tensors), *(a.name for a in e.launch.numbers)]
    parameters += [f"{name}: tl.constexpr" for name in constexpr_parameters(e.plan, e.launch)]
    e.lines.add("@triton.jit")
    e.lines.add(f"def {e.plan.kernel_names[e.phase]}({', '.join(parameters)}):")
    with e.lines.indent():
        _full_blocks(e)
        top = len(e.lines.lines)
        grid.emit_roots(e)
    made = [f"    {name} = {text}" for text, name in e.descriptors.items()]
    return [*e.lines.lines[:top], *made, *e.lines.lines[top:]]


def _full_blocks(e: Emission) -> None:
    """Indices of whole dimensions that are held at once."""
    used = {b for op in e.program.walk() for v in op.results for d in v.dims for b in d.blocks}
    used &= {block.id for block in e.launch.blocks}
    for block in e.program.blocks:
        if block.kind != "full" or block.id not in used or e.plan.blocks[block.id].looped:
            continue
        e.scope.active[block.id] = e.vector(block.id, "", block.id in e.plan.full_masked, e.number(block.extent))
