"""The backend that ``auto`` has chosen for such arguments in a former process, as far as this machine remembers.

The choice follows from what the key names: the kernel's source, the arguments, the settings, the target and helion's own
files. Remembering it saves the analyses for the other backends, which are made when they are asked
for. A backend that refuses the kernel now, since globals or helper functions of it have changed, is forgotten.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import pathlib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import knobs
from ..._support import files as _files
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ..._support.nested import map_nested
from ..._support.records import dataclass
from ...backends import BACKENDS, stub
from ..call.arg_snapshot import restore, snapshot
from ..call.signature import any_device
from .assumptions import named, with_code

if TYPE_CHECKING:
    from ... import pipeline
    from ...pipeline import Analysis
    from .specialized import Specialized
else:
    pipeline = lazy("helion.pipeline")

_LOG = _logging.logger(__name__)
#: Changes with the form of the files.
_VERSION = 1
#: Parts of an object's text that differ between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Choice:
    """A backend, the number of others that accept the kernel, and the numbers that any of them depends on."""

    backend: str
    others: int
    numbers: Mapping[str, tuple[Any, ...]]


#: Analysis of a kernel for arguments and a backend by name; None leaves the choice.
Analyse = Callable[[tuple[Any, ...], str | None], "Analysis"]


def analysed(of: Specialized, values: tuple[Any, ...], analyse: Analyse) -> Analysis:
    """Return the analysis of a kernel for these arguments, with only the backend's own made if that is remembered."""
    path = _path(of, values)
    known = None if path is None else _read(path)
    if known is not None:
        BACKENDS[known.backend].toolchain.begin()
        try:
            return _alone(known, values, analyse)
        except Exception as error:  # whatever is wrong with the kernel, the whole analysis reports it
            _LOG.debug("%s: the remembered backend %s: %s", of.kernel.name, known.backend, error)
    found = analyse(values, None)
    if path is not None:
        _keep(path, found)
    return found


def _alone(known: Choice, values: tuple[Any, ...], analyse: Analyse) -> Analysis:
    """Return the analysis for the remembered backend, with the others made on first use."""
    found = analyse(values, known.backend).specialize_on(known.numbers)
    kept = tuple(map(snapshot, values))  # without their memory

    def rest() -> tuple[tuple[pipeline.BackendCandidate, ...], tuple[Analysis, ...]]:
        whole = analyse(tuple(map(restore, kept)), None)
        analyses = (whole, *whole.alternatives)
        return whole.backend_candidates, tuple(each for each in analyses if each.backend is not found.backend)

    return found.with_others(pipeline.Others(rest, lambda: known.others))


# --- files ------------------------------------------------------------------------------------------------------------


def _read(path: pathlib.Path) -> Choice | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = Choice(content["backend"], int(content["others"]), ast.literal_eval(content["numbers"]))
        is_current = content["versions"] == version_of(found.backend)
    except (OSError, ValueError, KeyError, TypeError, SyntaxError):  # there is none, or half of one
        return None
    return found if is_current and isinstance(found.numbers, dict) else None


def _keep(path: pathlib.Path, found: Analysis) -> None:
    """Keep a choice for other processes, if that is possible."""
    numbers = dict(found.traced.specialized)
    if not found.is_chosen or _ADDRESS.search(repr(numbers)):
        return
    name = found.backend.name
    content = {
        "backend": name,
        "versions": version_of(name),
        "others": len(found.alternatives),
        "numbers": repr(numbers),
    }
    try:
        _files.make_folder(path.parent, _files.cache_dir())
        _files.write_whole(path, json.dumps(content), shared=True)
    except OSError as error:
        _LOG.debug("%s cannot be written: %s", path, error)


def _path(of: Specialized, values: Sequence[Any]) -> pathlib.Path | None:
    """Return the file of the choice; None where nothing is chosen or kept."""
    if of.settings.backend not in (None, "auto") or of.kernel.configs:
        return None
    call = described(of, values)
    if call is None:
        return None
    digest = hashlib.sha256("\0".join((str(_VERSION), *call)).encode()).hexdigest()[:32]
    return _files.cache_dir() / "backends" / digest[:2] / f"{of.kernel.name[:100]}_{digest}.json"


def described(of: Specialized, values: Sequence[Any]) -> tuple[str, ...] | None:
    """Return texts that describe a call on a GPU to other processes, without the globals that the kernel reads.

    None where nothing is kept, several configs are given, or an object has no text of its own.
    """
    if knobs.SKIP_CACHE.read() or len(of.kernel.configs) > 1 or not any(map(stub.on_gpu, values)):
        return None
    shown = map_nested(map_nested(tuple(values), torch.Tensor, _description), types.FunctionType, named)
    text = repr((with_code(any_device(of.key)), shown, of.settings))
    if _ADDRESS.search(text):  # objects that other processes cannot recognize
        return None
    try:
        source = of.kernel.source
    except OSError:
        return None
    return source, text, of.target.text, _files_of_package()


def _description(tensor: torch.Tensor) -> tuple[Any, ...]:
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride(), str(tensor.device)


@functools.cache
def _files_of_package() -> str:
    """Return the names of the installed backends, and a digest of the sizes and times of helion's own files."""
    found = hashlib.sha256()
    for folder, folders, names in os.walk(pathlib.Path(__file__).resolve().parents[2]):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        for name in sorted(names):
            stat = os.stat(f"{folder}/{name}")
            found.update(f"{folder}/{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    installed = [backend.name for backend in BACKENDS.values() if backend.is_installed]
    return f"{installed} {found.hexdigest()}"


def version_of(backend: str) -> str:
    """Return the versions of what a backend compiles with; those of other backends would have to be imported."""
    return repr(BACKENDS[backend].toolchain.versions())


__all__ = ["analysed", "described", "version_of"]
