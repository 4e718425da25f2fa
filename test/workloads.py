"""Work for processes that may die (helion.autotuner.pool); found by name, so it stands in a module of its own."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """A job that does what ``what`` says."""

    what: str

    def run(self) -> str:
        match self.what:
            case "raise":
                raise ValueError("no such thing")
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(1000)
            case "exhaust":
                held = []
                while True:
                    held.append(bytearray(64 << 20))
            case "slow":
                time.sleep(0.2)
        return f"{self.what} done"


class Counter:
    """An object that lives in a child."""

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, other: int) -> int:
        self.value += other
        return self.value

    def pid(self) -> int:
        return os.getpid()

    def hang(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)

    def raises(self) -> None:
        raise KeyError("missing")

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)
