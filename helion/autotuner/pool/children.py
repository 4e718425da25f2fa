"""A fork server and its child processes, as their user sees them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..._support.locks import in_forked_process, new_lock
from . import frames

#: Timeout in seconds for a fork server to import its modules.
_STARTING = 120.0
_KILLING = 10.0
#: Number of fork servers that may end with one piece of work.
ATTEMPTS = 3
#: The folder of our package, and the command that starts a fork server from there.
_ROOT = os.path.dirname(os.path.abspath(__file__)).removesuffix(os.path.join(*__package__.split(".")))
_START = (
    f"import sys; sys.path.insert(0, sys.argv[1]); from {__package__}.fork_server import main; main(int(sys.argv[2]))"
)


class ProcessDied(Exception):
    """Error of a process that ended during a call: it crashed, or was killed."""


class ServerDied(ProcessDied):
    """Error of a fork server that ended, and its processes with it. Their work may be tried again by another."""


class TimedOut(Exception):
    """Error of a process that did not answer in time, and was killed."""


class Raised(Exception):
    """An error that the child's work raised: ``kind`` is the name of the class, ``text`` the class and message."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class ForkServer:
    """Fork server: a process that has imported the modules of ``needed`` and run ``prepare(*arguments)``.

    Other processes are forked from it. None of them outlives this process, or ``close``. Keyboard interrupts reach none of them.
    """

    def __init__(
        self,
        needed: Sequence[Callable[..., Any]] = (),
        prepare: Callable[..., object] | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:
        ours, theirs = socket.socketpair()
        self._control = ours
        self._lock = new_lock()
        self._imported = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, _ROOT, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # compilers print what they dislike; what matters comes back as an answer
                start_new_session=True,
            )
        self._finalizer = weakref.finalize(self, _end, self._control, self._process)
        with contextlib.suppress(frames.Closed):  # the first request to fork says so
            frames.send(self._control, _paths())
            frames.send(self._control, (tuple(needed), prepare, arguments))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._finalizer.alive and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Return whether the imports are done; forking waits for that."""
        with self._lock, contextlib.suppress(OSError, frames.Closed):
            if self._imported or select.select([self._control], [], [], 0)[0]:
                self._await_imports()
        return self._imported

    def leave(self) -> None:
        """Close the ends of a fork server that another process has started."""
        self._finalizer.detach()
        self._control.close()

    def _await_imports(self) -> None:
        if not self._imported:
            frames.receive(self._control, _STARTING)
            self._imported = True

    def child(self, factory: Callable[..., Any], *arguments: Any, megabytes: int = 0) -> Child:
        """Fork a process that makes ``factory(*arguments)``, with at most ``megabytes`` of its own memory, 0 for any.

        Raises ``ServerDied`` if the fork server is gone, and ``ProcessDied`` if the new process is.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                self._await_imports()
                socket.send_fds(self._control, [f"fork {megabytes}".encode()], [theirs.fileno()])
                pid = frames.receive(self._control, _STARTING)
            except (OSError, frames.Closed, frames.Late) as error:
                ours.close()
                self.close()
                raise ServerDied(f"the fork server has ended: {error}") from error
        child = Child(self, pid, ours)
        child.start(factory, arguments)
        return child

    def kill(self, pid: int) -> bool:
        """Kill a child if it still runs; return False if the fork server is gone, and its children with it."""
        with self._lock:
            try:
                self._control.sendall(f"kill {pid}".encode())
                frames.receive(self._control, _KILLING)
            except (OSError, frames.Closed, frames.Late):  # a late answer would be taken for the next request's
                self.close()
                return False
        return True

    def close(self) -> None:
        """End all processes; may be called again."""
        self._finalizer()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SHARED: dict[tuple[Any, ...], ForkServer] = {}
_SHARED_LOCK = new_lock()


def shared_fork_server(
    needed: tuple[Callable[..., Any], ...], prepare: Callable[..., object] | None = None, *arguments: Any
) -> ForkServer:
    """Return the fork server of this process for these arguments, so that its imports are done only once.

    It ends with the process, and is replaced if it was killed.
    """
    with _SHARED_LOCK:
        key = (*needed, prepare, *arguments)
        found = _SHARED.get(key)
        if found is None or not found.is_alive:
            found = _SHARED[key] = ForkServer(needed, prepare, arguments)
        return found


def _leave_to_parent() -> None:
    """Close a forked process's ends of the sockets of fork servers, which end with the process that started them."""
    for fork_server in _SHARED.values():
        fork_server.leave()
    _SHARED.clear()


in_forked_process(_leave_to_parent)


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    try:
        process.wait(_KILLING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _paths() -> list[str]:
    return [os.path.abspath(path) for path in sys.path]


class Child:
    """One forked process. Its methods are run by ``call``, or by ``post`` and ``collect``."""

    def __init__(self, fork_server: ForkServer, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._fork_server = fork_server
        self._channel = channel
        self._made = False
        self._failure: Raised | None = None

    def fileno(self) -> int:
        """Return the descriptor for ``select``, readable when there is something to collect."""
        return self._channel.fileno()

    def start(self, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Request the child's object. Raises ``ProcessDied``."""
        self._request(None, factory, arguments)

    def post(self, name: str, *arguments: Any) -> None:
        """Request a method of the child's object. Raises ``ProcessDied``."""
        self._request(name, None, arguments)

    def _request(self, *request: Any) -> None:
        try:
            frames.send(self._channel, request)
        except frames.Closed as error:
            raise self._died() from error

    def has_answer(self) -> bool:
        """Return whether ``collect`` returns or raises at once. The report that the object is made is no answer."""
        try:
            while not self._made and select.select([self._channel], [], [], 0)[0]:
                self._make(None)
        except Raised as error:
            self._failure = error
            return True
        except frames.Closed:
            return True
        return bool(select.select([self._channel], [], [], 0)[0])

    def collect(self, seconds: float | None = None) -> Any:
        """Return the answer. Raises ``Raised``, ``ProcessDied``, and ``TimedOut`` after ``seconds``, with the process killed."""
        if self._failure is not None:
            raise self._failure
        try:
            self._make(seconds)
            return self._answer(seconds)
        except frames.Late as error:
            self.kill()
            raise TimedOut(f"no answer within {seconds:.0f} s") from error
        except frames.Closed as error:
            raise self._died() from error

    def ready(self, seconds: float) -> None:
        """Wait until the child's object is made; raises the errors of ``collect``."""
        try:
            self._make(seconds)
        except frames.Late as error:
            self.kill()
            raise TimedOut(f"not ready within {seconds:.0f} s") from error
        except frames.Closed as error:
            raise self._died() from error

    def _make(self, seconds: float | None) -> None:
        if not self._made:
            self._answer(seconds)
            self._made = True

    def call(self, name: str, *arguments: Any, seconds: float | None = None) -> Any:
        self.post(name, *arguments)
        return self.collect(seconds)

    def _answer(self, seconds: float | None) -> Any:
        worked, answer = frames.receive(self._channel, seconds)
        if not worked:
            raise Raised(*answer)
        return answer

    def leave(self) -> None:
        """Let the process end by itself, without waiting for it."""
        self._channel.close()

    def kill(self) -> bool:
        """Kill the process; return False if the fork server is gone."""
        self._channel.close()
        return self._fork_server.kill(self.pid)

    def _died(self) -> ProcessDied:
        if self.kill():
            return ProcessDied("the process crashed, or was killed")
        return ServerDied("the fork server has ended, and the process with it")
