"""A kernel as the generated module has it: source text, and what launching it needs to know."""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import dataclass

VERSION = 2
"""Of what is made of a kernel and kept; another one is kept apart."""


@dataclass(frozen=True, kw_only=True)
class GemmKernel:
    """``source`` is the module that the DSL compiles for ``unit``.

    ``pointers`` are the dtypes of the tensors that a launch takes, in order, and ``number`` where it takes a number. ``ctas``
    are those of one cluster, ``threads`` and ``shared_bytes`` those of one CTA, of which ``ctas_per_sm`` share an SM.
    ``problem`` is the text of the ``GemmProblem`` that it computes.
    """

    name: str
    unit: str
    pointers: tuple[str, ...]
    ctas: int
    threads: int
    shared_bytes: int
    problem: str
    source: str
    ctas_per_sm: int = 1
    workspace_bytes: int = 0
    """Of global memory that a launch takes behind its tensors (``plan.workspace``)."""
    counter_bytes: int = 0
    """Of these, the first ones, that are zero before a launch and behind it."""

    @functools.cached_property
    def key(self) -> str:
        """What its binary is kept under: all that the binary depends on but the version of the DSL."""
        parts = (self.source, self.unit, ",".join(self.pointers), str(VERSION), platform.machine())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def gemm_kernel(source: str, **described: object) -> GemmKernel:
    """The kernel that a generated module describes."""
    return GemmKernel(source=source.lstrip("\n"), **described)  # type: ignore[arg-type]
