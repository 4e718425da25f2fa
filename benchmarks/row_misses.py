"""Count the instructions of row kernels that miss their share of a copy's speed, from their binaries.

    python benchmarks/row_misses.py [--out FILE]

It compiles what ``auto`` runs in the slowest cell of each kernel and type that misses the goal, for H200, and writes the
SASS instructions of an element in the loop over rows. Nothing is launched, and no GPU is needed. ``row_report`` makes the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
from benchmarks import row_report, row_suites  # noqa: E402
from benchmarks.row_binaries import tensors  # noqa: E402
from benchmarks.row_workloads import WORKLOADS  # noqa: E402
from helion.backends.assembly import disassembled  # noqa: E402
from helion.backends.cute.codegen.rowwise.module import pointer_dtypes, render  # noqa: E402
from helion.backends.cute.plan.rowwise.time import resident  # noqa: E402
from helion.backends.cute.toolchain.offline import compile_source  # noqa: E402
from helion.backends.triton.toolchain import compile_offline  # noqa: E402
from helion.backends.triton.toolchain.signature import offline_signature  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "cute"
OUT = RESULTS / "row-misses.jsonl"
TARGET = "h200"
WARP = 32


def bound_of(cell: Mapping[str, Any]) -> Any:
    """Bind a cell's kernel as it was timed, to tensors without memory."""
    m, n = cell["m"], cell["n"]
    if cell["kind"] == "result":
        kernel = helion.kernel(
            WORKLOADS[cell["name"]].kernel, backend="cute", ignore_warnings=[helion.exc.TensorOperationInWrapper]
        )
        made = tensors(WORKLOADS[cell["name"]], m, n, getattr(torch, cell["type"]))
        return kernel.bind(made, target=TARGET)
    found = row_suites.cell_of((cell["name"], cell["type"], m, n))
    return helion.kernel(found.function.fn, backend="auto").bind(found.args, target=TARGET)


def counted(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the registers, spills, and instructions of an element in the binary of a cell."""
    bound = bound_of(cell)
    config = bound.default_config()
    found = bound.resources(config)
    counts = found.sass_counts or _of_triton(bound, config)
    instructions, passes, rounds = sum(counts.values()), 1, 0.0
    if bound.backend == "cute":
        layout, counts = bound.plan(config).rows.layout, _of_loop(bound.plan(config))
        instructions = sum(counts.values())
        thread = layout.lanes * (layout.chunk_granules if layout.rolled else layout.thread_granules)
        count, clusters = instructions / thread, layout.choice.cluster
        rounds = cell["m"] / (resident(layout, bound.target) * layout.choice.rows)
    else:
        rows, columns, passes = _step(config, cell["n"])
        count, clusters = instructions * WARP * config.config.get("num_warps", 4) / (rows * columns), 0
    return dict(
        backend=bound.backend,
        registers=found.registers,
        spill_bytes=found.spill_bytes,
        instructions=round(count, 1),
        math=round(count * _special(counts) / instructions, 2),
        cluster=clusters,
        passes=passes,
        rounds=round(rounds, 2),
        host=sum(
            isinstance(each, helion.exc.TensorOperationInWrapper)
            for each in bound.variant.specialized.analysis.traced.warnings
        ),
    )


def _of_loop(plan: Any) -> Mapping[str, int]:
    """Return the count of each opcode in the loop over rows of a kernel of the cute backend, or over their chunks: in the
    smallest loop with most of the arithmetic. Rows that overlap have a loop before it, which reduces the first ones."""
    compiled = compile_source(render(plan.roles), plan.rows.unit, pointer_dtypes(plan.rows.problem))
    code = disassembled(compiled.cubin)
    found = [Counter(each.opcode for each in code.inside(loop)) for loop in code.loops]
    most = max(map(_arithmetic, found))
    least = 0.5 if plan.rows.layout.choice.overlap or plan.rows.layout.rolled else 0.75
    return min((each for each in found if _arithmetic(each) >= least * most), key=lambda each: sum(each.values()))


def _arithmetic(counts: Mapping[str, int]) -> int:
    return sum(counts.get(name, 0) for name in ("FADD", "FFMA", "FMUL", "MUFU", "FMNMX"))


def _of_triton(bound: Any, config: helion.Config) -> Mapping[str, int]:
    """Return the count of each opcode in the binary of the only kernel."""
    names: dict[str, Any] = {}
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(bound.to_triton_code(config))
    exec(compile(path.read_text(), str(path), "exec"), names)
    plan = bound.plan(config)
    ((name, phase),) = plan.launched
    compiled = compile_offline(names[name], **offline_signature(plan, bound.target, phase))
    return disassembled(compiled.asm["cubin"]).opcodes


def _step(config: helion.Config, n: int) -> tuple[int, int, int]:
    """Return the rows and the columns that a program of Triton has at a time, and how often it reads a row.

    A chunked reduction reads it twice, and so do two loops over tiles of columns.
    """
    sizes, loops = list(config.config["block_sizes"]), config.config.get("reduction_loops") or [None]
    if loops[0] is not None:
        return sizes[0], loops[0], 2
    tiles = [size for size in sizes[1:] if size >= WARP]
    return sizes[0], tiles[-1] if tiles else n, max(1, len(tiles))


def _special(counts: Mapping[str, int]) -> int:
    """Return the instructions of the special function unit."""
    return sum(count for name, count in counts.items() if name.startswith("MUFU"))


def lines() -> Iterator[dict[str, Any]]:
    by_device = row_report.read(RESULTS)
    for device, found in by_device.items():
        for cell in row_report.misses(found) if device.startswith("NVIDIA") else ():
            key = {name: cell[name] for name in ("name", "type", "m", "n")}
            yield dict(device=device, **key, **counted(cell))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with open(options.out, "w") as out:
        for line in lines():
            print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
