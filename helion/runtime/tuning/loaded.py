"""Configs from files of the user's program (``helion.load_configs``)."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import exc
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...config import Config

if TYPE_CHECKING:
    from ...autotuner.cache import rows
    from ..specialized import Specialized
    from . import keys
else:
    # importing the package needs none of these
    rows = lazy("helion.autotuner.cache.rows")
    keys = lazy("helion.runtime.tuning.keys")

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


def loaded_config(of: Specialized, args: Sequence[Any]) -> Config | None:
    """Return the full config that was loaded for a kernel and these arguments."""
    known = _LOADED.get(of.kernel.name)
    if known is None:
        return None
    wanted = [keys.key_of(of, args), keys.key_of(of, args, measured=True)]
    subjects = [key.subject for key in wanted if key is not None]
    row = next((row for row in reversed(known) if row.key.subject in subjects), None)
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
