"""Results that depend on the sizes of tiles give a warning, and results that only look so give none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

KINDS = ("ResultOfTileSize", "PlaceWithinTile")
X = torch.randn(20, 700)


def found(function: Callable[..., Any], *args: Any, **settings: Any) -> list[str]:
    """Return the names of the warnings about tile sizes."""
    traced = helion.kernel(function, **settings).bind(args, target="h200")._analysis.traced
    return [type(w).__name__ for w in traced.warnings if type(w).__name__ in KINDS]


def less_maximum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        tile = x[rows, columns]
        out[rows, columns] = tile - tile.amax(-1, keepdim=True)  # here
    return out


def over_norm(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for columns in hl.tile(x.size(1)):
        for row in hl.grid(x.size(0)):
            tile = x[row, columns]
            out[row, columns] = tile * torch.rsqrt((tile * tile).sum(-1))
    return out


def scaled_by_branch(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        scale = x[rows, columns].abs().amax(-1)
        if x.size(0) > 1:
            scale = scale * 2
        for _ in range(2):
            scale = scale + 1
        out[rows, columns] = x[rows, columns] / scale[:, None]
    return out


def carried_scale(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        scale = x[rows, columns].abs().amax(-1)
        for _ in hl.grid(2):
            out[rows, columns] = x[rows, columns] / scale[:, None]
            scale = scale + 1
    return out


@pytest.mark.parametrize("function", [less_maximum, over_norm, scaled_by_branch, carried_scale])
def test_a_result_of_one_tile_is_warned_about(function: Callable[..., Any]) -> None:
    assert found(function, X) == ["ResultOfTileSize"]
    assert found(function, X, ignore_warnings=[exc.ResultOfTileSize]) == []


def test_the_warning_names_the_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = helion.kernel(less_maximum, config=helion.Config(block_sizes=[4, 64]))
    kernel(X)
    kernel(X)
    printed = capsys.readouterr().err
    assert len(re.findall(r"WARNING\[ResultOfTileSize\].*'out'.*'columns'.*torch\.max", printed)) == 1
    assert "# here" in printed


def partial_maxima(x: torch.Tensor) -> torch.Tensor:
    """The number of parts follows from the size of the tile."""
    block = hl.register_block_size(x.size(1))
    out = torch.empty([x.size(0), (x.size(1) + block - 1) // block])
    for rows, columns in hl.tile(x.size(), block_size=[None, block]):
        out[rows, columns.id] = x[rows, columns].amax(-1)
    return out.amax(-1)


def scale_of_each_block(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size(), block_size=[None, 64]):
        out[rows, columns] = x[rows, columns] / x[rows, columns].abs().amax(-1, keepdim=True)
    return out


def whole_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = x[rows, :] - x[rows, :].amax(-1, keepdim=True)
    return out


def two_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        most = hl.full([rows], float("-inf"))
        for columns in hl.tile(x.size(1)):
            most = torch.maximum(most, x[rows, columns].amax(-1))
        for columns in hl.tile(x.size(1)):
            out[rows, columns] = x[rows, columns] - most[:, None]
    return out


def running_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        before = hl.zeros([rows])
        for columns in hl.tile(x.size(1)):
            tile = x[rows, columns]
            out[rows, columns] = before[:, None] + hl.cumsum(tile, 1)
            before = before + tile.sum(-1)
    return out


def sums_by_atomics(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for rows, columns in hl.tile(x.size()):
        hl.atomic_add(out, [rows], x[rows, columns].sum(-1))
    return out


def steps_until_all_are_small(x: torch.Tensor) -> torch.Tensor:
    """A maximum as a condition decides when to stop, not which value is stored."""
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        tile = x[rows, columns]
        while tile.abs().amax() > 1:
            tile = torch.where(tile.abs() > 1, tile / 2, tile)
        out[rows, columns] = tile
    return out


@pytest.mark.parametrize(
    "function",
    [
        partial_maxima,
        scale_of_each_block,
        whole_rows,
        two_loops,
        running_sums,
        sums_by_atomics,
        steps_until_all_are_small,
    ],
)
def test_results_of_all_tiles_give_no_warning(function: Callable[..., Any]) -> None:
    assert found(function, X) == []


def first_places(x: torch.Tensor, how: hl.constexpr) -> torch.Tensor:
    out = torch.zeros([x.size(0)], dtype=torch.int64)
    for rows in hl.tile(x.size(0)):
        most = hl.full([rows], float("-inf"))
        at = hl.zeros([rows], dtype=torch.int64)
        for columns in hl.tile(x.size(1)):
            value, place = torch.max(x[rows, columns], -1)
            if how == "begin":
                place = place + columns.begin
            at = torch.where(value > most, place, at)
            most = torch.maximum(most, value)
        out[rows] = at
    return out


def gathered(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for rows, columns in hl.tile(x.size()):
        tile = x[rows, columns]
        place = tile.argmax(-1)
        hl.atomic_max(out, [rows], torch.gather(tile, 1, place[:, None]).amax(-1))
    return out


def test_places_within_a_tile() -> None:
    assert found(first_places, X, "begin") == []
    assert found(first_places, X, "tile") == ["PlaceWithinTile"]
    assert found(gathered, X) == []
    whole = helion.kernel(first_places, config=helion.Config(block_sizes=[4, 64]))(X, "begin")
    assert torch.equal(whole, X.argmax(-1))
