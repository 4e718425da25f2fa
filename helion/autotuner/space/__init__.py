"""The config space of one kernel: ``build_space(program, ...)`` makes its ``ConfigSpace``."""

from __future__ import annotations

from .build import build_space
from .core import ConfigSpace
from .fields import Field

__all__ = ["ConfigSpace", "Field", "build_space"]
