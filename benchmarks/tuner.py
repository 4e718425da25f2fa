"""What tuning gains and costs: ten kernels outside the examples, untuned and tuned with every effort.

    python benchmarks/tuner.py [--out FILE.json] [--names A,B] [--parts quick,peer,full] [--gpus N] [--at-once N] [--seconds S]

Part ``quick`` tunes with the efforts ``minimal`` and ``quick``, ``full`` with ``full`` for ``--full-seconds``, and ``peer``
lets another ``helion`` search the same kernels for PEER_SECONDS (180) by `benchmarks/tuner_peer.py`, with the interpreter
that PEER_PYTHON names. Each part of a kernel runs in a process of its own, on one of N GPUs with its share of the CPUs.
With ``--at-once N`` each GPU has N of ours at once, which share the CPUs, compile side by side and measure in turns; what was
found is timed while none of the others measures.
First come the first parts of all kernels, and none is begun that would not end within ``--seconds``. What ends is written
to the file, and what stands there is not run again. Times are those of `benchmarks/timing.py`: device time in CUDA graphs
with a cold L2, all configs in turn. With no GPU, ``--simulated`` runs everything on small CPU tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

from benchmarks import tuner_kernels as kernels  # noqa: E402
from benchmarks.timing import GraphTimer  # noqa: E402
from helion.runtime.tuning.device_lock import lock_of  # noqa: E402

OUT = ROOT / "build" / "tuner.json"
#: The efforts that are compared, in turn, by each part of ours.
EFFORTS: Mapping[str, tuple[str, ...]] = {"quick": ("minimal", "quick"), "full": ("full",)}
PARTS = ("quick", "peer", "full")
#: Seconds that a peer may search, and the fewest with which it is started.
PEER_SECONDS, PEER_LEAST = 180.0, 45.0
#: Seconds that a process takes beside its searches: it is started, and times what was found.
AROUND = 40.0
#: Seconds beside its budget after which a process of ours is ended.
HUNG = 600.0
#: By how much dimensions are divided with no GPU.
SHRINK = 200
#: Seconds that timing waits at most until others on the GPU have measured.
WAITING = 30.0

Row = dict[str, Any]
#: The processes that run, each the first of a group.
_RUNNING: set[int] = set()


def measured(name: str, part: str, full_seconds: float, simulated: bool) -> Row:
    """One part of one kernel: seconds of each effort, its config, and microseconds of all of them in turn.

    ``minimal, compiled`` are the seconds of ``minimal`` where it has compiled everything before.
    """
    device, shrink = ("cpu", SHRINK) if simulated else ("cuda", 1)
    args = kernels.arguments(name, device, shrink)
    bound = getattr(kernels, name).bind(args)
    row: Row = {"seconds": {}, "failures": {}}

    def tuned(effort: str) -> Any:
        limit = {"seconds": full_seconds} if effort == "full" else {}
        return bound.autotune(args, effort=effort, progress=False, random_seed=1, simulated=simulated, **limit)

    def untuned() -> Any:
        bound.set_config(bound.default_config())
        bound(*args)
        return bound.default_config()

    configs = {"none": _clocked(row, "none", untuned)}
    for effort in EFFORTS[part]:
        try:
            configs[effort] = _clocked(row, effort, functools.partial(tuned, effort))
            if effort == "minimal":
                _clocked(row, "minimal, compiled", functools.partial(tuned, effort))
        except Exception as error:  # it belongs into the table
            row["failures"][effort] = f"{type(error).__name__}: {str(error)[:500]}"
    row["configs"] = {effort: bound.short_config(config).to_dict() for effort, config in configs.items()}
    if not simulated:
        functions = {
            effort: functools.partial(bound.compile_config(config), *args) for effort, config in configs.items()
        }
        for function in functions.values():
            with contextlib.suppress(Exception):  # the timer says what is wrong
                function()  # it is compiled
        with lock_of(args[0].device, WAITING).held():
            timer = GraphTimer(51)
            timer.time(functions)  # the device warms up
            times, failures = timer.time(functions)
        row["microseconds"] = {effort: each.median for effort, each in times.items()}
        row["failures"] |= failures
    return row


def _clocked(row: Row, effort: str, function: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    try:
        return function()
    finally:
        row["seconds"][effort] = time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``ends``: when the whole run ends, on the clock of ``time.monotonic``. ``full`` and ``peer`` are the seconds of one
    search, ``at_once`` run on each GPU."""

    ends: float
    full: float
    peer: float
    at_once: int = 1

    @property
    def left(self) -> float:
        """Seconds until the run ends."""
        return self.ends - time.monotonic()

    def searching(self, part: str) -> float | None:
        """The seconds that a part's longest search may take if it is begun now; None where it would not end in time."""
        left = self.left - AROUND
        if part == "peer":
            allowed = min(self.peer, left)
            return allowed if allowed >= min(self.peer, PEER_LEAST) else None
        needed = self.full if part == "full" else 30.0
        return needed if left >= needed else None


