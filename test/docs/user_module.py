"""A user's module for type checkers, in `make lint` too: kernels keep signatures, and wrong calls are errors."""

from __future__ import annotations

import torch
from typing_extensions import assert_type

import helion
import helion.language as hl
from helion import ops


@helion.kernel
def bare(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        assert_type(tile_m, hl.Tile)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile in hl.tile(n):
            total += x[tile_m, tile].sum(1)
        out[tile_m, tile_n] = total[:, None] + tile_n.index + tile_m.begin
    return out


@helion.kernel(config=helion.Config(block_sizes=[1]), static_shapes=False)
def with_options(x: torch.Tensor, flag: hl.constexpr = False) -> tuple[torch.Tensor, torch.Tensor]:
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(x, [tile], hl.load(x, [tile], extra_mask=tile.index > 3))
    return x, x


x = torch.randn(3, 4)
assert_type(bare(x), torch.Tensor)
assert_type(with_options(x, flag=True), tuple[torch.Tensor, torch.Tensor])
every: list[helion.Kernel] = [bare, with_options]
bare("x")  # type: ignore[arg-type]
bare(x, m=2)  # type: ignore[call-arg]
hl.zeros(3.5)  # type: ignore[arg-type]
assert_type(ops.rms_norm(x, x[0]), torch.Tensor)
assert_type(ops.add_rms_norm(x, x, x[0]), tuple[torch.Tensor, torch.Tensor])
ops.softmax("x")  # type: ignore[arg-type]
ops.attention(x, x, x, casual=True)  # type: ignore[call-arg]
ops.no_such_op(x)  # type: ignore[attr-defined]
with ops.patch(torch.nn.Linear(3, 3)) as patches:
    assert_type(patches.replaced, dict[str, str])
