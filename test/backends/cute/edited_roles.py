"""Programs of roles with planted faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a

Program = TypeVar("Program", bound=a.ScoreProgram)


def edited(program: Program, role: str, edit: Callable[[g.Step], Sequence[g.Step]]) -> Program:
    """Replace steps of one role, nested ones included."""

    def inside(steps: Sequence[g.Step]) -> tuple[g.Step, ...]:
        found: list[g.Step] = []
        for step in steps:
            if hasattr(step, "body"):
                step = dataclasses.replace(step, body=inside(step.body))  # type: ignore[call-arg]
            found.extend(edit(step))
        return tuple(found)

    roles = tuple(
        dataclasses.replace(each, program=inside(each.program)) if each.name == role else each for each in program.roles
    )
    return dataclasses.replace(program, roles=roles)


def without(step: g.Step) -> Callable[[g.Step], Sequence[g.Step]]:
    """Return the edit that removes a step."""
    return lambda each: () if each == step else (each,)
