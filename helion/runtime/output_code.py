"""What the text of a generated module is to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputCodeOptions:
    """What ``BoundKernel.to_code`` writes.

    ``allow_helion_deps=False`` asks for a module that imports torch and Triton only. ``jax_fn`` is for backends that have
    JAX functions; here it is refused.
    """

    allow_helion_deps: bool = True
    jax_fn: bool = False
