"""Configs from files of the user's program (``helion.load_configs``)."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import exc
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...config import Config

if TYPE_CHECKING:
    from ...autotuner.cache import rows
    from ..specialization.specialized import Specialized
else:
    # importing the package does not need it
    rows = lazy("helion.autotuner.cache.rows")

#: Rows by kernel, in the order in which they were loaded.
_LOADED: dict[str, list[rows.Row]] = {}


def load_configs(path: str | os.PathLike[str]) -> int:
    """Use the tuned configs of a file that ``python -m helion cache export`` has written.

    They apply to specializations that are first called after this. A config is used for the kernel, source, dtypes,
    shapes and target that it was tuned for. If versions or the config space have changed, it is brought into range, or
    dropped if that is impossible. Configs loaded later take precedence.

    Returns:
        The number of configs in the file.

    Raises:
        OSError: the file cannot be read.
        exc.InvalidConfig: it is no such file.
    """
    try:
        entries = rows.imported(pathlib.Path(path).read_text())
    except ValueError as error:
        raise exc.InvalidConfig(f"{os.fspath(path)}: {error}") from error
    for entry in entries:
        _LOADED.setdefault(entry.row.key.kernel, []).append(entry.row)
    return len(entries)


def has_loaded(kernel: str) -> bool:
    """Return whether configs were loaded for a kernel of this name."""
    return kernel in _LOADED


def loaded_config(of: Specialized, keys: Sequence[rows.Key | None]) -> Config | None:
    """Return the full config that was loaded for one of the cache keys of a kernel's arguments."""
    subjects = [key.subject for key in keys if key is not None]
    row = next((row for row in reversed(_LOADED[of.kernel.name]) if row.key.subject in subjects), None)
    if row is None:
        return None
    try:
        return of.analysis.space.normalize(row.config)
    except (exc.InvalidConfig, exc.NoFeasibleConfig) as error:
        _logging.say_once(f"helion: a loaded config of {of.kernel.name} is not legal any more: {error}")
        return None


def forget_loaded() -> None:
    """Undo all ``load_configs``."""
    _LOADED.clear()
