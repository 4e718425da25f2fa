"""The backends, by name. Outside of this folder nobody names one."""

from __future__ import annotations

from typing import Any

from .protocol import Backend
from .triton.backend import Triton

BACKENDS: dict[str, Backend[Any]] = {backend.name: backend for backend in (Triton(),)}
