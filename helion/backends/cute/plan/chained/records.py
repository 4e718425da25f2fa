"""Records of products in sequence."""

from __future__ import annotations

import functools

from ....._support.records import dataclass
from ...roles.grammar import KernelProgram
from ...roles.programs import kernel_program
from ..dtypes import itemsize
from ..kernel import CutePlan
from ..operands import ALIGNMENT_BYTES
from ..records import GemmPlan, GemmProblem
from ..workspace import COUNTER_BYTES, MAX_COUNTERS, workspace_bytes


@dataclass(frozen=True, kw_only=True)
class ChainedProblem:
    """A GEMM ``main`` whose argument number ``at`` is the result of GEMM ``first``, in the workspace.

    A launch takes the arguments of ``main``, with any tensor of that type in this place, then those of ``first`` but its
    output.
    """

    first: GemmProblem
    main: GemmProblem
    at: int

    @property
    def runtime(self) -> tuple[str, ...]:
        """Names of the integers that each launch passes: none."""
        return ()

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the tensors and scalars of a launch for messages, in order."""
        names = self.first.argument_names
        return (*self.main.argument_names, *names[:2], *names[3:])

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        return self.main.outputs_at


@dataclass(frozen=True, kw_only=True)
class ChainedPlan(CutePlan):
    """The plan of products in sequence: ``gemm`` is the last one, and ``before`` the one that writes its argument number
    ``at``."""

    before: GemmPlan
    at: int

    @property
    def problem(self) -> ChainedProblem:
        return ChainedProblem(first=self.before.whole, main=self.gemm.whole, at=self.at)

    @functools.cached_property
    def roles_before(self) -> KernelProgram:
        """The programs of the warps of the first matmul."""
        return kernel_program(self.before)

    @property
    def middle_bytes(self) -> int:
        """Bytes of the result of the first matmul."""
        first = self.before.whole
        return first.m * first.d_pitch * itemsize(first.output_dtype)

    @property
    def middle_offset(self) -> int:
        """The place of that result in the workspace, in bytes: after what either matmul has there."""
        others = max(workspace_bytes(self.gemm), workspace_bytes(self.before), MAX_COUNTERS * COUNTER_BYTES)
        return -(-others // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def workspace_bytes(self) -> int:
        return self.middle_offset + self.middle_bytes

    def __str__(self) -> str:
        first, tile = self.before.whole, " x ".join(map(str, self.before.tile))
        line = (
            f"  a matmul before, {first.m} x {first.n} x {first.k} in tiles of {tile} and {self.before.splits} parts of K,"
            f" writes {self.middle_bytes} bytes of the workspace"
        )
        head, *rest = super().__str__().splitlines()
        return "\n".join([head, line, *rest])
