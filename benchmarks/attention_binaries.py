"""Write times of planning, compiling and loading of attention kernels, with their registers and spills, for Hopper.

    python benchmarks/attention_binaries.py [--out FILE] [NAME ...]

No GPU is needed. With one, the time to load a compiled kernel includes that of the driver. Compilation has three parts: the
DSL follows the Python text, MLIR's passes, and LLVM with ptxas.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "attention_variants")]

import helion  # noqa: E402
from benchmarks import attention as bench  # noqa: E402
from examples.attention_variants import fp8  # noqa: E402
from helion.backends.cute.plan.attention.plan import CuteBackwardPlan  # noqa: E402
from helion.backends.cute.shapes import ATTENTION, BACKWARD  # noqa: E402
from helion.backends.cute.toolchain import library  # noqa: E402
from helion.backends.cute.verify.attention import verify as rules  # noqa: E402
from helion.ops.kernels import attention as ops  # noqa: E402
from helion.ops.kernels import varlen  # noqa: E402

OUT = ROOT / "benchmarks" / "results" / "cute" / "attention-binaries.jsonl"
REPEATS = 5
"""Plans of which the one with the shortest time counts: others share the processor."""
TARGET = "h200"
Made = tuple[Callable[..., Any], tuple[Any, ...], bool]


def _of_cell(cell: bench.Cell) -> Made:
    """Return the kernel of a forward cell, its arguments and whether its sizes are fixed."""
    kernel, arguments = bench.ours(cell, cell.tensors("meta"), bench.inputs_of(cell, "meta"))
    return kernel.fn, arguments, kernel.settings.static_shapes


def _of_gradient(name: str, dims: int, *more: Any) -> Made:
    heads, m = 16, 4096
    matrices = [torch.empty(heads, m, dims, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    vectors = [torch.empty(heads, m, device="meta") for _ in range(2)]
    function = getattr(ops, f"attention_{name}_backward_kernel").fn
    return function, (*matrices, *vectors, 1, None, True, 0, 0.0, *more), False


def _of_e4m3() -> Made:
    q, k, v = (torch.empty(16, 4096, 128, dtype=torch.float8_e4m3fn, device="meta") for _ in range(3))
    scales = [torch.empty(16, device="meta") for _ in range(3)]
    return fp8.fp8_attention.fn, (q, k, v.mT.contiguous().mT, *scales, True), True


def _of_sequences() -> Made:
    rows = [torch.empty(4096, 16, 128, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    bounds = [torch.empty(4096, dtype=torch.int32, device="meta") for _ in range(2)]
    return varlen.varlen_attention_kernel.fn, (*rows, None, *bounds, 1, None, 0.0), False


KINDS: dict[str, Callable[[], Made]] = {
    "forward, 64 dimensions": lambda: _of_cell(bench.cell(64, False, 4, 32, 32, 4096)),
    "forward, 128 dimensions, causal": lambda: _of_cell(bench.cell(128, True, 4, 16, 16, 4096)),
    "forward, 256 dimensions, causal": lambda: _of_cell(bench.cell(256, True, 4, 8, 8, 4096)),
    "softcap": lambda: _of_cell(bench.cell(128, False, 4, 16, 16, 4096, hook="softcap")),
    "window": lambda: _of_cell(bench.cell(128, True, 4, 16, 16, 4096, hook="window")),
    "bias": lambda: _of_cell(bench.cell(64, False, 4, 32, 32, 4096, hook="bias")),
    "sequences": _of_sequences,
    "e4m3": _of_e4m3,
    "decoding": lambda: _of_cell(bench.cell(128, False, 1, 32, 8, 1, 65536)),
    "latent decoding": lambda: _of_cell(bench.cell(576, False, 4, 1, 1, 128, 16384, values=512, latent=True)),
    "gradients of queries": lambda: _of_gradient("queries", 128),
    "gradients of keys": lambda: _of_gradient("keys", 256, False),
    "all gradients": lambda: _of_gradient("keys", 128, True),
}


def planned(made: Made) -> tuple[float, Any]:
    """Return the milliseconds of the processor that a plan, its verification and its text take, and the kernel."""
    function, arguments, static = made
    bound = helion.kernel(function, backend="cute", static_shapes=static).bind(arguments, target=TARGET)
    config = bound.seeds[0].config
    rules.simulate_schedules.cache_clear()
    start = time.process_time()
    plan = bound.plan(config)
    shape = BACKWARD if isinstance(plan, CuteBackwardPlan) else ATTENTION
    shape.verify(plan)
    kernel = shape.kernel(plan)
    return 1e3 * (time.process_time() - start), kernel


def loaded_ms(kernel: Any, at: int) -> float:
    """Return the milliseconds to find a compiled kernel on disk and, with a GPU, to load it.

    The cache has another name each time, since a process remembers what it found.
    """
    link = f"{os.environ['HELION_CACHE_DIR']}-{kernel.key}-{at}"
    os.symlink(os.environ["HELION_CACHE_DIR"], link)
    os.environ["HELION_CACHE_DIR"], cache = link, os.environ["HELION_CACHE_DIR"]
    start = time.perf_counter()
    place = library.folder(kernel)
    if torch.cuda.is_available():
        library.Library(place / library.SHARED_OBJECT, kernel.pointers).load(0)
    took = time.perf_counter() - start
    os.environ["HELION_CACHE_DIR"] = cache
    return 1e3 * took


class Passes:
    """The times of the DSL's passes while a kernel is compiled, in seconds of the processor: all of them, and LLVM with ptxas."""

    def __init__(self) -> None:
        from cutlass.base_dsl import compiler

        self.all_s = self.binary_s = 0.0
        self.compile, self.owner = compiler.Compiler.compile, compiler.Compiler
        compiler.Compiler.compile = lambda *given, **named: self.timed(*given, **named)

    def timed(self, made: Any, *given: Any, **named: Any) -> Any:
        """Compile with MLIR's report of times, which it writes to the standard error stream."""
        manager = made.passmanager.PassManager
        made.passmanager = SimpleNamespace(
            PassManager=SimpleNamespace(parse=lambda text: _reporting(manager.parse(text)))
        )
        error, begun = os.dup(2), time.process_time()
        with tempfile.TemporaryFile() as report:
            os.dup2(report.fileno(), 2)
            try:
                return self.compile(made, *given, **named)
            finally:
                os.dup2(error, 2)
                os.close(error)
                self.all_s = time.process_time() - begun
                report.seek(0)
                found = re.search(rb"\( *([0-9.]+)%\)  CudaToBinaryPass", report.read())
                self.binary_s = self.all_s * float(found[1]) / 100 if found else 0.0


