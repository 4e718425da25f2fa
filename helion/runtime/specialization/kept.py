"""Analyses of kernels, and the code of their configs, that former processes have made for such calls.

Both follow from what the path and the record name: the kernel's source, the arguments, the settings, the target, the
versions, helion's own files, and the globals that the kernel reads. A later process that finds them traces, plans and
prints nothing. They are read as objects, so they are stored as compiled code is: where no other user can write, with a
digest.
"""

from __future__ import annotations

import hashlib
import pathlib
import pickle
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ... import exc, knobs
from ..._compiler.context import device_of
from ..._exact import are_same, is_constant
from ..._support import files as _files
from ..._support import logs as _logging
from ..._support import ranks
from ..._support.lazy import lazy
from ..._support.records import dataclass
from ...backends import BACKENDS
from ...backends.execution import KeptModule
from ...config import Config
from ..call.signature import pick
from ..call.size_buckets import Bucket, buckets_of
from . import assumptions, remembered

if TYPE_CHECKING:
    from ... import pipeline
    from ..._compiler.context import CompileContext
    from ..._compiler.frontend.guards import Guard, Traced
    from ..._compiler.host.code import Code
    from ..._compiler.ir.call_facts import CallFacts
    from ...pipeline import Analysis
    from .specialized import Specialized
else:
    pipeline = lazy("helion.pipeline")

