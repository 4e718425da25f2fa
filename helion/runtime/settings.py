"""The settings of kernels, under the module's name in the public API."""

from __future__ import annotations

from ..backends import GENERAL
from ..settings import RefMode as RefMode
from ..settings import Settings as Settings


def _get_backend() -> str:
    """Return the backend of a kernel decorated now, by its setting; the general one if it is chosen per kernel."""
    backend = Settings().backend
    return GENERAL if backend in (None, "auto") else backend
