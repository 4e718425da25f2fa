"""The compiler's table of contents: source to program, program and config to text. A step's name is its dump name.

PASSES are the same for every config. SCHEDULE is what a config asks for, and the steps of a backend, which stand in its
folder and whose names begin with the backend's, lower the result for its printer; ``plan/build.py`` runs these two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .. import _logging, knobs
from ..backends import BACKENDS
from .context import CompileContext
from .frontend.trace import Traced, trace
from .ir.grammar import Program
from .ir.watch import watching
from .passes.dependencies import check_dependencies
from .passes.jagged import check_jagged
from .passes.masks import mask_tails
from .passes.schedule import SCHEDULE
from .passes.simplify import drop_dead, merge_common
from .passes.support import check_support

Pass = Callable[[Program], Program]

#: From the traced program to the one that facts and plans are made of.
PASSES: tuple[Pass, ...] = (
    merge_common,
    drop_dead,
    check_dependencies,
    mask_tails,
    check_jagged,
)


def step_names(passes: tuple[Pass, ...] = PASSES) -> tuple[str, ...]:
    """Every step, in order, with those of each backend."""
    lowering = (step.name for backend in BACKENDS.values() for step in backend.steps)
    return ("trace", *(step.__name__ for step in passes), *(step.name for step in SCHEDULE), *lowering)


def run_passes(program: Program, passes: tuple[Pass, ...] = PASSES) -> Program:
    """Each pass in turn; ``HELION_DUMP`` prints after a step, ``HELION_VERIFY`` checks after each."""
    watch = watching()
    watch("trace", program)
    if wanted := knobs.DUMP.read():
        _name_unknown(wanted, (*step_names(passes), "all"))
    for step in passes:
        program = watch(step.__name__, step(program))
    return program


def _name_unknown(wanted: tuple[str, ...], known: tuple[str, ...]) -> None:
    if unknown := [name for name in wanted if name not in known]:
        _logging.say_once(f"helion: HELION_DUMP names no step {', '.join(unknown)}; there are {', '.join(known)}")


def front_end(
    fn: Callable[..., Any], arguments: Mapping[str, Any], context: CompileContext, constants: frozenset[str]
) -> Traced:
    """A kernel and its arguments as a program, ready for facts and plans."""
    traced = trace(fn, arguments, context, constants)
    return replace(traced, program=check_support(run_passes(traced.program), context.target))


__all__ = ["PASSES", "SCHEDULE", "Pass", "front_end", "run_passes", "step_names"]
