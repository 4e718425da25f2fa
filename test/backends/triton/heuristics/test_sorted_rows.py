"""Seeds of sorts: rows and warps of a program, and what the model knows of the network."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.sorts import Network
from helion.runtime.bound import BoundKernel

RULE = "TritonSortedRowsHeuristic"


@helion.kernel
def ordered(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.sort(x[tile, :])[0]
    return out


@helion.kernel
def places(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.argsort(x[tile, :])
    return out


@helion.kernel
def parts(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=256):
        out[tile] = torch.sort(x[tile])[0]
    return out


def bound(kernel: helion.Kernel, *shape: int, target: str = "sm_90") -> BoundKernel:
    return kernel.bind((torch.empty(shape, device="meta"),), target=target)


@pytest.mark.parametrize(
    ("lanes", "rows", "warps"), [(30, 8, 1), (64, 4, 1), (256, 1, 1), (1000, 1, 1), (4096, 1, 16), (16384, 1, 32)]
)
def test_one_warp_sorts_a_row_that_is_not_too_long(lanes: int, rows: int, warps: int) -> None:
    seed = bound(ordered, 4096, lanes).seeds[0]
    assert seed.heuristic == RULE
    assert seed.config["block_sizes"] == [rows] and seed.config["num_warps"] == warps


def test_keys_with_positions_are_twice_as_long() -> None:
    assert [bound(places, 4096, lanes).seeds[0].config["num_warps"] for lanes in (500, 1000)] == [1, 16]


def test_other_kernels_have_no_sorted_rows() -> None:
    assert RULE not in {seed.heuristic for seed in bound(parts, 4096).seeds}


@pytest.mark.parametrize("kernel", [ordered, places], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("lanes", [256, 1000])
def test_predictions_know_the_network(kernel: helion.Kernel, lanes: int) -> None:
    fast = bound(kernel, 4096, lanes)
    (fact,) = fast.facts.sorts
    assert fact.itemsize == (4 if kernel is ordered else 8)
    seed, real = fast.seeds[0], fast.resources(fast.default_config())
    assert real.spill_bytes == 0 and real.shared_bytes <= seed.predicted.shared_bytes
    copied = bound(copies, 4096, lanes).seeds[0]
    assert seed.predicted.time_us > 1.5 * copied.predicted.time_us


@helion.kernel
def copies(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + 1.0
    return out


def test_exchanges_of_a_network() -> None:
    row = Network.of(1024, 1024, 4, 1)
    assert (row.stages, row.steps, row.exchanges) == (10, 55, 1760) and row.is_unrolled
    assert row.between_lanes == 8 + 7 + 6 + 5 + 4 and not row.between_warps
    assert not Network.of(1024, 1024, 4, 4).is_unrolled and not Network.of(512, 512, 8, 1).is_unrolled
    several = Network.of(1024, 64, 8, 1)
    assert (several.steps, several.exchanges, several.between_warps) == (21, 21 * 32 * 2, 0)
    long = Network.of(16384, 16384, 4, 4)
    assert not long.is_unrolled and long.bits_between == (5, 7)
    assert long.between_warps == 9 + 8 and long.between_lanes == 14 + 13 + 12 + 11 + 10
