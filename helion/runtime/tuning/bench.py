"""Runs candidates in a process that is killed when it has to be, and started again."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable

from ...autotuner.outcome import Status
from ...autotuner.pool.children import Child, Died, Nursery, Raised, TimedOut
from .session import Candidate, Session, Task, Trial, saved

#: Seconds in which a process has its arguments and a context on the device.
_STARTING = 120.0


class Bench:
    """``seconds`` may pass until a candidate is checked and timed. ``nursery`` gives the one that lives."""

    def __init__(self, nursery: Callable[[], Nursery], task: Task, seconds: float) -> None:
        self._nursery = nursery
        self._seconds = seconds
        self._folder = tempfile.TemporaryDirectory(prefix="helion-tune-")
        self._path = saved(task, pathlib.Path(self._folder.name))
        self._child: Child | None = None

    def run(self, candidate: Candidate, best: float) -> Trial:
        return self._asked("run", candidate, best)

    def again(self, candidate: Candidate) -> Trial:
        return self._asked("again", candidate)

    def _asked(self, method: str, *arguments: object) -> Trial:
        try:
            child = self._started()
            trial: Trial = child.call(method, *arguments, seconds=self._seconds)
        except TimedOut as error:
            self._stop()
            return Trial(status=Status.TIMED_OUT, detail=str(error))
        except (Died, Raised) as error:
            self._stop()
            return Trial(status=Status.CRASHED, detail=str(error))
        if trial.fatal:
            self._stop()
        return trial

    def _started(self) -> Child:
        if self._child is None:
            self._child = self._nursery().child(Session.loaded, self._path)
            self._child.ready(_STARTING)
        return self._child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()


class DirectBench:
    """Runs candidates in this process."""

    def __init__(self, task: Task) -> None:
        self._session = Session(task)

    def run(self, candidate: Candidate, best: float) -> Trial:
        return self._session.run(candidate, best)

    def again(self, candidate: Candidate) -> Trial:
        return self._session.again(candidate)

    def close(self) -> None:
        pass


AnyBench = Bench | DirectBench
