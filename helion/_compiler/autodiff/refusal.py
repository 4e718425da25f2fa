"""Refusal of ops that have no derivative."""

from __future__ import annotations

from ... import exc
from ..ir.grammar import Op, Root


def not_supported(what: str, remedy: str, op: Op | Root | None = None) -> exc.Base:
    """Return an error: ``what``, on the line of ``op``, has no derivative; ``remedy`` is what to do about it."""
    error = exc.AutodiffNotSupported(what=what, remedy=remedy)
    return error if op is None else error.at(op.location)
