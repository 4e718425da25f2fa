"""Triton kernels on CPU tensors: :func:`interpret`."""

from __future__ import annotations

from .execute import interpret

__all__ = ["interpret"]
