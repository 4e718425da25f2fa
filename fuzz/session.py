"""A run: threads that each drive one worker process through kernels, then through the shrinking of what failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from . import families
from .cases import Draft
from .journal import Entry, Journal
from .process import Lost, Process, environment_of, worker_command
from .shrink import Failure, Shrinker

#: Seconds after which a pair, the loading of a kernel, or a pair that is being shrunk counts as hung.
PAIR_SECONDS, OPEN_SECONDS, TRIAL_SECONDS = 40.0, 90.0, 20.0
#: Number of pairs of a kernel that may kill or hang their process before it is skipped. So one bug does not stop the
#: run.
MOST_LOST = 3
#: Number of kernels that fail to load, with no pair that ran, after which a run ends: its workers are broken.
MOST_UNOPENED = 6
#: Number of failures that are shrunk, and the maximum of seconds for each.
MOST_SHRUNK, SHRINK_SECONDS = 28, 60.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run.

    Attributes:
        device: ``cuda`` or ``cpu``, which has small sizes.
        workers: processes.
        configs: random configs of each kernel.
        first: seed of the first kernel; others count up from it.
        pairs: how many pairs end the run, None for no such end.
        only: names of families, empty for all.
        work: folder for files of kernels and caches.
    """

    device: str
    workers: int
    configs: int
    first: int
    pairs: int | None
    only: tuple[str, ...]
    work: Path

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that numbers of kernels and configs in a journal depend on."""
        return {"small": self.device == "cpu", "configs": self.configs, "first": self.first, "only": list(self.only)}


class Asked(Protocol):
    """Protocol of a worker process, which answers requests or raises ``Lost``."""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]: ...

    def close(self) -> None: ...


def worker(options: Options) -> Process:
    """Return a process that runs pairs of these options."""
    return Process(worker_command(options.device, options.work), options.work, environment_of(options.work))


@dataclass
class Session:
    """Workers, made by ``start``, and the journal that they fill."""

    options: Options
    journal: Journal
    start: Callable[[Options], Asked] | None = None
    pair_seconds: float = PAIR_SECONDS
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        start = self.start or worker
        self._processes = [start(self.options) for _ in range(self.options.workers)]
        self._lock = threading.Lock()
        self._unopened = 0

    def close(self) -> None:
        """Kill all workers."""
        for process in self._processes:
            process.close()

    def _spread(self, jobs: Iterator[Any], run: Callable[[Asked, Any], None], deadline: float) -> None:
        """Let every worker take jobs until there are none, or until the deadline."""
        errors: list[BaseException] = []

        def drive(process: Process) -> None:
            try:
                while time.monotonic() < deadline and not errors:
                    with self._lock:
                        job = next(jobs, None)
                    if job is None:
                        return
                    run(process, job)
            except BaseException as error:  # shown by the thread that waits
                errors.append(error)

        threads = [threading.Thread(target=drive, args=(process,), daemon=True) for process in self._processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    # --- pairs -------------------------------------------------------------------------------------------------------

    def fuzz(self, deadline: float) -> None:
        """Run kernels under configs until the deadline (``time.monotonic``) or the number of pairs."""
        self._done = self.journal.done()

        def seeds() -> Iterator[int]:
            seed = self.options.first
            while not self._enough():
                if seed not in self.journal.finished:
                    yield seed
                seed += 1

        self._spread(seeds(), lambda process, seed: self._kernel(process, seed, deadline), deadline)

    def _enough(self) -> bool:
        return self.options.pairs is not None and self.journal.pairs() >= self.options.pairs

    def _kernel(self, process: Asked, seed: int, deadline: float) -> None:
        draft = families.draw(seed, self.options.device == "cpu", self.options.only)
        try:
            reply = process.ask({"do": "open", "draft": draft.to_json(), "count": self.options.configs}, OPEN_SECONDS)
        except Lost as lost:
            self._unopened += 1
            if self._unopened >= MOST_UNOPENED and not self.journal.pairs():
                raise RuntimeError(f"no worker can load a kernel: {lost.detail}") from lost
            self._keep(draft, "triton", -1, {"kind": lost.kind, "detail": f"while binding: {lost.detail}"})
            self.journal.finish(seed)
            return
        lost_pairs = 0
        for backend, found in reply["backends"].items():
            if "configs" not in found:
                self._keep(draft, backend, -1, found)
                continue
            for number, config in enumerate(found["configs"]):
                if (seed, backend, number) in self._done:
                    continue
                if lost_pairs == MOST_LOST:
                    break
                if time.monotonic() > deadline or self._enough():
                    return
                outcome = self._pair(process, draft, backend, config, self.pair_seconds)
                lost_pairs += outcome["kind"] in ("died", "hung", "slow", "crashed")
                self._keep(draft, backend, number, outcome)
        self.journal.finish(seed)

    def _pair(
        self, process: Asked, draft: Draft, backend: str, config: Mapping[str, Any], seconds: float, fit: bool = False
    ) -> dict[str, Any]:
        request = {"do": "run", "draft": draft.to_json(), "backend": backend, "config": dict(config), "fit": fit}
        begin = time.monotonic()
        try:
            return process.ask(request, seconds)
        except Lost as lost:
            taken = time.monotonic() - begin
            return {"kind": lost.kind, "detail": lost.detail, "config": dict(config), "seconds": taken}

    def _keep(self, draft: Draft, backend: str, number: int, reply: Mapping[str, Any]) -> None:
        if (draft.seed, backend, number) in self._done:
            return
        entry = self.journal.add(draft, backend, number, reply)
        if entry.is_failure:
            self.say(f"{entry.kind}: {draft.name} {backend} config {number}: {entry.detail[:200]}")

    # --- shrinking ---------------------------------------------------------------------------------------------------

    def shrink(self, deadline: float) -> list[Failure]:
        """Return the failures of the journal made small, as far as time allows, each small kernel once."""
        failures: list[Failure] = []

        def one(process: Asked, entry: Entry) -> None:
            found = self._shrunk(process, entry, min(deadline, time.monotonic() + SHRINK_SECONDS))
            with self._lock:
                failures.append(found)

        entries = [entry for entry in self.journal.failures() if entry.number >= 0]
        self._spread(iter(entries[:MOST_SHRUNK]), one, deadline)
        done = {found.draft.seed for found in failures}
        left = [_failure(entry) for entry in entries if entry.seed not in done]
        return [*unique(failures), *left]

    def _shrunk(self, process: Asked, entry: Entry, deadline: float) -> Failure:
        failure = _failure(entry)

        def trial(draft: Draft, backend: str, config: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
            reply = self._pair(
                process, draft, backend, config, min(TRIAL_SECONDS, self.pair_seconds, _until(deadline)), fit=True
            )
            return reply["kind"], reply.get("detail", ""), reply["config"]

        try:
            reply = process.ask({"do": "open", "draft": failure.draft.to_json(), "count": 0}, _until(deadline))
        except Lost:
            return failure
        configs = reply["backends"].get(failure.backend, {}).get("configs", [])
        return Shrinker(failure, trial, deadline).run(configs[0] if configs else {})


def _until(deadline: float) -> float:
    """Return the seconds from now to a deadline, at least one."""
    return max(1.0, deadline - time.monotonic())


def _failure(entry: Entry) -> Failure:
    assert entry.draft is not None
    return Failure(
        draft=Draft.from_json(entry.draft),
        backend=entry.backend,
        config=entry.config or {},
        kind=entry.kind,
        detail=entry.detail,
    )


def unique(failures: Sequence[Failure]) -> list[Failure]:
    """Return one failure of each kernel, whatever seed it came from."""
    found: dict[str, Failure] = {}
    for failure in failures:
        draft = failure.draft
        what = repr((draft.family, sorted(draft.options.items()), draft.steps, failure.backend, failure.kind))
        found.setdefault(what, failure)
    return list(found.values())
