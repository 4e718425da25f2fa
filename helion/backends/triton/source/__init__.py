"""Triton source written by the user: its copies in a generated module, and its effect on memory."""

from __future__ import annotations

from .copying import Copied, copied, escaped
from .effects import effect_of_text

__all__ = ["Copied", "copied", "effect_of_text", "escaped"]
