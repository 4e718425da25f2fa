"""Process-wide locks."""

from __future__ import annotations

import threading

TRITON_LOCK = threading.RLock()
"""Held around every interpreted kernel and every Triton compilation, which share state of the process: Triton's caches
of functions and hashes, and numpy's error mode. Reentrant, because an interpreted kernel may compile another one on its
own thread."""
