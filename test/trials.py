"""Traces in which every statement is followed twice: the first time is a trial that is forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import helion
from helion import exc
from helion._compiler.frontend import trace
from helion._compiler.frontend.walk import rollback
from helion._compiler.frontend.walk.scope import LEAVING, Scope
from helion._compiler.ir.printer import print_program


def _twice(rule: Callable[[Scope, Any], None]) -> Callable[[Scope, Any], None]:
    def walk(s: Scope, node: Any) -> None:
        saved = rollback.save(s)
        with contextlib.suppress(*LEAVING, Exception):
            rule(s, node)
        rollback.restore(s, saved)
        rule(s, node)

    return walk


def follow_twice(patch: pytest.MonkeyPatch) -> None:
    """Every statement of host code and of device code, those in a loop once for each time that the loop is walked."""
    syntax = dataclasses.replace(
        trace.SYNTAX, statements={kind: _twice(rule) for kind, rule in trace.SYNTAX.statements.items()}
    )
    patch.setattr(trace, "SYNTAX", syntax)


def text_of(kernel: helion.Kernel, args: tuple[Any, ...]) -> str:
    """The program and the code of a kernel that is bound anew, or why it is refused."""
    kernel.reset()
    try:
        bound = kernel.bind(args)
        return f"{print_program(bound._analysis.program)}\n{bound.to_triton_code(bound.conservative_config())}"
    except exc.Base as error:
        return f"{type(error).__name__}: {error}"


def check_trials(kernel: helion.Kernel, args: tuple[Any, ...]) -> None:
    expected = text_of(kernel, args)
    with pytest.MonkeyPatch.context() as patch:
        follow_twice(patch)
        assert text_of(kernel, args) == expected
