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
from backends.cute.combinations import random_plans, random_row_plans

from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.epilogue import Constant, EpilogueOutput
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem
from helion.backends.cute.plan.shared import shared_bytes
from helion.backends.cute.plan.workspace import workspace_bytes
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.toolchain.shared_object import product_of_two

FP8_SCALED = gemms.row_and_column_scales()

WIDE, TALL, SQUARE, SMALL = (128, 256, 64), (256, 128, 64), (128, 128, 64), (64, 128, 64)
LARGE = (
    Choice(tile=WIDE, cluster=(2, 1), store_stages=4),
    Choice(tile=TALL, cluster=(1, 2)),
    Choice(tile=SQUARE, cluster=(2, 1), pingpong=True),
)
GATED = (
    Choice(tile=SQUARE, cluster=(2, 1)),
    Choice(tile=SQUARE, cluster=(1, 2)),
    Choice(tile=SQUARE, cluster=(2, 1), store_stages=4, group=16),
    Choice(tile=(256, 64, 64), cluster=(1, 2)),
    Choice(tile=(128, 64, 64), cluster=(2, 1), pingpong=True),
)
FP8 = (
    Choice(tile=(128, 128, 128), cluster=(2, 1)),
    Choice(tile=(128, 128, 128), cluster=(1, 2)),
    Choice(tile=(128, 128, 128), cluster=(1, 2), promote_k_tiles=2),
    Choice(tile=(128, 128, 128), cluster=(1, 2), promote_k_tiles=1),
    Choice(tile=(128, 128, 128), cluster=(2, 2)),
    Choice(tile=(256, 64, 128), cluster=(1, 2)),
)

BLOCKWISE = (
    Choice(tile=(128, 128, 128), cluster=(2, 1)),
    Choice(tile=(128, 128, 128), cluster=(1, 2)),
    Choice(tile=(128, 128, 128)),
    Choice(tile=(256, 64, 128), cluster=(1, 2)),
    Choice(tile=(64, 128, 128), cluster=(2, 1)),
)
FEW_BLOCKWISE = (
    Choice(tile=(128, 64, 128), splits=2),
    Choice(tile=(64, 64, 128)),
    Choice(tile=(64, 128, 128), cluster=(2, 1), splits=2),
)


def few(*parts: tuple[tuple[int, int, int], int, tuple[int, int]]) -> tuple[Choice, ...]:
    """Tiles, the number of CTAs that split their K, and clusters."""
    return tuple(
        Choice(
            tile=tile,
            splits=splits,
            cluster=cluster,
            epilogue_n=32 if splits <= tile[1] // 32 else 16 if splits <= tile[1] // 16 else 8,
        )
        for tile, splits, cluster in parts
    )


def among_clusters(*parts: tuple[tuple[int, int, int], int, int]) -> tuple[Choice, ...]:
    """Tiles, the CTAs of a cluster that split their K, and the clusters that do."""
    return tuple(
        dataclasses.replace(choice, grid_splits=clusters)
        for tile, splits, clusters in parts
        for choice in few((tile, splits, ONE))
    )


ONE, TWO_M, TWO_N, FOUR = (1, 1), (2, 1), (1, 2), (2, 2)

