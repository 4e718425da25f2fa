"""Lookup of rows of a table by index.

The loaded indices are used as a subscript: each selects one row of the table, and only the columns of the tile.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Gather `table[ids]` for `ids[...]`, from 0 to V - 1, and `table[V, D]`; the result has shape `[..., D]`."""
    flat = ids.reshape(-1)
    count = flat.size(0)
    features = table.size(1)
    out = torch.empty([count, features], dtype=table.dtype, device=table.device)
    for tile_i, tile_f in hl.tile([count, features]):
        out[tile_i, tile_f] = table[flat[tile_i], tile_f]
    return out.view(*ids.size(), features)


def reference(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(ids, table)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    table = torch.randn([101, 63], device=DEVICE) + 0.5
    ids = torch.randint(0, 101, [3, 15], dtype=torch.int64, device=DEVICE)
    return [
        ("fp32", embedding, (ids, table)),
        ("bf16, int32 indices", embedding, (ids.int(), table.bfloat16())),
        ("fp16, transposed indices", embedding, (ids.t(), table.half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
