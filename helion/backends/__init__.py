"""The backends, by name. Only this folder names a backend.

``backend="auto"`` tries all of them in order: specialized backends first, the general one last.
"""

from __future__ import annotations

from typing import Any

from .._support.lazy import lazy
from .cute.backend import Cute
from .protocol import Backend
from .triton.backend import Triton

_peers = lazy("helion.backends.triton.peers")

BACKENDS: dict[str, Backend[Any]] = {backend.name: backend for backend in (Cute(), Triton())}
#: The general backend: it takes the programs that the others refuse.
GENERAL = Triton.name


def synchronization(name: str) -> Any:
    """Return a function of this public name for ``hl.triton_kernel`` that synchronizes GPUs."""
    return getattr(_peers, name)
