"""Triton's digest of its own files, which each process reads before its first compilation or look-up of a binary.

The files are some 300 MB. A thread reads them while a kernel is analysed.
"""

from __future__ import annotations

import threading

import triton.compiler.compiler
import triton.runtime.cache

from ...._support.locks import in_forked_process, new_lock

_LOCK = new_lock()
_READERS: list[threading.Thread] = []
in_forked_process(_READERS.clear)  # the thread is not in the child


def begin() -> None:
    """Read the files in a thread, unless this process has begun to."""
    with _LOCK:
        if not _READERS:
            _READERS.append(threading.Thread(target=_read, name="helion-digest", daemon=True))
            _READERS[0].start()


def wait() -> None:
    """Wait until the files are read, if that has begun: a compilation would read them again meanwhile."""
    for thread in tuple(_READERS):
        if thread is not threading.current_thread():
            thread.join()


def read() -> None:
    """Read the files now, unless this process has read them."""
    wait()
    _read()


def _read() -> None:
    for module in (triton.runtime.cache, triton.compiler.compiler):  # the module differs between versions
        digest = getattr(module, "triton_key", None)
        if digest is not None:
            digest()


__all__ = ["begin", "read", "wait"]
