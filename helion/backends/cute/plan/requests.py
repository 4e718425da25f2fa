"""Parts of GEMMs that run on request alone, until they have run on a GPU."""

from __future__ import annotations

from .records import GemmProblem, Unit


def unproven(problem: GemmProblem, unit: Unit) -> str:
    """Return the first part of a GEMM that has not run on a GPU, or an empty string."""
    if problem.operand_dtype == "float32" and unit == "wgmma":
        return "of float32 in TF32 on wgmma"
    return ""
