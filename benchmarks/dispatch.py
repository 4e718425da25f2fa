"""What a call costs before the kernel runs: µs per call of an addition of 2, 8 and 16 tensors of 4096 fp32 elements.

Run with `python benchmarks/dispatch.py`. Calls include the allocation of the output. On any machine the driver's launch
is a no-op (`helion.runtime.stub_driver`); on a GPU the real launch is timed beside it, next to Triton's own
`JITFunction.run` and to the bare `CompiledKernel.run` of the same binary, both without an allocation. Rows named native
are with `HELION_NATIVE_LAUNCH=1`, which this sets itself. Figures are medians over rounds, and rounds of all ways are
interleaved, so that a busy moment hits them alike. Exits with 1 if a goal is missed. `--json PATH` keeps the tables;
benchmarks/report.py reads benchmarks/results/*-dispatch.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import helion  # noqa: E402
from helion._testing import import_path  # noqa: E402
from helion.backends.triton.execute import native  # noqa: E402

ELEMENTS = 4096
COUNTS = (2, 8, 16)
CALL, NATIVE, GOAL = "kernel(...)", "kernel(...), native", "  its goal"
BARE, ALLOCATION = "CompiledKernel.run", "the allocation"
# µs per call with the stub, allocation included
GOALS: dict[str, tuple[float, ...]] = {CALL: (2.1, 4.0, 6.5), NATIVE: (1.5, 2.0, 3.0)}
# a native call on a GPU, relative to the bare launch and the allocation that it cannot do without
GOAL_ON_GPU = 1.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Median µs per call for each number of tensors."""

    label: str
    microseconds: tuple[float, ...]


def adder(count: int, folder: Path, name: str = "python") -> helion.Kernel:
    """A kernel that adds `count` tensors; `name` tells equal ones apart."""
    names = [f"a{i}" for i in range(count)]
    text = f"""import torch
import helion
import helion.language as hl


@helion.kernel(config=helion.Config(block_sizes=[1024]))
def add({", ".join(names)}):
    out = torch.empty_like(a0)
    for tile in hl.tile(out.size()):
        out[tile] = {" + ".join(f"{name}[tile]" for name in names)}
    return out
"""
    path = folder / f"add_{count}_tensors_{name}.py"
    path.write_text(text)
    kernel: helion.Kernel = import_path(path).add
    return kernel


@contextlib.contextmanager
def native_launch(on: bool) -> Iterator[None]:
    """What is written for calls meanwhile checks and launches natively, or does not."""
    former = os.environ.get("HELION_NATIVE_LAUNCH")
    os.environ["HELION_NATIVE_LAUNCH"] = "1" if on else "0"
    try:
        yield
    finally:
        del os.environ["HELION_NATIVE_LAUNCH"]
        if former is not None:
            os.environ["HELION_NATIVE_LAUNCH"] = former


def is_native(kernel: helion.Kernel) -> bool:
    """Whether the kernel's next call tries a native launch first."""
    cells = getattr(kernel.__call__, "__closure__", None) or ()
    return any(type(cell.cell_contents).__name__ == "Launch" for cell in cells)


