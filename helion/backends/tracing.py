"""The program of a kernel for a backend, with the numbers of its arguments that the backend's code depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .._compiler.context import CompileContext
from .._compiler.frontend.guards import Traced
from .._compiler.pipeline import front_end
from .._compiler.rewrites.steps import Step
from .._shapes import CONCRETE_TENSORS, ROW_MAJOR, is_row_major
from .protocol import Backend

FEWEST = 3
"""Dimensions from which a tensor may have rows in several: the stride of rows of two may be any."""


def traced_for(
    backend: Backend[Any],
    steps: Callable[[], Iterable[Step]],
    fn: Callable[..., Any],
    arguments: Mapping[str, Any],
    context: CompileContext,
    constants: frozenset[str],
    divisibility: dict[str, Any],
) -> Traced:
    """Trace a kernel for a backend; ``divisibility`` receives what its code depends on, as paths in the arguments.

    With dynamic shapes the strides of an argument are numbers of their own. If the backend refuses such a program and
    arguments are row-major, their strides are products of sizes, and only other row-major arguments run this code.
    Raises the backend's refusal.
    """
    traced = front_end(fn, arguments, context, constants, steps())
    divisibility |= _multiples(backend, traced)
    refused = backend.refusal(traced.program, context.target)
    tensors = {} if context.settings.static_shapes or refused is None else _of_several_dimensions(arguments)
    if tensors and backend.reads_rows(traced.program):
        divisibility |= {f"{name} is row-major": ("arg", at, (ROW_MAJOR,)) for name, at in tensors.items()}
        names = frozenset(name for name in tensors if is_row_major(arguments[name]))
        if names:
            traced = front_end(fn, arguments, replace(context, row_major=names), constants, steps())
            divisibility |= _multiples(backend, traced)
            refused = backend.refusal(traced.program, context.target)
    if refused is not None:
        raise refused
    return traced


def _of_several_dimensions(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the positions of arguments that are tensors of so many dimensions, by name."""
    tensors: dict[str, int] = {}
    for at, (name, value) in enumerate(arguments.items()):
        if type(value) in CONCRETE_TENSORS and isinstance(value, torch.Tensor) and value.dim() >= FEWEST:
            tensors[name] = at
    return tensors


def _multiples(backend: Backend[Any], traced: Traced) -> dict[str, Any]:
    """Return the paths of comparisons of arguments with the multiples that the backend's code depends on."""
    origins, found = traced.origins, dict[str, Any]()
    for number, multiple in backend.required_divisibility(traced.program).items():
        if number in origins:
            found[f"{number} % {multiple} == 0"] = (*origins[number], ("__mod__", multiple), ("__eq__", 0))
    return found
