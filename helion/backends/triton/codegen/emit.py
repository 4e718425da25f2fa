"""Prints a plan as a Triton kernel. Decides nothing: every choice stands in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...._compiler.source import Location
from ...._shapes import WIDE
from ..lower.kernels import Kernel
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
class KernelText:
    """The ``lines`` of a kernel and of the functions before it, positions from which on they are about a line of the
    user's, and what they take for granted: ``libdevice`` and helpers by name, and names of block sizes."""

    lines: tuple[str, ...]
    origins: tuple[tuple[int, Location], ...]
    needs: frozenset[str]
    symbols: frozenset[str]


def render_kernel(plan: Plan, kernel: Kernel, known: dict[Function | str, str]) -> KernelText:
    """The ``@triton.jit`` function, after the functions it calls but those ``known`` from kernels before it, to which they are
    added."""
    e = Emission(plan, kernel, _OPS, known)
    lines = _kernel(e)
    own = {each: name for each, name in e.functions.items() if each not in known}
    known |= own
    functions = [line for each, name in own.items() for line in (*_function(each, name), "", "")]
    # descriptors stand before the first line that is about one of the user's
    added = len(functions) + len(lines) - len(e.lines.lines)
    return KernelText(
        lines=(*functions, *lines),
        origins=tuple((at + added, location) for at, location in e.lines.origins),
        needs=frozenset(e.needs),
        symbols=frozenset(e.symbols),
    )


def _function(function: Function | str, name: str) -> list[str]:
    return function.split("\n") if isinstance(function, str) else function.lines(name)


def _kernel(e: Emission) -> list[str]:
    launch = e.kernel.launch
    parameters = [*(a.name for a in launch.tensors), *(a.name for a in launch.numbers)]
    parameters += [f"{name}: tl.constexpr" for name in constexpr_parameters(e.plan, launch)]
    e.lines.add("@triton.jit")
    e.lines.add(f"def {e.kernel.name}({', '.join(parameters)}):")
    with e.lines.indent():
        _wide_numbers(e)
        _full_blocks(e)
        top = len(e.lines.lines)
        grid.emit_roots(e)
    made = [f"    {name} = {text}" for text, name in e.descriptors.items()]
    return [*e.lines.lines[:top], *made, *e.lines.lines[top:]]


def _wide_numbers(e: Emission) -> None:
    """Give integers 64 bits that may be too large to be added to in 32: Triton passes each in as few as it fits."""
    for number in e.kernel.launch.numbers:
        if number.kind is int and (e.wide or not -WIDE <= number.hint < WIDE) and -(2**63) <= number.hint < 2**63:
            e.lines.add(f"{number.name} = tl.cast({number.name}, tl.int64)")


def _full_blocks(e: Emission) -> None:
    """Indices of whole dimensions that are held at once."""
    for block in e.kernel.whole:
        e.scope.active[block.id] = e.vector(block.id, "", block.id in e.plan.full_masked, e.number(block.extent))
