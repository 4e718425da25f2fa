"""Atomics that count: a histogram of a tile in place of an atomic for each element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unseen.rows import value_counts


def shifted(ids: torch.Tensor, bins: int, first: int) -> torch.Tensor:
    out = torch.zeros([3, bins, 2], dtype=torch.float32, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [1, ids[tile] - first, 1], 2.0)
    return out


def pairs(ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([40], dtype=torch.int64, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[tile, :]], 1)
    return out


def text_of(function: Callable[..., torch.Tensor], *args: object, block: int = 256, target: str = "sm_90") -> str:
    bound = helion.kernel(function, backend="triton").bind(args, target=target)
    return bound.to_triton_code(helion.Config(block_sizes=[block], num_warps=4))


@pytest.mark.parametrize(("count", "bins"), [(1000, 100), (777, 60), (500, 200), (3, 5)])
def test_counts_of_any_size(count: int, bins: int) -> None:
    """Bins are numbers of the launch. 200 of them are more than the histogram of the first call has."""
    kernel = helion.kernel(shifted, config=helion.Config(block_sizes=[256], num_warps=4), static_shapes=False)
    ids = torch.randint(0, bins, (count,))
    kernel(torch.arange(7, 107), 100, 7)
    wanted = torch.zeros(3, bins, 2)
    wanted[1, :, 1] = 2 * torch.bincount(ids, minlength=bins)
    assert torch.equal(kernel(ids + 7, bins, 7), wanted)


def test_more_bins_than_seen_have_an_atomic_each() -> None:
    code = text_of(shifted, torch.arange(1000), 100, 7)
    assert code.count("tl.histogram(") == 1 and code.count("tl.atomic_add(") == 2


def test_counts_of_rows() -> None:
    ids = torch.randint(0, 40, (301, 5))
    run = helion.kernel(pairs, config=helion.Config(block_sizes=[64], num_warps=4))
    assert torch.equal(run(ids), torch.bincount(ids.flatten(), minlength=40))
    assert "tl.histogram(" in text_of(pairs, ids, block=64)


def added(ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([40], dtype=torch.float32, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[tile]], x[tile])
    return out


def read(ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([40], dtype=torch.int32, device=ids.device)
    places = torch.empty_like(ids)
    for tile in hl.tile(ids.size(0)):
        places[tile] = hl.atomic_add(out, [ids[tile]], 1)
    return places


def ordered(ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([40], dtype=torch.int32, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[tile]], 1, sem="release")
    return out


def narrow(ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([40], dtype=torch.float16, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[tile]], 1)
    return out


def test_other_atomics_stay() -> None:
    """Other values, results that are read, orders of memory, and sums that are rounded."""
    ids = torch.randint(0, 40, (1000,))
    assert "tl.histogram(" not in text_of(added, ids, torch.ones(1000))
    for function in (read, ordered, narrow):
        assert "tl.histogram(" not in text_of(function, ids)


def test_tiles_have_several_elements_for_each_bin() -> None:
    ids = torch.empty(10000, dtype=torch.int32, device="meta")
    assert "tl.histogram(" not in text_of(value_counts.fn, ids, 256, block=256)
    assert "tl.histogram(" in text_of(value_counts.fn, ids, 256, block=512)
    assert "tl.histogram(" not in text_of(value_counts.fn, ids, 4096, block=8192)
    assert "tl.histogram(" not in text_of(value_counts.fn, ids, 256, block=512, target="gfx942")


def test_the_default_counts_in_long_tiles() -> None:
    """A program of 8192 elements adds 256 numbers; the prediction has the votes and these."""
    ids = torch.empty(1 << 26, dtype=torch.int32, device="meta")
    bound = helion.kernel(value_counts.fn, backend="triton").bind((ids, 256), target="h200")
    first, second = bound.seeds[:2]
    assert first.config.block_sizes == [8192] and second.config.block_sizes == [2048]
    assert first.predicted.time_us < 0.6 * second.predicted.time_us
    assert "tl.histogram(" in bound.to_triton_code(first.config)
    many = helion.kernel(value_counts.fn, backend="triton").bind((ids, 1024), target="h200")
    assert many.seeds[0].config.block_sizes == [4096]  # a thread has fewer elements, for the sake of its code
