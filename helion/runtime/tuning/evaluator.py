"""Evaluation of configs of a bound kernel: several processes precompile them, and they run one at a time."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence

from ... import exc
from ...autotuner.outcome import Outcome, Status
from ...autotuner.pool.compiling import Built, CompilePool
from ...autotuner.pool.threads import ThreadPool
from ...backends.execution import Resources
from ...config import Config
from ..specialization.specialized import Specialized
from .bench import AnyBench
from .device_lock import DeviceLock
from .session import Candidate, OfflineJob


def job_of(of: Specialized, config: Config) -> OfflineJob:
    """Return the job that compiles a config for its target. Raises ``exc.Base`` if no code can be generated."""
    code = of.analysis.code(config)
    return OfflineJob(
        name=of.kernel.name, backend=of.analysis.backend.name, text=code.text, plan=code.plan, target=of.target
    )


class Evaluator:
    """Evaluator of configs.

    ``pool`` is None if nothing is precompiled: each config is then compiled when it runs. A ``ThreadPool`` stays open when
    this is closed. ``lock`` is the one under which ``bench`` runs candidates. ``brief``: each runs a few times only.
    """

    def __init__(
        self,
        of: Specialized,
        bench: AnyBench,
        pool: CompilePool | ThreadPool | None,
        workers: int,
        lock: DeviceLock,
        *,
        brief: bool = False,
    ) -> None:
        self.capacity = 1 if pool is None else 2 * workers
        self._of = of
        self._bench = bench
        self._pool = pool
        self._lock = lock
        self._order: deque[Config] = deque()
        self._compiled: deque[tuple[Config, float]] = deque()
        self._done: dict[Config, Outcome] = {}
        self._best = 0.0 if brief else float("inf")  # a config far from the best runs a few times

    @property
    def waited(self) -> float:
        return self._lock.waited

    def start(self, config: Config) -> None:
        self._order.append(config)
        try:
            job = job_of(self._of, config)
        except exc.Base as error:
            self._fail(config, Status.FAILED, str(error))
            return
        if self._pool is None:
            self._compiled.append((config, 0.0))
        else:
            self._pool.submit(config, job)

    def finish(self) -> Outcome:
        head = self._order.popleft()
        while head not in self._done:
            if self._pool is not None:
                for built in self._pool.poll(0.0 if self._compiled else 1.0):
                    self._take(built)
            if self._compiled:
                self._run(*self._compiled.popleft())
        return self._done.pop(head)

    def rounds(self, configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        turns = self._bench.turns([self._candidate(config) for config in configs], count)
        return [{configs[at]: time for at, time in row.items()} for row in turns.rows]

    def close(self) -> None:
        if isinstance(self._pool, CompilePool):
            self._pool.close()
        self._bench.close()

    def _take(self, built: Built) -> None:
        config = built.key
        assert isinstance(config, Config)
        if built.failure:
            status = Status.TIMED_OUT if built.timed_out else Status.CRASHED if built.crashed else Status.FAILED
            self._fail(config, status, built.failure, built.seconds)
        elif isinstance(built.answer, Resources) and built.answer.overflow:
            self._fail(config, Status.FAILED, "; ".join(built.answer.overflow), built.seconds)
        else:
            self._compiled.append((config, built.seconds))

    def _fail(self, config: Config, status: Status, detail: str, seconds: float | None = None) -> None:
        self._done[config] = Outcome(config=config, status=status, detail=detail[:500], compile_seconds=seconds)

    def _run(self, config: Config, compile_seconds: float) -> None:
        began, waited = time.perf_counter(), self.waited
        if self._pool is None and self._lock.is_shared:
            # others measure meanwhile; errors are reported when it runs
            with contextlib.suppress(Exception):
                job_of(self._of, config).run()
        trial = self._bench.run(self._candidate(config), self._best)
        taken = time.perf_counter() - began - (self.waited - waited)
        seconds = compile_seconds if self._pool is not None else taken
        self._best = min(self._best, trial.microseconds or self._best)
        self._done[config] = Outcome(
            config=config,
            status=trial.status,
            microseconds=trial.microseconds,
            compile_seconds=seconds,
            detail=trial.detail,
        )

    def _candidate(self, config: Config) -> Candidate:
        analysis = self._of.analysis
        return Candidate(text=analysis.code(config).text, expected=max(analysis.predict(config).time_us, 1e-3))
