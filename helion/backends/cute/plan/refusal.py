"""The one error that planning raises."""

from __future__ import annotations


class Refusal(ValueError):
    """A GEMM, tile or stage count that is not implemented or does not fit; the message says which and why."""
