"""Products of 8-bit floats on a GPU: the first seed of `examples/fp8_gemm.py` beside `torch._scaled_mm`, with the right
operand contiguous along N ("row") and along K ("column").

    python benchmarks/fp8.py [--json PATH]

Medians in µs over 15 launches with a cold L2, and the largest error against fp64 as a part of the largest result.
`benchmarks/results/fp8/` keeps what was measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import triton  # noqa: E402

import helion  # noqa: E402
from helion._testing import import_path  # noqa: E402

SHAPES = ((4096, 4096, 4096), (8192, 5120, 5120), (1024, 4096, 4096), (16384, 4096, 1024))
LAUNCHES = 15
#: More than the L2 of any GPU in the table.
FLUSHED_BYTES = 256 << 20


def median_us(run: Callable[[], Any]) -> float:
    """The median time of a launch whose operands are not in the cache."""
    for _ in range(5):
        run()
    flushed, times = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda"), []
    for _ in range(LAUNCHES):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


def measure(m: int, n: int, k: int, layout: str) -> dict[str, Any]:
    example = import_path(ROOT / "examples" / "fp8_gemm.py")
    x, y = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    (x8, x_scale), (y8, y_scale) = (example.quantise(each, dim, torch.float8_e4m3fn) for each, dim in ((x, 1), (y, 0)))
    columns = y8.t().contiguous().t()
    right = columns if layout == "column" else y8
    kernel = helion.kernel(example.fp8_gemm.fn, autotune_effort="none")
    args = (x8, right, x_scale, y_scale)
    expected = (x8.double() @ y8.double()) * x_scale.double()[:, None] * y_scale.double()
    error = (kernel(*args).double() - expected).abs().max() / expected.abs().max()
    scaled_mm = lambda: torch._scaled_mm(  # noqa: E731
        x8, columns, scale_a=x_scale[:, None], scale_b=y_scale[None, :], out_dtype=torch.bfloat16
    )
    return {
        "shape": [m, n, k],
        "layout": layout,
        "seed_us": median_us(lambda: kernel(*args)),
        "scaled_mm_us": median_us(scaled_mm),
        "error": error.item(),
        "config": dict(kernel.bind(args).short_config()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there too")
    arguments = parser.parse_args()
    rows = [measure(*shape, layout) for shape in SHAPES for layout in ("row", "column")]
    for row in rows:
        times = f"{row['seed_us']:8.1f} {row['scaled_mm_us']:8.1f}"
        print(f"{'x'.join(map(str, row['shape'])):18} {row['layout']:7} {times}  {row['error']:.1e}  {row['config']}")
    if arguments.json is not None:
        environment = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": datetime.date.today().isoformat(),
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
