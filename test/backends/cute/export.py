"""Compiles plans of ``gemms`` for Hopper into shared objects that `run_on_gpu.py` launches where no DSL is installed.

    python test/backends/cute/export.py FOLDER [NAME ...]

Needs the CuTe DSL and a C++ compiler, and no GPU. The folder gets one ``NAME.so`` per plan, about 50 KB each, and
``plans.json``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]

from backends.cute import gemms

from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.epilogue import Constant
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem
from helion.backends.cute.plan.shared import shared_bytes
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.toolchain.offline import compile_text

GELU = gemms.bias("gelu_tanh")
WIDE, SQUARE = gemms.WIDE, gemms.SQUARE
COLUMN_SCALED = gemms.scaled_residual(5120)


def _choice(choice: Choice, **changes: Any) -> Choice:
    return dataclasses.replace(choice, **changes)


# Timed beside the plans of ``gemms``: sizes of the suite, with the tiles and stages that a seed would choose between.
TIMED: dict[str, tuple[GemmProblem, Choice]] = {
    "t4096_store4": (gemms.product(), _choice(WIDE, ab_stages=4, store_stages=4)),
    "t4096_mb": (gemms.product(), _choice(WIDE, cluster=(2, 1))),
    "t4096_mb_store4": (gemms.product(), _choice(WIDE, cluster=(2, 1), store_stages=4)),
    "t4096_ma": (gemms.product(), _choice(WIDE, cluster=(1, 2))),
    "t4096_nmajor_mb": (gemms.product(b_major="mn"), _choice(WIDE, cluster=(2, 1))),
    "t4096_group16": (gemms.product(), _choice(WIDE, cluster=(2, 1), group=16)),
    "t8192": (gemms.product(8192, 8192, 8192), _choice(WIDE, cluster=(2, 1))),
    "t2048": (gemms.product(2048, 2048, 2048), SQUARE),
    "t2048_wide": (gemms.product(2048, 2048, 2048), WIDE),
    "t1024_64": (gemms.product(1024, 1024, 4096), Choice(tile=(64, 128, 64))),
    "t512_long": (gemms.product(512, 512, 16384), Choice(tile=(64, 64, 64))),
    "t8192x4096_gelu": (gemms.product(8192, 4096, 4096, epilogue=GELU), _choice(WIDE, cluster=(2, 1))),
    "t8192x5120_residual": (gemms.product(8192, 5120, 5120, epilogue=COLUMN_SCALED), _choice(WIDE, ab_stages=3)),
    "t8192x5120_residual_mb": (
        gemms.product(8192, 5120, 5120, epilogue=COLUMN_SCALED),
        _choice(WIDE, ab_stages=3, cluster=(2, 1)),
    ),
    "t4096_fp8_mb": (
        gemms.product(operands=gemms.E4M3, epilogue=gemms.row_and_column_scales()),
        Choice(tile=(128, 128, 128), cluster=(2, 1)),
    ),
}


def exported_plans() -> dict[str, GemmPlan]:
    plans = {name: gemms.hopper(name) for name in gemms.ON_HOPPER}
    return plans | {name: plan_gemm(problem, choice, gemms.HOPPER) for name, (problem, choice) in TIMED.items()}


def description(plan: GemmPlan, symbol: str) -> dict[str, Any]:
    """What launching and checking needs to know of a plan, as JSON."""
    problem = plan.problem
    return {
        "symbol": symbol,
        "extents": [problem.m, problem.n, problem.k],
        "dtypes": [problem.operand_dtype, problem.output_dtype],
        "majors": [problem.a_major, problem.b_major],
        "operands": [dataclasses.asdict(operand) for operand in problem.epilogue.operands],
        "instructions": [
            [each.op, [float(x.text) if isinstance(x, Constant) else x for x in each.arguments]]
            for each in problem.epilogue.instructions
        ],
        "tile": list(plan.tile),
        "stages": [plan.ab_stages, plan.store_stages],
        "cluster": list(plan.cluster),
        "imprecise": plan.operand_bytes == 1 and plan.unit == "wgmma" and not plan.promote,
        "threads": kernel_program(plan).warps * 32,
        "shared_bytes": shared_bytes(plan),
        "transaction_bytes": counts(plan).ab.transaction_bytes,
    }


def export(name: str, plan: GemmPlan, folder: Path) -> dict[str, Any]:
    """Writes ``NAME.so`` and returns what ``plans.json`` says of it."""
    kernel = compile_text(build(plan), plan).kernel
    kernel.export_to_c(str(folder), name, name)
    header = (folder / f"{name}.h").read_text()
    found = re.search(rf"void (_mlir_{name}__mlir_ciface_\w+)\(void \*\*args", header)
    assert found is not None
    _link(name, folder)
    (folder / f"{name}.h").unlink()
    (folder / f"{name}.o").unlink()
    return description(plan, found[1])


def _link(name: str, folder: Path) -> None:
    """Symbols of the CUDA runtime are left to the library that torch has loaded."""
    import nvidia_cutlass_dsl

    static = next(Path(part) / "cu13/lib/libcuda_dialect_runtime_static.a" for part in nvidia_cutlass_dsl.__path__)
    script = folder / f"{name}.version"
    script.write_text("{ global: _mlir_*; local: *; };")
    command = ["g++", "-shared", "-o", str(folder / f"{name}.so"), "-Wl,--whole-archive", str(folder / f"{name}.o")]
    command += ["-Wl,--no-whole-archive", str(static), f"-Wl,--version-script={script}"]
    subprocess.run(command, check=True)
    script.unlink()


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    plans = exported_plans()
    from cutlass import runtime

    # What is exported is linked to the DSL's runtime while it is compiled.
    ctypes.CDLL(runtime.find_runtime_libraries(enable_tvm_ffi=False)[0], ctypes.RTLD_GLOBAL)
    described = {name: export(name, plans[name], folder) for name in sys.argv[2:] or plans}
    (folder / "plans.json").write_text(json.dumps(described, indent=1))
    print(f"{len(described)} kernels in {folder}")


if __name__ == "__main__":
    main()
