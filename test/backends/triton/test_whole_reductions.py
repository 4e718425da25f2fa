"""Reductions over all dimensions of a tile at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda v: v.sum(),
    "amax": lambda v: v.amax(),
    "amin": lambda v: v.amin(),
    "prod": lambda v: torch.where(v > 0, 1.0, -1.0).prod(),
    "any": lambda v: (v > 2.5).any(),
    "all": lambda v: (v > -2.5).all(),
}


def of_tiles(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], dtype: hl.constexpr) -> torch.Tensor:
    b, m, _ = x.size()
    block = hl.register_block_size(m)
    out = torch.empty([b, helion.cdiv(m, block)], dtype=dtype, device=x.device)
    for batch, rows in hl.tile([b, m], block_size=[1, block]):
        out[batch.begin, rows.id] = function(x[batch.begin, rows, :])
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    x = (torch.randn(3, 40, 63) * 2).to(dtype)
    wanted = torch.stack([torch.stack([function(part) for part in image.split(16)]) for image in x])
    config = helion.Config(block_sizes=[16], num_warps=4)
    got = helion.kernel(of_tiles, config=config)(x, function, wanted.dtype)
    tolerance = {} if dtype is not torch.bfloat16 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(got, wanted, **tolerance)


def test_nan_stays() -> None:
    x = torch.randn(1, 16, 63)
    x[0, 3, 7] = torch.nan
    for name in ("sum", "amax", "amin"):
        config = helion.Config(block_sizes=[16], num_warps=4)
        assert helion.kernel(of_tiles, config=config)(x, FUNCTIONS[name], torch.float32).isnan().all(), name


def summed(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    total = torch.zeros([1], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(x.size()):
        hl.atomic_add(total, [0], (torch.exp(x[rows, columns]) * weights[columns][None, :]).sum())
    return total


def test_one_reduction_of_a_tile() -> None:
    """Rows would be summed by shuffles of their own: 82 by the assembler for sm_90, where 7 are enough."""
    args = torch.empty(4096, 527, device="meta"), torch.empty(527, device="meta")
    bound = helion.kernel(summed).bind(args, target="h200")
    config = {"block_sizes": [32, 64], "num_warps": 4}
    assert bound.to_code(config).count("tl.sum(") == 1
    x, weights = torch.randn(63, 41), torch.rand(41)
    torch.testing.assert_close(helion.kernel(summed)(x, weights), (x.exp() * weights).sum()[None])