# Sizes of the suite, with choices that a seed would choose between.
CELLS: dict[str, tuple[GemmProblem, tuple[Choice, ...]]] = {
    "t4096": (gemms.product(), LARGE),
    "t131072": (
        gemms.product(131072, 512, 512),
        (
            *LARGE,
            Choice(tile=(64, 256, 64), pingpong=True),
            Choice(tile=(64, 256, 64), cluster=(2, 1), pingpong=True),
            Choice(tile=SQUARE, cluster=(1, 2), pingpong=True),
        ),
    ),
    "t4096x4104x1000": (
        gemms.product(4096, 4104, 1000),
        (*LARGE, Choice(tile=TALL), Choice(tile=TALL, cluster=(2, 1)), Choice(tile=SQUARE, cluster=(2, 1))),
    ),
    "t1024": (
        gemms.product(1024, 1024, 1024),
        few((SQUARE, 2, ONE), (SQUARE, 2, TWO_M), (SMALL, 1, ONE), (SMALL, 1, TWO_M), (SMALL, 1, TWO_N)),
    ),
    "t1024_long": (
        gemms.product(1024, 1024, 4096),
        few(
            (SQUARE, 2, ONE),
            (SQUARE, 2, TWO_M),
            (SQUARE, 2, TWO_N),
            (SQUARE, 2, FOUR),
            (SMALL, 1, TWO_M),
            (SMALL, 1, FOUR),
            ((64, 128, 128), 1, TWO_M),
        ),
    ),
    "t512_long": (
        gemms.product(512, 512, 16384),
        few(
            (SQUARE, 4, ONE),
            (SQUARE, 6, ONE),
            ((128, 128, 128), 4, ONE),
            (SQUARE, 4, TWO_M),
            (SQUARE, 3, TWO_M),
            (SQUARE, 3, TWO_N),
            (SQUARE, 2, FOUR),
            (SQUARE, 4, FOUR),
            (SMALL, 3, TWO_M),
            (SMALL, 4, TWO_M),
        ),
    ),
    "t256_long": (
        gemms.product(256, 256, 8192),
        few((SQUARE, 8, ONE), (SQUARE, 16, ONE), (SMALL, 8, ONE), (SMALL, 4, TWO_M), (SMALL, 8, TWO_M)),
    ),
    "t256_deep": (
        gemms.product(256, 256, 65536),
        few(
            (SQUARE, 8, ONE),
            (SQUARE, 16, ONE),
            (SMALL, 8, ONE),
            (SQUARE, 8, TWO_M),
            (SMALL, 8, TWO_M),
            (SMALL, 4, FOUR),
            ((64, 64, 64), 6, ONE),
        )
        + among_clusters(
            (SQUARE, 4, 8),
            (SQUARE, 8, 4),
            (SQUARE, 2, 16),
            (SQUARE, 1, 32),
            ((128, 64, 64), 4, 4),
            ((256, 64, 64), 4, 8),
            ((128, 64, 128), 4, 4),
        ),
    ),
    "t64_deep": (
        gemms.product(64, 64, 262144),
        among_clusters(((64, 64, 64), 8, 16), ((64, 64, 64), 4, 32), ((64, 64, 128), 8, 16)),
    ),
    "t128": (
        gemms.product(128, 4096, 4096),
        few(((128, 64, 64), 2, ONE), ((128, 64, 64), 2, TWO_N), (SMALL, 4, TWO_M), (SMALL, 2, ONE)),
    ),
    "t16": (
        gemms.product(16, 4096, 4096, b_major="mn"),
        few(
            ((64, 64, 64), 2, ONE),
            ((64, 64, 128), 2, ONE),
            ((64, 64, 64), 2, TWO_N),
            (SMALL, 4, ONE),
            (SMALL, 3, ONE),
            ((64, 256, 64), 1, ONE),
        ),
    ),
    "t4096_gated": (gemms.product(epilogue=gemms.swiglu(4096)), GATED),
    "t8192x14336x4096_gated": (gemms.product(8192, 14336, 4096, epilogue=gemms.swiglu(4096)), GATED[:2]),
    "t4096_fp8": (gemms.product(operands=gemms.E4M3, epilogue=FP8_SCALED), FP8),
    "t8192x5120_fp8": (gemms.product(8192, 5120, 5120, operands=gemms.E4M3, epilogue=FP8_SCALED), FP8[:4]),
    "t4096_blockwise": (gemms.blockwise(), BLOCKWISE),
    "t8192x5120_blockwise": (gemms.blockwise(8192, 5120, 5120), BLOCKWISE[:2]),
    "t4096_blockwise_columns": (gemms.blockwise(columns=1), BLOCKWISE[:2]),
    "t2048_blockwise_deep": (gemms.blockwise(2048, 2048, 16384), BLOCKWISE[:2]),
    "t128_blockwise": (gemms.blockwise(128, 4096, 4096), FEW_BLOCKWISE),
}


SIZES_OF_ROWS = ("size_m", "size_k", "pitch_a", "pitch_b")
"""Of products whose number of columns is part of the kernel, and whose operands are contiguous along K."""


def of_any_size(problem: GemmProblem) -> GemmProblem:
    """Whose launches are given M and K, and N where no whole rows are reduced."""
    given = SIZES_OF_ROWS
    if not problem.epilogue.reduces_rows:
        matrices = (*problem.outputs_of("exact"), *problem.epilogue.of_kind("exact"))
        labels = (problem.label_of(each) if isinstance(each, EpilogueOutput) else each.label for each in matrices)
        given = ("size_m", "size_n", *SIZES_OF_ROWS[1:], *(f"pitch_{label}" for label in labels))
    return dataclasses.replace(problem, runtime=given)


# Kernels whose launches are given their sizes.
OF_ANY_SIZE: dict[str, tuple[GemmProblem, Choice]] = {
    "any_product": (
        of_any_size(gemms.product(1000, 520, 136, epilogue=gemms.scaled_residual(520))),
        Choice(tile=(128, 112, 64), cluster=(2, 1), epilogue_n=16, store_stages=7),
    ),
    "any_product_pingpong": (
        of_any_size(gemms.product(1000, 520, 136, epilogue=gemms.bias("silu"))),
        Choice(tile=SQUARE, cluster=(1, 2), pingpong=True),
    ),
    "any_fp8": (
        of_any_size(gemms.product(1000, 528, 144, operands=gemms.E4M3, epilogue=FP8_SCALED)),
        Choice(tile=(128, 128, 128), cluster=(2, 1)),
    ),
    "any_rms_norm": (of_any_size(gemms.whole_rows("rms_norm", 2000, 1024, 520)), gemms.clusters(WIDE, 4)),
    "any_rms_norm_two_per_sm": (
        of_any_size(gemms.whole_rows("rms_norm", 2000, 1024, 520)),
        gemms.clusters(SQUARE, 8, epilogue_n=16, ctas_per_sm=2),
    ),
    "any_layer_norm": (of_any_size(gemms.whole_rows("layer_norm", 1000, 1000, 136)), gemms.clusters(SMALL, 8)),
    "any_softmax_16": (of_any_size(gemms.whole_rows("softmax", 1000, 3000, 136)), gemms.clusters((128, 192, 64), 16)),
    "any_quantized": (of_any_size(gemms.whole_rows("quantized", 1000, 1008, 136)), gemms.clusters(WIDE, 4)),
    "any_log_softmax_multicast_b": (
        of_any_size(gemms.whole_rows("log_softmax", 1000, 520, 136)),
        Choice(tile=(128, 144, 64), cluster=(2, 4), epilogue_n=16, store_stages=3),
    ),
}

