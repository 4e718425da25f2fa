"""Errors of compiling a kernel. Launches catch them, and import no compiler for that."""

from __future__ import annotations

from .... import exc
from ...execution import CompileError


class ToolMissing(exc.CuteBackendUnavailable, CompileError):
    """A missing tool for compiling kernels; the message names it and how to install it."""


class CompilationFailed(CompileError):
    """An error in compiling or linking a kernel; the message names the tool and the reason."""
