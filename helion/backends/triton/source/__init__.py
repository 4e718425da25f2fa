"""Triton source of the user's: what it brings to a generated module, and what it does to memory."""

from __future__ import annotations

from .copying import Copied, copied, escaped
from .effects import effect_of_text

__all__ = ["Copied", "copied", "effect_of_text", "escaped"]
