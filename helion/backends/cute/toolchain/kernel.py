"""A kernel in the generated module: source text, and the data for its launch."""

from __future__ import annotations

import functools
import hashlib
import platform

from ...._support.records import dataclass

NAME = "gemm"
"""The name of the files of a compiled kernel."""
VERSION = 2
"""Version of cached build results; a change makes a separate cache entry."""


@dataclass(frozen=True, kw_only=True)
class GemmKernel:
    """A kernel. ``source`` is the module that the DSL compiles for ``unit``.

    ``pointers`` are the dtypes of the tensors of a launch, in order, and ``number`` for a scalar. ``ctas`` are those of
    one cluster, ``threads`` and ``shared_bytes`` those of one CTA, of which ``ctas_per_sm`` share an SM. ``problem`` is
    the text of the problem that it computes: a ``GemmProblem``, or that of another shape.
    """

    name: str
    unit: str
    pointers: tuple[str, ...]
    ctas: int
    threads: int
    shared_bytes: int
    problem: str
    source: str
    entry: str = "gemm"
    """The host function in ``source``."""
    ctas_per_sm: int = 1
    workspace_bytes: int = 0
    """Bytes of the workspace, which a launch takes after its tensors (``plan.workspace``)."""
    counter_bytes: int = 0
    """The first bytes of it that are zero before and after a launch."""

    @functools.cached_property
    def key(self) -> str:
        """Cache key of its binary: a hash of its inputs other than the version of the DSL."""
        parts = (self.source, self.unit, ",".join(self.pointers), str(VERSION), platform.machine())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def gemm_kernel(source: str, **described: object) -> GemmKernel:
    """Build the kernel that a generated module describes."""
    return GemmKernel(source=source.lstrip("\n"), **described)  # type: ignore[arg-type]
