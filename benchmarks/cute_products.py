"""Check and time the matmuls that the CuTe backend runs on request: copied and computed operands, strided matrices, TF32.

    python benchmarks/cute_products.py [--times] [--seconds N] [--turn N] [--repeats N] [--device cpu] [NAME ...]

Each case has its own process. All compile side by side without the GPU, and take it in turn; one that hangs is ended
after ``--turn`` seconds. Each prints a line of JSON per shape: the largest error of a row against fp64, the number of
repeats whose bytes differ, and where elements are wrong, if any. With ``--times`` the large shapes run as well, and their
lines have the medians of this backend, of Triton and of torch in microseconds. ``--device cpu`` evaluates the small
shapes without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402

BF16, FP16, FP32, E4M3, INT8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8
SMALL, LARGE = (200, 264, 479), (4096, 4096, 4095)
#: Elements along K, and columns, with a scale.
BLOCK = 128
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


def integers(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = (acc.to(torch.float32) * 0.001).to(out.dtype)
    return out


def given_rows(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    m = x.size(0)
    k, n = hl.specialize(y.size())
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n].to(x.dtype), acc=acc)
        out[tile_m, tile_n] = (acc * scale[tile_n][None, :] + bias[tile_n].to(torch.float32)[None, :]).to(out.dtype)
    return out


def quantized(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = torch.relu(x[tile_m, tile_k].to(torch.float32) * 0.5)
            acc = hl.dot(rows.to(y.dtype), y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def scaled(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n])
            acc += part * rows[tile_m, tile_k.id][:, None] * columns[tile_k.id, tile_n.index // 128]
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


def linear(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n].to(x.dtype), acc=acc)
        out[tile_m, tile_n] = (acc * scale[tile_n][None, :] + bias[tile_n].to(torch.float32)[None, :]).to(out.dtype)
    return out


def softmax(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        out[tile_m, :] = torch.softmax(acc, -1).to(out.dtype)
    return out


def batched(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (batch, m, k), n = x.size(), y.size(2)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_b.id, tile_m, tile_k], y[tile_b.id, tile_k, tile_n], acc=acc)
        out[tile_b.id, tile_m, tile_n] = acc.to(out.dtype)
    return out


def residual(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = (acc + added[tile_m, tile_n].to(torch.float32)).to(out.dtype)
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel with layouts of its tensors: ``turned`` ones are transposed views, ``odd`` adds to N and K. Rows of a
    ``padded`` residual begin at multiples of 16 bytes."""

    kernel: Callable[..., torch.Tensor] = matmul
    dtype: torch.dtype = BF16
    weight: torch.dtype | None = None
    out: torch.dtype = BF16
    turned: str = ""
    odd: tuple[int, int] = (0, 0)
    small: tuple[int, int, int] = SMALL
    large: tuple[int, int, int] = LARGE
    batch: tuple[int, ...] = ()
    padded: bool = False

    def tensors(self, large: bool, device: str) -> tuple[torch.Tensor, ...]:
        m, n, k = self.large if large else self.small
        n, k = n + self.odd[0], k + self.odd[1]
        generator = torch.Generator("cpu" if device == "meta" else device).manual_seed(n)

        def made(rows: int, columns: int, dtype: torch.dtype, turned: bool) -> torch.Tensor:
            shape = (*self.batch, *((columns, rows) if turned else (rows, columns)))
            if device == "meta":
                numbers = torch.empty(shape, dtype=dtype, device=device)
                return numbers.mT if turned else numbers
            numbers = torch.randn(shape, generator=generator, device=device) + 0.25
            if dtype == torch.uint8:
                numbers = numbers.abs()
            numbers = numbers * 16 if not dtype.is_floating_point else numbers / k**0.25
            return numbers.to(dtype).mT if turned else numbers.to(dtype)

        x = made(m, k, self.dtype, "x" in self.turned)
        y = made(k, n, self.weight or self.dtype, "y" in self.turned)
        columns = -(-n // 8) * 8 if self.padded else n
        more = (made(m, columns, self.out, False)[..., :n],) if self.kernel is residual else ()
        if self.kernel in (linear, given_rows):
            more = made(1, n, FP32, False)[0], made(1, n, self.out, False)[0]
        if self.kernel is scaled:
            blocks = -(-k // BLOCK)
            more = made(m, blocks, FP32, False), made(blocks, -(-n // BLOCK), FP32, False)
        return x, y, made(m, n, self.out, "o" in self.turned), *more

    def exact(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        left = torch.relu(x.float() * 0.5).to(x.dtype) if self.kernel is activated else x
        left = torch.relu(x.float() * 0.5).to(y.dtype) if self.kernel is quantized else left
        if self.kernel is scaled:
            x, y = (each.double() for each in wide(x, y, *more))
            return x @ y
        product = left.double() @ y.double() * (0.001 if self.kernel is integers else 1.0)
        product = (
            torch.addcmul(more[1].double(), product, more[0].double())
            if self.kernel in (linear, given_rows)
            else product
        )
        product = product + more[0].double() if self.kernel is residual else product
        return torch.softmax(product, -1) if self.kernel is softmax else product

    def library(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """The same computation by torch's own calls."""
        left = torch.relu(x * 0.5) if self.kernel in (activated, quantized) else x
        if self.kernel is scaled:
            x, y = (each.to(self.out) for each in wide(x, y, *more))
            return x @ y
        left = left.to(self.out) if self.kernel is integers else left
        product = left @ y.to(left.dtype)
        product = torch.add(product, more[0]) if self.kernel is residual else product
        product = (
            torch.addcmul(more[1], product, more[0].to(product.dtype))
            if self.kernel in (linear, given_rows)
            else product
        )
        return torch.softmax(product, -1) if self.kernel is softmax else product


CASES = {
    "odd_k": Case(odd=(0, 0), large=(4096, 4096, 479)),
    "odd_n": Case(odd=(1, 1)),
    "even_n": Case(odd=(4, 1), large=(4096, 4100, 999)),
    "transposed": Case(turned="x", odd=(0, 1), small=(203, 264, 479), large=(300, 300, 16384)),
    "turned_output": Case(turned="yo", odd=(0, 1), small=(201, 264, 480)),
    "four_bytes": Case(odd=(0, 3), large=(4096, 4096, 479)),
    "eight_bytes": Case(odd=(0, 5)),
    "fp16_odd": Case(dtype=FP16, out=FP16, odd=(0, 0), large=(4096, 4096, 479)),
    "tf32": Case(dtype=FP32, out=FP32, turned="y", odd=(0, 1)),
    "tf32_2048": Case(dtype=FP32, out=FP32, odd=(0, 1), large=(2048, 2048, 2047)),
    "tf32_n_major": Case(dtype=FP32, out=FP32, odd=(0, 1)),
    "tf32_odd": Case(dtype=FP32, out=FP32, odd=(3, 0), large=(4096, 4096, 1001)),
    "tf32_softmax": Case(kernel=softmax, dtype=FP32, out=FP32, large=(8192, 1000, 1024)),
    "fp8_n_major": Case(dtype=E4M3, odd=(8, 1)),
    "int8_weights": Case(kernel=weights, weight=INT8, odd=(0, 1)),
    "int8_weights_k_major": Case(kernel=weights, weight=INT8, turned="y", odd=(0, 1)),
    "int8_weights_few_rows": Case(
        kernel=weights, weight=INT8, turned="y", odd=(0, 1), small=(13, 264, 479), large=(16, 8192, 8191)
    ),
    "int8_weights_one_row": Case(
        kernel=weights, weight=INT8, turned="y", odd=(0, 1), small=(1, 264, 479), large=(1, 8192, 8191)
    ),
    "int8_weights_fp16": Case(
        kernel=weights,
        dtype=FP16,
        out=FP16,
        weight=INT8,
        turned="y",
        odd=(0, 1),
        small=(40, 264, 479),
        large=(32, 4096, 14335),
    ),
    "int8_linear_few_rows": Case(
        kernel=linear, weight=INT8, turned="y", odd=(0, 1), small=(13, 264, 479), large=(16, 4096, 4095)
    ),
    "uint8_weights_few_rows": Case(
        kernel=weights, weight=torch.uint8, turned="y", odd=(0, 1), small=(13, 264, 479), large=(16, 8192, 8191)
    ),
    "int8_weights_n_major_few_rows": Case(kernel=weights, weight=INT8, odd=(0, 1), large=(16, 8192, 8191)),
    "int8_weights_64_rows": Case(
        kernel=weights, weight=INT8, turned="y", odd=(0, 1), small=(64, 264, 479), large=(64, 14336, 4095)
    ),
    "int8_weights_512_rows": Case(kernel=weights, weight=INT8, turned="y", odd=(0, 1), large=(512, 4096, 4095)),
    "fp8_weights_few_rows": Case(
        kernel=weights, weight=E4M3, turned="y", odd=(0, 1), small=(13, 264, 479), large=(16, 8192, 8191)
    ),
    "fp8_weights": Case(kernel=weights, weight=E4M3, odd=(0, 1)),
    "scaled_n_major": Case(kernel=scaled, dtype=E4M3, small=(200, 272, 400), odd=(0, 0), large=(4096, 4096, 4096)),
    "scaled_odd": Case(kernel=scaled, dtype=E4M3, turned="y", odd=(3, 0), large=(4096, 4096, 4001)),
    "int8_n_major": Case(kernel=integers, dtype=INT8, odd=(8, 1)),
    "int8_odd": Case(kernel=integers, dtype=INT8, turned="y", odd=(0, 0)),
    "given_rows_tf32": Case(kernel=given_rows, dtype=FP32, out=FP32, odd=(0, 1), small=(200, 264, 479)),
    "given_rows_int8": Case(kernel=given_rows, weight=INT8, odd=(0, 1)),
    "given_rows_odd": Case(kernel=given_rows, odd=(1, 1), large=(4096, 4096, 4095)),
    "given_rows_fp8": Case(kernel=given_rows, dtype=E4M3, odd=(8, 1)),
    "quantized": Case(kernel=quantized, weight=E4M3, turned="y", odd=(0, 1)),
    "quantized_odd": Case(kernel=quantized, weight=E4M3, odd=(1, 0)),
    "activated": Case(kernel=activated, odd=(0, 1)),
    "activated_m_major": Case(kernel=activated, turned="x", odd=(0, 1), small=(208, 264, 479)),
    "activated_odd": Case(kernel=activated, odd=(1, 0), large=(4096, 4096, 4096)),
    "batched": Case(kernel=batched, large=(2048, 2048, 479), batch=(5,)),
    "batched_four_bytes": Case(kernel=batched, odd=(0, 3), large=(2048, 2048, 479), batch=(5,)),
    "residual": Case(kernel=residual, odd=(0, 0), large=(4096, 4096, 479)),
    "residual_four_bytes": Case(kernel=residual, odd=(0, 3), large=(4096, 4096, 479)),
    "residual_odd": Case(kernel=residual, odd=(1, 1), large=(4096, 4096, 4095)),
    "residual_padded": Case(kernel=residual, odd=(1, 1), padded=True, large=(4096, 4096, 4095)),
    "residual_odd_both": Case(kernel=residual, odd=(3, 0), large=(4096, 4096, 479)),
    "softmax_odd": Case(kernel=softmax, odd=(-1, 0), large=(8192, 1001, 479)),
}


def wide(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return operands times their scales of blocks of K, in fp32."""
    along_k = rows.repeat_interleave(BLOCK, 1)[:, : x.size(1)]
    both = columns.repeat_interleave(BLOCK, 0)[: y.size(0)].repeat_interleave(BLOCK, 1)[:, : y.size(1)]
    return x.float() * along_k, y.float() * both


def row_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error of a row, as a part of its norm."""
    difference = (result.double() - exact).norm(dim=-1)
    return float((difference / exact.norm(dim=-1).clamp_min(1e-30)).max())


def misplaced(result: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    """Return how many elements are wrong, in how many rows and columns, and the first of them."""
    result, exact = result.flatten(0, -2), exact.flatten(0, -2)
    allowed = 0.1 * exact.square().mean(dim=1, keepdim=True).sqrt()
    wrong = ~((result.double() - exact).abs() <= allowed)
    places = wrong.nonzero()[:4].tolist()
    return {
        "wrong": int(wrong.sum()) / wrong.numel(),
        "rows": int(wrong.any(1).sum()),
        "columns": int(wrong.any(0).sum()),
        "first": [[i, j, float(result[i, j]), float(exact[i, j])] for i, j in places],
    }


def compared(case: Case, arguments: tuple[torch.Tensor, ...], bound: Any, repeats: int) -> dict[str, Any]:
    """Return the error of a call, and the repeats that differ."""
    result = bound(*arguments).clone()
    differing = sum(not torch.equal(bound(*arguments), result) for _ in range(repeats))
    exact = case.exact(*arguments)
    error = row_error(result, exact)
    right = error < ERRORS[case.out] and not differing
    gemm = bound.plan().gemm
    copied = len(gemm.problem.copied) + (0 if gemm.prepare is None else len(gemm.prepare.operands))
    found = {"error": error, "differing": differing, "ok": right, "copied": copied}
    return found if right else found | misplaced(result, exact)


def checked(case: Case, device: str, repeats: int) -> dict[str, Any]:
    """Return the error of the small shape, and the repeats that differ."""
    arguments = case.tensors(False, device)
    kernel = helion.kernel(case.kernel, backend="cute", static_shapes=case.kernel is not given_rows)
    bound = kernel.bind(arguments, target="sm_90") if device == "cpu" else kernel.bind(arguments)
    return compared(case, arguments, bound, repeats)


def compiled(case: Case, large: bool, backend: str) -> tuple[Any, helion.Config]:
    """Compile the first config of a shape without the GPU; return the kernel with it."""
    kernel = helion.kernel(case.kernel, backend=backend, static_shapes=case.kernel is not given_rows)
    bound = kernel.bind(case.tensors(large, "meta"), target="h100")
    config = bound.seeds[0].config
    bound.resources(config)
    return kernel, config


def bound_to(compiled: tuple[Any, helion.Config], arguments: tuple[torch.Tensor, ...]) -> Any:
    kernel, config = compiled
    bound = kernel.bind(arguments)
    bound.set_config(config)
    return bound


def timed(case: Case, arguments: tuple[torch.Tensor, ...], functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the medians of ``functions`` and of torch, in microseconds."""
    from benchmarks.timing import GraphTimer

    torch.backends.cuda.matmul.allow_tf32 = True
    functions = {"torch": lambda: case.library(*arguments), **functions}
    times, _ = GraphTimer().time(functions)
    return {name: each.median for name, each in times.items()}


def on_gpu(case: Case, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compile a case, wait for the GPU, and yield the results of its shapes."""
    small = compiled(case, False, "cute")
    large = {name: compiled(case, True, name) for name in ("cute", "triton")} if options.times else {}
    with turn():
        arguments = case.tensors(False, "cuda")
        yield {"shape": "small", **compared(case, arguments, bound_to(small, arguments), options.repeats)}
        if large:
            arguments = case.tensors(True, "cuda")
            bounds = {name: bound_to(each, arguments) for name, each in large.items()}
            found = compared(case, arguments, bounds["cute"], 2)
            yield {"shape": "large", **found}
            functions = {name: functools.partial(each, *arguments) for name, each in bounds.items()}
            yield {"shape": "large", **timed(case, arguments, functions)}


def run(name: str, options: argparse.Namespace) -> None:
    """Print the lines of a case."""
    case = CASES[name]
    lines = on_gpu(case, options) if options.device == "cuda" else [checked(case, options.device, options.repeats)]
    for line in lines:
        print(json.dumps({"name": name, **line}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="check and time matmuls that the CuTe backend runs on request")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of all cases, compilation included")
    parser.add_argument("--turn", type=float, default=15.0, help="limit of one case on the GPU between two lines")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--here", action="store_true", help="run the cases in this process")
    options = parser.parse_args()
    if options.here:
        for name in options.names or CASES:
            run(name, options)
        return
    flags = ["--here", "--repeats", str(options.repeats), "--device", options.device]
    flags += ["--times"] if options.times else []
    jobs = {name: [sys.executable, __file__, name, *flags] for name in options.names or CASES}
    at_once = os.cpu_count() or 1
    for name, line in in_turn(jobs, at_once=at_once, turn_seconds=options.turn, seconds=options.seconds):
        print(
            json.dumps({"name": name, **line} if "why" not in line else {"name": name, "ok": False, **line}), flush=True
        )


if __name__ == "__main__":
    main()
