"""The records of the cache, and their form as JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...config import Config
from ..outcome import Outcome

#: Header of an exported file; the version changes when older readers cannot read it.
FORMAT, VERSION = "helion-configs", 1

#: Sizes of every tensor among the arguments.
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Key:
    """Key of a tuned config.

    ``source`` is a digest of the kernel's source, ``specialization`` describes the dtypes, sizes, strides and
    constants. ``versions`` are those of the compilers, ``space`` is a digest of the config fields. ``tag`` identifies
    answers that were tuned for several argument sets or a list of configs; it is "" otherwise.
    """

    kernel: str
    source: str
    specialization: str
    target: str
    versions: str
    space: str
    dtypes: str
    shapes: Shapes
    tag: str = ""

    @property
    def digest(self) -> str:
        """128 bits that are equal for equal keys, in every process."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def subject(self) -> tuple[str, str, str, str, str]:
        """The part of the key that versions and the space do not affect."""
        return (self.kernel, self.source, self.specialization, self.target, self.tag)

    def distance(self, other: Key) -> float:
        """Return the distance of the shapes, in factors of two; infinite for other ranks."""
        if [len(sizes) for sizes in self.shapes] != [len(sizes) for sizes in other.shapes]:
            return math.inf
        pairs = ((a, b) for x, y in zip(self.shapes, other.shapes, strict=True) for a, b in zip(x, y, strict=True))
        return sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in pairs)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A tuned config: ``microseconds`` of device time, and of the untuned config.

    ``effort`` is the search effort, ``when`` the seconds since the epoch.
    """

    key: Key
    config: Config
    microseconds: float
    baseline_microseconds: float | None = None
    effort: str = ""
    tried: int = 0
    when: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return {
            **asdict(self.key),
            "shapes": [list(sizes) for sizes in self.key.shapes],
            "config": self.config.to_dict(),
            "microseconds": self.microseconds,
            "baseline_microseconds": self.baseline_microseconds,
            "effort": self.effort,
            "tried": self.tried,
            "when": self.when,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Make a row from ``to_dict``'s data. Raises KeyError, TypeError or ValueError for any other."""
        microseconds, baseline = float(data["microseconds"]), data.get("baseline_microseconds")
        if not 0 < microseconds < math.inf:
            raise ValueError(f"{microseconds!r} is no time")
        names = ("kernel", "source", "specialization", "target", "versions", "space", "dtypes")
        key = Key(
            **{name: _text(data, name) for name in names},
            shapes=tuple(tuple(map(int, sizes)) for sizes in data["shapes"]),
            tag=str(data.get("tag", "")),
        )
        return cls(
            key=key,
            config=Config.from_dict(data["config"]),
            microseconds=microseconds,
            baseline_microseconds=None if baseline is None else float(baseline),
            effort=str(data.get("effort", "")),
            tried=int(data.get("tried", 0)),
            when=float(data.get("when", 0.0)),
        )


def _text(data: Mapping[str, Any], name: str) -> str:
    if not isinstance(data[name], str):
        raise TypeError(f"{name} must be a string, got {data[name]!r}")
    return str(data[name])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row with all its outcomes."""

    row: Row
    sweep: tuple[Outcome, ...] = ()


def exported(entries: Sequence[Entry], *, sweeps: bool = False) -> str:
    """Format rows as a JSON text for a repository: sorted, one line per value, the same for the same rows."""
    ordered = sorted(entries, key=lambda entry: (entry.row.key.kernel, entry.row.key.target, entry.row.key.digest))
    rows = [
        {**entry.row.to_dict(), **({"sweep": [each.to_dict() for each in entry.sweep]} if sweeps else {})}
        for entry in ordered
    ]
    return json.dumps({"format": FORMAT, "version": VERSION, "rows": rows}, indent=1) + "\n"


def imported(text: str) -> list[Entry]:
    """Parse ``exported``'s text. Raises ValueError with the place for any other."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"not made by `python -m helion cache export`: there is no format {FORMAT!r} in it")
    if data.get("version") != VERSION:
        raise ValueError(f"made by another version of helion: version {data.get('version')!r}, known is {VERSION}")
    found = []
    for at, row in enumerate(data.get("rows", ())):
        try:
            sweep = tuple(Outcome.from_dict(each) for each in row.get("sweep", ()))
            found.append(Entry(row=Row.from_dict(row), sweep=sweep))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"row {at}: {type(error).__name__}: {error}") from error
    return found


def merged(entries: Sequence[Entry]) -> list[Entry]:
    """Merge entries to one per key: the fastest row with all outcomes."""
    by_digest: dict[str, Entry] = {}
    for entry in entries:
        known = by_digest.setdefault(entry.row.key.digest, entry)
        if known is not entry:
            fastest = min((known, entry), key=lambda each: each.row.microseconds)
            sweep = {outcome.config: outcome for outcome in (*known.sweep, *entry.sweep)}
            by_digest[entry.row.key.digest] = Entry(row=fastest.row, sweep=tuple(sweep.values()))
    return list(by_digest.values())
