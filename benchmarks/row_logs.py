"""Errors of the logarithms of 16-bit elements in row kernels, of every number of a type.

    python benchmarks/row_logs.py [--out FILE] [--device cpu]

``stored`` logarithms are those of an output in fp32, in the cute backend. ``summed`` ones are each the only term of a sum
over a row whose other elements are 1. A line of JSON has the largest relative error, and the largest absolute one of
logarithms to base 2 whose argument is between a half and two.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402

LANES, BITS = 8, 2**16
TYPES = (torch.bfloat16, torch.float16)


def stored(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    total = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.log(row)
        total[tile] = row.sum(-1)
    return out, total


def summed(x: torch.Tensor) -> torch.Tensor:
    total = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        total[tile] = torch.log(x[tile, :].to(torch.float32)).sum(-1)
    return total


def errors(dtype: torch.dtype, device: str) -> list[dict[str, object]]:
    """Return a line for each kernel: its errors over all finite positive numbers of a type."""
    bits = torch.arange(BITS, dtype=torch.int32, device=device).to(torch.int16).view(dtype)
    alone = torch.ones(BITS, LANES, dtype=dtype, device=device)
    alone[:, 0] = bits
    every, _ = helion.kernel(stored, backend="cute")(bits.view(2, -1))
    found = {"stored": every.flatten()}
    found |= {f"summed, {backend}": helion.kernel(summed, backend=backend)(alone) for backend in ("cute", "triton")}
    known = bits.isfinite() & (bits > 0)
    want = torch.log(bits.double())
    near = known & (bits >= 0.5) & (bits <= 2)
    others = want[~known].nan_to_num(5.0)
    lines = []
    for name, got in found.items():
        off = (got.double() - want).abs()
        relative = (off / want.abs())[known & (want != 0)].max().item()
        binary = (off / torch.log(torch.tensor(2.0, dtype=torch.float64)))[near].max().item()
        same = torch.equal(got[~known].double().nan_to_num(5.0), others) and bool((off[known & (want == 0)] == 0).all())
        lines.append(
            dict(kind="logs", name=name, type=str(dtype)[6:], relative=relative, log2_near_one=binary, ok=same)
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for dtype in TYPES:
        for line in errors(dtype, options.device):
            text = json.dumps(line)
            print(text, flush=True)
            if options.out:
                with open(options.out, "a") as file:
                    file.write(text + "\n")


if __name__ == "__main__":
    main()
