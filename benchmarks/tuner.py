"""What tuning gains and costs: ten kernels outside the examples, untuned and tuned with every effort.

    python benchmarks/tuner.py [--out FILE.json] [--names A,B] [--efforts minimal,quick,full] [--full-seconds S]

Each kernel runs in a process of its own and is written to the file when it ends; what stands there already is not run
again. Times are those of `benchmarks/timing.py`: device time in CUDA graphs with a cold L2, all efforts in turn. With
PEER_PYTHON set to the interpreter of an environment that has another `helion`, its tuner runs on the same kernels for
PEER_SECONDS (180) by `benchmarks/tuner_peer.py`. With no GPU, `--simulated` runs everything on small CPU tensors.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

from benchmarks import tuner_kernels as kernels  # noqa: E402
from benchmarks.timing import GraphTimer  # noqa: E402

OUT = ROOT / "build" / "tuner.json"
EFFORTS = ("minimal", "quick", "full")
#: Seconds that a peer may search.
PEER_SECONDS = 180.0
#: By how much dimensions are divided with no GPU.
SHRINK = 200


def measured(name: str, efforts: Sequence[str], options: Mapping[str, Any], simulated: bool) -> dict[str, Any]:
    """One kernel: seconds of each effort, its config, and microseconds of all of them in turn."""
    device, shrink = ("cpu", SHRINK) if simulated else ("cuda", 1)
    args = kernels.arguments(name, device, shrink)
    bound = getattr(kernels, name).bind(args)
    began = time.perf_counter()
    bound.set_config(bound.default_config())
    bound(*args)
    row: dict[str, Any] = {"seconds": {"none": time.perf_counter() - began}, "failures": {}}
    configs = {"none": bound.default_config()}
    for effort in efforts:
        began = time.perf_counter()
        try:
            more = {**options, "simulated": True} if simulated else options
            limited = more if effort == "full" else {k: v for k, v in more.items() if k != "seconds"}
            configs[effort] = bound.autotune(args, effort=effort, progress=False, random_seed=1, **limited)
        except Exception as error:  # it belongs into the table
            row["failures"][effort] = f"{type(error).__name__}: {str(error)[:500]}"
        row["seconds"][effort] = time.perf_counter() - began
    row["configs"] = {effort: bound.short_config(config).to_dict() for effort, config in configs.items()}
    if not simulated:
        functions = {
            effort: functools.partial(bound.compile_config(config), *args) for effort, config in configs.items()
        }
        times, failures = GraphTimer(51).time(functions)
        row["microseconds"] = {effort: each.median for effort, each in times.items()}
        row["failures"] |= failures
    return row


def peer(name: str) -> dict[str, Any] | None:
    """What the tuner of another environment finds; None without PEER_PYTHON."""
    python = os.environ.get("PEER_PYTHON")
    if python is None:
        return None
    seconds = float(os.environ.get("PEER_SECONDS", PEER_SECONDS))
    script, source = ROOT / "benchmarks" / "tuner_peer.py", ROOT / "benchmarks" / "tuner_kernels.py"
    # neither this repository nor its cache is seen
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HELION_CACHE_DIR")}
    try:
        done = subprocess.run(
            [python, str(script), str(source), name, str(seconds)],
            capture_output=True, text=True, timeout=2 * seconds + 120, env=environment, cwd="/",
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer within {2 * seconds + 120:.0f} s"}
    except (IndexError, json.JSONDecodeError):
        return {"failure": done.stderr[-1000:]}


def summary(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines with each kernel's speed relative to the untuned config and to the peer, and the geometric means."""
    lines = []
    ratios: dict[str, list[float]] = {}
    for name, row in rows.items():
        times = row.get("microseconds", {})
        if "none" not in times:
            lines.append(f"{name:20} {row.get('failures') or 'no times'}")
            continue
        relative = {effort: times["none"] / time for effort, time in times.items() if effort != "none"}
        other = (row.get("peer") or {}).get("microseconds")
        if other is not None:
            relative |= {f"{effort} / peer": other / time for effort, time in times.items()}
        for effort, ratio in relative.items():
            ratios.setdefault(effort, []).append(ratio)
        parts = (f"{effort} {ratio:.3f} ({row['seconds'].get(effort, 0):.1f} s)" for effort, ratio in relative.items())
        lines.append(f"{name:20} {times['none']:8.1f} us  {', '.join(parts)}")
    for effort, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        lines.append(f"{effort}: geometric mean {mean:.3f}, least {min(values):.3f}, of {len(values)} kernels")
    return lines


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        return {"device": "simulated" if not torch.cuda.is_available() else torch.cuda.get_device_name(), "kernels": {}}


def _write(path: Path, found: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(found, indent=1) + "\n")
    fresh.rename(path)


def _in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """``measured``, which a kernel that ends its process does not end for the others."""
    command = [sys.executable, __file__, "--one", name, "--efforts", options.efforts]
    command += ["--full-seconds", str(options.full_seconds)] + (["--simulated"] if options.simulated else [])
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except (IndexError, json.JSONDecodeError):
        return {"failures": {"process": done.stderr[-2000:] or f"exit status {done.returncode}"}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the file does not have yet; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--names", default=",".join(kernels.CASES))
    parser.add_argument("--efforts", default=",".join(EFFORTS))
    parser.add_argument("--full-seconds", type=float, default=180.0, help="budget of the effort full")
    parser.add_argument("--simulated", action="store_true", help="small CPU tensors and predicted times")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    efforts = options.efforts.split(",")
    os.environ["HELION_SKIP_CACHE"] = "1"  # an answer that was kept tells nothing of the search
    if options.one is not None:
        print(json.dumps(measured(options.one, efforts, {"seconds": options.full_seconds}, options.simulated)))
        return 0
    found = _read(options.out)
    for name in options.names.split(","):
        row = found["kernels"].setdefault(name, {})
        if not set(efforts) <= set(row.get("seconds", ())):
            row.update(_in_a_process(name, options))
        if "peer" not in row and (other := peer(name)) is not None:
            row["peer"] = other
        _write(options.out, found)
        print("\n".join(summary({name: row})[:1]), flush=True)
    print("\n".join(summary(found["kernels"])[len(found["kernels"]) :]))
    return 1 if any(row.get("failures") for row in found["kernels"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
