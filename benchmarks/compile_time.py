"""How long a user waits for the compiler itself: import, bind and code generation, each against its bound.

Run with `python benchmarks/compile_time.py`; prints a table and exits with 1 if a bound is missed. What happens once
a process is the median over fresh processes, what happens often the median within one. The disk caches of helion and
Triton start empty, so nothing is read back from an earlier run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Only the standard library may be imported here: this file is also what the measured processes run.

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
UNWANTED_MODULES = ("torch._dynamo", "torch._inductor")
MIN_REPETITIONS = 11
WARM_KERNELS = ("softmax", "matmul", "attention", "mamba2_chunk_scan")
NEW_SHAPES = 25
NEW_CONFIGS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `value`, `goal` and `bound` share `unit`; a row without a bound only informs."""

    label: str
    value: float
    unit: str
    goal: float | None = None
    bound: float | None = None

    @property
    def missed(self) -> bool:
        return self.bound is not None and self.value > self.bound


# ---------------------------------------------------------------------------------------------- in the measured process


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _import_torch_and_triton() -> None:
    import torch
    import triton  # noqa: F401

    torch.empty(0)  # the first tensor sets up dispatch


def _import_helion() -> None:
    import helion  # noqa: F401


def measure_fresh_process(device: str) -> dict[str, Any]:
    """Seconds that the first uses in this process take, and which unwanted modules they imported."""
    imports = {"import_torch": _seconds(_import_torch_and_triton), "import_helion": _seconds(_import_helion)}
    import torch

    from helion._testing import import_path

    kernel = import_path(EXAMPLES / "softmax.py").softmax
    x = torch.ones([48, 1000], dtype=torch.bfloat16, device=device)
    bind = _seconds(lambda: kernel.bind((x,)))
    code = _seconds(lambda: kernel.bind((x,)).to_triton_code())
    call = _seconds(lambda: kernel(x))
    unwanted = [name for name in UNWANTED_MODULES if name in sys.modules]
    return {**imports, "bind": bind, "code": code, "call": call, "unwanted": unwanted}


def measure_warm_process(device: str) -> dict[str, list[float]]:
    """Seconds for each of many binds to new shapes and of many further configs, after one kernel has run."""
    import torch

    import helion
    from helion._testing import import_path

    kernels = {name: getattr(import_path(EXAMPLES / f"{name}.py"), name) for name in WARM_KERNELS}
    softmax, matmul = kernels["softmax"], kernels["matmul"]

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    softmax(torch.ones([48, 1000], dtype=torch.bfloat16, device=device))
    times: dict[str, list[float]] = {f"{what}_{name}": [] for name in WARM_KERNELS for what in ("bind", "code")}
    for step in range(NEW_SHAPES):
        rows, columns, inner = 512 + 24 * step, 1000 + 40 * step, 256 + 16 * step
        heads, length = 8, 64 + step  # of mamba2: two groups of heads, two chunks of this length
        calls: dict[str, tuple[Any, ...]] = {
            "softmax": (empty(rows, columns),),
            "matmul": (empty(rows, inner), empty(inner, columns)),
            "attention": (empty(2, 8, rows, 64), empty(2, 8, columns, 64), empty(2, 8, columns, 64)),
            "mamba2_chunk_scan": (
                empty(1, 2, 2, length, length),
                empty(1, 2 * length, heads, 64),
                empty(1, heads, 2, length, dtype=torch.float32),
                empty(1, heads, 2, length, dtype=torch.float32),
                empty(1, 2 * length, 2, 128),
                empty(1, 2, heads, 64, 128),
                empty(heads, dtype=torch.float32),
            ),
        }
        for name, args in calls.items():
            kernel: helion.Kernel = kernels[name]
            start = time.perf_counter()
            bound = kernel.bind(args)
            middle = time.perf_counter()
            bound.to_triton_code()
            times[f"bind_{name}"].append(middle - start)
            times[f"code_{name}"].append(time.perf_counter() - start)

    configs: dict[str, tuple[Any, list[dict[str, Any]]]] = {
        "softmax": (
            softmax.bind((empty(2048, 1000),)),
            [
                {"block_sizes": [block], "num_warps": warps}
                for warps, block in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32))
            ],
        ),
        "matmul": (
            matmul.bind((empty(1024, 1024), empty(1024, 1024))),
            [{"block_sizes": list(blocks)} for blocks in itertools.product((16, 32, 64, 128), repeat=3)],
        ),
    }
    for name, (bound, fields) in configs.items():
        bound.to_triton_code()
        times[f"config_{name}"] = []
        for keys in fields[:NEW_CONFIGS]:
            config = helion.Config(**keys)
            start = time.perf_counter()
            bound.to_triton_code(config)
            times[f"config_{name}"].append(time.perf_counter() - start)
    return times


