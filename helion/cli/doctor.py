"""``python -m helion doctor``: a check of this machine's packages, folders and devices, with test kernels."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

import helion

from .. import exc, hardware, knobs
from .. import language as hl
from .._support import distribution
from .._support.files import cache_dir, is_trusted, wanted_cache_dir
from ..backends import BACKENDS
from ..backends.execution import CompileError
from ..runtime.kernel import kernel
from .command import Command

#: The use of each extra, by a package of it.
_EXTRAS = {
    "rich": ("cli", "tables of explain"),
    "matplotlib": ("report", "plots of helion report"),
    "ray": ("ray", "tuning on several machines"),
}
#: The oldest supported versions, as in pyproject.toml, and the newest that generated code is tested with.
SUPPORTED = {"torch": ("2.11", ""), "triton": ("3.6", "3.9"), "numpy": ("1.26", "")}
_COMPILERS = ("g++", "c++", "clang++")
_C_COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True)
class Finding:
    """A line of the report: ``lacks`` marks an optional thing that is missing, ``fails`` a required one."""

    name: str
    text: str
    state: Literal["ok", "lacks", "fails"] = "ok"


def _configure(parser: argparse.ArgumentParser) -> None:
    """Add no options."""


def _run(_: argparse.Namespace) -> int:
    failed = 0
    for finding in findings():
        mark = {"ok": " ", "lacks": "-", "fails": "!"}[finding.state]
        print(f"{mark} {finding.name:>12}  {finding.text}", flush=True)
        failed += finding.state == "fails"
    print(f"\n{failed} of these fail" if failed else "\nkernels work here")
    return 1 if failed else 0


def findings() -> Iterator[Finding]:
    """Yield the findings in the order of the report. Compiles and runs kernels, on the GPU too if there is one."""
    cuda = torch.cuda.is_available()
    yield Finding(distribution.NAME, helion.__version__)
    yield from _clash()
    yield Finding("python", platform.python_version())
    yield from map(_package, SUPPORTED)
    for backend in BACKENDS.values():
        for name, version in backend.toolchain.versions():
            if name in SUPPORTED:
                continue
            yield Finding(name, version, "lacks" if "not installed" in version else "ok")
    yield from _variables()
    yield from _cache()
    yield _compiler(cuda)
    yield from _extras()
    target = (
        hardware.from_device_properties(0) if cuda else hardware.target(knobs.TARGET.read() or hardware.DEFAULT_TARGET)
    )
    yield Finding("target", f"{target.name} ({target.device})")
    yield _tried("CPU tensors", lambda: _kernel_is_right("cpu"))
    yield _tried("offline", lambda: _offline(target))
    yield (
        _tried("GPU", lambda: _kernel_is_right("cuda"))
        if cuda
        else Finding("GPU", "none: nothing can be timed here", "lacks")
    )


def _clash() -> Iterator[Finding]:
    clash = distribution.clash()
    if clash:
        yield Finding("helion", clash, "fails")


# --- packages ---------------------------------------------------------------------------------------------------------


def _package(name: str) -> Finding:
    version = importlib.metadata.version(name)
    least, newest = SUPPORTED[name]
    if _parts(version) < _parts(least):
        return Finding(name, f"{version}: helion needs {least} or newer; pip install -U {name}", "fails")
    if newest and _parts(version)[:2] > _parts(newest):
        return Finding(name, f"{version}: newer than {newest}, up to which helion is tested", "lacks")
    return Finding(name, f"{version} ({least} {f'to {newest}' if newest else 'or newer'} is supported)")


def _parts(version: str) -> tuple[int, ...]:
    numbers = version.partition("+")[0].split(".")
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in numbers[:3])


def _extras() -> Iterator[Finding]:
    for package, (extra, use) in _EXTRAS.items():
        try:
            yield Finding(package, f"{importlib.metadata.version(package)}, for {use}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, f"not installed, for {use}: pip install 'helion-tiles[{extra}]'", "lacks")


# --- surroundings -----------------------------------------------------------------------------------------------------


def _variables() -> Iterator[Finding]:
    unknown = knobs.unknown_variables()
    if unknown:
        yield Finding("environment", f"nothing reads {', '.join(unknown)}", "lacks")


def _cache() -> Iterator[Finding]:
    folder = cache_dir()
    wanted = wanted_cache_dir()
    state = folder.stat()
    mode = f"{stat.S_IMODE(state.st_mode):o}"
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding("cache", f"{folder} cannot be written: {error}", "fails")
        return
    if folder != wanted:
        yield Finding("cache", f"{folder}, since {wanted} cannot be used", "lacks")
    elif not is_trusted(folder):
        yield Finding(
            "cache", f"{folder} (mode {mode}): others can write there, so no native code is kept; chmod go-w", "lacks"
        )
    else:
        yield Finding("cache", f"{folder} (mode {mode}, of user {state.st_uid})")
    if shutil.disk_usage(folder).free < 2**28:
        yield Finding("disk", f"less than 256 MiB are free in {folder}", "lacks")


def _compiler(cuda: bool) -> Finding:
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found:
        return Finding("compiler", f"{found}: native launches (HELION_NATIVE_LAUNCH=1) and torch.compile")
    if next(filter(None, map(shutil.which, _C_COMPILERS)), None) is None and cuda:
        return Finding("compiler", "none: Triton needs a C compiler to launch on a GPU; install gcc", "fails")
    return Finding("compiler", "no g++: no native launches, and no torch.compile on a CPU", "lacks")


# --- kernels ----------------------------------------------------------------------------------------------------------


@kernel(ignore_warnings=["GradientNotRecorded"])
def _row_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=-1)
    return out


def _kernel_is_right(device: str) -> str:
    x = torch.randn(33, 100, device=device, dtype=torch.float32)
    bound = _row_softmax.bind((x,))
    bound.set_config(bound.default_config())
    torch.testing.assert_close(bound(x), torch.softmax(x, dim=-1))
    where = torch.cuda.get_device_name(0) if device == "cuda" else "interpreted"
    return f"the results of a kernel equal those of torch ({where})"


def _offline(target: hardware.Target) -> str:
    x = torch.empty(4096, 1024, device="meta")
    measured = _row_softmax.bind((x,), target=target).resources()
    return f"a kernel compiles for {target.name}: {measured.registers} registers, {measured.spill_bytes} bytes spilled ({measured.source})"


def _tried(name: str, attempt: Callable[[], str]) -> Finding:
    """Return a finding with the result of an attempt, or with the first line of its error."""
    try:
        return Finding(name, attempt())
    except (exc.Base, CompileError, AssertionError, RuntimeError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), "")
        last = str(error).strip().splitlines()[-1] if str(error).strip() else ""
        return Finding(name, f"{type(error).__name__}: {first}{f' {last}' if last != first else ''}", "fails")


COMMAND = Command(
    name="doctor",
    help="try out what works here: packages, compiler, cache, kernels on CPU tensors, offline and on the GPU",
    configure=_configure,
    run=_run,
)
