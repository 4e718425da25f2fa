"""Outcomes of pairs, as JSON lines in a file that a later run resumes from."""

from __future__ import annotations

import collections
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .cases import Draft
from .runner import FAILURES

#: Characters of a detail that are kept for a pair that is no failure, and for one that is.
SHORT, LONG = 300, 3000
_FILE = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One pair: ``number`` counts the configs of a kernel and backend, -1 where the kernel has none.

    ``draft`` and ``config`` are kept for failures only. ``seconds`` is what the pair took in its worker.
    """

    seed: int
    family: str
    backend: str
    number: int
    kind: str
    detail: str = ""
    seconds: float = 0.0
    draft: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None

    @property
    def key(self) -> tuple[int, str, int]:
        """The key of the pair, unique in a run."""
        return self.seed, self.backend, self.number

    @property
    def is_failure(self) -> bool:
        """True if a person must look at it."""
        return self.kind in FAILURES


@dataclass
class Journal:
    """The entries of a folder; ``settings`` are those that numbers of configs depend on.

    Raises ValueError where the folder has a journal of other settings.
    """

    folder: Path
    settings: Mapping[str, Any]
    entries: list[Entry] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._read()
        self._file = (self.folder / _FILE).open("a")
        if not self._seen:
            self._write({"settings": dict(self.settings)})

    def _read(self) -> None:
        path = self.folder / _FILE
        self._seen = False
        if not path.exists():
            return
        text = path.read_text()
        if text and not text.endswith("\n"):  # the last line of a run that was killed
            text = text[: text.rfind("\n") + 1]
            path.write_text(text)
        for line in text.splitlines():
            data = json.loads(line)
            if "settings" in data:
                self._seen = True
                if data["settings"] != dict(self.settings):
                    raise ValueError(
                        f"{path} is of a run with {data['settings']}, not {dict(self.settings)}: take another folder"
                    )
            elif "finished" in data:
                self.finished.add(data["finished"])
            else:
                self.entries.append(Entry(**data))

    def _write(self, data: Mapping[str, Any]) -> None:
        print(json.dumps(data), file=self._file, flush=True)

    def add(self, draft: Draft, backend: str, number: int, reply: Mapping[str, Any]) -> Entry:
        """Keep the outcome of a pair."""
        failed = reply["kind"] in FAILURES
        entry = Entry(
            seed=draft.seed,
            family=draft.family,
            backend=backend,
            number=number,
            kind=reply["kind"],
            detail=reply.get("detail", "")[: LONG if failed else SHORT],
            seconds=round(reply.get("seconds", 0.0), 3),
            draft=draft.to_json() if failed else None,
            config=reply.get("config") if failed else None,
        )
        with self._lock:
            self.entries.append(entry)
            self._write({key: value for key, value in asdict(entry).items() if value not in (None, "")})
        return entry

    def finish(self, seed: int) -> None:
        """Keep that all pairs of a kernel are done."""
        with self._lock:
            self.finished.add(seed)
            self._write({"finished": seed})

    def done(self) -> set[tuple[int, str, int]]:
        """Return the keys of all pairs that are kept."""
        with self._lock:
            return {entry.key for entry in self.entries}

    def failures(self) -> list[Entry]:
        """Return one failure for each kernel, backend and kind: results before refusals, other families first."""
        first: dict[tuple[int, str, str], Entry] = {}
        for entry in self.entries:
            if entry.is_failure:
                first.setdefault((entry.seed, entry.backend, entry.kind), entry)
        rank: collections.Counter[tuple[str, str]] = collections.Counter()
        ranked = []
        for entry in first.values():
            ranked.append(((entry.kind in ("uncompiled", "illegal"), rank[entry.family, entry.kind]), entry))
            rank[entry.family, entry.kind] += 1
        return [entry for _, entry in sorted(ranked, key=lambda each: each[0])]

    def pairs(self) -> int:
        """Return how many pairs ran to a verdict or a failure."""
        return sum(entry.number >= 0 for entry in self.entries)


def _reason(detail: str) -> str:
    """Return the first line of a detail without names and numbers, so that equal reasons are equal."""
    line = detail.splitlines()[0] if detail else ""
    return re.sub(r"'[^']*'|\d+", "_", line)[:110]


def _counted(entries: Iterable[Entry], kinds: list[str]) -> list[str]:
    table: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for entry in entries:
        table[entry.family, entry.backend][entry.kind] += 1
    head = f"{'family':<12}{'backend':<9}{'all':>7}" + "".join(f"{kind:>12}" for kind in kinds)
    rows = [
        f"{family:<12}{backend:<9}{sum(counts.values()):>7}" + "".join(f"{counts[kind] or '-':>12}" for kind in kinds)
        for (family, backend), counts in sorted(table.items())
    ]
    return [head, *rows]


def summary(journal: Journal, seconds: float) -> str:
    """Return what a run found, as text: counts by family, reasons of refusals, failures with their places."""
    counts = collections.Counter(entry.kind for entry in journal.entries)
    kinds = [kind for kind, _ in counts.most_common()]
    lines = [
        f"{journal.pairs()} pairs of {len({e.seed for e in journal.entries})} kernels, {seconds:.0f} s in this run"
    ]
    lines += [f"  {kind}: {counts[kind]}" for kind in kinds]
    lines += ["", *_counted(journal.entries, kinds)]
    for kind in kinds:
        if kind == "right":
            continue
        reasons = collections.Counter(
            (e.family, e.backend, _reason(e.detail)) for e in journal.entries if e.kind == kind
        )
        lines += ["", f"{kind}:"]
        lines += [
            f"  {count:>5}  {family} {backend}: {reason}"
            for (family, backend, reason), count in reasons.most_common(12)
        ]
    failures = journal.failures()
    if failures:
        lines += ["", "failures (one for each kernel, backend and kind):"]
        lines += [f"  {e.family}_{e.seed} {e.backend} config {e.number} {e.kind}: {e.detail[:200]!r}" for e in failures]
    return "\n".join(lines) + "\n"
