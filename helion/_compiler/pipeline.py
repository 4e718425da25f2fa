"""The compiler's table of contents: source to program, program and config to text. A step's name is its dump name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .. import knobs
from .context import CompileContext
from .frontend.trace import Traced, trace
from .ir.grammar import Program
from .ir.printer import print_program
from .ir.verifier import verify
from .passes.dependencies import check_dependencies
from .passes.masks import mask_tails
from .passes.simplify import drop_dead, merge_common
from .passes.support import check_support

Pass = Callable[[Program], Program]

#: From the traced program to the one that facts and plans are made of.
PASSES: tuple[Pass, ...] = (
    merge_common,
    drop_dead,
    check_dependencies,
    mask_tails,
)


def run_passes(program: Program, passes: tuple[Pass, ...] = PASSES) -> Program:
    """Each pass in turn; ``HELION_DUMP`` prints after a step, ``HELION_VERIFY`` checks after each."""
    dump, check = knobs.DUMP.read(), knobs.VERIFY.read()
    _after("trace", program, dump, check)
    for step in passes:
        program = step(program)
        _after(step.__name__, program, dump, check)
    return program


def _after(name: str, program: Program, dump: tuple[str, ...], check: bool) -> None:
    if name in dump or "all" in dump:
        print(f"--- after {name} ---\n{print_program(program)}", file=sys.stderr)
    if check:
        verify(program, name)


def front_end(
    fn: Callable[..., Any], arguments: Mapping[str, Any], context: CompileContext, constants: frozenset[str]
) -> Traced:
    """A kernel and its arguments as a program, ready for facts and plans."""
    traced = trace(fn, arguments, context, constants)
    return replace(traced, program=check_support(run_passes(traced.program), context.target))
