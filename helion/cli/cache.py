"""``python -m helion cache``: lists, exports and imports tuned configs."""

from __future__ import annotations

import argparse
import json
import pathlib

from ..autotuner.cache.rows import Entry, Row, exported, imported, merged
from ..autotuner.cache.store import Store, default_store
from .command import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    for name, help_text in (
        ("list", "a line per config"),
        ("show", "all that is known of them, as JSON"),
        ("clear", "delete them"),
    ):
        actions.add_parser(name, help=help_text).add_argument("kernel", nargs="?", help="of this kernel only")
    export = actions.add_parser("export", help="as a file that helion.load_configs and import read")
    export.add_argument("file")
    export.add_argument("kernel", nargs="?", help="of this kernel only")
    export.add_argument("--sweeps", action="store_true", help="with all that was tried")
    actions.add_parser("import", help="add those of files; of equal keys the fastest stays").add_argument(
        "files", nargs="+"
    )


def _run(options: argparse.Namespace) -> int:
    store = default_store()
    if store is None:
        raise ValueError("HELION_SKIP_CACHE is set, so nothing is kept")
    match options.action:
        case "list":
            rows = store.all(options.kernel)
            print("\n".join(map(_line, rows)) or f"no tuned configs in {store.path}")
        case "show":
            print(json.dumps([row.to_dict() for row in store.all(options.kernel)], indent=1))
        case "clear":
            print(f"{store.delete(options.kernel)} deleted from {store.path}")
        case "export":
            entries = _entries(store, options.kernel)
            pathlib.Path(options.file).write_text(exported(entries, sweeps=options.sweeps), encoding="utf-8")
            print(f"{len(entries)} written to {options.file}")
        case _:
            print(f"{_add(store, options.files)} kept in {store.path}")
    return 0


def _line(row: Row) -> str:
    gain = ""
    if row.baseline_microseconds is not None:
        gain = f", {row.baseline_microseconds / row.microseconds:.2f} x the seed"
    shapes = " ".join("x".join(map(str, sizes)) for sizes in row.key.shapes)
    kind = " by prediction" if row.key.target.endswith(" simulated") else ""
    time = f"{row.microseconds:.1f} us{kind}{gain} ({row.effort}, {row.tried} tried)"
    return f"{row.key.kernel}  {row.key.target}  {row.key.dtypes}  {shapes}  {time}  {row.config!r}"


def _entries(store: Store, kernel: str | None) -> list[Entry]:
    return [Entry(row=row, sweep=store.sweep(row.key)) for row in store.all(kernel)]


def _add(store: Store, files: list[str]) -> int:
    """Add the rows of files to the cache and return how many. Raises ValueError for a file that is no export."""
    found = _entries(store, None)
    given = set()
    for file in files:
        try:
            entries = imported(pathlib.Path(file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        given |= {entry.row.key.digest for entry in entries}
        found += entries
    kept = [entry for entry in merged(found) if entry.row.key.digest in given]
    return sum(store.put(entry) for entry in kept)


COMMAND = Command(
    name="cache", help="list, show, export, import or clear tuned configs", configure=_configure, run=_run
)
