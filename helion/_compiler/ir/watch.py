"""Hooks after every step: ``HELION_DUMP`` prints the program, ``HELION_VERIFY`` checks it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ... import knobs
from .grammar import Program
from .printer import print_program
from .verifier import verify


def watching() -> Callable[[str, Program], Program]:
    """Return a function of a step's name and the program after it, which returns that program.

    It checks a program once, after the step that made it.
    """
    dump, check = knobs.DUMP.read(), knobs.VERIFY.read()
    checked: Program | None = None

    def after(step: str, program: Program) -> Program:
        nonlocal checked
        if step in dump or "all" in dump:
            print(f"--- after {step} ---\n{print_program(program)}", file=sys.stderr)
        if check and program is not checked:
            checked = verify(program, step)
        return program

    return after
