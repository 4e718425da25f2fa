"""Offline compilation for any target, and measured resources of the result. Triton is imported on first use."""

from __future__ import annotations

from ...execution import Resources
from .offline import OfflineCompileError, Signature, compile_offline, ptxas_version
from .report import measure
from .sass import opcode_counts

__all__ = [
    "OfflineCompileError",
    "Resources",
    "Signature",
    "compile_offline",
    "measure",
    "opcode_counts",
    "ptxas_version",
]
