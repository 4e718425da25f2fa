"""The backends, by name. Outside of this folder nobody names one.

``backend="auto"`` asks all of them: those for few kernels come first, the one for all last.
"""

from __future__ import annotations

from typing import Any

from .cute.backend import Cute
from .protocol import Backend
from .triton.backend import Triton

BACKENDS: dict[str, Backend[Any]] = {backend.name: backend for backend in (Cute(), Triton())}
#: The one that takes what others refuse.
GENERAL = Triton.name
