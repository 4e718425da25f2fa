"""Times of kernels that no rule was fitted to (benchmarks/unfitted), beside torch.compile.

    python benchmarks/unfitted_times.py [--out ROWS.jsonl] [--kernels A,...] [--tuned S] [--at-once N] [--seconds S]

A process for each kernel compiles, and compares each variant with the reference. Processes compile side by side and have
the GPU in turn: first for a first call that may measure, then for the times. ``--tuned 40`` also searches for so many
seconds, and times the config that was found. Rows are those of benchmarks/results/DEVICE-variants.jsonl. A command that
runs again goes on after the rows of its file; kernels that failed are tried once more.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

import helion  # noqa: E402
from benchmarks.seeds import bound_of, relative_error  # noqa: E402
from benchmarks.timing import GraphTimer, Timer, reason  # noqa: E402
from benchmarks.tuned_sample import done  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402
from benchmarks.unfitted import CELLS  # noqa: E402
from benchmarks.unfitted_report import UNFITTED  # noqa: E402
from helion._support.nested import copy_tensors  # noqa: E402

OUT = ROOT / "build" / "unfitted.jsonl"
#: Seconds between two lines of a process that has the GPU.
TURN = 60.0

Row = dict[str, Any]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def measured(
    name: str, device: str, *, small: bool, tuned: float, timer: Callable[[], Timer], compiled: Compile
) -> Row:
    """Return the row of a kernel: configs, errors and microseconds of all variants, and why a variant has no time.

    ``timer`` is made in the kernel's turn. ``compiled`` is torch.compile, which gets the baseline.
    """
    cell = CELLS[name]
    torch.manual_seed(0)
    args = cell.arguments(device, small)
    given = functools.partial(copy_tensors, args)  # kernels may write into their arguments
    bound = cell.kernel.bind(args)
    configs: dict[str, dict[str, Any]] = {}
    functions: dict[str, Callable[..., Any]] = {}

    def has(which: str, config: helion.Config) -> None:
        """Keep a config and its function, before a call that may go on with another backend."""
        configs[which] = bound.short_config(config).to_dict()
        functions[which] = bound.compile_config(config)

    has("default", bound.default_config())
    if tuned:  # a first call after the search would take the config that was found
        with turn():
            cell.kernel(*given())
        has("first_call", bound.config)
        has("tuned", bound.autotune(given(), effort="full", seconds=tuned, progress=False, random_seed=1))
    functions["compile"] = compiled(cell.baseline)
    expected = cell.reference(*given())
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}

    def check(which: str) -> None:
        compared = relative_norm if which == "compile" and cell.draws else relative_error
        try:
            errors[which] = compared(functions[which](*given()), expected)
        except Exception as error:  # of any library that is timed: it belongs into the row
            failures[which] = reason(error)
        else:
            if not errors[which] <= bound_of(args):
                failures[which] = f"wrong: the result is {errors[which]:.1e} off, {bound_of(args):.0e} is allowed"

    for which in functions:
        check(which)
    with turn():
        if not tuned:
            functions["first_call"] = cell.kernel
            check("first_call")
            configs["first_call"] = bound.short_config(bound.config).to_dict()
        times, untimed = timer().time(
            {which: functools.partial(each, *args) for which, each in functions.items() if which not in failures}
        )
    return {
        "name": name,
        "what": f"{UNFITTED}, with graphs and a cold L2",
        "backend": bound.backend,
        "configs": configs,
        "microseconds": {which: each.median for which, each in times.items()},
        "errors": errors,
        **({"failures": failures | untimed} if failures or untimed else {}),
    }


def relative_norm(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far the 2-norm of a result is from the expected one, relative to that."""
    if actual.shape != expected.shape:
        raise AssertionError(f"a result of shape {actual.shape}, expected {expected.shape}")
    return abs(float(actual.double().norm() / expected.double().norm()) - 1.0)


def where() -> Row:
    """Return the device, the versions and the date."""
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__}
    return {"device": torch.cuda.get_device_name(), **versions, "date": datetime.date.today().isoformat()}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line: ratios of geometric means, and the kernels whose default is slower than torch.compile's code."""
    times = [row["microseconds"] for row in rows if "microseconds" in row]
    said = []
    for over, under in (("compile", "default"), ("compile", "first_call"), ("tuned", "default")):
        found = [each[over] / each[under] for each in times if {over, under} <= set(each)]
        if found:
            mean = math.exp(sum(math.log(min(3.0, ratio)) for ratio in found) / len(found))
            said.append(f"{over} / {under} {mean:.3f}, least {min(found):.2f} of {len(found)}")
    return "; ".join(said) or "nothing was timed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=[*CELLS])
    parser.add_argument("--tuned", type=float, default=0.0, help="seconds of a search; none by default")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which processes are ended")
    parser.add_argument("--at-once", type=int, default=12, help="processes side by side")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.kernels} - {*CELLS}):
        parser.error(f"no kernels {', '.join(unknown)}; there are {', '.join(CELLS)}")
    torch.set_float32_matmul_precision("high")
    if options.one:
        compiled = functools.partial(torch.compile, dynamic=False)
        row = measured(options.one, "cuda", small=False, tuned=options.tuned, timer=GraphTimer, compiled=compiled)
        print(json.dumps(row | where()), flush=True)
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = done(options.out)
    had = {row["name"] for row in rows}
    own = [sys.executable, __file__, "--tuned", str(options.tuned), "--one"]
    jobs = {name: [*own, name] for name in options.kernels if name not in had}
    with options.out.open("a") as file:
        for name, row in in_turn(jobs, at_once=options.at_once, turn_seconds=TURN, seconds=options.seconds):
            rows.append({"name": name, **row})
            print(json.dumps(rows[-1]), file=file, flush=True)
            print(name, row.get("microseconds", row.get("why")), flush=True)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
