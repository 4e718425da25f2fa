"""A process that runs candidates, is killed when necessary, and started again."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ...autotuner.outcome import Status
from ...autotuner.pool.children import ATTEMPTS, Child, ForkServer, ProcessDied, Raised, ServerDied, TimedOut
from .device_lock import DeviceLock
from .session import Candidate, Session, Task, Trial, Turns, saved

#: Timeout in seconds for a process to load its arguments and create a context on the device.
_STARTING = 120.0


class Bench:
    """Bench in another process.

    ``seconds`` is the timeout to check and time a candidate, while ``lock`` is held. ``fork_server`` returns the running
    fork server; if one ends, the next runs the candidate.
    """

    def __init__(
        self, fork_server: Callable[[], ForkServer], task: Task, seconds: float, lock: DeviceLock | None = None
    ) -> None:
        self._fork_server = fork_server
        self._seconds = seconds
        self._lock = lock or DeviceLock()
        self._folder = tempfile.TemporaryDirectory(prefix="helion-tune-")
        self._path = saved(task, pathlib.Path(self._folder.name))
        self._starter = ThreadPoolExecutor(1)
        self._child: Future[Child] | None = self._starter.submit(self._forked)  # it starts while others compile

    def run(self, candidate: Candidate, best: float) -> Trial:
        try:
            trial: Trial = self._asked("run", candidate, best, seconds=self._seconds)
        except TimedOut as error:
            return Trial(status=Status.TIMED_OUT, detail=str(error))
        except (ProcessDied, Raised) as error:
            return Trial(status=Status.CRASHED, detail=str(error))
        return trial

    def turns(self, candidates: Sequence[Candidate], count: int) -> Turns:
        try:
            turns: Turns = self._asked("turns", candidates, count, seconds=self._seconds * (1 + len(candidates)))
        except (TimedOut, ProcessDied, Raised):
            return Turns()
        return turns

    def _asked(self, method: str, *arguments: object, seconds: float) -> Any:
        """Call a method of the process, and again if its fork server has ended."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(ServerDied):
                return self._answer(method, *arguments, seconds=seconds)
        return self._answer(method, *arguments, seconds=seconds)

    def _answer(self, method: str, *arguments: object, seconds: float) -> Any:
        """Call a method of the process, and kill the process if it does not answer or is unusable."""
        try:
            child = self._started()
            with self._lock.held():
                answer = child.call(method, *arguments, seconds=seconds)
        except BaseException:
            self._stop()
            raise
        if answer.fatal:
            self._stop()
        return answer

    def _forked(self) -> Child:
        return self._fork_server().child(Session.loaded, self._path)

    def _started(self) -> Child:
        if self._child is None:
            self._child = self._starter.submit(self._forked)
        child = self._child.result()
        child.ready(_STARTING)
        return child

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessDied):
                child.result().kill()

    def close(self) -> None:
        self._stop()
        self._starter.shutdown()
        self._folder.cleanup()


class DirectBench:
    """Bench in this process. It runs candidates while ``lock`` is held."""

    def __init__(self, task: Task, lock: DeviceLock | None = None) -> None:
        self._session = Session(task)
        self._lock = lock or DeviceLock()

    def run(self, candidate: Candidate, best: float) -> Trial:
        with self._lock.held():
            return self._session.run(candidate, best)

    def turns(self, candidates: Sequence[Candidate], count: int) -> Turns:
        with self._lock.held():
            return self._session.turns(candidates, count)

    def close(self) -> None:
        pass


AnyBench = Bench | DirectBench
