"""Check and time the matmuls that the CuTe backend runs on request: copied and computed operands, strided matrices, TF32.

    python benchmarks/cute_products.py [--times] [--repeats N] [--seconds N] [--device cpu] [NAME ...]

Each case runs in a process of its own, so that one that hangs is ended after ``--seconds`` and the others go on. Each
prints one line of JSON: the largest error of a row against fp64, and the number of repeats whose bytes differ. With
``--times`` the line has the medians of this backend, of Triton and of torch in microseconds. Small shapes are checked;
large ones are timed. ``--device cpu`` evaluates the small shapes without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402

BF16, FP16, FP32, E4M3, INT8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8
SMALL, LARGE = (200, 264, 479), (4096, 4096, 4096)
#: Of the norm of a row: one rounding of the output, and for fp32 the truncation of operands to TF32.
ERRORS = {BF16: 1e-2, FP16: 2e-3, FP32: 2e-3}


def matmul(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def weights(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n].to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def activated(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = torch.relu(x[tile_m, tile_k].to(torch.float32) * 0.5)
            acc = hl.dot(rows.to(x.dtype), y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def softmax(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        out[tile_m, :] = torch.softmax(acc, -1).to(out.dtype)
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel with layouts of its tensors: ``turned`` ones are transposed views, ``odd`` adds to N and K."""

    kernel: Callable[..., torch.Tensor] = matmul
    dtype: torch.dtype = BF16
    weight: torch.dtype | None = None
    out: torch.dtype = BF16
    turned: str = ""
    odd: tuple[int, int] = (0, 0)
    small: tuple[int, int, int] = SMALL
    large: tuple[int, int, int] = LARGE

    def tensors(self, large: bool, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        m, n, k = self.large if large else self.small
        n, k = n + self.odd[0], k + self.odd[1]
        generator = torch.Generator(device).manual_seed(n)

        def made(rows: int, columns: int, dtype: torch.dtype, turned: bool) -> torch.Tensor:
            shape = (columns, rows) if turned else (rows, columns)
            numbers = torch.randn(shape, generator=generator, device=device) + 0.25
            numbers = numbers * 16 if not dtype.is_floating_point else numbers / k**0.25
            return numbers.to(dtype).t() if turned else numbers.to(dtype)

        x = made(m, k, self.dtype, "x" in self.turned)
        y = made(k, n, self.weight or self.dtype, "y" in self.turned)
        return x, y, made(m, n, self.out, "o" in self.turned)

    def exact(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left = torch.relu(x.float() * 0.5).to(x.dtype) if self.kernel is activated else x
        product = left.double() @ y.double()
        return torch.softmax(product, -1) if self.kernel is softmax else product

    def library(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The same computation by torch's own calls."""
        left = torch.relu(x * 0.5) if self.kernel is activated else x
        product = left @ y.to(left.dtype)
        return torch.softmax(product, -1) if self.kernel is softmax else product


CASES = {
    "odd_k": Case(odd=(0, 0), large=(4096, 4096, 479)),
    "odd_n": Case(odd=(1, 1), large=(4096, 4096, 4095)),
    "even_n": Case(odd=(4, 1), large=(4096, 4100, 999)),
    "transposed": Case(turned="x", odd=(0, 1), small=(203, 264, 479), large=(300, 300, 16384)),
    "turned_output": Case(turned="yo", odd=(0, 1), small=(201, 264, 480)),
    "fp16_odd": Case(dtype=FP16, out=FP16, odd=(0, 0), large=(4096, 4096, 479)),
    "tf32": Case(dtype=FP32, out=FP32, turned="y", odd=(0, 1)),
    "tf32_n_major": Case(dtype=FP32, out=FP32, odd=(0, 1)),
    "tf32_odd": Case(dtype=FP32, out=FP32, odd=(3, 0), large=(4096, 4096, 1001)),
    "tf32_softmax": Case(kernel=softmax, dtype=FP32, out=FP32, large=(8192, 1000, 1024)),
    "fp8_n_major": Case(dtype=E4M3, odd=(8, 1)),
    "int8_weights": Case(kernel=weights, weight=INT8, odd=(0, 1)),
    "int8_weights_k_major": Case(kernel=weights, weight=INT8, turned="y", odd=(0, 1)),
    "int8_weights_few_rows": Case(kernel=weights, weight=INT8, turned="y", odd=(0, 1), large=(16, 8192, 8192)),
    "fp8_weights": Case(kernel=weights, weight=E4M3, odd=(0, 1)),
    "activated": Case(kernel=activated, odd=(0, 1)),
    "activated_odd": Case(kernel=activated, odd=(1, 0)),
    "softmax_odd": Case(kernel=softmax, odd=(-1, 0), large=(8192, 1001, 479)),
}


def row_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error of a row, as a part of its norm."""
    difference = (result.double() - exact).norm(dim=1)
    return float((difference / exact.norm(dim=1).clamp_min(1e-30)).max())


def checked(case: Case, device: str, repeats: int) -> dict[str, Any]:
    """Return the error of the small shape, and the repeats that differ."""
    x, y, out = case.tensors(False, device)
    kernel = helion.kernel(case.kernel, backend="cute")
    arguments = (x, y, out)
    bound = kernel.bind(arguments, target="sm_90") if device == "cpu" else kernel.bind(arguments)
    result = bound(*arguments).clone()
    differing = sum(not torch.equal(bound(*arguments), result) for _ in range(repeats))
    error = row_error(result, case.exact(x, y))
    right = error < ERRORS[case.out] and not differing
    return {"error": error, "differing": differing, "ok": right, "copied": len(bound.plan().gemm.problem.copied)}


def timed(case: Case) -> dict[str, float]:
    """Return the medians of both backends and of torch for the large shape, in microseconds."""
    from benchmarks.timing import GraphTimer

    arguments = case.tensors(True, "cuda")
    functions: dict[str, Callable[[], Any]] = {"torch": lambda: case.library(*arguments[:2])}
    for backend in ("cute", "triton"):
        bound = helion.kernel(case.kernel, backend=backend).bind(arguments)
        functions[backend] = lambda bound=bound: bound(*arguments)
    times, _ = GraphTimer().time(functions)
    return {name: each.median for name, each in times.items()}


def run(name: str, options: argparse.Namespace) -> None:
    line: dict[str, Any] = {"name": name, **checked(CASES[name], options.device, options.repeats)}
    if options.times and options.device == "cuda":
        line |= timed(CASES[name])
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="check and time matmuls that the CuTe backend runs on request")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of one case, compilation included")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--here", action="store_true", help="run the cases in this process")
    options = parser.parse_args()
    for name in options.names or CASES:
        if options.here:
            run(name, options)
            continue
        flags = ["--here", "--repeats", str(options.repeats), "--device", options.device]
        command = [sys.executable, __file__, name, *flags, *(["--times"] if options.times else [])]
        try:
            done = subprocess.run(command, timeout=options.seconds, capture_output=True, text=True)
            said = done.stdout.strip() or json.dumps({"name": name, "ok": False, "why": done.stderr[-600:]})
        except subprocess.TimeoutExpired:
            said = json.dumps({"name": name, "ok": False, "why": f"no result within {options.seconds:g} s"})
        print(said, flush=True)


if __name__ == "__main__":
    main()
