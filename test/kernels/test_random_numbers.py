"""Random numbers: the same for every tile size, and for the eager reference; torch's follow torch's generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc


@helion.kernel
def uniform(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = hl.rand([tile_m, tile_n], seed=seed, device=x.device)
    return out


@helion.kernel
def whole_numbers(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.int32)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.randint([tile, x.size(1)], low=-3, high=5, seed=seed)
    return out


@helion.kernel
def with_offsets(x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    own, given = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        own[tile] = hl.rand([tile], seed)
        given[tile] = hl.rand([tile], seed, offsets=tile.index)
    return own, given


@helion.kernel
def four(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty([4, x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[0, tile], out[1, tile], out[2, tile], out[3, tile] = hl.rand4x(seed, tile.index)
    return out


@helion.kernel
def of_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, c, d = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a[tile] = torch.rand_like(x[tile])
        b[tile] = torch.rand([tile], dtype=torch.float16)
        c[tile] = torch.randn_like(x[tile])
        d[tile] = torch.randn([tile])
    return a, b, c, d


def results(kernel: helion.Kernel, args: tuple[Any, ...], sizes: list[list[int]]) -> list[Any]:
    bound = kernel.bind(args)
    return [bound.run_ref(*args), *(bound.compile_config({"block_sizes": s})(*args) for s in sizes)]


@pytest.mark.parametrize("kernel", [uniform, whole_numbers], ids=lambda k: k.name)
def test_numbers_do_not_depend_on_tiles(kernel: helion.Kernel) -> None:
    x = torch.empty(37, 41)
    sizes = [[8, 16], [64, 4]] if kernel is uniform else [[8], [64]]
    first, *others = results(kernel, (x, 7), sizes)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    assert (kernel(x, 8) != first).any()
    if kernel is uniform:
        assert 0 <= first.min() and first.max() < 1 and abs(first.mean() - 0.5) < 0.03
    else:
        assert first.unique().tolist() == list(range(-3, 5))


def test_offsets() -> None:
    for own, given in results(with_offsets, (torch.empty(100), 3), [[16], [64]]):
        torch.testing.assert_close(own, given, rtol=0, atol=0)


def test_four_at_once() -> None:
    first, *others = results(four, (torch.empty(300), 11), [[16], [512]])
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    assert 0 <= first.min() and first.max() < 1 and len({row.sum().item() for row in first}) == 4
    torch.testing.assert_close(first[0], with_offsets(torch.empty(300), 11)[0], rtol=0, atol=0)


def test_torch_functions_follow_torchs_generator() -> None:
    x = torch.empty(4000)
    torch.manual_seed(0)
    first, second = of_torch(x), of_torch(x)
    torch.manual_seed(0)
    for again, before in zip(of_torch(x), first, strict=True):
        torch.testing.assert_close(again, before, rtol=0, atol=0)
    assert all((a != b).any() for a, b in zip(first, second, strict=True))
    a, b, c, d = first
    for value in (a, b):
        assert 0 <= value.min() and value.max() <= 1 and abs(value.mean() - 0.5) < 0.02
    for value in (c, d):
        assert abs(value.mean()) < 0.08 and abs(value.std() - 1) < 0.05
    assert (a != b).any() and (c != d).any()


@helion.kernel
def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = F.dropout(x[tile], 0.25)
    return out


def test_dropout() -> None:
    out = dropout(torch.full([4000], 3.0), 0.25)
    assert set(out.unique().tolist()) == {0.0, 4.0}
    assert abs((out != 0).float().mean() - 0.75) < 0.03


@helion.kernel
def bad_seed(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.rand([tile], seed=x[tile])
    return x


@helion.kernel
def whole_numbers_of_torch(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.rand_like(x[tile])
    return x


def test_refusals() -> None:
    with pytest.raises(exc.TypeInferenceError, match="A seed must be an integer"):
        bad_seed.bind((torch.empty(5),))
    with pytest.raises(exc.TypeInferenceError, match=r"use hl\.randint"):
        whole_numbers_of_torch.bind((torch.empty(5, dtype=torch.int32),))


def test_randint_is_the_word_of_triton() -> None:
    """``low + abs(word) % (high - low)`` of signed words; the first numbers of seed 3 in 17 x 19 are written out."""

    @helion.kernel
    def kernel(x: torch.Tensor, seed: int) -> torch.Tensor:
        out = torch.empty(x.size(), dtype=torch.int32)
        for a, b in hl.tile(x.size()):
            out[a, b] = hl.randint([a, b], low=-11, high=23, seed=seed)
        return out

    for found in results(kernel, (torch.empty(17, 19), 3), [[8, 4], [1, 32]]):
        assert found.flatten()[:4].tolist() == [-6, -4, -9, -8]
        assert -11 <= found.min() and found.max() < 23
