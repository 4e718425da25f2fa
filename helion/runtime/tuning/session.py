"""Candidate runs: in a process that may die, or in this one if nothing else is possible."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._support.nested import copy_tensors, map_nested
from ...autotuner.measure.accuracy import Tolerance, difference
from ...autotuner.measure.guarded import Guards, Inputs, poisoned
from ...autotuner.outcome import Status
from ...autotuner.pool.children import ForkServer, shared_fork_server
from ...backends import BACKENDS
from ...backends.execution import Resources
from ..generated import codecache
from .clocks import clock_of


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data that all candidates share.

    These are the arguments, the result of an eager run and the arguments after it (None: neither is checked). ``check``
    and ``benchmark`` are the user's own functions, if any, to compare results and to time functions.
    """

    name: str
    backend: str
    args: tuple[Any, ...]
    expected: Any
    changed: tuple[Any, ...] | None
    tolerance: Tolerance
    device: torch.device
    seed: int
    check: Callable[[Any, Any], Any] | None = None
    benchmark: Callable[..., Sequence[float]] | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A candidate: the module of one config, and its predicted microseconds."""

    text: str
    expected: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Outcome of a candidate. ``fatal``: nothing more can run in the process."""

    status: Status
    times: tuple[float, ...] = ()
    detail: str = ""
    fatal: bool = False

    @property
    def microseconds(self) -> float | None:
        return statistics.median(self.times) if self.times else None


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Rounds of several candidates: microseconds by their number, without those that failed. ``fatal`` as in ``Trial``."""

    rows: tuple[Mapping[int, float], ...] = ()
    fatal: bool = False


class Session:
    """Runner of candidates of one task, each on restored arguments."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._clock = clock_of(task.device, task.seed, task.benchmark)
        self._inputs = Inputs.copied(task.args)
        self._functions: dict[str, Callable[..., Any]] = {}

    @classmethod
    def loaded(cls, path: str) -> Session:
        """Load the session of a task that ``saved`` has written."""
        task: Task = torch.load(path, weights_only=False, map_location="cpu")
        expected, changed = map_nested(
            (task.expected, task.changed), torch.Tensor, lambda tensor: tensor.to(task.device)
        )
        return cls(replace(task, args=copy_tensors(task.args, task.device), expected=expected, changed=changed))

    def run(self, candidate: Candidate, best: float) -> Trial:
        """Check a candidate's results, then time it."""
        try:
            function = self._loaded(candidate.text)
            wrong = self._checked(function)
            if wrong:
                return Trial(status=Status.INACCURATE, detail=wrong, fatal=not self._is_sound())
            return self._timed(function, candidate, best)
        except Exception as error:  # whatever generated code, its compiler or its driver raise
            detail = f"{type(error).__name__}: {str(error).strip()[:500]}"
            status = Status.NO_MEMORY if isinstance(error, torch.OutOfMemoryError) else Status.FAILED
            return Trial(status=status, detail=detail, fatal=not self._is_sound())

    def turns(self, candidates: Sequence[Candidate], count: int) -> Turns:
        """Time candidates that were checked before, in rounds."""
        self._inputs.restore()
        working = {at: function for at, each in enumerate(candidates) if (function := self._working(each)) is not None}
        functions = [(function, candidates[at].expected) for at, function in working.items()]
        try:
            rows = self._clock.rounds(functions, count) if functions else []
            return Turns(rows=tuple(dict(zip(working, row, strict=True)) for row in rows), fatal=not self._is_sound())
        except Exception:  # as in ``run``; the failing candidate is unknown
            return Turns(fatal=not self._is_sound())

    def _working(self, candidate: Candidate) -> Callable[[], Any] | None:
        """Return the call of a candidate; None if it fails."""
        try:
            function = functools.partial(self._loaded(candidate.text), *self._inputs.args)
            function()
            self._clock.wait()
        except Exception:  # as in ``run``
            return None
        return function

    def _timed(self, function: Callable[..., Any], candidate: Candidate, best: float) -> Trial:
        self._inputs.restore()
        times = self._clock.time(functools.partial(function, *self._inputs.args), candidate.expected, best)
        return Trial(status=Status.OK, times=tuple(times))

    def _checked(self, function: Callable[..., Any]) -> str:
        """Describe what is wrong with a candidate's results; "" if they are right."""
        self._inputs.restore()
        guards = Guards()
        with same_random_numbers(self._task.device, self._task.seed), poisoned(guards):
            result = function(*self._inputs.args)
        self._clock.wait()
        if guards.broken() or self._inputs.guards.broken():
            return "writes outside of the memory of a tensor"
        task = self._task
        if task.changed is None:
            return ""
        if task.check is not None:
            return _refused(task.check, result, task.expected)
        return difference(result, task.expected, task.tolerance, task.args) or _prefixed(
            "argument: ", difference(self._inputs.args, task.changed, task.tolerance, sources=task.args)
        )

    def _loaded(self, text: str) -> Callable[..., Any]:
        if text not in self._functions:
            prepare = BACKENDS[self._task.backend].executor.prepare
            self._functions[text] = getattr(codecache.load(text, self._task.name, prepare), self._task.name)
        return self._functions[text]

    def _is_sound(self) -> bool:
        """Return whether the device still answers, and no guard memory was overwritten."""
        try:
            self._clock.wait()
            return not self._inputs.guards.broken()
        except RuntimeError:
            return False


@contextlib.contextmanager
def kept_random_numbers(device: torch.device) -> Iterator[None]:
    """Restore torch's random number generators after the body."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def same_random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """Make torch draw the same random numbers each time in the body, so that random results can be compared."""
    with kept_random_numbers(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


def _refused(check: Callable[[Any, Any], Any], result: Any, expected: Any) -> str:
    """Return the error of the user's own comparison; "" if it accepts the result."""
    try:
        check(result, expected)
    except AssertionError as error:
        return f"is refused by autotune_baseline_accuracy_check_fn: {str(error).strip()[:300]}"
    return ""


def _prefixed(prefix: str, text: str) -> str:
    return prefix + text if text else ""


def saved(task: Task, folder: pathlib.Path) -> str:
    """Write a task to a file, its tensors on the host. Raises errors of pickling its arguments."""
    path = str(folder / "task.pt")
    torch.save(task, path)
    return path


@dataclass(frozen=True, kw_only=True)
class OfflineJob:
    """Compilation of one config's module for its target, without a GPU; a launch finds the binary on disk."""

    name: str
    backend: str
    text: str
    plan: Any
    target: Any

    def run(self) -> Resources:
        """Compile the module and return its resources. Raises the compiler's errors."""
        return self.run_within(None)

    def run_within(self, seconds: float | None) -> Resources:
        """Run without counting opcodes, and end the assembler after ``seconds``; None sets no limit."""
        backend = BACKENDS[self.backend]
        module: types.ModuleType = codecache.load(self.text, self.name, backend.executor.prepare)
        return backend.toolchain.resources(vars(module), self.plan, self.target, count_opcodes=False, seconds=seconds)


def prepare(backend: str, target: Any) -> None:
    """Prepare the toolchain in a fork server before it forks."""
    BACKENDS[backend].toolchain.prepare(target)


def fork_server_of(backend: str, target: Any) -> ForkServer:
    """Return the fork server for candidates of a backend and a target; it starts on the first request."""
    return shared_fork_server(NEEDED, prepare, backend, target)


#: Objects whose modules a fork server imports in advance.
NEEDED: tuple[Callable[..., Any], ...] = (Session, OfflineJob, difference)