def _answer(command: Sequence[str], seconds: float, environment: Mapping[str, str], folder: str) -> Row:
    """The JSON of the last line that a process prints, or ``failure``. None of its own processes outlives it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    _RUNNING.add(process.pid)
    try:
        said, complaint = process.communicate(timeout=seconds)
        found: Row = json.loads(said.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer within {seconds:.0f} s"}
    except (IndexError, json.JSONDecodeError):
        last = complaint.strip().rpartition("\n")[2]
        return {"failure": last[:1000] or f"exit status {process.returncode}"}
    finally:
        _end(process.pid)
        process.wait()
        _RUNNING.discard(process.pid)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def ours(name: str, part: str, limits: Limits, gpu: str, simulated: bool) -> Row:
    """``measured``, which a kernel that ends its process does not end for the others."""
    command = [sys.executable, __file__, "--one", name, "--parts", part, "--full-seconds", str(limits.full)]
    # an answer that was kept tells nothing of the search
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "HELION_SKIP_CACHE": "1"}
    if limits.at_once > 1:  # who waits for the GPU needs no CPU
        environment["HELION_AUTOTUNE_PRECOMPILE_JOBS"] = str(len(os.sched_getaffinity(0)))
    seconds = min(limits.left, HUNG + limits.full if part == "full" else HUNG)
    found = _answer([*command, *(["--simulated"] if simulated else [])], seconds, environment, str(ROOT))
    return {"failures": {"process": found["failure"]}} if "failure" in found else found


def peer(name: str, seconds: float, most: float, gpu: str) -> Row:
    """What the tuner of the environment of PEER_PYTHON finds in ``seconds``; after ``most`` it is ended."""
    script, source = ROOT / "benchmarks" / "tuner_peer.py", ROOT / "benchmarks" / "tuner_kernels.py"
    # neither this repository nor its cache is seen
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HELION_CACHE_DIR")}
    command = [os.environ["PEER_PYTHON"], str(script), str(source), name, str(seconds)]
    found = _answer(command, most, {**environment, "CUDA_VISIBLE_DEVICES": gpu}, "/")
    return {"allowed_seconds": seconds, **found}


def summary(rows: Mapping[str, Row]) -> list[str]:
    """Lines with each kernel's times and what is faster than what, and the geometric means."""
    lines = []
    ratios: dict[str, list[float]] = {}
    for name, row in rows.items():
        times = _times(row.get("quick", {}))
        relative = _relative(times, row)
        for what, ratio in relative.items():
            ratios.setdefault(what, []).append(ratio)
        failed = [f"{part} failed: {text}" for part in PARTS for text in _failures(row.get(part, {}))]
        parts = [f"{what} {ratio:.3f}" for what, ratio in relative.items()]
        untuned = f"{times['none']:8.1f} us" if "none" in times else " " * 11
        lines.append(f"{name:20} {untuned}  {', '.join([*parts, *failed])}")
    for what, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        lines.append(f"{what}: geometric mean {mean:.3f}, least {min(values):.3f}, of {len(values)} kernels")
    for what in ("minimal, compiled", "quick"):
        taken = [
            row["quick"]["seconds"][what] for row in rows.values() if what in row.get("quick", {}).get("seconds", {})
        ]
        if taken:
            lines.append(f"seconds of {what}: {statistics.median(taken):.2f}, at most {max(taken):.2f}")
    return lines


def _times(part: Row) -> dict[str, float]:
    """Microseconds of efforts; equal configs take equally long, which measuring them twice does not show."""
    configs, times = part.get("configs", {}), part.get("microseconds", {})
    untuned = configs.get("none")
    same = {effort for effort in times if untuned is not None and configs.get(effort) == untuned}
    return {effort: times["none"] if effort in same else time for effort, time in times.items()}


def _relative(times: Mapping[str, float], row: Row) -> dict[str, float]:
    """How many times as fast: efforts as the untuned config, that as ``full`` beside it, and all as the peer."""
    found = {effort: times["none"] / time for effort, time in times.items() if effort != "none" and "none" in times}
    longest = _times(row.get("full", {}))
    if {"none", "full"} <= set(longest):
        found["none / full"] = longest["full"] / longest["none"]
    other = row.get("peer", {}).get("microseconds")
    if other is None:
        return found
    all_times = {**{effort: time for effort, time in longest.items() if effort == "full"}, **times}
    return {**found, **{f"{effort} / peer": other / time for effort, time in all_times.items()}}


def _failures(part: Row) -> list[str]:
    own = [part["failure"]] if "failure" in part else []
    return own + [f"{effort}: {text}" for effort, text in part.get("failures", {}).items()]


