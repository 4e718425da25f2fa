"""What a call costs before the kernel runs: µs per call of an addition of 2, 8 and 16 tensors of 4096 fp32 elements.

Run with `python benchmarks/dispatch.py`. Calls include the allocation of the output. On any machine the driver's launch
is a no-op (`helion.runtime.stub_driver`); on a GPU the real launch is timed beside it, next to Triton's own
`JITFunction.run` and to the bare `CompiledKernel.run` of the same binary, both without an allocation. Figures are
medians over rounds, and rounds of all ways are interleaved, so that a busy moment hits them alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import helion  # noqa: E402
from helion._testing import import_path  # noqa: E402

ELEMENTS = 4096
COUNTS = (2, 8, 16)
# µs per call with the stub, allocation included
GOALS = {2: 2.1, 8: 4.0, 16: 6.5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Median µs per call for each number of tensors."""

    label: str
    microseconds: tuple[float, ...]


def adder(count: int, folder: Path) -> helion.Kernel:
    """A kernel that adds `count` tensors."""
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
    path = folder / f"add_{count}_tensors.py"
    path.write_text(text)
    kernel: helion.Kernel = import_path(path).add
    return kernel


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


def stubbed(kernel: helion.Kernel, args: list[torch.Tensor], rounds: int, calls: int) -> dict[str, float]:
    """Calls whose launch is a no-op, and their parts."""
    with helion.runtime.stub_driver() as stub:
        kernel(*args)
        bound = kernel.bind(args)

        def settle() -> None:
            stub.launches.clear()

        ways: dict[str, Callable[[], Any]] = {
            "kernel(...)": lambda: kernel(*args),
            "of which the allocation": lambda: torch.empty_like(args[0]),
            "bound(...)": lambda: bound(*args),
            "kernel.bind(...)": lambda: kernel.bind(args),
            "kernel.specialization_key(...)": lambda: kernel.specialization_key(args),
        }
        return timed(ways, rounds, calls, settle)


def real(kernel: helion.Kernel, args: list[torch.Tensor], rounds: int, calls: int) -> dict[str, float]:
    """Calls on a GPU, which is waited for between rounds only."""
    out = kernel(*args)
    bound = kernel.bind(args)
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

    torch.testing.assert_close(out, sum(args[1:], args[0]))
    ways: dict[str, Callable[[], Any]] = {
        "kernel(...)": lambda: kernel(*args),
        "JITFunction.run": lambda: jit.run(*values, grid=grid, warmup=False, **options),
        "CompiledKernel.run": bare,
        "the allocation": lambda: torch.empty_like(args[0]),
    }
    return timed(ways, rounds, calls, torch.cuda.synchronize)


def measure(rounds: int, calls: int) -> list[tuple[str, list[Row]]]:
    """A title and its rows for the stub and, where there is one, the GPU."""
    parts: list[tuple[str, str, Callable[..., dict[str, float]]]] = [("driver stubbed, CPU tensors", "cpu", stubbed)]
    if torch.cuda.is_available():
        # few calls a round there: a full queue of launches would make the host wait for the GPU
        parts.append((torch.cuda.get_device_name(), "cuda", lambda k, a, r, c: real(k, a, r, min(c, 500))))
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = {count: adder(count, Path(folder)) for count in COUNTS}
        for title, device, way in parts:
            columns = []
            for count, kernel in kernels.items():
                args = [torch.randn(ELEMENTS, device=device) for _ in range(count)]
                columns.append(way(kernel, args, rounds, calls))
            rows = [Row(label=label, microseconds=tuple(c[label] for c in columns)) for label in columns[0]]
            tables.append((title, rows))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds of each way (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls per round (default: %(default)s)")
    options = parser.parse_args()
    tables = measure(options.rounds, options.calls)
    tables[0][1].insert(1, Row(label="its goal", microseconds=tuple(GOALS[count] for count in COUNTS)))
    print("\n\n".join(text_of(title, rows) for title, rows in tables))
    missed = [n for n, value in zip(COUNTS, tables[0][1][0].microseconds, strict=True) if value > GOALS[n]]
    if missed:
        print(f"goals missed for {', '.join(map(str, missed))} tensors", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
