"""The state of one trace."""

from __future__ import annotations

from .host_numbers import Origin, Symbol
from .trace_state import TraceSnapshot, TraceState

__all__ = ["Origin", "Symbol", "TraceSnapshot", "TraceState"]