def prepare(kernels: dict[str, helion.Kernel], args: list[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """A call of each kernel, after it has run in the way of its name; without the native one where there is none."""
    ways: dict[str, Callable[[], Any]] = {}
    for name, kernel in kernels.items():
        with native_launch(name == NATIVE):
            kernel(*args)
            kernel(*args)
        if is_native(kernel) == (name == NATIVE):
            ways[name] = _call_of(kernel, args)
        else:
            print(
                f"{name} is not what was measured: the extension or its launch is not available here", file=sys.stderr
            )
    return ways


def _call_of(kernel: helion.Kernel, args: list[torch.Tensor]) -> Callable[[], Any]:
    return lambda: kernel(*args)


def _one_round(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


def timed(ways: dict[str, Callable[[], Any]], rounds: int, calls: int, settle: Callable[[], Any]) -> dict[str, float]:
    """Median µs per call of each way, without what an empty function called in the same way costs."""
    samples: dict[str, list[float]] = {label: [] for label in ("", *ways)}
    for call in ways.values():
        _one_round(call, calls)
    for _ in range(rounds):
        for label, call in (("", lambda: None), *ways.items()):
            settle()
            samples[label].append(_one_round(call, calls))
    nothing = statistics.median(samples[""])
    return {label: statistics.median(samples[label]) - nothing for label in ways}


def stubbed(kernels: dict[str, helion.Kernel], args: list[torch.Tensor], rounds: int, calls: int) -> dict[str, float]:
    """Calls whose launch is a no-op, and their parts."""
    with helion.runtime.stub_driver() as stub:
        called = prepare(kernels, args)
        kernel = kernels[CALL]
        bound = kernel.bind(args)

        def settle() -> None:
            stub.launches.clear()

        ways: dict[str, Callable[[], Any]] = {
            **called,
            "of which the allocation": lambda: torch.empty_like(args[0]),
            "bound(...)": lambda: bound(*args),
            "kernel.bind(...)": lambda: kernel.bind(args),
            "kernel.specialization_key(...)": lambda: kernel.specialization_key(args),
        }
        return timed(ways, rounds, calls, settle)


def real(kernels: dict[str, helion.Kernel], args: list[torch.Tensor], rounds: int, calls: int) -> dict[str, float]:
    """Calls on a GPU, which is waited for between rounds only."""
    called = prepare(kernels, args)
    bound = kernels[CALL].bind(args)
    launches: list[Any] = []
    bound.compile_config()(*args, _launcher=lambda *given, **options: launches.append((given, options)))
    (jit, grid, *values), options = launches[0]
    compiled = jit.run(*values, grid=grid, warmup=False, **options)
    x, y, z = (*grid, 1, 1)[:3]
    device = torch.cuda.current_device()
    pointers = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]

    def bare() -> None:
        stream = torch._C._cuda_getCurrentRawStream(device)
        compiled.run(x, y, z, stream, compiled.function, compiled.packed_metadata, None, None, None, *pointers)

    for call in called.values():
        torch.testing.assert_close(call(), sum(args[1:], args[0]))
    ways: dict[str, Callable[[], Any]] = {
        **called,
        "JITFunction.run": lambda: jit.run(*values, grid=grid, warmup=False, **options),
        BARE: bare,
        ALLOCATION: lambda: torch.empty_like(args[0]),
    }
    return timed(ways, rounds, calls, torch.cuda.synchronize)


def with_goals(rows: list[Row]) -> list[Row]:
    """The rows, and after those that have one their goal."""
    known = {row.label: row.microseconds for row in rows}
    goals = dict(GOALS)
    if BARE in known:
        least = zip(known[BARE], known[ALLOCATION], strict=True)
        goals = {NATIVE: tuple(GOAL_ON_GPU * (bare + allocation) for bare, allocation in least)}
    found = []
    for row in rows:
        found.append(row)
        if row.label in goals:
            found.append(Row(label=GOAL, microseconds=goals[row.label]))
    return found


def missed(rows: list[Row]) -> list[str]:
    """Rows over the goal that stands below them."""
    return [
        f"{row.label} of {count} tensors"
        for row, goal in itertools.pairwise(rows)
        if goal.label == GOAL
        for count, value, limit in zip(COUNTS, row.microseconds, goal.microseconds, strict=True)
        if value > limit
    ]


def measure(rounds: int, calls: int) -> list[tuple[str, list[Row]]]:
    """A title and its rows for the stub and, where there is one, the GPU."""
    parts: list[tuple[str, str, Callable[..., dict[str, float]]]] = [("driver stubbed, CPU tensors", "cpu", stubbed)]
    if torch.cuda.is_available():
        # few calls a round there: a full queue of launches would make the host wait for the GPU
        parts.append((torch.cuda.get_device_name(), "cuda", lambda k, a, r, c: real(k, a, r, min(c, 500))))
    tables = []
    names = {CALL: "python", NATIVE: "native"}
    with native_launch(True):
        native.wanted()  # built here, once
    with tempfile.TemporaryDirectory() as folder:
        kernels = {
            count: {label: adder(count, Path(folder), name) for label, name in names.items()} for count in COUNTS
        }
        for title, device, way in parts:
            columns = []
            for count, pair in kernels.items():
                args = [torch.randn(ELEMENTS, device=device) for _ in range(count)]
                columns.append(way(pair, args, rounds, calls))
            labels = [label for label in columns[0] if all(label in column for column in columns)]
            rows = [Row(label=label, microseconds=tuple(c[label] for c in columns)) for label in labels]
            tables.append((title, with_goals(rows)))
    return tables


def text_of(title: str, rows: list[Row]) -> str:
    """A table as aligned text."""
    cells = [(f"µs per call, {title}", *(f"{count} tensors" for count in COUNTS))]
    cells += [(row.label, *(f"{value:.2f}" for value in row.microseconds)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for label, *figures in cells:
        right = "  ".join(figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append(f"{label.ljust(widths[0])}  {right}")
    return "\n".join(lines)


def _processor() -> str:
    """The name of the CPU, which the host's time depends on."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    import triton

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        "processor": _processor(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def write(path: Path, head: dict[str, Any], tables: Sequence[tuple[str, list[Row]]]) -> None:
    """The tables as JSON: of each the title, µs by label for every count of tensors, and the goals by label."""
    found = [
        {
            "title": title,
            "rows": [dataclasses.asdict(row) for row in rows if row.label != GOAL],
            "goals": {row.label: goal.microseconds for row, goal in itertools.pairwise(rows) if goal.label == GOAL},
        }
        for title, rows in tables
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": head, "counts": COUNTS, "tables": found}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds of each way (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls per round (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the tables there too")
    options = parser.parse_args()
    tables = measure(options.rounds, options.calls)
    if options.json:
        write(options.json, environment(), tables)
    print("\n\n".join(text_of(title, rows) for title, rows in tables))
    over = [f"{each}, {title}" for title, rows in tables for each in missed(rows)]
    for each in over:
        print(f"goal missed: {each}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
