"""Matmuls of 8 columns for each warpgroup, which ptxas 12.8 and 12.9 leave out of loops.

Triton divides the columns of a tile among warpgroups that the rows do not use up: a tile of 64 x 16 with 8 warps is two
instructions of 8 columns. Where a loop carries their accumulator, ptxas drops the operands and the result::

    wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r14,%r15,%r16,%r17}, %rd11, %rd12, %p1, 1, 1;   // PTX
    HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0 ;                                                   // SASS

The kernel stores zeros. That holds for all types of operands. Instructions of 16 columns and more are kept, and ptxas 13.0
keeps all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .descriptors import MiscompiledError

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

#: The first release of ptxas that keeps them.
KEPT_SINCE = (13, 0)
#: The shape of such an instruction in PTX, up to its K.
_SHAPE = ".m64n8k"


def check_narrow(compiled: CompiledKernel, ptxas: str) -> None:
    """Raise ``MiscompiledError`` for a kernel with matmuls of 8 columns that the release ``ptxas`` may leave out."""
    if tuple(map(int, ptxas.split(".")[:2])) >= KEPT_SINCE or _SHAPE not in (compiled.asm.get("ptx") or ""):
        return
    raise MiscompiledError(
        f"ptxas {ptxas} leaves out matmuls of {compiled.name!r}, which have 8 columns for each group of 4 warps. Choose"
        f" fewer num_warps or wider tiles, or set TRITON_PTXAS_PATH to ptxas {KEPT_SINCE[0]}.{KEPT_SINCE[1]} or later."
    )
