"""Matrix products of the cute backend on a GPU: whether they are right, what a call and a start cost, times.

    python benchmarks/cute.py prepare|check|times|dispatch|start|exported [--json PATH] [--names A,B]

`prepare` compiles everything in several processes; the others do it themselves where it was not. `check` compares with
fp64, also over random configs, and goes on in a new process after a kernel that hangs. `times` are those of
`benchmarks/timing.py`: device time in CUDA graphs with a cold L2, medians of 15, all variants in turn; torch's functions
and the seed of the Triton backend stand beside ours. `start` and `exported` are for processes without the DSL.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

import torch  # noqa: E402
from backends.cute import products, row_kernels, scaled_kernels  # noqa: E402
from backends.cute.products import BF16, BOUNDS, E4M3, E5M2, FP16, FP32  # noqa: E402

import helion  # noqa: E402
from benchmarks.timing import GraphTimer  # noqa: E402

SILENT_SECONDS = 40.0
SWIGLU = "swiglu"
#: Kernels of products side by side, by name: the batch as tiles, as a scalar index, as a loop around one right operand.
BATCHED = {
    "bmm": products.bmm,
    "bmm one by one": products.bmm_one_by_one,
    "bmm shared": products.bmm_shared,
    "bmm fused": products.bmm_fused,
}
RANDOM_CONFIGS = 16
#: M, N, K of plain products: squares, layers of language models, few rows, long K.
SHAPES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 14336, 4096),
    (8192, 4096, 14336),
    (512, 4096, 4096),
    (128, 8192, 8192),
    (16, 4096, 4096),
    (131072, 512, 512),
    (256, 256, 65536),
    (512, 512, 16384),
    (64, 64, 262144),
    (4096, 4104, 1000),
)
FP8_SHAPES = ((4096, 4096, 4096), (8192, 5120, 5120), (1024, 4096, 4096), (16384, 1024, 4096))
FUSED = (
    ("bias_gelu_tanh", 4096, 4096, 4096),
    ("bias_gelu", 8192, 4096, 4096),
    ("bias_silu", 2048, 8192, 2048),
    ("scale_residual", 8192, 5120, 5120),
    ("relu_scaled", 4096, 4096, 1024),
    ("row_column_scales", 4096, 4096, 4096),
)
#: Products with a factor of every 128 elements of K, by how the kernel is written.
BLOCKWISE = (
    ("by_begin", 4096, 4096, 4096),
    ("by_begin", 8192, 5120, 5120),
    ("by_begin", 1024, 4096, 4096),
    ("by_begin", 128, 8192, 8192),
    ("by_begin", 2048, 2048, 16384),
    ("gathered", 4096, 4096, 4096),
    ("expanded", 4096, 4096, 4096),
    ("normed", 8192, 2048, 2048),
)
#: Chains with reductions of whole rows that the suite of epilogues (benchmarks/seeds.py) does not have.
ROWS = (
    ("silu before rms_norm", 131072, 1024, 512),
    ("silu before rms_norm", 8192, 4096, 4096),
    ("two norms", 131072, 1024, 1024),
    ("softmax of scaled sums", 8192, 2048, 1024),
    ("layer_norm by hand", 65536, 1536, 2048),
    ("residual and norm", 131072, 3000, 512),
    ("argmax as a factor", 8192, 1024, 512),
    ("minus logsumexp", 1024, 1024, 1024),
    ("silu before rms_norm", 8192, 8192, 1024),
    ("softmax of scaled sums", 4096, 16384, 2048),
    ("minus logsumexp", 4096, 50264, 1024),
    ("silu before rms_norm", 16, 8192, 8192),
    ("two norms", 16, 4096, 8192),
)
#: Rows of more columns are none that the Triton backend holds whole.
MOST_COLUMNS = 4096
#: Configs whose times say how a seed should choose, by name.
TRIED: dict[str, dict[str, Any]] = {
    "256x128 mb": {"block_sizes": [256, 128, 64], "l2_groupings": [8], "wgmma_cluster_m": 2},
    "256x128 ma": {"block_sizes": [256, 128, 64], "l2_groupings": [8], "wgmma_cluster_n": 2},
    "128x256 mb": {"block_sizes": [128, 256, 64], "l2_groupings": [8], "wgmma_cluster_m": 2},
    "128x256 mb c4": {"block_sizes": [128, 256, 64], "l2_groupings": [8], "wgmma_cluster_m": 2, "wgmma_c_stages": 4},
    "128x128 mb": {"block_sizes": [128, 128, 64], "l2_groupings": [8], "wgmma_cluster_m": 2},
    "128x128 ma": {"block_sizes": [128, 128, 64], "l2_groupings": [8], "wgmma_cluster_n": 2},
    "128x128 pingpong": {"block_sizes": [128, 128, 64], "l2_groupings": [8], "wgmma_pingpong": True},
    "128x128 pingpong mb": {
        "block_sizes": [128, 128, 64], "l2_groupings": [8], "wgmma_pingpong": True, "wgmma_cluster_m": 2,
    },
    "64x256 pingpong": {"block_sizes": [64, 256, 64], "l2_groupings": [8], "wgmma_pingpong": True},
    "64x256 pingpong mb": {
        "block_sizes": [64, 256, 64], "l2_groupings": [8], "wgmma_pingpong": True, "wgmma_cluster_m": 2,
    },
    "128x64": {"block_sizes": [128, 64, 64], "l2_groupings": [8]},
    "64x128 mb": {"block_sizes": [64, 128, 64], "l2_groupings": [8], "wgmma_cluster_m": 2},
    "128x128 k2": {"block_sizes": [128, 128, 64], "wgmma_k_splits": 2},
    "64x64 k2": {"block_sizes": [64, 64, 64], "wgmma_k_splits": 2},
    "64x64 k4": {"block_sizes": [64, 64, 64], "wgmma_k_splits": 4, "wgmma_epilogue_columns": 16},
    "64x64 k8": {"block_sizes": [64, 64, 64], "wgmma_k_splits": 8, "wgmma_epilogue_columns": 8},
    "64x128 k4": {"block_sizes": [64, 128, 64], "wgmma_k_splits": 4},
    "64x128 k8": {"block_sizes": [64, 128, 64], "wgmma_k_splits": 8, "wgmma_epilogue_columns": 16},
    "64x128 k16": {"block_sizes": [64, 128, 64], "wgmma_k_splits": 16, "wgmma_epilogue_columns": 8},
    "128x128 k8": {"block_sizes": [128, 128, 64], "wgmma_k_splits": 8, "wgmma_epilogue_columns": 16},
    "128x128 k4 w8": {"block_sizes": [128, 128, 64], "wgmma_k_splits": 4, "wgmma_grid_splits": 8},
    "128x128 k8 w4": {
        "block_sizes": [128, 128, 64], "wgmma_k_splits": 8, "wgmma_grid_splits": 4, "wgmma_epilogue_columns": 16,
    },
    "128x128 w32": {"block_sizes": [128, 128, 64], "wgmma_grid_splits": 32},
    "128x128 w2": {"block_sizes": [128, 128, 64], "wgmma_grid_splits": 2},
    "64x128 k2 w2": {"block_sizes": [64, 128, 64], "wgmma_k_splits": 2, "wgmma_grid_splits": 2},
    "128x64 k4 w4": {
        "block_sizes": [128, 64, 64], "wgmma_k_splits": 4, "wgmma_grid_splits": 4, "wgmma_epilogue_columns": 16,
    },
    "64x64 deep k2": {"block_sizes": [64, 64, 128], "wgmma_k_splits": 2},
}  # fmt: skip
#: Tiles of fewer elements, and splits of K, are tried where there are no more CTAs than this.
SMALL, MANY = 128 * 128, 264
TRIED_FUSED = ("256x128 mb", "128x256 mb", "128x256 mb c4", "128x128 mb", "128x128 pingpong", "128x128 pingpong mb")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One product. ``layouts`` are those of x and y; ``configs`` how many random ones are tried beside the default."""

    name: str
    m: int
    n: int
    k: int
    dtype: torch.dtype = BF16
    layouts: tuple[str, str] = ("row", "row")
    epilogue: str = ""
    configs: int = 0
    batch: int = 0

    def arguments(self, device: str) -> tuple[helion.Kernel, tuple[Any, ...]]:
        """The kernel and what it is called with."""
        how: dict[str, Any] = {"device": device}
        if self.batch:
            return BATCHED[self.epilogue], self._batched(device)
        if scaled := scaled_kernels.CASES.get(self.epilogue):
            given = scaled_kernels.arguments(scaled, self.m, self.n, self.k, self.dtype)
            return scaled.kernel, tuple(scaled_kernels.moved(each, device) for each in given)
        x = products.operand(self.m, self.k, self.layouts[0], dtype=FP32, **how).to(self.dtype)
        y = products.operand(self.k, self.n, self.layouts[1], dtype=FP32, seed=1, **how).to(self.dtype)
        if not self.epilogue:
            return products.matmul, (x, y)
        if self.epilogue in row_kernels.CASES:
            rows = row_kernels.CASES[self.epilogue]
            given = row_kernels.operands(self.m, self.n, self.k, self.dtype, device)
            return row_kernels.whole_rows, (*given, rows.dtype, rows.chain)
        if self.epilogue == SWIGLU:  # the gate is scaled so that its sums are of order one
            up = products.operand(self.k, self.n, self.layouts[1], dtype=FP32, seed=2, **how).to(self.dtype)
            return products.swiglu, (x, y * self.k**-0.5, up)
        return products.fused, (x, y, *products.epilogues(self.m, self.n, device)[self.epilogue])

    def _batched(self, device: str) -> tuple[torch.Tensor, ...]:
        b, m, n, k = self.batch, self.m, self.n, self.k
        x = products.values(b, m, k, dtype=BF16, device=device)
        if self.epilogue == "bmm shared":
            return x, products.values(k, n, dtype=BF16, device=device, seed=1)
        y = products.values(b, k, n, dtype=BF16, device=device, seed=1)
        if self.epilogue != "bmm fused":
            return x, y
        row, residual = (
            products.values(b, n, dtype=BF16, device=device, seed=2),
            products.values(b, m, n, dtype=BF16, device=device, seed=3),
        )
        return x, y, row, products.values(m, dtype=FP32, device=device, seed=4), residual

    def expected(self, args: tuple[Any, ...]) -> torch.Tensor:
        if self.batch:
            sums = args[0].double() @ args[1].double()
            if self.epilogue != "bmm fused":
                return sums.float()
            row, column, residual = (each.double() for each in args[2:])
            value = torch.nn.functional.silu(sums * column[:, None] + row[:, None, :]) + residual
            return value.transpose(0, 1).float()
        if scaled := scaled_kernels.CASES.get(self.epilogue):
            return scaled_kernels.reference(scaled, *args).float()
        if self.epilogue in row_kernels.CASES:
            return row_kernels.expected(row_kernels.CASES[self.epilogue], *args[:6]).float()
        if self.epilogue == SWIGLU:
            x, gate, up = (each.double() for each in args)
            return (torch.nn.functional.silu(x @ gate) * (x @ up)).float()
        x, y, dtype, epilogue = args if self.epilogue else (*args, self.dtype, None)
        return products.reference(x, y, dtype, epilogue)


