"""Printing of a plan as a Triton kernel. All decisions are in the plan."""

from __future__ import annotations

from collections.abc import Mapping

from ...._compiler.source import Location
from ...._shapes import WIDE
from ...._support.records import dataclass
from ..lower.kernels import Kernel
from ..plan.records import Plan, constexpr_parameters
from . import grid
from .combine import Function
from .emission import Emission, Printer
from .ops import checks as ops_checks
from .ops import control as ops_control
from .ops import inline as ops_inline
from .ops import lanes as ops_lanes
from .ops import matmul as ops_matmul
from .ops import memory as ops_memory
from .ops import values as ops_values

#: Printers by kind of op.
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
    """The ``lines`` of a kernel and of the functions before it, and positions with the source line from there on.

    The requirements are ``needs``, ``libdevice`` and helpers by name, and ``symbols``, the names of block sizes.
    """

    lines: tuple[str, ...]
    origins: tuple[tuple[int, Location], ...]
    needs: frozenset[str]
    symbols: frozenset[str]


def render_kernel(plan: Plan, kernel: Kernel, known: dict[Function | str, str]) -> KernelText:
    """Return the ``@triton.jit`` function, after the functions it calls.

    Functions in ``known``, from earlier kernels, are not repeated; new ones are added to it.
    """
    e = Emission(plan, kernel, _OPS, known)
    lines = _kernel(e)
    own = {each: name for each, name in e.functions.items() if each not in known}
    known |= own
    functions = [line for each, name in own.items() for line in (*_function(each, name), "", "")]
    # descriptors precede the first line that has a source line
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
    e.lines.add(launch.decorator)
    e.lines.add(f"def {e.kernel.name}({', '.join(parameters)}):")
    with e.lines.indent():
        _wide_numbers(e)
        _multiples(e)
        _full_blocks(e)
        top = len(e.lines.lines)
        grid.emit_roots(e)
    made = [f"    {name} = {text}" for text, name in e.descriptors.items()]
    return [*e.lines.lines[:top], *made, *e.lines.lines[top:]]


def _wide_numbers(e: Emission) -> None:
    """Cast integers to 64 bits that may overflow 32 bits in additions: Triton passes each in as few bits as it fits."""
    for number in e.kernel.launch.numbers:
        if number.kind is int and (e.wide or not -WIDE <= number.hint < WIDE) and -(2**63) <= number.hint < 2**63:
            e.lines.add(f"{number.name} = tl.cast({number.name}, tl.int64)")


def _multiples(e: Emission) -> None:
    """Make numbers multiples of the power of two that divides them, which Triton then knows."""
    for number in e.kernel.launch.numbers:
        if number.unit:
            e.lines.add(f"{number.name} = {number.name} // {number.unit} * {number.unit}")


def _full_blocks(e: Emission) -> None:
    """Define the indices of unchunked dimensions."""
    for block in e.kernel.whole:
        e.scope.active[block.id] = e.vector(block.id, "", block.id in e.plan.full_masked, e.number(block.extent))
