"""Flattened grids whose inner dimensions are one run of an access: generated text and equality with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl

HALF = torch.float16
BF16 = torch.bfloat16


def gated_halves(x: torch.Tensor) -> torch.Tensor:
    b, c, t = x.size()
    value, gate = x.chunk(2, dim=1)
    out = torch.empty([b, c // 2, t], dtype=x.dtype, device=x.device)
    for batch, channels, frames in hl.tile([b, c // 2, t]):
        weight = torch.sigmoid(gate[batch, channels, frames].to(torch.float32))
        out[batch, channels, frames] = (value[batch, channels, frames].to(torch.float32) * weight).to(x.dtype)
    return out


def gated_halves_torch(x: torch.Tensor) -> torch.Tensor:
    value, gate = x.float().chunk(2, dim=1)
    return value * torch.sigmoid(gate)


def placed(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Doubles ``x[B, C, H, W]`` into the first channels of ``out``."""
    b, c, h, w = x.size()
    for batch, channels, rows, columns in hl.tile([b, c, h, w]):
        out[batch, channels, rows, columns] = x[batch, channels, rows, columns] * 2
    return out


def placed_torch(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.cat([x * 2, out[:, x.size(1) :]], 1)


def with_places(x: torch.Tensor, places: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    b, t, d = x.size()
    out = torch.empty_like(x)
    for batch, tokens, columns in hl.tile([b, t, d]):
        inside = tokens.index[None, :, None] < lengths[batch][:, None, None]
        y = x[batch, tokens, columns] + places[tokens, columns][None, :, :]
        out[batch, tokens, columns] = torch.where(inside, y, 0.0)
    return out


def with_places_torch(x: torch.Tensor, places: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(x.size(1))[None, :, None] < lengths[:, None, None]
    return torch.where(inside, x + places, 0.0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


CASES: list[tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, ...]], int | None]] = [
    (gated_halves, gated_halves_torch, lambda: (drawn(3, 16, 63, dtype=HALF),), 8 * 63),
    (gated_halves, gated_halves_torch, lambda: (drawn(2, 32, 1001, dtype=BF16),), 16 * 1001),
    # elements of a run that are no vectors, and rows that are vectors without it
    (gated_halves, gated_halves_torch, lambda: (drawn(3, 10, 63, dtype=HALF),), None),
    (gated_halves, gated_halves_torch, lambda: (drawn(3, 16, 64, dtype=HALF),), None),
    (placed, placed_torch, lambda: (drawn(3, 4, 7, 9), drawn(3, 6, 7, 9)), 4 * 7 * 9),
    (placed, placed_torch, lambda: (drawn(2, 4, 1, 33), drawn(2, 6, 1, 33)), 4 * 33),
    (with_places, with_places_torch, lambda: (drawn(3, 8, 65), drawn(8, 65), torch.tensor([8, 0, 5])), 8 * 65),
]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("kernel", "reference", "arguments", "run"), CASES)
def test_inner_dimensions_that_are_a_run_are_right(
    kernel: Any, reference: Any, arguments: Any, run: int | None, static: bool
) -> None:
    args = arguments()
    expected = reference(*[arg.clone() for arg in args])
    bound = helion.kernel(kernel, static_shapes=static).bind(args)
    dims = args[0].ndim
    for size in (32, 256):
        config = helion.Config(block_sizes=[*[1] * (dims - 1), size], flatten_loops=[True], num_warps=1)
        got = bound.compile_config(config)(*[arg.clone() for arg in args])
        torch.testing.assert_close(got.float(), expected.float(), rtol=1e-2, atol=1e-3)
        if static:
            assert (f"% {run})" in bound.to_triton_code(config)) == (run is not None)


def test_runs_of_unaligned_rows_are_the_first_choice() -> None:
    def first(frames: int) -> helion.Config:
        x = torch.empty((32, 1024, frames), dtype=HALF, device="meta")
        return helion.kernel(gated_halves).bind((x,), target="h200").seeds[0].config

    assert first(1501)["flatten_loops"] == [True]
    assert first(1536)["flatten_loops"] == [False]
