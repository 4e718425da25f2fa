"""Times of Triton's histograms next to an atomic for each element, on the GPU at hand.

python benchmarks/histograms.py check            compares tiles, warps and numbers of bins with torch.bincount
python benchmarks/histograms.py time OUT.jsonl   times tiles and warps, plain atomics and torch.bincount
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.testing import do_bench

SIZES = ((1 << 26, 256, torch.int32), (1 << 26, 1000, torch.int32), (1 << 19, 64, torch.int64))
"""Elements, bins and dtype that are timed."""
TILES = ((2048, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 4), (8192, 8), (16384, 8), (16384, 16))
"""Elements of a tile, and warps."""


@triton.jit
def count(ids, out, n, bins, TILE: tl.constexpr, WIDTH: tl.constexpr, PLAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(ids + at, mask=at < n, other=0)
    if PLAIN:
        tl.atomic_add(out + x, tl.full([TILE], 1, tl.int32), mask=at < n, sem="relaxed")
    else:
        counts = tl.histogram(x.to(tl.int32), WIDTH, (at < n) & (x >= 0) & (x < bins))
        each = tl.arange(0, WIDTH)
        tl.atomic_add(out + each, counts, mask=counts != 0, sem="relaxed")


def counted(ids: torch.Tensor, bins: int, tile: int, warps: int, plain: bool = False) -> torch.Tensor:
    """Return how often each of ``bins`` numbers is in ``ids``."""
    out = torch.zeros(bins, dtype=torch.int32, device="cuda")
    grid, width = (triton.cdiv(ids.numel(), tile),), max(32, triton.next_power_of_2(bins))
    count[grid](ids, out, ids.numel(), bins, tile, width, plain, num_warps=warps)
    return out


def check() -> int:
    """Compare with torch, and return the number of wrong variants."""
    wrong = 0
    for width, tile, warps in itertools.product((32, 64, 256, 1024), (128, 512, 2048, 8192), (1, 4, 8)):
        if not 32 * warps <= tile <= 64 * 32 * warps:
            continue
        for bins, dtype in ((width, torch.int32), (width - 5, torch.int64)):
            ids = torch.randint(-3, bins + 3, (100003,), device="cuda", dtype=dtype)
            inside = ids[(ids >= 0) & (ids < bins)].long()
            same = torch.equal(counted(ids, bins, tile, warps), torch.bincount(inside, minlength=bins).int())
            wrong += not same
            print(f"{bins} bins, tiles of {tile}, {warps} warps, {dtype}: {'right' if same else 'WRONG'}", flush=True)
    return wrong


def median_us(call: Callable[..., torch.Tensor], *args: Any) -> float:
    return float(do_bench(functools.partial(call, *args), warmup=3, rep=12, return_mode="median")) * 1e3


def time(out: Path) -> None:
    """Append a line for each variant of each size."""
    device, today = torch.cuda.get_device_name(), datetime.date.today().isoformat()
    about = {"device": device, "date": today, "torch": torch.__version__, "triton": triton.__version__}
    with out.open("a", buffering=1) as file:
        for elements, bins, dtype in SIZES:
            ids = torch.randint(0, bins, (elements,), device="cuda", dtype=dtype)
            size = {"elements": elements, "bins": bins, "dtype": str(dtype).removeprefix("torch.")}
            calls = [(tile, warps, False) for tile, warps in TILES if tile >= 2 * bins]
            for tile, warps, plain in (*calls, (2048, 4, True)):
                us = median_us(counted, ids, bins, tile, warps, plain)
                row = {**size, "tile": tile, "warps": warps, "atomics": plain, "us": round(us, 1), **about}
                file.write(json.dumps(row) + "\n")
            us = median_us(functools.partial(torch.bincount, minlength=bins), ids)
            file.write(json.dumps({**size, "torch.bincount": True, "us": round(us, 1), **about}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(check())
    if len(sys.argv) != 3 or sys.argv[1] != "time":
        sys.exit(__doc__)
    time(Path(sys.argv[2]))
