"""Rewrites of role programs: a variant of a kernel is the standard one with some of these applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from .grammar import Gate, KernelProgram, KGroups, KLoop, Role, Step, SubtileLoop, TileLoop

Rewrite = Callable[[Step], Sequence[Step]]
"""What stands in place of a step: itself, nothing, or others."""


def rewrite(steps: Sequence[Step], rule: Rewrite) -> tuple[Step, ...]:
    """`steps` with `rule` applied to each, innermost first."""
    result: list[Step] = []
    for step in steps:
        if isinstance(step, (TileLoop, KGroups, KLoop, SubtileLoop, Gate)):
            step = dataclasses.replace(step, body=rewrite(step.body, rule))
        result.extend(rule(step))
    return tuple(result)


def before(kind: type[Step], new: Sequence[Step]) -> Rewrite:
    """Puts `new` in front of every step of `kind`."""
    return lambda step: (*new, step) if isinstance(step, kind) else (step,)


def after(kind: type[Step], new: Sequence[Step]) -> Rewrite:
    """Puts `new` behind every step of `kind`."""
    return lambda step: (step, *new) if isinstance(step, kind) else (step,)


def contains(step: Step, kind: type[Step]) -> bool:
    """Whether a step of `kind` stands somewhere inside of `step`."""
    body: tuple[Step, ...] = getattr(step, "body", ())
    return any(isinstance(inner, kind) or contains(inner, kind) for inner in body)


def edit_role(program: KernelProgram, name: str, rule: Rewrite) -> KernelProgram:
    """`program` with `rule` applied to one role."""
    return dataclasses.replace(
        program,
        roles=tuple(
            dataclasses.replace(role, program=rewrite(role.program, rule)) if role.name == name else role
            for role in program.roles
        ),
    )


def add_role(program: KernelProgram, role: Role) -> KernelProgram:
    """`program` with one more role."""
    return dataclasses.replace(program, roles=(*program.roles, role))
