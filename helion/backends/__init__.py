"""Code generators, by name. Outside of this folder nobody names one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import exc
from .._compiler.ir.grammar import Program
from .._compiler.passes.schedule import Step
from ..hardware import Target
from .triton.codegen.module import render_module
from .triton.lower.lowering import STEPS
from .triton.plan.records import Plan
from .triton.refusal import refusal
from .triton.toolchain.signature import mechanisms, offline_signature


@dataclass(frozen=True, kw_only=True)
class Backend:
    """``steps`` are all rewrites from the program that facts are made of to the one that is printed, in order; the names
    of those of its own begin with its name. ``refusal`` is what it cannot do on a target at all.
    ``render`` gives a plan as module text; ``signature`` the keyword arguments of ``toolchain.offline.compile_offline``
    for the kernel of one phase, ``mechanisms`` the ways of indexing it has in the installed version."""

    name: str
    steps: tuple[Step, ...]
    refusal: Callable[[Program, Target], exc.Base | None]
    render: Callable[[Plan], str]
    signature: Callable[[Plan, Target, int], Mapping[str, Any]]
    mechanisms: Callable[[], frozenset[str]]


BACKENDS: dict[str, Backend] = {
    "triton": Backend(
        name="triton",
        steps=STEPS,
        refusal=refusal,
        render=render_module,
        signature=offline_signature,
        mechanisms=mechanisms,
    ),
}
