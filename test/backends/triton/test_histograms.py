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


def added(ids: torch.Tensor, x: torch.Tensor, bins: int) -> torch.Tensor:
    out = torch.zeros([bins], dtype=torch.float32, device=ids.device)
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
    """Results that are read, orders of memory, and sums that are rounded."""
    ids = torch.randint(0, 40, (1000,))
    for function in (read, ordered, narrow):
        assert "tl.histogram(" not in text_of(function, ids)


def weighted(ids: torch.Tensor, x: torch.Tensor, out: torch.Tensor, first: int) -> torch.Tensor:
    for tile in hl.tile(ids.size()):
        hl.atomic_add(out, [1, ids[tile] - first, 1], x[tile].to(out.dtype))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("shape", "bins"), [((1000,), 10), ((777,), 64), ((31, 9), 5), ((1000,), 100), ((3,), 1)])
def test_values_are_summed_up_by_bins_of_any_number(dtype: torch.dtype, shape: tuple[int, ...], bins: int) -> None:
    """The bins are those of the launch: 100 are more than the sums of the first call have."""
    config = helion.Config(block_sizes=[256] if len(shape) == 1 else [32, 8], num_warps=4)
    kernel = helion.kernel(weighted, config=config, static_shapes=False)
    for size in (20, bins):
        ids, out = torch.randint(0, size, shape), torch.zeros(3, size, 2, dtype=dtype)
        x = torch.randint(-50, 50, shape).to(dtype)
        wanted = torch.zeros(size, dtype=dtype).index_add(0, ids.flatten(), x.flatten())
        kernel(ids + 7, x, out, 7)
        assert torch.equal(out[1, :, 1], wanted)
        assert not out[0].any() and not out[2].any() and not out[:, :, 0].any()


def test_sums_keep_what_is_not_finite_in_its_bin() -> None:
    ids, x = torch.arange(256) % 4, torch.ones(256)
    x[1], x[2] = float("nan"), float("inf")
    run = helion.kernel(added, config=helion.Config(block_sizes=[256], num_warps=4))
    found = run(ids, x, 4)
    assert "tl.sum(" in text_of(added, ids, x, 4)
    assert found[[0, 3]].tolist() == [64.0, 64.0] and found[1].isnan() and found[2] == float("inf")


def test_sums_have_few_bins_and_a_tile_that_registers_hold() -> None:
    ids, x = torch.randint(0, 4, (10000,)), torch.ones(10000)
    for bins, block, summed in ((64, 128, True), (65, 128, False), (16, 512, True), (16, 1024, False), (16, 64, False)):
        code = text_of(added, ids, x, bins, block=block)
        assert ("tl.sum(" in code) == summed, (bins, block)
        assert ("else:" in code) == summed  # more bins in a later call
    assert "tl.sum(" not in text_of(added, ids, x, 16, block=512, target="gfx942")


def test_the_default_sums_up_in_long_tiles() -> None:
    ids, x = torch.empty(2**21, dtype=torch.int64, device="meta"), torch.empty(2**21, device="meta")
    bound = helion.kernel(added, backend="triton").bind((ids, x, 16), target="h200")
    assert "tl.sum(" in bound.to_triton_code(bound.seeds[0].config)
    assert bound.resources(bound.seeds[0].config).spill_bytes == 0


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