# ------------------------------------------------------------------------------------------------------------ around it


def _run_worker(kind: str, device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as caches:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "HELION_CACHE_DIR": os.path.join(caches, "helion"),
            "TRITON_CACHE_DIR": os.path.join(caches, "triton"),
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", kind, "--device", device]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the measured process failed with status {done.returncode}: {' '.join(command)}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(repetitions: int, device: str) -> list[Row]:
    """Run all measurements and return the table's rows."""
    # One run that does not count fills the operating system's file cache and writes the .pyc files.
    _run_worker("fresh", device)
    fresh = [_run_worker("fresh", device) for _ in range(repetitions)]
    warm = _run_worker("warm", device)

    def first(key: str, factor: float = 1.0) -> float:
        return factor * statistics.median(result[key] for result in fresh)

    def again(key: str) -> float:
        return 1e3 * statistics.median(warm[key])

    unwanted = {name for result in fresh for name in result["unwanted"]}
    return [
        Row(label="import torch, triton", value=first("import_torch"), unit="s"),
        Row(label="plus import helion", value=first("import_helion"), unit="s", bound=0.3),
        Row(label="first bind in a process (softmax)", value=first("bind", 1e3), unit="ms", bound=150),
        Row(label="its first code", value=first("code", 1e3), unit="ms"),
        Row(label="its first call", value=first("call", 1e3), unit="ms"),
        Row(label="bind, new shapes (softmax)", value=again("bind_softmax"), unit="ms", goal=10, bound=25),
        Row(label="bind, new shapes (matmul)", value=again("bind_matmul"), unit="ms", goal=10, bound=25),
        Row(label="bind, new shapes (attention)", value=again("bind_attention"), unit="ms", bound=60),
        Row(label="bind, new shapes (mamba2_chunk_scan)", value=again("bind_mamba2_chunk_scan"), unit="ms", bound=60),
        *(
            Row(label=f"bind and code, new shapes ({name})", value=again(f"code_{name}"), unit="ms")
            for name in WARM_KERNELS
        ),
        Row(label="code for a further config (softmax)", value=again("config_softmax"), unit="ms", goal=2, bound=5),
        Row(label="code for a further config (matmul)", value=again("config_matmul"), unit="ms", goal=2, bound=5),
        Row(label=f"imports of {', '.join(UNWANTED_MODULES)}", value=len(unwanted), unit="", bound=0),
    ]


def table(rows: list[Row]) -> str:
    """The rows as aligned text, one line each, under a header."""

    def number(value: float | None, unit: str) -> str:
        return "-" if value is None else f"{value:.3g} {unit}".rstrip()

    cells = [("", "median", "goal", "bound", "")]
    for row in rows:
        verdict = "" if row.bound is None else "MISSED" if row.missed else "ok"
        figures = (number(row.value, row.unit), number(row.goal, row.unit), number(row.bound, row.unit))
        cells.append((row.label, *figures, verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row_cells in cells:
        middle = "  ".join(text.rjust(width) for text, width in zip(row_cells[1:4], widths[1:4], strict=True))
        lines.append(f"{row_cells[0].ljust(widths[0])}  {middle}  {row_cells[4]}".rstrip())
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, default=MIN_REPETITIONS, help="fresh processes (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="where the argument tensors are (default: %(default)s)")
    parser.add_argument("--worker", choices=("fresh", "warm"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measured = measure_fresh_process if options.worker == "fresh" else measure_warm_process
        print(json.dumps(measured(options.device)))
        return 0
    rows = measure(options.repetitions, options.device)
    print(f"{options.repetitions} fresh processes, {NEW_SHAPES} shapes, {NEW_CONFIGS} configs; device {options.device}")
    print(table(rows))
    missed = [row.label for row in rows if row.missed]
    if missed:
        print(f"bounds missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
