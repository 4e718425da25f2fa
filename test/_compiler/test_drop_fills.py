"""Fills of host tensors that a kernel stores whole: which are dropped, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl

X = torch.arange(7 * 12, dtype=torch.float32).reshape(7, 12) + 1


def rows(x):
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * 2
    return out


def in_loop(x):
    out = x.new_zeros(x.size())
    for tile_m in hl.tile(x.size(0)):
        total = x[tile_m, :].sum(1)
        for tile_n in hl.tile(x.size(1)):
            out[tile_m, tile_n] = x[tile_m, tile_n] / total[:, None]
    return out


def row_by_row(x):
    m, n = x.size()
    out, size = torch.ones([m, n], dtype=x.dtype, device=x.device), n
    for tile_m, tile_n in hl.tile([m, n], block_size=[1, None]):
        out[tile_m.begin, tile_n] = torch.where(tile_n.index < size - 3, x[tile_m.begin, tile_n], 0.0)
    return out


def read_later(x):
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + 1
    twice = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        twice[tile, :] = out[tile, :] * 2
    return out, twice


def part(x):
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0) - 1):
        out[tile, :] = x[tile, :]
    return out


def added(x):
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [tile, hl.arange(0, 12)], x[tile, hl.arange(0, 12)])
    return out


def read(x):
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = out[tile, :] + x[tile, :]
    return out


def masked(x):
    out = torch.zeros_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        hl.store(out, [tile_m, tile_n], x[tile_m, tile_n], extra_mask=x[tile_m, tile_n] > 9)
    return out


def diagonal(x):
    out = torch.zeros([x.size(0), x.size(0)], dtype=x.dtype, device=x.device)
    for i in hl.grid(x.size(0)):
        out[i, i] = x[i, 0]
    return out


def never(x):
    """The store is in a loop that may have no iteration."""
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0), block_size=1):
        for _ in hl.grid((x[tile.begin, 0] > 30).to(torch.int32)):
            out[tile, :] = x[tile, :]
    return out


def branch(x):
    out = torch.zeros_like(x)
    for i in hl.grid(x.size(0)):
        if x[i, 0] > 30:
            out[i, :] = x[i, :]
    return out


def changed(x):
    out = torch.zeros_like(x)
    out += 1
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :]
    return out


def viewed(x):
    out = torch.zeros_like(x)
    flat = out.view(-1)
    for tile in hl.tile(x.size(0)):
        flat[tile] = x[tile, 0]
    return out


def before(x):
    out, sums = torch.zeros_like(x), torch.empty_like(x[:, 0])
    for tile in hl.tile(x.size(0)):
        sums[tile] = out[tile, :].sum(1)
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + sums[tile][:, None]
    return out


def several(x):
    out = torch.zeros_like(x)
    for _ in range(2):
        for tile in hl.tile(x.size(0)):
            out[tile, :] = x[tile, :]
    return out


DROPPED = (rows, in_loop, row_by_row, read_later)
KEPT = (part, added, read, masked, diagonal, never, branch, changed, viewed, before, several)


@pytest.fixture
def poisoned() -> Any:
    """Fill uninitialized memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("fn", (*DROPPED, *KEPT), ids=lambda fn: fn.__name__)
def test_a_fill_is_dropped_where_each_element_is_stored(fn: Callable[..., Any], poisoned: None) -> None:
    bound = helion.kernel(fn, static_shapes=True).bind((X,))
    filled = [word for word in ("zeros", "ones") if f"{word}_like(" in (text := _host(bound)) or f"{word}(" in text]
    assert bool(filled) == (fn in KEPT)
    expected = helion.kernel(fn, settings=helion.Settings(ref_mode=helion.RefMode.EAGER))(X)
    torch.testing.assert_close(bound(X), expected)


def _host(bound: Any) -> str:
    return bound.to_triton_code(bound.default_config()).rsplit("\ndef ", 1)[1]


def test_dynamic_sizes_are_compared_as_expressions() -> None:
    bound = helion.kernel(rows, static_shapes=False).bind((X,))
    assert "torch.empty_like(x)" in _host(bound)
