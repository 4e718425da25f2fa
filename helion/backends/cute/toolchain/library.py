"""Compiled kernels on disk: a cached kernel needs neither the DSL nor a C compiler."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...._support import files, logs
from ...._support.lazy import lazy
from ...._support.locks import new_lock
from ..plan.dtypes import NUMBER, PITCH, SEED, SIZE
from .installed import installed_version
from .kernel import NAME, GemmKernel

if TYPE_CHECKING:
    from . import shared_object
else:
    # a cached kernel is loaded without the printers and the compiler
    shared_object = lazy("helion.backends.cute.toolchain.shared_object")

_LOG = logs.logger(__name__)
_LOCK = new_lock()
#: The folders of compiled kernels, by the places in the cache folder, which may change.
_FOUND: dict[Path, Path] = {}

SHARED_OBJECT, CUBIN, NOTES = f"{NAME}.so", f"{NAME}.cubin", "notes.json"


def folder(kernel: GemmKernel) -> Path:
    """Return the folder of the shared object of ``kernel``, its binary and notes; compile the kernel if it is not
    cached.

    Results of another version of the DSL than the installed one are compiled again. The folder is one of this user's
    where the cache cannot be written. Raises ``errors.ToolMissing`` if the kernel has to be compiled and cannot be, and
    ``errors.CompilationFailed``.
    """
    place = _place(kernel)
    with _LOCK:
        if place not in _FOUND:
            _FOUND[place] = place if _is_good(place) else _made(kernel, place)
        return _FOUND[place]


def is_compiled(kernel: GemmKernel) -> bool:
    """Return whether the kernel is cached."""
    place = _place(kernel)
    return place in _FOUND or _is_good(place)


def _place(kernel: GemmKernel) -> Path:
    return _place_in(files.code_folder(), kernel)


def _place_in(base: Path, kernel: GemmKernel) -> Path:
    return base / "gemm" / kernel.key


def _made(kernel: GemmKernel, place: Path) -> Path:
    """Compile the kernel and write it to ``place``, or to a folder of this user if that fails; return the folder."""
    start = time.perf_counter()
    content, cubin = shared_object.build_shared_object(kernel)
    try:
        _write(kernel, place, content, cubin)
    except OSError as error:
        wanted, place = place, _place_in(files.private_folder(), kernel)
        logs.say_once(f"helion: {wanted.parent} cannot be written ({error.strerror}); using {place.parent}")
        _write(kernel, place, content, cubin)
    _LOG.info("compiled %s in %.2f s: %s", kernel.name, time.perf_counter() - start, place)
    return place


def _write(kernel: GemmKernel, place: Path, content: bytes, cubin: bytes) -> None:
    files.keep_code(place / CUBIN, cubin)
    files.keep_code(place / SHARED_OBJECT, content)
    files.write_whole(place / NOTES, json.dumps({"dsl": installed_version(), "kernel": kernel.name}))


def _is_good(place: Path) -> bool:
    """Return whether a cache entry is complete, and of the installed version of the DSL, or of any if none is
    installed."""
    try:
        notes = json.loads((place / NOTES).read_text())
    except (OSError, ValueError):
        return False
    version = installed_version()
    if version and notes.get("dsl") != version:
        return False
    return all(files.is_kept_code(place / file) for file in (SHARED_OBJECT, CUBIN))


class Library:
    """The functions of one shared object. It needs CUDA's runtime library in the process, which torch loads."""

    def __init__(self, path: Path, pointers: Sequence[str]) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        #: Takes addresses of the tensors, and numbers; co-resident clusters, stream. Returns CUDA's status, 0 for
        #: success.
        self.launch: Callable[..., int] = self._function("helion_launch", *map(_argument, pointers), _INT, _POINTER)
        self._load = self._function("helion_load", _INT)
        self._clusters = self._function("helion_clusters")
        self._lock = new_lock()

    def _function(self, name: str, *arguments: Any) -> Callable[..., int]:
        function = self._library[name]
        function.argtypes = arguments
        function.restype = _INT
        return function

    def load(self, device: int) -> int:
        """Load the kernel on a device; return CUDA's status, 0 for success."""
        with self._lock:
            return self._load(device)

    def clusters(self) -> int:
        """Return the co-resident clusters on the current device; 0 where the driver does not report them."""
        return self._clusters()


def _argument(dtype: str) -> Any:
    integers = {SIZE: ctypes.c_int32, PITCH: ctypes.c_int64, SEED: ctypes.c_int64}
    return {NUMBER: ctypes.c_float, **integers}.get(dtype, ctypes.c_void_p)


_INT, _POINTER = ctypes.c_int32, ctypes.c_void_p
