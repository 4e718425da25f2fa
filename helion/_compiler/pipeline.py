"""The compiler's table of contents: source to program, program and config to text. A step's name is its dump name.

PASSES are the same for every config. The planner of a backend runs the steps that depend on a config. These are the
steps of ``rewrites/steps.py`` in the backend's order, and its own steps, whose names begin with the backend's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .. import knobs
from .._support import logs
from .context import CompileContext
from .frontend.guards import Traced
from .frontend.trace import trace
from .ir.grammar import Program
from .ir.watch import watching
from .passes.always.add_products import add_products
from .passes.always.drop_fills import drop_fills
from .passes.always.join_lines import join_lines, join_rows
from .passes.always.masks import mask_tails
from .passes.always.narrow_sorts import narrow_sorts
from .passes.always.narrow_sums import narrow_sums
from .passes.always.simplify import drop_dead, merge_common
from .passes.always.slice_windows import slice_windows
from .passes.always.spread_loops import spread_loops
from .passes.always.unit_logarithms import narrow_logarithms
from .passes.always.unroll_taps import unroll_taps
from .passes.always.vjps import erase_vjps
from .passes.analysis.dependencies import check_dependencies
from .passes.analysis.jagged import check_jagged
from .passes.analysis.overlaps import check_overlaps
from .passes.analysis.protocol import between_calls, check_messages
from .passes.analysis.tile_sizes import results_of_tile_sizes
from .rewrites.steps import Step

Pass = Callable[[Program], Program]

#: Passes from the traced program to the one that facts and plans are collected from.
PASSES: tuple[Pass, ...] = (
    merge_common,
    drop_dead,
    narrow_sorts,
    narrow_sums,
    drop_fills,
    check_dependencies,
    check_overlaps,
    check_messages,
    spread_loops,
    unroll_taps,
    slice_windows,
    add_products,
    narrow_logarithms,
    join_lines,
    join_rows,
    mask_tails,
    check_jagged,
)


def step_names(steps: Iterable[Step], passes: tuple[Pass, ...] = PASSES) -> tuple[str, ...]:
    """Return the names of all steps, each once and in order; ``steps`` are those of the backends."""
    names = ("trace", *(step.__name__ for step in passes), *(step.name for step in steps))
    return tuple(dict.fromkeys(names))


def run_passes(program: Program, steps: Iterable[Step] = (), passes: tuple[Pass, ...] = PASSES) -> Program:
    """Run each pass in turn and return the resulting program.

    ``HELION_DUMP`` prints the program after a step, ``HELION_VERIFY`` checks it after each. ``steps`` are those that
    may follow; their names are valid in ``HELION_DUMP``.
    """
    watch = watching()
    watch("trace", program)
    if wanted := knobs.DUMP.read():
        _name_unknown(wanted, (*step_names(steps, passes), "all"))
    for step in passes:
        program = watch(step.__name__, step(program))
    return program


def _name_unknown(wanted: tuple[str, ...], known: tuple[str, ...]) -> None:
    if unknown := [name for name in wanted if name not in known]:
        logs.say_once(f"helion: HELION_DUMP names no step {', '.join(unknown)}; there are {', '.join(known)}")


def front_end(
    fn: Callable[..., Any],
    arguments: Mapping[str, Any],
    context: CompileContext,
    constants: frozenset[str],
    steps: Iterable[Step] = (),
) -> Traced:
    """Trace a kernel with its arguments and run PASSES on the program. ``steps`` are those of the backends."""
    traced = trace(fn, arguments, context, constants)
    passes = PASSES if context.limits.loads_rows else tuple(each for each in PASSES if each is not join_rows)
    program = run_passes(erase_vjps(traced.program), steps, passes)
    for error in between_calls(program):
        if type(error).__name__ not in context.settings.ignore_warnings:
            raise error
    found = (
        w for w in results_of_tile_sizes(traced.program) if type(w).__name__ not in context.settings.ignore_warnings
    )
    return replace(traced, program=program, recorded=traced.program, warnings=(*traced.warnings, *found))


def differentiable(traced: Traced) -> Program:
    """Return the program for ``autodiff``: with the loops of the kernel, its calls of functions that have their own
    derivatives, and the elements of its sorts."""
    recorded = traced.recorded
    if recorded is None:
        return traced.program
    if not any(root.spread or root.sliced or root.joined for root in traced.program.roots) and all(
        op.kind not in ("vjp", "sort") for op in recorded.walk()
    ):
        return traced.program
    return drop_dead(merge_common(recorded))


__all__ = ["PASSES", "Pass", "differentiable", "front_end", "run_passes", "step_names"]
