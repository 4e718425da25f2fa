"""Measures what the model of time takes from a GPU, and no data sheet says: `make calibrate`, a minute on the GPU.

    python benchmarks/calibrate.py               writes benchmarks/results/calibration/<device>.json
    python benchmarks/calibrate.py --dry         says what would be measured; needs no GPU
    python benchmarks/calibrate.py --received FILE   keeps what an owner of another GPU has sent; needs no GPU

Each experiment runs twice, with less and with more of one thing; the difference of the times is that thing's alone. Medians
by CUDA graph (benchmarks/timing.py). Files of `python -m helion calibrate --send FILE` have the same rates, and configs
for `scripts/pretuned.py`. `python benchmarks/time_model.py --fit --calibration PATH` holds the fit to it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from benchmarks.time_model import rank_correlation  # noqa: E402
from benchmarks.timing import GraphTimer, Timer  # noqa: E402
from helion.autotuner.pretuned import Row, formatted  # noqa: E402
from helion.autotuner.search.time_model import PredictedTime  # noqa: E402
from helion.backends.triton.resources.time.model import issue_rate  # noqa: E402
from helion.backends.triton.resources.time.parameters import fitted  # noqa: E402
from helion.cli.calibrate import FORMAT, cases  # noqa: E402
from helion.hardware import Link, Target, from_device_properties, target  # noqa: E402
from helion.hardware.rows import ROWS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "calibration"
#: Best configs of other GPUs, which `scripts/pretuned.py` reads.
CONTRIBUTED = ROOT / "benchmarks" / "results" / "pretuned"
#: Elements of one program's tile, and its warps.
_TILE, _WARPS = 4096, 8
#: Programs per SM of the experiments that keep all units busy.
_RESIDENT = 4
#: Bytes of a table that the L2 cache holds, and of one that it does not.
_SMALL_BYTES, _LARGE_BYTES = 2**23, 2**30
#: Bytes between two entries of a table that are read one after the other, at least.
_APART = 4096


@triton.jit
def nothing(out):
    pass


@triton.jit
def copied(source, out, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.load(source + at))


@triton.jit
def summed(source, out, tiles, rounds, TILE: tl.constexpr):
    """Every program reads ``rounds`` tiles of ``tiles``, each from another place."""
    first = tl.program_id(0)
    total = tl.zeros([TILE], dtype=tl.float32)
    for turn in range(rounds):
        at = (first + turn * 7) % tiles * TILE + tl.arange(0, TILE)
        total += tl.load(source + at, cache_modifier=".cg")
    tl.store(out + first, tl.sum(total))


@triton.jit
def chased(table, out, steps):
    """Every load needs what the one before it gave."""
    at = tl.load(table)
    for _ in range(steps):
        at = tl.load(table + at, cache_modifier=".cg")
    tl.store(out, at)


@triton.jit
def multiplied(out, factor, steps, TILE: tl.constexpr):
    value = tl.arange(0, TILE).to(tl.float32)
    for _ in range(steps):
        value = value * factor + factor
    tl.store(out + tl.program_id(0), tl.sum(value))


@triton.jit
def raised(out, factor, steps, TILE: tl.constexpr):
    value = tl.arange(0, TILE).to(tl.float32) * factor
    for _ in range(steps):
        value = tl.exp2(value)
    tl.store(out + tl.program_id(0), tl.sum(value))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """``run`` makes a function that does an amount of something; the two amounts are in ``unit``, all of which one
    microsecond takes or gives. ``of`` is what an amount of 1 stands for in that unit."""

    name: str
    unit: str
    less: int
    more: int
    of: float
    run: Callable[[int], Callable[[], Any]]


def experiments(device: Target) -> tuple[Experiment, ...]:
    """All that is measured on ``device``."""
    programs = device.num_sms * _RESIDENT
    instructions = programs * _TILE / device.warp_size
    matrices = [name for name in ("float16", "bfloat16", "tf32") if name in dict(device.matrix_tflops)]
    return (
        Experiment(name="copy", unit="bytes", less=2**27, more=2**29, of=2, run=_copy),
        Experiment(name="cache", unit="bytes", less=64, more=512, of=programs * _TILE * 4, run=lambda n: _sum(programs, n)),
        Experiment(name="wait", unit="loads", less=512, more=4096, of=1, run=lambda n: _chase(_LARGE_BYTES, n)),
        Experiment(name="cache wait", unit="loads", less=512, more=4096, of=1, run=lambda n: _chase(_SMALL_BYTES, n)),
        *(
            Experiment(
                name=f"programs of {warps} warps",
                unit="programs per SM",
                less=64,
                more=1024,
                of=1,
                run=lambda n, warps=warps: _start(n * device.num_sms, warps),
            )
            for warps in (4, 8)
        ),
        Experiment(
            name="multiply", unit="warp instructions", less=256, more=2048, of=instructions, run=lambda n: _compute(multiplied, programs, n)
        ),
        Experiment(
            name="exponential", unit="warp instructions", less=64, more=512, of=instructions, run=lambda n: _compute(raised, programs, n)
        ),
        *(
            Experiment(name=f"products of {name}", unit="operations", less=4096, more=16384, of=2 * 8192**2, run=lambda k, name=name: _product(name, k))
            for name in matrices
        ),
    )  # fmt: skip


def _copy(count: int) -> Callable[[], Any]:
    source = torch.randn([count // 4], device="cuda")
    out = torch.empty_like(source)
    return lambda: copied[(source.numel() // _TILE,)](source, out, TILE=_TILE, num_warps=_WARPS)


def _sum(programs: int, rounds: int) -> Callable[[], Any]:
    source, out = torch.randn([_SMALL_BYTES // 4], device="cuda"), torch.empty([programs], device="cuda")
    tiles = source.numel() // _TILE
    return lambda: summed[(programs,)](source, out, tiles, rounds, TILE=_TILE, num_warps=_WARPS)


def ring(entries: int, apart: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """A table of indices, ``apart`` from each other, in which following them from 0 comes to all of them in an order that no
    prefetcher knows; entries between them are 0."""
    places = torch.randperm(entries // apart, generator=generator) * apart
    table = torch.zeros([entries], dtype=torch.int64)
    table[places] = places.roll(-1)
    return table


def _chase(size: int, steps: int) -> Callable[[], Any]:
    table = ring(size // 8, _APART // 8).cuda()
    out = torch.empty([1], dtype=torch.int64, device="cuda")
    return lambda: chased[(1,)](table, out, steps, num_warps=1)


def _start(programs: int, warps: int) -> Callable[[], Any]:
    out = torch.empty([1], device="cuda")
    return lambda: nothing[(programs,)](out, num_warps=warps)


def _compute(kernel: Any, programs: int, steps: int) -> Callable[[], Any]:
    out = torch.empty([programs], device="cuda")
    return lambda: kernel[(programs,)](out, 0.5, steps, TILE=_TILE, num_warps=_WARPS)


def _product(name: str, depth: int) -> Callable[[], Any]:
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    left, right = (torch.randn(shape, device="cuda").to(dtype) for shape in ([8192, depth], [depth, 8192]))
    return lambda: left @ right


def measure(chosen: tuple[Experiment, ...], timer: Timer) -> dict[str, float]:
    """Microseconds of one unit of each experiment, and of a launch of nothing. Raises RuntimeError where one fails, or where
    more takes no longer than less."""
    found = {"launch": _times(timer, {"launch": _start(1, 4)})["launch"]}
    for each in chosen:
        # one at a time: the tables of all of them together are more than some devices hold
        times = _times(timer, {"less": each.run(each.less), "more": each.run(each.more)})
        taken = times["more"] - times["less"]
        if taken <= 0:
            raise RuntimeError(f"{each.name}: {each.more} take {times['more']} µs and {each.less} {times['less']} µs")
        found[each.name] = taken / ((each.more - each.less) * each.of)
    return found


def _times(timer: Timer, functions: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    times, failures = timer.time(functions)
    if failures:
        raise RuntimeError("; ".join(f"{name}: {why}" for name, why in failures.items()))
    return {name: each.median for name, each in times.items()}


def parameters_of(measured: Mapping[str, float], device: Target) -> dict[str, float]:
    """The parameters of the model that measurements give by themselves."""
    four, eight = measured["programs of 4 warps"], measured["programs of 8 warps"]
    sheet = device.matrix_tflops_for("bfloat16") * 1e6
    warp = max(0.0, (eight - four) / 4)
    return {
        "launch_us": measured["launch"],
        "memory_share": 1 / measured["copy"] / (device.bandwidth_gb_per_s * 1e3),
        "cache_speedup": measured["copy"] / measured["cache"],
        "wait_us": measured["wait"],
        "program_us": four - 4 * warp,
        "warp_us": warp,
        "special_ops": measured["exponential"] * issue_rate(device) * device.num_sms,
        "matrix": sheet * measured["products of bfloat16"],
    }


def report(measured: Mapping[str, float], device: Target) -> list[str]:
    """Measurements by what a data sheet calls them, then parameters beside those that the product has."""
    known = fitted()
    lines = [f"{name:22} {1 / us:12.5g} per µs {us:12.5g} µs" for name, us in measured.items()]
    lines += ["", f"{'parameter':22} {'measured':>12} {'products':>12} {'others':>12}"]
    for name, value in parameters_of(measured, device).items():
        lines.append(
            f"{name:22} {value:12.4g} {getattr(known.products, name):12.4g} {getattr(known.others, name):12.4g}"
        )
    return lines


def record(measured: Mapping[str, float], device: Target) -> dict[str, Any]:
    """What is kept."""
    return {
        "device": device.device,
        "date": datetime.date.today().isoformat(),
        "versions": f"torch {torch.__version__}, CUDA {torch.version.cuda}, Triton {triton.__version__}",
        "microseconds": dict(measured),
        "parameters": parameters_of(measured, device),
    }


def received(path: Path, results: Path = RESULTS, contributed: Path = CONTRIBUTED) -> Path:
    """Keep a file of `python -m helion calibrate --send`: its row, rates and sweep as a calibration, and its best configs.
    Returns the calibration's path. Raises ValueError or KeyError for any other file."""
    sent = json.loads(path.read_text())
    if not isinstance(sent, dict) or sent.get("format") != FORMAT:
        raise ValueError(f"{path}: not made by `python -m helion calibrate --send`, or by another version of it")
    device = target_of(sent["row"])
    versions = ", ".join(f"{name} {version}" for name, version in sent["versions"].items())
    measured = sent["microseconds"]
    kept = {
        "device": sent["device"],
        "date": sent["date"],
        "versions": versions,
        "microseconds": measured,
        "parameters": parameters_of(measured, device),
        "row": sent["row"],
        "sweeps": [{key: each[key] for key in ("kernel", "arguments", "times")} for each in sent["sweeps"]],
    }
    name = re.sub(r"[^a-z0-9]+", "-", sent["device"].lower()).strip("-")
    rows = [Row.from_list(each["structure"], each["best"]) for each in sent["sweeps"]]
    contributed.mkdir(parents=True, exist_ok=True)
    (contributed / f"{name}.json").write_text(formatted(rows))
    (results / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")
    return results / f"{name}.json"


def judged(kept: Mapping[str, Any]) -> list[str]:
    """How well predictions with the row of a kept file rank the configs of its sweep, and its line in the table of GPUs."""
    device, kernels = target_of(kept["row"]), {case.kernel.name: case.kernel for case in cases("meta")}
    lines = []
    for each in kept["sweeps"]:
        shapes = each["arguments"]
        args = tuple(torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
        analysis = kernels[each["kernel"]].bind(args, target=device)._analysis
        model = PredictedTime(analysis.predict)
        configs = [analysis.space.normalize(timed["config"]) for timed in each["times"]]
        us = np.array([timed["microseconds"] for timed in each["times"]])
        predicted = np.array([model.log_time(config) for config in configs])
        correlation, pick = rank_correlation(predicted, us), us[predicted.argmin()] / us.min()
        lines.append(
            f"{each['kernel']:22} {len(us)} configs, rank correlation {correlation:.2f}, first pick / best {pick:.2f}"
        )
    if device not in (row for _, row in ROWS):
        lines.append(f"a row for helion/hardware/rows.py, if it has none: {device!r}")
    return lines


def target_of(row: Mapping[str, Any]) -> Target:
    """The GPU of a row that was sent."""
    link = None if row["link"] is None else Link(**row["link"])
    pairs = {"matrix_tflops": tuple(map(tuple, row["matrix_tflops"])), "features": frozenset(row["features"])}
    tuples = {key: tuple(value) for key, value in row.items() if isinstance(value, list) and key not in pairs}
    return Target(**{**row, **tuples, **pairs, "link": link})


def main() -> int:
    parser = argparse.ArgumentParser(description="measure what predicted times are made of")
    parser.add_argument("--dry", action="store_true", help="say what would be measured")
    parser.add_argument("--received", type=Path, help="keep this file of `python -m helion calibrate --send`")
    options = parser.parse_args()
    if options.received:
        try:
            path = received(options.received)
            print(path, *judged(json.loads(path.read_text())), sep="\n")
        except (OSError, KeyError, TypeError, ValueError) as error:
            parser.error(f"{options.received} is no file of `python -m helion calibrate --send`: {error!r}")
        return 0
    if options.dry:
        for each in experiments(target("h200")):
            print(f"{each.name:22} {each.less:10} and {each.more:10} times {each.of:g} {each.unit}")
        return 0
    if not torch.cuda.is_available():
        print("not measured: torch sees no GPU; --dry says what would be", file=sys.stderr)
        return 1
    device = from_device_properties(0)
    measured = measure(experiments(device), GraphTimer())
    print(*report(measured, device), sep="\n")
    name = re.sub(r"[^a-z0-9]+", "-", device.device.lower()).strip("-")
    (RESULTS / f"{name}.json").write_text(json.dumps(record(measured, device), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
