"""Options of the text of a generated module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputCodeOptions:
    """Options of the text that ``BoundKernel.to_code`` writes.

    Args:
        allow_helion_deps: False generates a module that does not import helion.
        jax_fn: a JAX function instead of a torch one; no backend has them, and True is refused.
    """

    allow_helion_deps: bool = True
    jax_fn: bool = False