def _reporting(manager: Any) -> Any:
    manager.enable_timing()
    return manager


def measured(name: str, passes: Passes) -> dict[str, Any]:
    """Return the line of a kind."""
    plans = [planned(KINDS[name]()) for _ in range(REPEATS)]
    kernel = plans[0][1]
    wall, begun = time.perf_counter(), time.process_time()
    library.folder(kernel)
    compiled, took = time.process_time() - begun, time.perf_counter() - wall
    load = min(loaded_ms(kernel, at) for at in range(REPEATS))
    function, arguments, static = KINDS[name]()
    bound = helion.kernel(function, backend="cute", static_shapes=static).bind(arguments, target=TARGET)
    found = bound.resources(bound.seeds[0].config)
    return dict(
        name=name,
        plan_ms=round(min(ms for ms, _ in plans), 1),
        compile_s=round(compiled, 2),
        compile_wall_s=round(took, 2),
        trace_s=round(compiled - passes.all_s, 2),
        mlir_s=round(passes.all_s - passes.binary_s, 2),
        binary_s=round(passes.binary_s, 2),
        load_ms=round(load, 2),
        registers=found.registers,
        spill_bytes=found.spill_bytes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    with tempfile.TemporaryDirectory() as folder, open(options.out, "w") as out:
        os.environ["HELION_CACHE_DIR"] = folder
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        # The first one imports the DSL. It is none of the kinds, whose traces the DSL would keep.
        library.folder(planned(_of_cell(bench.cell(64, True, 1, 4, 4, 1024)))[1])
        (Path(folder) / "first").mkdir()
        os.environ["HELION_CACHE_DIR"] = f"{folder}/first"
        known = dict(gpu=device, machine=platform.machine(), cores=os.cpu_count(), torch=torch.__version__)
        print(json.dumps({"kind": "run", "date": time.strftime("%Y-%m-%d"), "target": TARGET, **known}), file=out)
        passes = Passes()
        for name in options.names or KINDS:
            line = json.dumps(measured(name, passes))
            print(line)
            print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
