"""Processes that compile side by side and take the GPU in turn, so that each has it to itself and none waits for
compilers.

A child calls ``turn`` around its work on the GPU, once or more often, and prints lines of JSON. The parent ends a child
that has had the GPU for too long, and the others go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

LOCK = "GPU_TURN_FILE"
"""The environment variable that names the locked file."""
_BEGINS, _WAITS, _ENDS = "gpu turn begins", "waits for the gpu", "gpu turn ends"


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait for the GPU, and hold it. Without a parent, return at once."""
    path = os.environ.get(LOCK)
    if path is None:
        yield
        return
    print(json.dumps(_WAITS), flush=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print(json.dumps(_BEGINS), flush=True)
        yield
    print(json.dumps(_ENDS), flush=True)


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    unread: bytes = b""
    waits: bool = False
    since: float | None = None
    """The time of its last line from its turn on."""


def in_turn(
    jobs: Mapping[str, Sequence[str]],
    *,
    at_once: int,
    turn_seconds: float,
    seconds: float,
    together_seconds: float = 0.0,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run commands by name, and yield their lines. The line of one that failed has the key ``why``.

    ``turn_seconds`` pass between two lines of a child that holds the GPU at most, and all have ended after ``seconds``.
    Turns begin when all children wait for one, or after ``together_seconds``: what they launch before disturbs none then.
    """
    waiting, running, start = [*jobs], dict[str, _Child](), time.monotonic()
    end = start + seconds
    with tempfile.NamedTemporaryFile() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    name = waiting.pop(0)
                    running[name] = _start(jobs[name], lock.name)
                select.select([each.process.stdout for each in running.values()], [], [], 0.25)
                now = time.monotonic()
                if now > start + together_seconds or (not waiting and all(each.waits for each in running.values())):
                    fcntl.flock(lock, fcntl.LOCK_UN)
                for name, child in [*running.items()]:
                    over = child.process.poll() is not None
                    yield from ((name, line) for line in _lines(child, now))
                    late = child.since is not None and now - child.since > turn_seconds
                    if over or late or now > end:
                        del running[name]
                        if why := _ended(
                            child, f"no line for {turn_seconds:g} s of its turn" if late else "no time left"
                        ):
                            yield name, {"why": why}
                if now > end:
                    yield from ((name, {"why": "no time left"}) for name in waiting)
                    waiting = []
        finally:
            for child in running.values():
                _ended(child, "")


def _start(command: Sequence[str], lock: str) -> _Child:
    errors = tempfile.TemporaryFile()  # noqa: SIM115, which the child and its end share
    environment = {**os.environ, LOCK: lock, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return _Child(process, errors)


def _lines(child: _Child, now: float) -> Iterator[dict[str, Any]]:
    assert child.process.stdout is not None
    child.unread += child.process.stdout.read() or b""
    *whole, child.unread = child.unread.split(b"\n")
    for text in whole:
        begins, waits, ends = (text == json.dumps(each).encode() for each in (_BEGINS, _WAITS, _ENDS))
        child.waits |= waits
        if begins or child.since is not None:
            child.since = None if ends else now
        if row := _row(text):
            yield row


def _row(text: bytes) -> dict[str, Any] | None:
    """Return the row of a line. Libraries print as well, also lines that begin like a row: None."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ended(child: _Child, why: str) -> str:
    """End a child that runs, with its group. Return ``why`` for it, and for one that failed the end of its errors."""
    code = child.process.poll()
    if code is None:
        os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
    child.errors.seek(0)
    said = child.errors.read()[-600:].decode(errors="replace")
    return why if code is None else f"exit status {code}: {said}" if code else ""
