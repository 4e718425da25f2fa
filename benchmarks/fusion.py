"""Fusion of elementwise operations into kernels by Inductor on a GPU: microseconds with and without.

    python benchmarks/fusion.py [--out FILE.jsonl]

A line per pattern has the largest error of the fused function, relative to eager, and device times of a CUDA graph.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import helion  # noqa: E402
import helion.language as hl  # noqa: E402
from benchmarks.timing import GraphTimer, reason  # noqa: E402


def row_norm(x: torch.Tensor) -> torch.Tensor:
    """Divide rows by their root mean square."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = row * torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + 1e-5)
    return out


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Multiply `x[M, K]` by `y[K, N]`."""
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


Kernels = Mapping[str, Callable[..., torch.Tensor]]
#: A function of kernels and arguments by pattern.
PATTERNS: Mapping[str, Callable[..., torch.Tensor]] = {
    "norm, relu": lambda k, x, y, b, a, w: k["norm"](x).relu(),
    "norm, residual": lambda k, x, y, b, a, w: k["norm"](x) + y,
    "norm, silu": lambda k, x, y, b, a, w: F.silu(k["norm"](x)),
    "norm, gelu, bias": lambda k, x, y, b, a, w: F.gelu(k["norm"](x)) + b,
    "gate, norm": lambda k, x, y, b, a, w: torch.sigmoid(k["norm"](x)) * y,
    "gelu, norm": lambda k, x, y, b, a, w: k["norm"](F.gelu(x)),
    "sum, norm, relu": lambda k, x, y, b, a, w: k["norm"](x + y).relu(),
    "product, bias, relu": lambda k, x, y, b, a, w: (k["product"](a, w) + b).relu(),
    "product, softcap": lambda k, x, y, b, a, w: torch.tanh(k["product"](a, w) / 30) * 30,
    "product, residual to fp32": lambda k, x, y, b, a, w: (k["product"](a, w) + y).float(),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="time fused and unfused neighbors of kernels")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.jsonl")
    options = parser.parse_args()
    torch.manual_seed(0)
    x, y = (torch.randn(8192, 4096, device="cuda").bfloat16() for _ in range(2))
    b = torch.randn(4096, device="cuda").bfloat16()
    a = torch.randn(8192, 2048, device="cuda").bfloat16()
    w = (torch.randn(2048, 4096, device="cuda") * 2048**-0.5).bfloat16()
    args = (x, y, b, a, w)
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": str(datetime.date.today())}
    timer, bad = GraphTimer(), 0
    for name, function in PATTERNS.items():
        calls: dict[str, Callable[[], Any]] = {}
        found: dict[str, Any] = {"pattern": name, "failed": {}, "error": {}}
        for kind, fuses in (("fused", True), ("unfused", False)):
            settings = helion.Settings(torch_compile_fusion=fuses)
            kernels = {k: helion.kernel(fn, settings=settings) for k, fn in (("norm", row_norm), ("product", product))}
            torch._dynamo.reset()
            try:
                run = torch.compile(lambda *args, k=kernels, f=function: f(k, *args), fullgraph=True)
                with torch.no_grad():
                    exact = function({"norm": row_norm_eager, "product": torch.matmul}, *args).float()
                    error = (run(*args).float() - exact).abs().max() / exact.abs().max()
                found["error"][kind] = round(float(error), 5)
                bad += not error < 0.02
                calls[kind] = lambda run=run: run(*args)  # type: ignore[misc]
            except Exception as problem:  # of a compiler that is timed: it belongs into the table
                found["failed"][kind] = reason(problem)
        with torch.no_grad():
            times, failures = timer.time(calls)
        found["us"] = {kind: round(each.median, 2) for kind, each in times.items()}
        found["failed"] |= failures
        bad += bool(found["failed"])
        line = json.dumps(found | device)
        print(line, flush=True)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
    return int(bad > 0)


def row_norm_eager(x: torch.Tensor) -> torch.Tensor:
    """Return what the kernel of this name does, by PyTorch."""
    row = x.float()
    return (row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


if __name__ == "__main__":
    sys.exit(main())
