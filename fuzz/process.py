"""A worker process as its parent sees it: requests, timeouts, kills and restarts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Seconds that a worker has to write its stack before it is killed, and lines of it that are kept.
STACK_SECONDS, STACK_LINES = 1.0, 12
#: Characters of what a process wrote last that are kept when it ends.
LOG_CHARACTERS = 1500
#: Seconds that a killed process has to end.
GONE_SECONDS = 20.0


#: Names of functions in a stack that belong to a compiler, not to a kernel that runs.
_COMPILING = ("compiler.py", "make_cubin", "subprocess.py", "cutlass")


class Lost(Exception):
    """Error of a process that did not answer.

    ``kind`` is ``died``, ``hung``, or ``slow`` while it compiles. The text gives its exit status or its stack.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


class Process:
    """A worker that is started when it is first asked, and again after it was lost.

    ``command`` runs it; its files and its log are in ``work``; ``environment`` is all that it sees.
    """

    def __init__(self, command: Sequence[str], work: Path, environment: Mapping[str, str]) -> None:
        self.command, self.work, self.environment = command, work, environment
        self.child: subprocess.Popen[bytes] | None = None
        self._unread = b""

    @property
    def _log(self) -> Path:
        return self.work / f"log-{id(self):x}"

    def _start(self) -> subprocess.Popen[bytes]:
        self.work.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=self.environment,
                start_new_session=True,
            )

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply to ``request``. Raises ``Lost`` if none came within ``seconds``, or the process ended."""
        if self.child is None or self.child.poll() is not None:
            self.close()
            self.child, self._unread = self._start(), b""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps(request).encode() + b"\n")
            self.child.stdin.flush()
            reply: dict[str, Any] = json.loads(self._line(self.child, time.monotonic() + seconds))
        except BrokenPipeError:
            raise self._lost("died") from None
        if reply.get("kind") == "crashed":  # nothing can run in it any more
            self.close()
        return reply

    def _line(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Return the next line that is a reply: what a worker runs under may print its own."""
        assert child.stdout is not None
        while True:
            line, end, rest = self._unread.partition(b"\n")
            if end:
                self._unread = rest
                if line.startswith(b"{"):
                    return line
                continue
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._lost("hung")
            read = os.read(child.stdout.fileno(), 1 << 16)
            if not read:
                raise self._lost("died")
            self._unread += read

    def _lost(self, kind: str) -> Lost:
        child = self.child
        assert child is not None
        if kind == "died":
            code = child.wait()
            self.close()
            ending = signal.Signals(-code).name if code < 0 else f"status {code}"
            said = self._log.read_text(errors="replace")[-LOG_CHARACTERS:].strip()
            return Lost(kind, f"the process ended with {ending}{f': {said}' if said else ''}")
        stack = self.work / f"worker-{child.pid}" / "stack"
        detail = "no answer"
        if stack.exists():
            child.send_signal(signal.SIGUSR1)
            time.sleep(STACK_SECONDS)
            frames = [line.strip() for line in stack.read_text().splitlines() if line.startswith("  File")]
            detail = "; ".join(frames[:STACK_LINES]) or detail
        self.close()
        return Lost("slow" if any(part in detail for part in _COMPILING) else "hung", f"no end in sight: {detail}")

    def finish(self, seconds: float = 30.0) -> None:
        """Close the input of the process so that it ends by itself, and tools that wrap it can report."""
        if self.child is not None and self.child.stdin is not None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self.child.stdin.close()
                self.child.wait(seconds)
        self.close()

    def close(self) -> None:
        """Kill the process and what it started."""
        if self.child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # nothing waits for a driver that is slow to end a kernel
            self.child.wait(GONE_SECONDS)
        for stream in (self.child.stdin, self.child.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.child = None


def environment_of(work: Path) -> dict[str, str]:
    """Return the environment of workers: no settings of helion, programs verified, caches in ``work``, one thread each."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELION_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "HELION_VERIFY": "1",
        "HELION_CACHE_DIR": str(work / "helion"),
        "TRITON_CACHE_DIR": str(work / "triton"),
        "PYTHONWARNINGS": "ignore",
    }


def worker_command(device: str, work: Path) -> tuple[str, ...]:
    """Return the command that runs a worker."""
    return (sys.executable, "-m", "fuzz.worker", "--device", device, "--work", str(work))
