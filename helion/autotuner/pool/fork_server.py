"""The fork server's process: it has imported what its children need, and runs none of their work.

It has a socket to the process that started it, for requests to fork, each with the socket of the new process, and to
kill. It ends, and its children with it, when the other end is closed, even by kill -9. A forked process has its modules
at once, where a new interpreter takes seconds. It must be forked from a process without threads and CUDA context, which
the user's process has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import Any

from . import frames

#: prctl's PR_SET_PDEATHSIG: the signal that a process gets when its parent dies.
_PARENT_DEATH_SIGNAL = 1
#: Score that the kernel's out-of-memory killer takes first.
_EXPENDABLE = "1000"


def main(descriptor: int) -> None:
    """Serve requests on a socket until its other end is closed."""
    control = socket.socket(fileno=descriptor)
    sys.path[:] = frames.receive(control)
    _, prepare, arguments = frames.receive(control)  # unpickling functions imports their modules
    if prepare is not None:
        with contextlib.suppress(Exception):  # errors are reported by the work that needs it
            prepare(*arguments)
    frames.send(control, None)
    children: set[int] = set()
    while True:
        ready = select.select([control], [], [], 0.2)[0]
        _reap(children)
        if ready and not _serve(control, children):
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _serve(control: socket.socket, children: set[int]) -> bool:
    """Serve the next request; return False if the other end is closed."""
    try:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        word, _, argument = request.decode().partition(" ")
        if word == "fork":
            pid = _forked(control, descriptors[0], int(argument))
            children.add(pid)
            frames.send(control, pid)
        elif word == "kill":
            if int(argument) in children:  # not reaped, so the number is still its own
                os.kill(int(argument), signal.SIGKILL)
                os.waitpid(int(argument), 0)
                children.discard(int(argument))
            frames.send(control, None)
    except (OSError, frames.Closed):
        return False
    return bool(request)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            children.discard(pid)


def _forked(control: socket.socket, descriptor: int, megabytes: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    control.close()
    with contextlib.suppress(BaseException):
        _prepare(parent, megabytes)
        _work(socket.socket(fileno=descriptor))
    os._exit(0)  # neither handlers at exit nor buffers of the fork server are this process's


def _prepare(parent: int, megabytes: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(_EXPENDABLE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if megabytes:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))


def _work(requests: socket.socket) -> None:
    """Answer calls until the other end is closed.

    ``(None, factory, arguments)`` makes the object whose methods ``(name, None, arguments)`` calls.
    """
    subject: Any = None
    while True:
        try:
            name, factory, arguments = frames.receive(requests)
        except frames.Closed:
            return
        try:
            if factory is not None:
                subject, answer = factory(*arguments), None
            else:
                answer = getattr(subject, name)(*arguments)
            frames.send(requests, (True, answer))
        except frames.Closed:
            return
        except BaseException as error:
            lines = traceback.format_exception_only(error)
            frames.send(requests, (False, (type(error).__name__, "".join(lines).strip())))
