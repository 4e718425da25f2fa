"""Write registers, spills, instructions and compile times of row kernels' default layouts, for Hopper and Blackwell.

    python benchmarks/row_binaries.py [--out FILE] [NAME ...]

Nothing is launched, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
from benchmarks.row_pairs import FP8, UINT8, int4, of_blocks, of_powers, of_rows  # noqa: E402
from benchmarks.row_workloads import WORKLOADS, Workload  # noqa: E402
from helion.backends.cute.codegen.rowwise.module import render  # noqa: E402
from helion.backends.cute.verify.rowwise.verify import simulate, verify_rows  # noqa: E402

OUT = ROOT / "benchmarks" / "results" / "cute" / "row-binaries.jsonl"
#: Kernels that pack codes of 4 bits, and the columns with one scale and its type; 0 for a scale of each row.
PACKED: dict[str, tuple[Callable[..., None], int, torch.dtype]] = {
    "fp4_of_rows": (of_rows, 0, torch.float32),
    "nvfp4": (of_blocks, 16, FP8),
    "mxfp4": (of_powers, 32, UINT8),
    "int4_of_rows": (int4, 0, torch.float32),
}
OF_ANY_LENGTH = " of any length"
"""The end of the names of kernels whose number of columns only the launch knows, in one bucket."""
BLOCK = 32
"""Columns that rows of these are a multiple of."""
REPEATS = 7
"""Plans of which the one with the shortest time counts: others share the processor."""
SHAPES = ((2048, 131072), (4096, 50257), (16384, 8192))
TARGETS = ("h100", "b200")


def tensors(work: Workload, m: int, n: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """Return the arguments of a workload, without memory."""
    shapes = {"elements": (m, n), "columns": (n,), "rows": (m,)}
    inputs = [(m, n) if kind == "rows" else (n,) for kind in work.inputs]
    made = [torch.empty(shape, dtype=dtype, device="meta") for shape in inputs]
    return (
        *made,
        *(torch.empty(shapes[at], dtype=kind or dtype, device="meta") for _, kind, at in work.outputs),
    )


def packed(name: str, m: int, n: int) -> tuple[torch.Tensor, ...]:
    """Return the arguments of a kernel that packs codes, without memory."""
    _, group, dtype = PACKED[name]
    shapes = ((m, n), torch.bfloat16), ((m, n // 2), UINT8), ((m, n // group) if group else (m,), dtype)
    return tuple(torch.empty(shape, dtype=kind, device="meta") for shape, kind in shapes)


def kernel_of(name: str) -> Any:
    fn = PACKED[name][0] if name in PACKED else WORKLOADS[name.removesuffix(OF_ANY_LENGTH)].kernel
    ignored, static = [helion.exc.TensorOperationInWrapper], not name.endswith(OF_ANY_LENGTH)
    return helion.kernel(fn, backend="cute", static_shapes=static, ignore_warnings=ignored)


def planned_ms(name: str, arguments: tuple[torch.Tensor, ...], target: str) -> float:
    """Return the milliseconds of the processor that a plan, its verification and its text take, without what is cached."""
    simulate.cache_clear()
    bound = kernel_of(name).bind(arguments, target=target)
    start = time.process_time()
    plan = bound.plan(bound.seeds[0].config)
    verify_rows(plan)
    render(plan.roles)
    return 1e3 * (time.process_time() - start)


def measured(name: str, m: int, n: int, target: str) -> dict[str, Any]:
    """Bind, plan, verify, print and compile a kernel, and read the binary of the first seed without spills, as a call does.

    Times are of the processor.
    """
    work = WORKLOADS.get(name.removesuffix(OF_ANY_LENGTH))
    arguments = packed(name, m, n) if work is None else tensors(work, m, n)
    plan_ms = min(planned_ms(name, arguments, target) for _ in range(REPEATS))
    bound = kernel_of(name).bind(arguments, target=target)
    for seed in bound.seeds:
        begun = time.process_time()
        found = bound.resources(seed.config)
        compiled, layout = time.process_time(), bound.plan(seed.config).rows.layout
        if not found.spill_bytes:
            break
    elements = layout.lanes * (layout.chunk_granules if layout.rolled else layout.thread_granules)
    return dict(
        name=name,
        m=m,
        n=n,
        target=target,
        registers=found.registers,
        spill_bytes=found.spill_bytes,
        instructions=round(sum(found.sass_counts.values()) / elements, 1),
        plan_ms=round(plan_ms, 1),
        compile_s=round(compiled - begun, 1),
    )


def lines(names: list[str]) -> Iterator[dict[str, Any]]:
    for target in TARGETS:
        for m, n in SHAPES:
            for name in (name for name in names if name not in PACKED or n % BLOCK == 0):
                try:
                    yield measured(name, m, n, target)
                except helion.exc.CuteUnsupported as refused:
                    yield dict(name=name, m=m, n=n, target=target, refused=str(refused).splitlines()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with open(options.out, "w") as out:
        # sums over rows have vectors of a constant length
        any_length = [f"{name}{OF_ANY_LENGTH}" for name in WORKLOADS if not name.endswith("norm_backward")]
        for line in lines(options.names or [*WORKLOADS, *PACKED, *any_length]):
            print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
