"""Rewrites of role programs: a variant of a kernel is the standard one with some of these applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from .grammar import Gate, KernelProgram, KGroups, KLoop, Role, Step, SubtileLoop, TileLoop
from .halves import OfKTile
from .overlapped import Ahead, Rest

Rewrite = Callable[[Step], Sequence[Step]]
"""The replacement of a step: itself, nothing, or others."""


def rewrite(steps: Sequence[Step], rule: Rewrite) -> tuple[Step, ...]:
    """Apply `rule` to each of `steps`, innermost first."""
    result: list[Step] = []
    for step in steps:
        if isinstance(step, (TileLoop, KGroups, KLoop, OfKTile, Ahead, Rest, SubtileLoop, Gate)):
            step = dataclasses.replace(step, body=rewrite(step.body, rule))
        result.extend(rule(step))
    return tuple(result)


def before(kind: type[Step], new: Sequence[Step]) -> Rewrite:
    """Return a rewrite that inserts `new` before every step of `kind`."""
    return lambda step: (*new, step) if isinstance(step, kind) else (step,)


def after(kind: type[Step], new: Sequence[Step]) -> Rewrite:
    """Return a rewrite that inserts `new` after every step of `kind`."""
    return lambda step: (step, *new) if isinstance(step, kind) else (step,)


def contains(step: Step, kind: type[Step]) -> bool:
    """Return whether a step of `kind` is nested in `step`."""
    body: tuple[Step, ...] = getattr(step, "body", ())
    return any(isinstance(inner, kind) or contains(inner, kind) for inner in body)


def edit_role(program: KernelProgram, name: str, rule: Rewrite) -> KernelProgram:
    """Apply `rule` to one role of `program`."""
    return dataclasses.replace(
        program,
        roles=tuple(
            dataclasses.replace(role, program=rewrite(role.program, rule)) if role.name == name else role
            for role in program.roles
        ),
    )


def add_role(program: KernelProgram, role: Role) -> KernelProgram:
    """Append a role to `program`."""
    return dataclasses.replace(program, roles=(*program.roles, role))
