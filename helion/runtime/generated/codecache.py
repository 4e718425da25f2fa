"""Generated modules on disk: one file per text, so that Triton, debuggers and users can read the source."""

from __future__ import annotations

import hashlib
import linecache
import marshal
import pathlib
import types
from collections.abc import Callable, Mapping
from typing import Any

from ..._support import files as _files
from ..._support import logs as _logging
from ..._support.files import cache_dir
from ...backends.execution import KeptModule


def key(text: str) -> str:
    """Return 128 bits of the SHA-256 of a module's text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def module_path(text: str, name: str) -> pathlib.Path:
    """Return the path of ``text`` in the cache: ``code/ab/name_<key>.py``."""
    return _path_in(cache_dir(), text, name)


def _path_in(base: pathlib.Path, text: str, name: str) -> pathlib.Path:
    digest = key(text)
    return base / "code" / digest[:2] / f"{name[:100]}_{digest}.py"


def load(
    text: str,
    name: str,
    prepare: Callable[[dict[str, Any]], None],
    kept: KeptModule | None = None,
    given: Mapping[str, Any] | None = None,
) -> types.ModuleType:
    """Keep ``text`` in its file and run it as a module, whose globals its backend may then ``prepare``.

    ``kept`` has the code of the text, to run with the globals ``given``, if its file is in the same place.

    The module runs ``text`` regardless of the file's content: a file that was edited or truncated is written again.
    Readers of a function's source while the module runs, such as Triton, get ``text``.
    """
    path = _kept(text, name)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    # entries without a time are never compared with the file
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    code = None if kept is None else marshal.loads(kept.code)
    if code is None or code.co_filename != str(path):
        code = compile(text, str(path), "exec")
    else:
        vars(module).update(given or {})
    try:
        exec(code, module.__dict__)
        prepare(module.__dict__)
    finally:
        linecache.cache.pop(str(path), None)
    return module


def _kept(text: str, name: str) -> pathlib.Path:
    """Write ``text`` to its file and return the path: in the cache, or in a folder of this user if that fails."""
    base = cache_dir()
    path = _path_in(base, text, name)
    try:
        _keep(text, path, base)
    except OSError as error:
        base = _files.private_folder()
        _logging.say_once(f"helion: {path.parent} cannot be written ({error.strerror}); using {base}")
        path = _path_in(base, text, name)
        _keep(text, path, base)
    return path


def _keep(text: str, path: pathlib.Path, base: pathlib.Path) -> None:
    if not _files.holds(path, text):
        _files.make_folder(path.parent, base)
        _files.write_whole(path, text, shared=True)