# Few CTAs, as `sanitize_on_gpu.py` needs them.
FEW_CTAS: dict[str, tuple[GemmProblem, Choice]] = {
    "few_rows": (gemms.whole_rows("layer_norm", 200, 240, 136), gemms.clusters((64, 64, 64), 4)),
    "few_memory_rows": (gemms.whole_rows("softmax", 63, 1000, 136), gemms.in_memory(SMALL)),
    "few_scaled": (gemms.blockwise(200, 256, 400, columns=1), Choice(tile=(64, 64, 128), cluster=(2, 1))),
    "few_splits": (
        gemms.product(63, 120, 1000, epilogue=gemms.scaled_residual(120)),
        Choice(tile=(64, 64, 64), splits=2, grid_splits=2),
    ),
}

RANDOM = 40
"""Combinations that are only checked."""


def label(cell: str, choice: Choice) -> str:
    """A name of a kernel, from what its choice decides."""
    tile = "x".join(map(str, choice.tile))
    parts = [f"{cell}__{tile}_c{choice.cluster[0]}{choice.cluster[1]}_d{choice.store_stages}"]
    parts += ["pp"] if choice.pingpong else []
    parts += [f"g{choice.group}"] if choice.group != 8 else []
    parts += [f"p{choice.promote_k_tiles}"] if choice.promote_k_tiles else []
    parts += [f"k{choice.splits}"] if choice.splits > 1 else []
    parts += [f"w{choice.grid_splits}"] if choice.grid_splits > 1 else []
    parts += [f"r{choice.residual_stages}"] if choice.residual_stages > 2 else []
    return "_".join(parts)


def exported_plans() -> dict[str, GemmPlan]:
    plans = {name: gemms.hopper(name) for name in gemms.ON_HOPPER}
    for cell, (problem, choices) in CELLS.items():
        plans |= {label(cell, choice): plan_gemm(problem, choice, gemms.HOPPER) for choice in choices}
    plans |= {
        name: plan_gemm(problem, choice, gemms.HOPPER) for name, (problem, choice) in (OF_ANY_SIZE | FEW_CTAS).items()
    }
    return plans | random_plans(RANDOM) | random_row_plans(RANDOM)


def description(plan: GemmPlan, symbol: str, product: str = "") -> dict[str, Any]:
    """What launching and checking needs to know of a plan, as JSON."""
    problem = plan.whole
    return {
        "product": product,
        "symbol": symbol,
        "extents": [problem.m, problem.n, problem.k],
        "dtypes": [problem.operand_dtype, problem.output_dtype],
        "majors": [problem.a_major, problem.b_major],
        "runtime": problem.runtime,
        "outputs": [
            {"label": problem.label_of(each), "value": each.value, "kind": each.kind, "dtype": each.dtype}
            for each in problem.outputs
        ],
        "operands": [{**dataclasses.asdict(each), "label": each.label} for each in problem.epilogue.operands],
        "scales": dataclasses.asdict(problem.scales) if problem.scales else None,
        "instructions": [
            [each.op, [float(x.text) if isinstance(x, Constant) else x for x in each.arguments]]
            for each in problem.epilogue.instructions
        ],
        "tile": list(plan.tile),
        "stages": [plan.ab_stages, plan.store_stages],
        "cluster": list(plan.cluster),
        "teams": plan.teams,
        "splits": plan.splits,
        "ctas_per_sm": plan.ctas_per_sm,
        "workspace_bytes": workspace_bytes(plan),
        "imprecise": plan.operand_bytes == 1 and plan.unit == "wgmma" and not plan.promote,
        "threads": kernel_program(plan).warps * 32,
        "shared_bytes": shared_bytes(plan),
        "transaction_bytes": counts(plan).ab.transaction_bytes,
    }


def export(name: str, plan: GemmPlan, folder: Path) -> dict[str, Any]:
    """Writes ``NAME.so`` and returns what ``plans.json`` says of it."""
    compiled = compile_text(build(plan), plan)
    kernel = compiled.kernel
    kernel.export_to_c(str(folder), name, name)
    header = (folder / f"{name}.h").read_text()
    found = re.search(rf"void (_mlir_{name}__mlir_ciface_\w+)\(void \*\*args", header)
    assert found is not None
    _link(name, folder)
    (folder / f"{name}.h").unlink()
    (folder / f"{name}.o").unlink()
    return description(plan, found[1], product_of_two(compiled.ptx))


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
