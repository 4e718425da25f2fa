"""Runs of functions on a device: after a warm-up, and several functions in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

#: One run; returns its microseconds.
Run = Callable[[], float]
#: Seconds since any fixed moment.
Now = Callable[[], float]

#: Seconds of work before anything is timed. An idle H200 takes 11 % longer for kernels bound by memory until it has
#: worked for 8 ms (benchmarks/results: the first runs of every candidate against the later ones).
WARM_SECONDS = 0.02
#: Seconds after its last run for which a warm device stays so (measurement ``device_cools``).
COOL_SECONDS = 0.1
#: Runs of one candidate, their maximum of seconds, and the slowdown against the best that ends them early.
_RUNS, _FEWEST, _SECONDS, _FAR = 20, 3, 0.05, 2.0
#: Least runs of a config before it is compared: it is checked, watched for waits, warmed up and timed.
TRIAL_RUNS = 3 + _FEWEST
#: The number of rounds for functions that take long.
FEWEST_ROUNDS = 5


def warmed(runs: Sequence[Run], now: Now, seconds: float = WARM_SECONDS) -> None:
    """Run all functions for ``seconds``."""
    began = now()
    while True:
        for run in runs:
            if now() - began >= seconds:
                return
            run()


def samples(run: Run, best: float, now: Now) -> list[float]:
    """Return microseconds of runs of one function; one far from ``best`` runs a few times only.

    Where all are (``best`` is 0), these runs only drop what is much slower, and a cold device is precise enough.
    """
    if best > 0.0:
        warmed([run], now)
    times: list[float] = []
    began = now()
    while len(times) < _RUNS and (len(times) < _FEWEST or now() - began < _SECONDS):
        times.append(run())
        if len(times) == _FEWEST and min(times) > _FAR * best:
            break
    return times


def in_turns(
    runs: Sequence[Run], count: int, rng: Random, now: Now, warming: float = WARM_SECONDS
) -> list[list[float]]:
    """Return microseconds of ``count`` rounds, each with one run of every function in a random order.

    So drift and the effects of one function on the next average out. Functions that take long run in fewer rounds.
    All run for ``warming`` seconds before.
    """
    warmed(runs, now, warming)
    order = list(range(len(runs)))
    rows: list[list[float]] = []
    began = now()
    while len(rows) < count and (len(rows) < FEWEST_ROUNDS or now() - began < _SECONDS):
        rng.shuffle(order)
        row = [0.0] * len(runs)
        for at in order:
            row[at] = runs[at]()
        rows.append(row)
    return rows
