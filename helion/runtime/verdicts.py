"""Verdicts on disk: a file for each kernel, specialization, target and compiler.

Failures to read or write them are ignored.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Collection

from .. import knobs
from .._shapes import hint_of
from .._support import files as _files
from .._support import logs as _logging
from ..config import Config
from .specialized import Specialized
from .verdict import Verdict

#: Part of every key: it changes when the rule of verdicts changes.
_VERSION = 2


def kept(of: Specialized, candidates: Collection[Config]) -> Verdict | None:
    """Return the cached verdict; None if there is none, or its config is no candidate any more."""
    if knobs.SKIP_CACHE.read():
        return None
    try:
        found = Verdict.from_dict(json.loads(_path(of).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # there is none, or half of one
        return None
    return found if found.config in candidates else None


def keep(of: Specialized, verdict: Verdict) -> None:
    """Keep a verdict for other processes, if that is possible."""
    if knobs.SKIP_CACHE.read():
        return
    path = _path(of)
    try:
        _files.make_folder(path.parent, _files.cache_dir())
        _files.write_whole(path, json.dumps(verdict.to_dict()), shared=True)
    except OSError as error:
        _logging.say_once(
            f"helion: {path.parent.parent} cannot be written ({error.strerror}); other processes check their seeds again"
        )


def _path(of: Specialized) -> pathlib.Path:
    digest = _key(of)
    return _files.cache_dir() / "verdicts" / digest[:2] / f"{of.kernel.name[:100]}_{digest}.json"


def _key(of: Specialized) -> str:
    """Return the key: the code of the default config, which contains the kernel and its specialization.

    Sizes of dimensions that differ from call to call are added.
    """
    analysis, target = of.analysis, of.target
    limit = knobs.COMPILE_LIMIT_SECONDS
    extents = [None if block.extent is None else hint_of(block.extent) for block in analysis.program.blocks]
    parts = (
        str(_VERSION),
        analysis.code(analysis.default_config).text,
        repr(extents),
        repr(target),
        analysis.backend.toolchain.compiler(target),
        *([] if limit.read() == limit.default else [str(limit.read())]),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


__all__ = ["keep", "kept"]
