"""Process-wide locks."""

from __future__ import annotations

import threading

TRITON_LOCK = threading.RLock()
"""Held around every interpreted kernel and every Triton compilation.

Interpretation replaces functions of ``triton.language`` for the whole process while a kernel runs. A compilation, or a
second interpreted kernel, that starts meanwhile sees half-patched functions and may leave them patched for good: 3 to 8
of 12 trials failed with two threads and no lock, 0 of 20 with this one. Reentrant, because an interpreted kernel may
compile another one on its own thread.
"""
