"""The part of a plan that all shapes of programs share: a kernel of the user, and the arguments of its launch."""

from __future__ import annotations

from .... import exc
from ...._compiler.ir.grammar import HostTensor, Program
from ...._shapes import Expr
from ...._support.records import dataclass


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The plan of one kernel.

    ``arguments`` are those of its launch, in order: tensors, then numbers of the host. The last of these are the
    numbers of ``runtime``, by their names in the problem.

    ``sizes`` are elements by block. ``overwritten`` are host expressions of tensors that the launch writes and that
    other code may have read. The text of a plan describes the kernel and its resources.
    """

    program: Program
    arguments: tuple[HostTensor | Expr, ...]
    runtime: tuple[tuple[str, Expr], ...] = ()
    sizes: tuple[int, ...]
    overwritten: tuple[str, ...]
    origin_lines: bool
    is_empty: bool = False
    """True if nothing is launched."""
    warnings: tuple[exc.BaseWarning, ...] = ()
    tunables: tuple[tuple[str, object], ...] = ()
    """Values of the kernel's own tunables, which its host code may read."""

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return (f"_helion_{self.program.host.name}",)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA."""
        raise NotImplementedError

    @property
    def needs_alignment(self) -> bool:
        """Return False: all configs take the same tensors."""
        return False

    @property
    def tensor_memory_columns(self) -> int:
        """Tensor memory of one CTA."""
        return 0
