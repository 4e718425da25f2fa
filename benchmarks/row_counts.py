"""Statistics over the rows of a matmul in memory, of which only the launch knows the number: checks and times on a GPU.

    python benchmarks/row_counts.py [--out FILE] [--columns N] [--dry]

One binary runs random numbers of rows of its bucket, against fp64. A line of JSON has the largest errors, and the times
of the most rows beside those of a kernel for that number alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402


@helion.kernel(backend="cute", static_shapes=False)
def normalizers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(w.size(0))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[:, tile_k].T)
        out[tile_m] = torch.logsumexp(acc, -1)
    return out


@helion.kernel(backend="cute", static_shapes=False)
def largest(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = x.size()
    n = hl.specialize(w.size(0))
    place = torch.empty([m], dtype=torch.int64, device=x.device)
    top = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[:, tile_k].T)
        place[tile_m] = torch.argmax(acc, -1)
        top[tile_m] = torch.amax(acc, -1)
    return place, top


@helion.kernel(backend="cute", static_shapes=False)
def probabilities(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(w.size(0))
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[:, tile_k].T)
        out[tile_m, :] = torch.softmax(acc, -1)
    return out


#: The most rows of a bucket, and the columns of the left operand.
SHAPES = ((128, 256), (4096, 1024))
KERNELS = (normalizers, largest, probabilities)
COUNTS, REPEATS = 6, 11


def errors(kernel: helion.Kernel, x: torch.Tensor, w: torch.Tensor) -> float:
    """Return the largest error of a kernel, relative to what is allowed."""
    scores = torch.cat([part.double() @ w.double().T for part in x.split(512)])
    found = kernel(x, w)
    if kernel is normalizers:
        return float((found.double() - torch.logsumexp(scores, -1)).abs().max()) / 2e-4
    if kernel is largest:
        place, top = found
        best = scores.amax(-1)
        off = (scores.gather(1, place[:, None])[:, 0] - best).abs().max(), (top.double() - best).abs().max()
        return float(max(off)) / 2e-4
    return float((found.double() - torch.softmax(scores, -1)).abs().max()) / 1e-6


def median_us(call: Any, cuda: bool) -> float:
    """Return the median of some calls."""
    if not cuda:
        return 1.0
    found = []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        found.append(1e3 * first.elapsed_time(last))
    return sorted(found)[REPEATS // 2]


def measured(kernel: helion.Kernel, most: int, k: int, n: int, device: str) -> dict[str, Any]:
    """Check the numbers of rows of a bucket, and time the most of them."""
    numbers, made = random.Random(most), torch.Generator(device).manual_seed(most)
    w = (torch.randn(n, k, generator=made, device=device) * 0.3 + 0.1).bfloat16()
    x = (torch.randn(most, k, generator=made, device=device) * 0.1 + 0.02).bfloat16()
    counts = [most, 2, most // 2 + 1, *(numbers.randint(3, most) for _ in range(COUNTS))]
    begun = time.time()
    worst = max(errors(kernel, x[:count], w) for count in counts)
    found = dict(
        name=kernel.fn.__name__, m=most, k=k, n=n, counts=len(counts), error=float(f"{worst:.3g}"), ok=worst <= 1
    )
    known = helion.kernel(kernel.fn, backend="cute", static_shapes=True)
    same = torch.equal(_first(known(x, w)), _first(kernel(x, w)))
    cuda = device == "cuda"
    found |= dict(us=median_us(lambda: kernel(x, w), cuda), known_us=median_us(lambda: known(x, w), cuda), same=same)
    return found | dict(seconds=round(time.time() - begun, 1))


def _first(found: Any) -> torch.Tensor:
    first: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/row-counts.jsonl"))
    parser.add_argument("--columns", type=int, default=50264)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    shapes = ((16, 64),) if options.dry else SHAPES
    with open(options.out, "w") as out:
        for most, k in shapes:
            for kernel in KERNELS:
                n = 4104 if options.dry else options.columns
                try:
                    line = measured(kernel, most, k, n, "cpu" if options.dry else "cuda")
                except Exception as error:
                    line = dict(name=kernel.fn.__name__, m=most, k=k, n=n, ok=False, why=f"{type(error).__name__}: {error}"[:500])  # fmt: skip
                print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
