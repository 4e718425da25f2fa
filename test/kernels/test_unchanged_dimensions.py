"""Reshapes to sizes that are equal by chance: a dimension keeps its tile only in its own place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

#: Rows of full tiles, and of last tiles with 1 to 3 rows out of range.
ROWS = (8, 6, 9)


def two_tiles(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i, j in hl.tile(x.size(), block_size=[4, 4]):
        value = (x[i, j] + 1).reshape(4, 4)
        out[i, j] = value * value.sum(1)[:, None]
    return out


def two_tiles_eager(x: torch.Tensor) -> torch.Tensor:
    value = x + 1
    padded = torch.nn.functional.pad(value, (0, -x.size(1) % 4))
    return value * padded.unflatten(1, (-1, 4)).sum(-1).repeat_interleave(4, 1)[:, : x.size(1)]


def split_after_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0), 4], device=x.device)
    for i in hl.tile(x.size(0), block_size=4):
        out[i, :] = (x[i, :16] + 1).unflatten(1, (4, 4)).sum(-1)
    return out


def split_after_tile_eager(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :16] + 1).unflatten(1, (4, 4)).sum(-1)


def middle_after_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0), 4], device=x.device)
    for i in hl.tile(x.size(0), block_size=4):
        out[i, :] = (x[i, :16] + 1).reshape(4, -1, 4).amax(1)
    return out


def middle_after_tile_eager(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :16] + 1).unflatten(1, (4, 4)).amax(1)


def split_before_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([4, x.size(0)], device=x.device)
    for i in hl.tile(x.size(0), block_size=4):
        out[:, i] = (x[i, :16] + 1).T.reshape(4, 4, 4).sum(1)
    return out


def split_before_tile_eager(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :16].T + 1).unflatten(0, (4, 4)).sum(1)


def unknown_before_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([4, x.size(0)], device=x.device)
    for i in hl.tile(x.size(0), block_size=4):
        out[:, i] = (x[i, :16] + 1).T.reshape(-1, 4, 4).sum(0)
    return out


def unknown_before_tile_eager(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :16].T + 1).unflatten(0, (4, 4)).sum(0)


KERNELS = (
    (two_tiles, two_tiles_eager),
    (split_after_tile, split_after_tile_eager),
    (middle_after_tile, middle_after_tile_eager),
    (split_before_tile, split_before_tile_eager),
    (unknown_before_tile, unknown_before_tile_eager),
)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
def test_sizes_equal_to_a_tile(kernel: tuple[Callable[..., Any], Callable[..., Any]], rows: int, static: bool) -> None:
    x = torch.randn(rows, 19)
    torch.testing.assert_close(helion.kernel(kernel[0], static_shapes=static)(x), kernel[1](x.double()).float())


def turned(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([16, x.size(0)], device=x.device)
    for i in hl.tile(x.size(0)):
        out[:, i] = x[i, :].reshape(16, i)
    return out


def turned_after_merging(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([16, x.size(0)], device=x.device)
    for i in hl.tile(x.size(0)):
        out[:, i] = x[i, :].flatten().reshape(16, i)
    return out


def turned_fours(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([16, x.size(0)], device=x.device)
    for i in hl.tile(x.size(0), block_size=4):
        out[:, i] = x[i, :].reshape(16, i)
    return out


@pytest.mark.parametrize("function", [turned, turned_after_merging, turned_fours], ids=lambda f: f.__name__)
def test_a_reshape_that_moves_a_tile_is_refused(function: Callable[..., torch.Tensor]) -> None:
    """The tail of the tile would be elsewhere, and the elements would depend on the size of tiles."""
    with pytest.raises(exc.BackendUnsupported, match="tiles would change their order; use permute"):
        helion.kernel(function).bind((torch.randn(6, 16),))


def test_full_tiles_may_move() -> None:
    x = torch.randn(8, 16)
    expected = torch.cat([part.reshape(16, 4) for part in x.split(4)], 1)
    torch.testing.assert_close(helion.kernel(turned_fours)(x), expected)