_LOG = _logging.logger(__name__)
#: Changes with the form of the records.
_VERSION = 3
#: Records in each of 256 folders.
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The analysis for a call and the code of the config that it runs, if it has run.

    ``others`` counts the other backends; None if there is no choice. ``guards``, ``numbers`` and ``bucket`` are what it
    assumes of globals and arguments. ``space_key`` is that of the analysis.
    """

    backend: str
    versions: str
    others: int | None
    traced: Traced
    call_facts: CallFacts
    guards: tuple[assumptions.Assumption, ...]
    numbers: tuple[tuple[str, tuple[Any, ...], Any], ...]
    bucket: tuple[Bucket, ...]
    space_key: str
    config: Config | None
    code: Code | None
    module: KeptModule | None = None


def analysis_of(of: Specialized, values: tuple[Any, ...]) -> Analysis | None:
    """Return the analysis that a former process has made for such arguments; None if there is none that holds here.

    Takes its sizes and their bucket over.
    """
    path = _path(of, values)
    kept = None if path is None else _read(path)
    if kept is None:
        return None
    guards = assumptions.restored(kept.guards, of.kernel.fn.__globals__)
    if guards is None or not all(are_same(pick(values, at), number) for _, at, number in kept.numbers):
        return None
    found = _revived(of, kept, guards)
    if not of.accepts(found, values):
        return None
    one = of.settings.static_shapes or len(of.kernel.configs) == 1
    buckets = of.buckets if one else buckets_of(kept.call_facts.sizes, values, of.settings.size_hints)
    if buckets.of(values) != kept.bucket:
        return None
    of.buckets, of.bucket, of.kept = buckets, kept.bucket, kept
    if kept.config is not None and kept.code is not None:
        found.take(kept.config, kept.code, of.kernel.configs)
    if kept.others is not None:
        found = found.with_others(_others(of, found, kept.others))
        found.call_facts = kept.call_facts
    if kept.space_key:
        found.space_key = kept.space_key
    return found


def _revived(of: Specialized, kept: Kept, guards: tuple[Guard, ...]) -> Analysis:
    """Return the analysis of a record, with its guards for this process."""
    backend = BACKENDS[kept.backend]
    backend.toolchain.begin()
    traced = kept.traced.with_guards(guards)
    found = pipeline.Analysis(traced, of.kernel.name, of.target, of.settings, backend)
    found.call_facts = kept.call_facts
    return found


def context_of(of: Specialized) -> CompileContext:
    """Return the context of the compilation that a former process has made."""
    arguments = dict(zip(of.kernel.signature.parameters, of.sample(), strict=True))
    device, index = device_of(of.kernel.name, arguments), of.analysis.call_facts.index_dtype
    return pipeline.context_of(of.analysis.backend, device, of.settings, of.target, index, {})


def _others(of: Specialized, found: Analysis, count: int) -> pipeline.Others:
    """Return the other backends to choose from, whose analyses are made on first use."""

    def rest() -> tuple[tuple[pipeline.BackendCandidate, ...], tuple[Analysis, ...]]:
        whole = of.analysed_anew()
        analyses = (whole, *whole.alternatives)
        return whole.backend_candidates, tuple(each for each in analyses if each.backend is not found.backend)

    return pipeline.Others(rest, lambda: count)


def keep(of: Specialized, config: Config | None, names: Mapping[str, Any] | None = None) -> None:
    """Keep the analysis and the code of the config that a call runs; None if it was only analysed.

    ``names`` are the globals of its module, if that was loaded. Keeps nothing that is kept, or that depends on objects without a name.
    """
    if of.is_switched or (of.kept is not None and config in (None, of.kept.config)):
        return
    path = _path(of, of.sample())
    analysis = of.analysis
    facts = analysis.call_facts
    if path is None or facts.is_empty or analysis.adjusted or facts.meets_other_gpus:
        return
    guards = assumptions.portable(analysis.traced.guards, of.kernel.fn.__globals__)
    if guards is None:
        return
    try:
        code = None if config is None else analysis.code(config)
        kept = Kept(
            backend=analysis.backend.name,
            versions=remembered.version_of(analysis.backend.name),
            others=len(analysis.others) if analysis.is_chosen else None,
            traced=analysis.traced.with_guards(()),
            call_facts=facts,
            guards=guards,
            numbers=of.numbers,
            bucket=of.bucket,
            space_key="" if config is None else analysis.space_key,
            config=config,
            code=code,
            module=None if code is None or names is None else of.executor.kept_module(code.text, names),
        )
        _files.keep_code(path, pickle.dumps(kept, pickle.HIGHEST_PROTOCOL))
        _make_room(path.parent)
    except (
        OSError,
        pickle.PicklingError,
        TypeError,
        AttributeError,
        exc.Base,
    ) as error:  # it has what no file can hold
        _LOG.debug("%s: nothing is kept: %s: %s", of.kernel.name, type(error).__name__, error)


def _read(path: pathlib.Path) -> Kept | None:
    try:
        if not _files.is_kept_code(path):
            return None
        found = pickle.loads(path.read_bytes())
    except Exception as error:  # whatever a file of the same versions contains
        _LOG.debug("%s: %s: %s", path, type(error).__name__, error)
        return None
    is_current = isinstance(found, Kept) and found.versions == remembered.version_of(found.backend)
    return found if is_current else None


def _path(of: Specialized, values: tuple[Any, ...]) -> pathlib.Path | None:
    """Return the file of a call; None where nothing is kept."""
    if of.is_eager or knobs.DUMP.read() or knobs.VERIFY.read() or ranks.assumed_size() is not None:
        return None
    call = remembered.described(of, values) if all(map(_is_plain, values)) else None
    if call is None:
        return None
    code = assumptions.code_digest(of.kernel.fn.__code__)
    parts = (*call, code, repr(of.kernel.configs), repr(sorted(of.kernel.constants)), sys.version, torch.__version__)
    text = "\0".join((str(_VERSION), *parts, repr(knobs.changed())))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return _files.code_folder() / "kept" / digest[:2] / f"{of.kernel.name[:100]}_{digest}.pickle"


def _is_plain(value: Any) -> bool:
    """Return whether the text of an argument shows everything that code may depend on."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if isinstance(value, types.FunctionType):
        return isinstance(assumptions.named(value), assumptions.Named)
    return isinstance(value, torch.Tensor) or is_constant(value)


def _make_room(folder: pathlib.Path) -> None:
    """Delete the oldest records of a folder, except for as many as are kept."""
    files = sorted(folder.glob("*.pickle"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MOST]:
        path.unlink(missing_ok=True)
        _files.digest_file(path).unlink(missing_ok=True)


__all__ = ["Kept", "analysis_of", "context_of", "keep"]
