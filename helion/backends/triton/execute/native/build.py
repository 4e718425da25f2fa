"""Build, load and check the extension module: once per machine, torch and Python, into the cache folder."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from ..... import knobs
from ....._support import files, logs
from ....._support.locks import new_lock

_LOG = logs.logger(__name__)
_LOCK = new_lock()

NAME = "helion_native"
SOURCE = Path(__file__).with_name("native.cpp")
COMPILERS = ("g++", "c++", "clang++")
#: Timeout of a compilation in seconds; it takes one or two.
TIMEOUT = 120


class Unavailable(Exception):
    """The reason why there is no extension here, as text for users."""


def module() -> types.ModuleType | None:
    """Return the extension, built at the first call, or None.

    None means that ``HELION_NATIVE_LAUNCH`` is off or the build failed, which is logged once.
    """
    return _built() if knobs.NATIVE_LAUNCH.read() else None


def _built() -> types.ModuleType | None:
    with _LOCK:
        return _attempted()


@functools.cache
def _attempted() -> types.ModuleType | None:
    try:
        return _load(_checked_platform(), compiler())
    except (Unavailable, OSError) as error:
        _LOG.warning("no native launch, calls go through Python: %s", error)
        return None


def _checked_platform() -> Path:
    """Return torch's folder, if the source supports this platform."""
    if sys.platform != "linux" or sys.implementation.name != "cpython" or sys.maxsize != 2**63 - 1:
        raise Unavailable("it needs a 64-bit CPython on Linux")
    if sys.byteorder != "little":
        raise Unavailable("it needs a little-endian processor")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unavailable("it needs a Python with a global interpreter lock")
    if torch.version.hip is not None:
        raise Unavailable("it launches through CUDA's driver, and this torch is for ROCm")
    return Path(torch.__file__).parent


def compiler() -> str:
    """Return the C++ compiler to use. Raises ``Unavailable``."""
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise Unavailable(f"no C++ compiler ({', '.join(COMPILERS)}) in PATH; install g++")
    return found


def _flags(root: Path) -> list[str]:
    scheme = sysconfig.get_default_scheme()
    if scheme == "posix_local":  # Debian's, whose headers are in this scheme's folder
        scheme = "posix_prefix"
    cuda = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    includes = (sysconfig.get_paths(scheme)["include"], root / "include", cuda)
    abi = int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
    return [
        *("-std=c++20", "-O2", "-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-shared", "-fPIC", "-w"),
        *(f"-I{folder}" for folder in includes),
        f"-L{root / 'lib'}",
        "-lc10",
    ]


def source() -> str:
    """Return the text of the source and its headers."""
    return "\0".join(file.read_text() for file in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))))


def path_for(text: str, with_compiler: str, flags: list[str]) -> Path:
    """Return the path of the extension built from a source, by all inputs of its code."""
    parts = (
        *(text, with_compiler, *flags),
        *(sys.version, str(sysconfig.get_config_var("SOABI")), platform.machine()),
        *(torch.__version__, str(torch.version.git_version), triton.__version__),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return files.code_folder() / "native" / key / f"{NAME}{suffix}"


def _load(root: Path, with_compiler: str) -> types.ModuleType:
    flags = _flags(root)
    path = path_for(source(), with_compiler, flags)
    if path.exists():
        try:
            if files.is_kept_code(path):
                return _verified(path)
        except (ImportError, OSError):
            pass
        _LOG.info("%s is damaged and is built again", path)  # for example truncated on a full disk
    build(with_compiler, flags, path)
    try:
        return _verified(path)
    except ImportError as error:
        raise Unavailable(f"{path} cannot be loaded: {error}") from error


def build(with_compiler: str, flags: list[str], path: Path) -> None:
    """Compile the source to ``path``, whole or not at all. Raises ``Unavailable`` with the compiler's message."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="build-") as folder:
        made = os.path.join(folder, path.name)
        command = [with_compiler, "-x", "c++", str(SOURCE), *flags, "-o", made]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, errors="replace")
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{with_compiler} took more than {TIMEOUT} s") from error
        if result.returncode != 0:
            first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr.strip())
            raise Unavailable(f"{with_compiler} failed ({result.returncode}): {first}")
        files.keep_code(path, Path(made).read_bytes())
    _LOG.info("built %s in %.1f s", path, time.perf_counter() - start)


def _verified(path: Path) -> types.ModuleType:
    """Return the extension in this file, after a check that it reads some tensors like torch. Raises ``Unavailable``
    otherwise.
    """
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    loader.exec_module(found)
    sample = torch.empty(1)
    try:
        found.set_up(torch.Tensor, torch.nn.Parameter, sample, sample._cdata)
    except ValueError as error:
        raise Unavailable(str(error)) from error
    for tensor in _samples():
        native, expected = found.read(tensor), said_by_torch(tensor)
        if native != expected:
            raise Unavailable(f"it reads a tensor as {native} which is {expected}")
    if found.local() != _local_keys():
        raise Unavailable("it does not see the dispatch keys of this thread")
    with torch.inference_mode():
        if found.local() != _local_keys():
            raise Unavailable("it does not see inference mode")
    return found


def said_by_torch(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the expected result of the extension's ``read(tensor)``."""
    kinds = {"cpu": 0, "cuda": 1}
    return (
        *(tensor._cdata, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.element_size()),
        *(kinds[tensor.device.type], -1 if tensor.device.index is None else tensor.device.index, tensor.requires_grad),
        *(torch._C._dispatch_keys(tensor).raw_repr(), tensor.untyped_storage()._cdata),
    )


def _local_keys() -> tuple[int, int]:
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return (included.raw_repr(), excluded.raw_repr())


def _samples() -> Iterator[torch.Tensor]:
    """Yield tensors of all kinds that the extension reads: views, empty ones, many dimensions, with bits and with
    gradients.
    """
    base = torch.empty(7, 5)
    yield from (base, base[1:, 2:].t(), torch.empty(0), torch.tensor(True), torch.empty(1, 2, 1, 2, 1, 2, 1))
    yield from (torch.empty(3, dtype=torch.float8_e4m3fn), torch.empty(3, 2, dtype=torch.int64)[:, 1])
    yield from (torch.empty(3, requires_grad=True), torch.nn.Parameter(torch.empty(3)), base.expand(2, 7, 5))
    bits = torch.empty(3, dtype=torch.complex64).conj()
    yield from (bits, bits.imag)
    with torch.inference_mode():
        yield torch.empty(2)
