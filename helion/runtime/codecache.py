"""Generated modules on disk: one file per text, so that Triton, debuggers and people can read the source."""

from __future__ import annotations

import hashlib
import os
import pathlib
import tempfile
import types

from .. import knobs


def cache_dir() -> pathlib.Path:
    """``HELION_CACHE_DIR``, else ``~/.cache/helion``, else a temporary folder when that cannot be written."""
    configured = knobs.CACHE_DIR.read()
    base = pathlib.Path(configured) if configured else pathlib.Path.home() / ".cache" / "helion"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base
    except OSError:
        pass
    if configured:
        raise PermissionError(f"HELION_CACHE_DIR={configured!r} cannot be written")
    fallback = pathlib.Path(tempfile.gettempdir()) / f"helion-{os.getuid()}"
    fallback.mkdir(parents=True, exist_ok=True)
    return fallback


def key(text: str) -> str:
    """128 bits of the SHA-256 of a module's text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def module_path(text: str, name: str) -> pathlib.Path:
    """Where ``text`` is kept: ``code/ab/name_<key>.py``."""
    digest = key(text)
    return cache_dir() / "code" / digest[:2] / f"{name}_{digest}.py"


def load(text: str, name: str) -> types.ModuleType:
    """Write ``text`` (whole or not at all) and run it as a module."""
    path = module_path(text, name)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
