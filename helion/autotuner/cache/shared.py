"""A store that machines share: one JSON file per key under any URL that fsspec supports."""

from __future__ import annotations

import importlib
from typing import Any

from .rows import Entry, Key, exported, imported, merged


class SharedStore:
    """Files ``<url>/<kernel>/<digest>.json``. Raises errors of fsspec, which ``store`` catches."""

    def __init__(self, url: str) -> None:
        fsspec: Any = importlib.import_module("fsspec")
        self.files, self.root = fsspec.core.url_to_fs(url)

    def get(self, key: Key) -> Entry | None:
        path = self._path(key)
        if not self.files.exists(path):
            return None
        entries = imported(self.files.cat_file(path).decode())
        return next((entry for entry in entries if entry.row.key == key), None)

    def put(self, entry: Entry) -> None:
        """Write the faster of this entry and the stored one."""
        key, path = entry.row.key, self._path(entry.row.key)
        there = self.get(key)
        kept = merged([entry] if there is None else [there, entry])
        self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.files.pipe_file(path, exported(kept, sweeps=True).encode())

    def _path(self, key: Key) -> str:
        return f"{self.root}/{key.kernel}/{key.digest}.json"