def checked_cases() -> Iterator[Case]:
    odd = {"m": 1000, "n": 520, "k": 136}
    for dtype in (BF16, FP16):
        for layouts in ((x, y) for x in ("row", "column", "padded") for y in ("row", "column", "padded")):
            yield Case(name=f"{_short(dtype)} {'/'.join(layouts)}", dtype=dtype, layouts=layouts, **odd)
    small = [(m, n, k) for m in (1, 2, 64, 65) for n in (8, 32, 40, 64, 72) for k in (8, 72, 200)]
    for m, n, k in small:
        yield Case(name=f"bf16 {m}x{n}x{k}", m=m, n=n, k=k, configs=2)
    yield Case(name="bias_gelu 1x4096x4096", m=1, n=4096, k=4096, epilogue="bias_gelu", configs=2)
    yield Case(name="scale_residual 1x520x136", m=1, n=520, k=136, epilogue="scale_residual", configs=2)
    sizes = ((63, 1000, 64), (4097, 8, 72), (8, 4096, 1000), (256, 256, 8200), (16, 4096, 4096))
    for m, n, k in (*sizes, (4096, 4096, 4096), (8192, 1024, 8), (131072, 512, 512)):
        yield Case(name=f"bf16 {m}x{n}x{k}", m=m, n=n, k=k)
    for m, n, k in ((256, 256, 65536), (64, 64, 65536), (250, 248, 8200), (1000, 520, 4104)):
        yield Case(name=f"long K {m}x{n}x{k}", m=m, n=n, k=k, configs=RANDOM_CONFIGS // 2)
    yield Case(
        name="long K scale_residual", m=250, n=248, k=8200, epilogue="scale_residual", configs=RANDOM_CONFIGS // 2
    )
    for name in BATCHED:
        for b, m, n, k in ((5, 100, 72, 136), (2, 1, 8, 64), (33, 513, 264, 200), (1, 64, 64, 64)):
            yield Case(name=f"{name} {b}x{m}x{n}x{k}", batch=b, m=m, n=n, k=k, epilogue=name, configs=4)
    for epilogue in products.epilogues(8, 8, "cpu"):
        yield Case(name=f"{epilogue} odd", epilogue=epilogue, **odd)
        yield Case(name=f"{epilogue} 2048", epilogue=epilogue, m=2048, n=1024, k=512)
    for dtype in (E4M3, E5M2):
        for m, n, k in ((1000, 528, 144), (4096, 4096, 4096)):
            name = f"{_short(dtype)} {m}x{n}x{k}"
            yield Case(name=name, m=m, n=n, k=k, dtype=dtype, layouts=("row", "column"), epilogue="row_column_scales")
    for epilogue, case in scaled_kernels.CASES.items():
        for m, n, k in ((1000, 520, 1024), (63, 144, 256), *(() if case.whole_blocks else ((4097, 1032, 1040),))):
            name = f"blockwise {epilogue} {m}x{n}x{k}"
            yield Case(name=name, m=m, n=n, k=k, dtype=E4M3, epilogue=epilogue, configs=RANDOM_CONFIGS // 4)
    for dtype, m, n, k in ((E5M2, 1000, 520, 1040), (E4M3, 2048, 2048, 16384), (E4M3, 1, 4096, 4096)):
        name = f"blockwise {_short(dtype)} {m}x{n}x{k}"
        yield Case(name=name, m=m, n=n, k=k, dtype=dtype, epilogue="by_begin", configs=RANDOM_CONFIGS // 2)
    for layouts in (("row", "row"), ("column", "column")):
        name = f"swiglu {'/'.join(layouts)}"
        yield Case(name=name, m=1000, n=520, k=136, layouts=layouts, epilogue=SWIGLU, configs=RANDOM_CONFIGS // 2)
    yield from _checked_rows()
    how = {"m": 1000, "n": 776, "k": 1096, "configs": RANDOM_CONFIGS}
    yield Case(name="random bf16", **how)
    yield Case(name="random fp16 columns", dtype=FP16, layouts=("column", "column"), **how)
    yield Case(name="random residual", epilogue="scale_residual", **how)
    yield Case(name="random bias", epilogue="bias_gelu", **how)
    how["k"] = 1104
    yield Case(name="random fp8", dtype=E4M3, layouts=("row", "column"), epilogue="row_column_scales", **how)


def _checked_rows() -> Iterator[Case]:
    """Whole rows of every length that a cluster holds, and of some that none does, and each chain of a kernel."""
    for name in row_kernels.CASES:
        yield Case(name=f"rows {name}", m=1000, n=1000, k=264, epilogue=name, configs=2)
    for m, n, k in ((1, 512, 64), (63, 8, 8), (1000, 1536, 520), (131, 3000, 72), (4097, 2048, 1000), (65, 4096, 4096)):
        for name in ("softmax", "two norms", "silu before rms_norm"):
            yield Case(name=f"rows {name} {m}x{n}x{k}", m=m, n=n, k=k, epilogue=name, configs=2)
    for m, n, k in (
        (1, 4104, 64),
        (63, 8192, 520),
        (131, 16384, 72),
        (7, 50264, 136),
        (1000, 4104, 1000),
        (16, 4096, 8200),
    ):
        for name in ("softmax", "two norms", "silu before rms_norm", "argmax as a factor"):
            yield Case(name=f"rows in memory {name} {m}x{n}x{k}", m=m, n=n, k=k, epilogue=name, configs=2)


def timed_cases() -> Iterator[Case]:
    for m, n, k in SHAPES:
        yield Case(name=f"bf16 {m}x{n}x{k}", m=m, n=n, k=k)
    for m, n, k in FP8_SHAPES:
        name = f"fp8 {m}x{n}x{k}"
        yield Case(name=name, m=m, n=n, k=k, dtype=E4M3, layouts=("row", "column"), epilogue="row_column_scales")
    for epilogue, m, n, k in BLOCKWISE:
        yield Case(name=f"blockwise {epilogue} {m}x{n}x{k}", m=m, n=n, k=k, dtype=E4M3, epilogue=epilogue)
    for b, m, n, k in ((64, 512, 512, 512), (16, 1024, 1024, 1024), (128, 128, 128, 4096), (8, 4096, 512, 512)):
        yield Case(name=f"bmm {b}x{m}x{n}x{k}", batch=b, m=m, n=n, k=k, epilogue="bmm")
    yield Case(name="swiglu 4096x4096x4096", m=4096, n=4096, k=4096, epilogue=SWIGLU)
    for epilogue, m, n, k in ROWS:
        yield Case(name=f"rows {epilogue} {m}x{n}x{k}", m=m, n=n, k=k, epilogue=epilogue)
    for epilogue, m, n, k in FUSED:
        yield Case(name=f"{epilogue} {m}x{n}x{k}", m=m, n=n, k=k, epilogue=epilogue)


def _short(dtype: torch.dtype) -> str:
    return {BF16: "bf16", FP16: "fp16", E4M3: "e4m3", E5M2: "e5m2"}[dtype]


def configs_of(case: Case, bound: Any) -> dict[str, helion.Config]:
    """The default and the random configs of a case."""
    found = {"default": bound.default_config()}
    rng, space = random.Random(case.name), bound.config_spec
    while len(found) <= case.configs:
        config = space.random(rng)
        if _fits(bound, config):
            found[f"random {len(found)}"] = config
    return found


def _fits(bound: Any, config: helion.Config) -> bool:
    try:
        bound.plan(config)
    except helion.exc.InvalidConfig:
        return False
    return True


# --- compiling -----------------------------------------------------------------------------------------------------------


def prepare(names: list[str]) -> list[dict[str, Any]]:
    """Compile what `check` and `times` run, and torch's part of it."""
    jobs = [("check", case.name) for case in checked_cases()] + [("times", case.name) for case in timed_cases()]
    jobs.sort(key=lambda job: job[0] != "times")
    start = time.perf_counter()
    workers = max(2, (os.cpu_count() or 2) - 2)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(_prepared, jobs))
    print(f"compiled {len(jobs)} cases in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return [row for row in rows if row["failures"]]


def _prepared(job: tuple[str, str]) -> dict[str, Any]:
    kind, name = job
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch._inductor.config.compile_threads = 1
    failures = {}
    case = next(c for c in (checked_cases() if kind == "check" else timed_cases()) if c.name == name)
    kernel, args = case.arguments(device)
    bound = kernel.bind(args)
    wanted = configs_of(case, bound) if kind == "check" else timed_configs(case, bound)
    with tempfile.TemporaryDirectory() as folder:
        for label, config in wanted.items():
            try:
                bound.export_shared_object(Path(folder) / "kernel.so", config)
            except Exception as error:
                failures[label] = repr(error)[:300]
    if kind == "times" and device == "cuda":
        for label, function in baselines(case, args).items():
            try:
                function()
            except Exception as error:
                failures[label] = repr(error)[:300]
    return {"case": name, "failures": failures}


# --- right? --------------------------------------------------------------------------------------------------------------


def check(names: list[str]) -> list[dict[str, Any]]:
    """Every case in a process that is watched."""
    left = names or [*(case.name for case in checked_cases()), *SPECIAL]
    rows: list[dict[str, Any]] = []
    while left:
        command = [sys.executable, __file__, "check-child", "--names", ",".join(left)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
        heard = [time.monotonic() + SILENT_SECONDS]
        begun: list[str] = []

        def listen(process: Any = process, heard: list[float] = heard, begun: list[str] = begun) -> None:
            for line in process.stdout:
                heard[0] = time.monotonic()
                row = json.loads(line)
                if "start" in row:
                    begun.append(row["start"])
                else:
                    rows.append(row)
                    print(line, end="", flush=True)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        while process.poll() is None:
            time.sleep(0.1)
            if time.monotonic() > heard[0] + SILENT_SECONDS:
                process.kill()
                rows.append({"case": begun[-1] if begun else "?", "ok": False, "error": "hangs"})
                print(json.dumps(rows[-1]), flush=True)
                break
        process.wait()
        listener.join(timeout=5)
        if process.returncode == 0 or not begun:
            break
        left = left[left.index(begun[-1]) + 1 :]
    good = sum(bool(row.get("ok")) for row in rows)
    print(f"{good} of {len(rows)} are right", file=sys.stderr)
    return rows


def check_child(names: list[str]) -> None:
    cases = {case.name: case for case in checked_cases()}
    for name in names:
        print(json.dumps({"start": name}), flush=True)
        try:
            for row in checked(cases[name]) if name in cases else (SPECIAL[name](),):
                print(json.dumps({"case": name, **row}), flush=True)
        except Exception as error:
            print(json.dumps({"case": name, "ok": False, "error": repr(error)[:400]}), flush=True)
            if "CUDA" in repr(error):
                sys.exit(3)  # the context is lost; a new process goes on


def checked(case: Case) -> Iterator[dict[str, Any]]:
    """The errors of a case, one row per config. Three runs have to agree to the bit."""
    kernel, args = case.arguments("cuda")
    bound = kernel.bind(args)
    expected = case.expected(args)
    written = args[2] if kernel is products.fused else args[6] if kernel is row_kernels.whole_rows else case.dtype
    written = BF16 if case.epilogue in scaled_kernels.CASES else written
    bound_of = max(BOUNDS[expected.dtype], BOUNDS[written])
    for label, config in configs_of(case, bound).items():
        run = bound.compile_config(config)
        outputs = [run(*args) for _ in range(3)]
        torch.cuda.synchronize()
        rows = expected.size(-1)
        error = products.row_error(outputs[0].reshape(-1, rows), expected.reshape(-1, rows))
        same = all(torch.equal(outputs[0].view(torch.uint8), other.view(torch.uint8)) for other in outputs[1:])
        row = {"config": label, "ok": error < bound_of and same, "error": float(f"{error:.3g}"), "same": same}
        yield row if row["ok"] else {**row, "short": repr(bound.short_config(config))}


#: Sizes of a product with enough tiles, and of one whose K clusters split, who share a workspace.
SQUARE, SPLIT = (512, 512, 512), (256, 256, 16384)


def _inputs(shape: tuple[int, int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    m, n, k = shape
    x, y = (
        products.values(m, k, dtype=BF16, device="cuda", seed=seed),
        products.values(k, n, dtype=BF16, device="cuda", seed=seed + 1),
    )
    return x, y


def _graph(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Two graphs, captured on another stream, replayed with other data on streams of their own, beside calls on a third."""
    inputs = [_inputs(shape, 10 * at) for at in range(3)]
    expected = [products.reference(*given, BF16, None) for given in (_inputs(shape, 50), _inputs(shape, 60), inputs[2])]
    products.matmul(*inputs[0])
    graphs, outputs = [torch.cuda.CUDAGraph() for _ in range(2)], []
    for graph, given in zip(graphs, inputs, strict=False):
        with torch.cuda.graph(graph):
            outputs.append(products.matmul(*given))
    for given, seed in zip(inputs, (50, 60), strict=False):
        for mine, other in zip(given, _inputs(shape, seed), strict=True):
            mine.copy_(other)
    for out in outputs:
        out.zero_()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = torch.empty_like(outputs[0])
    for _ in range(50):
        for graph, stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            found = products.matmul(*inputs[2])
    torch.cuda.synchronize()
    errors = [products.row_error(got, wanted) for got, wanted in zip((*outputs, found), expected, strict=True)]
    return {"ok": max(errors) < BOUNDS[BF16], "error": max(errors)}


def _streams(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Calls of four threads on streams of their own."""
    inputs = [_inputs(shape, 2 * at) for at in range(4)]
    torch.cuda.synchronize()
    found: dict[int, torch.Tensor] = {}

    def work(at: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found[at] = products.matmul(*inputs[at])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [products.row_error(found[i], products.reference(*inputs[i], BF16, None)) for i in range(4)]
    return {"ok": max(errors) < BOUNDS[BF16], "error": max(errors)}


def _unaligned() -> dict[str, Any]:
    base = products.values(513 * 512, dtype=BF16, device="cuda")
    x, y = base[1 : 1 + 512 * 512].view(512, 512), base[: 512 * 512].view(512, 512)
    try:
        products.matmul(x, y)
    except helion.exc.CuteError as error:
        return {"ok": "2 bytes" in str(error), "error": str(error)[:300]}
    return {"ok": False, "error": "an address that is no multiple of 16 was taken"}


def _resources() -> dict[str, Any]:
    x = torch.empty(4096, 4096, dtype=BF16, device="cuda")
    found = products.matmul.bind((x, x)).resources()
    ok = found.spill_bytes == 0 and found.sass_counts.get("HGMMA", 0) == 8
    return {"ok": ok, "registers": found.registers, "shared_bytes": found.shared_bytes}


SPECIAL: dict[str, Callable[[], dict[str, Any]]] = {
    "graph": functools.partial(_graph, SQUARE),
    "graph of a split": functools.partial(_graph, SPLIT),
    "streams": functools.partial(_streams, SQUARE),
    "streams of a split": functools.partial(_streams, SPLIT),
    "unaligned": _unaligned,
    "resources": _resources,
}


# --- times ---------------------------------------------------------------------------------------------------------------


def timed_configs(case: Case, bound: Any) -> dict[str, helion.Config]:
    """Seeds, and what is tried beside them."""
    found = {f"seed {at}" if at else "cute": seed.config for at, seed in enumerate(bound.seeds)}
    default = bound.default_config()
    if default != found["cute"]:
        found["default"] = default
    depth = 128 if case.dtype in (E4M3, E5M2) else 64
    for name, keys in TRIED.items():
        m, n, k = keys["block_sizes"]
        try:
            sizes = [*[1] * bool(case.batch), m, n, k * depth // 64]
            config = bound.config_spec.normalize({**keys, "block_sizes": sizes})
        except helion.exc.InvalidConfig:
            continue
        ctas = max(1, case.batch) * -(-case.m // m) * -(-case.n // n) * keys.get("wgmma_k_splits", 1)
        ctas *= keys.get("wgmma_grid_splits", 1)
        small = m * n < SMALL or {"wgmma_k_splits", "wgmma_grid_splits"} & set(keys)
        tried = name in TRIED_FUSED if case.epilogue and not case.batch else ctas <= MANY or not small
        if tried and config not in found.values() and m < 8 * case.m and n < 8 * case.n:
            found[name] = config
    return found


def baselines(case: Case, args: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """torch's own functions and the seed of the Triton backend."""
    x, y = args[:2]
    kernel = _kernel(case)
    found: dict[str, Callable[[], Any]] = {}
    if case.epilogue not in row_kernels.CASES or case.n <= MOST_COLUMNS:
        bound = helion.kernel(kernel.fn, backend="triton", static_shapes=True).bind(args)
        found["triton"] = functools.partial(bound.compile_config(bound.default_config()), *args)
    if scaled := scaled_kernels.CASES.get(case.epilogue):
        torch._dynamo.reset()
        return {**found, **scaled_kernels.baselines(scaled, *args)}
    if x.dtype == E4M3:
        row, column = torch.ones(x.size(0), 1, device=x.device), torch.ones(1, y.size(1), device=x.device)
        found["scaled_mm"] = lambda: torch._scaled_mm(x, y, scale_a=row, scale_b=column, out_dtype=BF16)
        return found
    if not case.epilogue or case.batch:
        found["cublas"] = lambda: x @ y
        return found
    torch._dynamo.reset()
    if case.epilogue == SWIGLU:
        up = args[2]
        found["compile"] = torch.compile(lambda: torch.nn.functional.silu(x @ y) * (x @ up), dynamic=False)
        return found
    if case.epilogue in row_kernels.CASES:
        rows, others = row_kernels.CASES[case.epilogue], [*args[2:4], args[4][:, None], args[5]]
        found["compile"] = torch.compile(lambda: rows.reference(x @ y, *others).to(rows.dtype), dynamic=False)
        return found
    dtype, epilogue = args[2:]
    found["compile"] = torch.compile(lambda: epilogue(x @ y, (slice(None), slice(None))).to(dtype), dynamic=False)
    return found


def _kernel(case: Case) -> helion.Kernel:
    if case.batch:
        return BATCHED[case.epilogue]
    if case.epilogue in row_kernels.CASES:
        return row_kernels.whole_rows
    if scaled := scaled_kernels.CASES.get(case.epilogue):
        return scaled.kernel
    return {SWIGLU: products.swiglu, "": products.matmul}.get(case.epilogue, products.fused)


def times(names: list[str]) -> list[dict[str, Any]]:
    timer = GraphTimer()
    rows = []
    for case in timed_cases():
        if names and case.name not in names:
            continue
        kernel, args = case.arguments("cuda")
        bound = kernel.bind(args)
        configs = timed_configs(case, bound)
        functions: dict[str, Callable[[], Any]] = {
            label: functools.partial(bound.compile_config(config), *args) for label, config in configs.items()
        }
        found, failures = timer.time({**functions, **baselines(case, args)})
        medians = {label: round(each.median, 2) for label, each in found.items()}
        other = next((o for o in ("cublas", "scaled_mm", "compile") if o in medians), "")
        row = {
            "case": case.name,
            "us": medians,
            "against": other,
            "ratio": round(medians[other] / medians["cute"], 3) if other and "cute" in medians else None,
            "seed": repr(bound.short_config(bound.seeds[0].config)),
            "reason": bound.seeds[0].reason,
            "failures": failures,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    for prefix in ("bf16", "fp8", "blockwise", ""):
        ratios = [
            r["ratio"]
            for r in rows
            if r["ratio"] and (r["case"].startswith(prefix) if prefix else r["against"] == "compile")
        ]
        if ratios:
            print(
                f"{prefix or 'fused'}: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
            )
    return rows


# --- calls and starts -----------------------------------------------------------------------------------------------------


def dispatch(names: list[str]) -> list[dict[str, Any]]:
    """µs per call of a small product, by both backends, launches included and never waited for."""
    x, y = (products.values(64, 64, dtype=BF16, device="cuda", seed=seed) for seed in (0, 1))
    triton = helion.kernel(products.matmul.fn, backend="triton", static_shapes=True)
    ways: dict[str, Callable[[], Any]] = {
        "cute": lambda: products.matmul(x, y),
        "triton": lambda: triton(x, y),
        "allocation": lambda: torch.empty([64, 64], dtype=BF16, device="cuda"),
        "torch.mm": lambda: torch.mm(x, y),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        for _ in range(10):
            call()
    for _ in range(30):
        for name, call in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            samples[name].append((time.perf_counter() - start) / 200 * 1e6)
    return [{name: round(statistics.median(values), 2) for name, values in samples.items()}]


def start(names: list[str]) -> list[dict[str, Any]]:
    """Seconds from bind to the first result in a process that finds the kernel compiled and has no DSL."""
    x, y = (products.values(4096, 4096, dtype=BF16, device="cuda", seed=seed) for seed in (0, 1))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    bound = products.matmul.bind((x, y))
    config = bound.default_config()
    chosen = time.perf_counter()
    run = bound.compile_config(config)
    printed = time.perf_counter()
    run(x, y)
    torch.cuda.synchronize()
    end = time.perf_counter()
    return [
        {
            "dsl": importlib.util.find_spec("cutlass") is not None,
            "imported": "cutlass" in sys.modules,
            "bind_and_seeds_ms": round(1e3 * (chosen - begin), 1),
            "plan_and_print_ms": round(1e3 * (printed - chosen), 1),
            "load_and_run_ms": round(1e3 * (end - printed), 1),
        }
    ]


EXPORTED = """
import ctypes, sys, torch
ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}", mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[1])
launch = library.helion_launch
launch.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int32, ctypes.c_void_p]
torch.manual_seed(0)
x, y = (torch.randn(1024, 1024, device="cuda").bfloat16() for _ in range(2))
out = torch.empty_like(x)
status = library.helion_load(0)
clusters = library.helion_clusters()
status = status or launch(x.data_ptr(), y.data_ptr(), out.data_ptr(), clusters, torch.cuda.current_stream().cuda_stream)
torch.cuda.synchronize()
exact = x.double() @ y.double()
error = ((out.double() - exact).norm() / exact.norm()).item()
ours = sorted(name for name in sys.modules if name.split(".")[0] in ("helion", "cutlass"))
print({"status": status, "clusters": clusters, "error": error, "modules": ours})
"""


def exported(names: list[str]) -> list[dict[str, Any]]:
    """A kernel as a shared object, launched by a process that has neither helion nor the DSL."""
    x = torch.empty(1024, 1024, dtype=BF16, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = products.matmul.bind((x, x)).export_shared_object(Path(folder) / "matmul.so")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-c", EXPORTED, str(path)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=60)
        size = path.stat().st_size
    return [{"bytes": size, "said": result.stdout.strip(), "error": result.stderr.strip()[-300:]}]


COMMANDS: dict[str, Callable[[list[str]], list[dict[str, Any]]]] = {
    "prepare": prepare,
    "check": check,
    "times": times,
    "dispatch": dispatch,
    "start": start,
    "exported": exported,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "check-child"])
    parser.add_argument("--names", type=lambda text: text.split(","), default=[], help="cases, by name")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there too")
    options = parser.parse_args()
    if options.command == "check-child":
        check_child(options.names)
        return
    rows = COMMANDS[options.command](options.names)
    if options.command in ("prepare", "dispatch", "start", "exported"):
        for row in rows:
            print(json.dumps(row))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