class Results:
    """The file of results, which several threads add to."""

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.found: dict[str, Any] = {"device": device, "kernels": {}}
        with contextlib.suppress(FileNotFoundError):
            self.found = json.loads(path.read_text())

    @property
    def kernels(self) -> dict[str, Row]:
        found: dict[str, Row] = self.found["kernels"]
        return found

    def lacks(self, name: str, part: str) -> bool:
        """Whether a part is to be run: it was not, or ours ended without times."""
        known = self.kernels.get(name, {}).get(part)
        return known is None or "process" in known.get("failures", {})

    def add(self, name: str, part: str, row: Row) -> None:
        with self._lock:
            self.kernels.setdefault(name, {})[part] = row
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(".part")
            fresh.write_text(json.dumps(self.found, indent=1) + "\n")
            fresh.rename(self._path)
            print(f"{part:5} {summary({name: self.kernels[name]})[0]}", flush=True)


def visible_gpus(count: int | None, simulated: bool) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be for each of ``count`` GPUs (None: all). Raises ValueError for more than there are."""
    if simulated:
        return [""] * (count or 1)
    there = torch.cuda.device_count()
    if not there:
        raise ValueError("there is no GPU; --simulated needs none")
    if count is not None and not 1 <= count <= there:
        raise ValueError(f"--gpus {count}: {there} GPUs are visible")
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (names or [str(number) for number in range(there)])[: there if count is None else count]


def _shares(count: int) -> Iterator[set[int]]:
    """The CPUs of this process in ``count`` parts."""
    cpus = sorted(os.sched_getaffinity(0))
    bounds = [at * len(cpus) // count for at in range(count + 1)]
    return (set(cpus[low:high] or cpus) for low, high in itertools.pairwise(bounds))


def run(
    waiting: Sequence[tuple[str, str]],
    results: Results,
    limits: Limits,
    gpus: Sequence[str],
    simulated: bool,
) -> None:
    """Runs parts of kernels, in their order, at once for each of ``gpus``, which may name one more than once."""
    queue = deque(waiting)

    def on(gpu: str, cpus: set[int]) -> None:
        os.sched_setaffinity(0, cpus)  # of this thread, and of the processes that it starts
        while True:
            try:
                name, part = queue.popleft()
            except IndexError:
                return
            seconds = limits.searching(part)
            if seconds is None:
                continue
            if part == "peer":
                row = peer(name, seconds, min(1.5 * seconds + AROUND, limits.left), gpu)
            else:
                row = ours(name, part, limits, gpu, simulated)
            results.add(name, part, row)

    threads = [threading.Thread(target=on, args=each) for each in zip(gpus, _shares(len(gpus)), strict=True)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # an interrupt reaches this thread alone
        queue.clear()
        for group in list(_RUNNING):
            _end(group)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--names", default=",".join(kernels.CASES))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--gpus", type=int, default=None, help="how many are used at once (default: all there are)")
    parser.add_argument("--at-once", type=int, default=1, help="how many run on each GPU, in turns (default: 1)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="in which everything ends")
    parser.add_argument("--full-seconds", type=float, default=180.0, help="budget of the effort full")
    parser.add_argument("--simulated", action="store_true", help="small CPU tensors and predicted times")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for given, known in (("names", kernels.CASES), ("parts", PARTS)):
        if unknown := set(getattr(options, given).split(",")) - set(known):
            parser.error(f"--{given}: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    if options.at_once < 1:
        parser.error(f"--at-once {options.at_once}: there must be at least one")
    if options.at_once > 1 and "peer" in _asked(options):
        parser.error("--at-once: a peer does not measure in turns; leave it out of --parts")
    return options


def _asked(options: argparse.Namespace) -> list[str]:
    """The parts that are run: a peer only where there is one."""
    return [part for part in options.parts.split(",") if part != "peer" or "PEER_PYTHON" in os.environ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the file does not have yet; the exit status. Raises ValueError for GPUs and interpreters that there are not,
    and for a file with results of another GPU."""
    options = _parsed(arguments)
    names = options.names.split(",")
    if options.one is not None:
        print(json.dumps(measured(options.one, options.parts, options.full_seconds, options.simulated)))
        return 0
    gpus = visible_gpus(options.gpus, options.simulated)
    asked = _asked(options)
    if "peer" in asked and shutil.which(os.environ["PEER_PYTHON"]) is None:
        raise ValueError(f"PEER_PYTHON is {os.environ['PEER_PYTHON']}, which cannot be run")
    device = "simulated" if options.simulated else torch.cuda.get_device_name()
    results = Results(options.out, device)
    if results.found["device"] != device:
        raise ValueError(f"{options.out} has results of {results.found['device']}; this is {device}")
    limits = Limits(
        ends=time.monotonic() + min(options.seconds, 1e6),
        full=options.full_seconds,
        peer=float(os.environ.get("PEER_SECONDS", PEER_SECONDS)),
        at_once=options.at_once,
    )
    waiting = [(name, part) for part in asked for name in names if results.lacks(name, part)]
    # the first of every GPU before the second of any
    run(waiting, results, limits, gpus * options.at_once, options.simulated)
    print("\n".join(summary(results.kernels)))
    lacking = [name for name in names for part in asked if results.lacks(name, part)]
    return 1 if lacking or any(_failures(row.get("quick", {})) for row in results.kernels.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
