"""Sums of several long rows at once take chunks of them, which registers hold."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl


@helion.kernel(backend="triton")
def products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    out = torch.empty([a.size(0)], dtype=torch.float32, device=a.device)
    for tile in hl.tile(a.size(0)):
        out[tile] = (a[tile, :].float() * b[tile, :].float() * c[tile, :].float()).sum(-1)
    return out


@helion.kernel(backend="triton")
def squares(a: torch.Tensor) -> torch.Tensor:
    out = torch.empty([a.size(0)], dtype=torch.float32, device=a.device)
    for tile in hl.tile(a.size(0)):
        out[tile] = (a[tile, :].float() * a[tile, :].float()).sum(-1)
    return out


@pytest.mark.parametrize(("columns", "chunk"), [(8191, 1024), (8192, 1024), (4096, None)])
def test_chunks_of_several_rows(columns: int, chunk: int | None) -> None:
    x = torch.empty(4096, columns, device="meta")
    seed = products.bind((x, x.clone(), x.clone()), target="h200").seeds[0]
    assert seed.config.reduction_loops == [chunk], seed.reason
    assert seed.config.num_warps == 8 or chunk is None


def test_one_row_is_held() -> None:
    seed = squares.bind((torch.empty(4096, 8191, device="meta"),), target="h200").seeds[0]
    assert seed.config.reduction_loops == [None]


def larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.maximum(a, b)


@helion.kernel(backend="triton")
def falls(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, most = torch.empty_like(x), torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        fallen = hl.associative_scan(larger, x[tile, :], dim=1) - x[tile, :]
        out[tile, :] = fallen
        most[tile] = fallen.amax(1)
    return out, most


def test_scans_of_a_row_take_few_warps() -> None:
    """Each step of a scan between warps waits for shared memory."""
    config = falls.bind((torch.empty(16384, 2520, device="meta"),), target="h200").default_config()
    assert config.reduction_loops == [None] and config.num_warps <= 8


@helion.kernel(backend="triton")
def classes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    b, _, n = x.size()
    for tile_b, tile_n in hl.tile([b, n]):
        out[tile_b, :, tile_n] = torch.softmax(x[tile_b, :, tile_n].float(), dim=1).to(x.dtype)
    return out


def test_columns_held_whole_have_four_warps() -> None:
    """Measurement ``held_columns``."""
    x = torch.empty(64, 150, 16384, dtype=torch.bfloat16, device="meta")
    config = classes.bind((x,), target="h200").default_config()
    assert config.block_sizes == [1, 64] and config.num_warps == 4
