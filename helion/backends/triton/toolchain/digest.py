"""Triton's digest of its own files, which each process needs before its first compilation or look-up of a binary.

The files are some 500 MB. A thread reads them while a kernel is analysed. The digest is kept with the sizes and times of
the files, so that a process that finds them unchanged reads none.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import threading
from types import ModuleType

import triton.compiler.compiler
import triton.runtime.cache

from .... import knobs
from ...._support import files as _files
from ...._support import logs
from ...._support.locks import in_forked_process, new_lock

_LOG = logs.logger(__name__)
_LOCK = new_lock()
_READERS: list[threading.Thread] = []
in_forked_process(_READERS.clear)  # the thread is not in the child
#: Folders of Triton whose files the digest may cover.
_FOLDERS = ("_C", "backends", "compiler", "language", "runtime")


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
        if getattr(module, "triton_key", None) is not None:
            _digest_of(module)


def _digest_of(module: ModuleType) -> None:
    """Let a module of Triton have the digest: a kept one for files like these, else its own, which is then kept."""
    count = getattr(module.triton_key, "cache_info", None)
    if count is None or count().currsize:  # it was read, or is a kept one
        module.triton_key()
        return
    path = _path()
    try:
        if path is not None and _files.is_kept_code(path):
            kept = path.read_text(encoding="utf-8")
            module.triton_key = functools.partial(str, kept)  # type: ignore[attr-defined]
            return
        found = module.triton_key()
        if path is not None and isinstance(found, str):
            _files.keep_code(path, found.encode())
    except OSError as error:
        _LOG.debug("Triton's digest is not kept: %s", error)
        module.triton_key()


def _path() -> pathlib.Path | None:
    """Return the file of the digest of files with these sizes and times; None where nothing is kept."""
    if knobs.SKIP_CACHE.read():
        return None
    base = pathlib.Path(triton.__file__).parent
    found = hashlib.sha256(f"{triton.__version__} {base}\n".encode())
    for name in _FOLDERS:
        for folder, folders, files in os.walk(base / name):
            folders[:] = sorted(each for each in folders if each != "__pycache__")
            for file in sorted(files):
                stat = os.stat(f"{folder}/{file}")
                found.update(f"{folder}/{file} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}\n".encode())
    return _files.code_folder() / "triton" / "digests" / found.hexdigest()[:32]


__all__ = ["begin", "read", "wait"]
