"""Random numbers: the same for every tile size, and for the eager reference; torch's follow torch's generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc
from helion.runtime.ref_mode import run_reference


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
def sites(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        a[tile_m, tile_n] = torch.rand_like(x[tile_m, tile_n])
        b[tile_m, tile_n] = torch.randn([tile_m, tile_n]).to(x.dtype)
        c[tile_m, tile_n] = F.dropout(x[tile_m, tile_n], 0.25)
    return a, b, c


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_site_has_a_seed_of_torchs_generator(dtype: torch.dtype, static: bool) -> None:
    kernel = helion.kernel(sites.fn, static_shapes=static)
    x = torch.full((13, 21), 3.0, dtype=dtype)
    torch.manual_seed(7)
    seeds = torch.randint(2**63 - 1, [3])
    numbers = [_words(seed, x.numel()) for seed in seeds]
    first, second = (_uniform(word).clamp_min(1e-7 * at) for at, word in ((1, numbers[1][0]), (0, numbers[1][1])))
    normal = torch.sqrt(-2 * torch.log(first)) * torch.cos(2 * torch.pi * second)
    expected = (_uniform(numbers[0][0]), normal, torch.where(_uniform(numbers[2][0]) >= 0.25, 4.0, 0.0))
    bound = kernel.bind((x,))
    runs = [bound.run_ref, *(bound.compile_config({"block_sizes": s}) for s in ([8, 16], [1, 32]))]
    for run in runs:
        torch.manual_seed(7)
        for found, right in zip(run(x), expected, strict=True):
            torch.testing.assert_close(found, right.reshape(x.shape).to(dtype), rtol=1e-6, atol=1e-6)


def _words(seed: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Philox-4x32-10 in plain Python integers: the first two words at each offset."""
    found = []
    for offset in range(count):
        c, k = [offset & 0xFFFFFFFF, offset >> 32, 0, 0], [int(seed) & 0xFFFFFFFF, int(seed) >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        found.append(c[:2])
    return list(torch.tensor(found).unbind(1))


def _uniform(word: torch.Tensor) -> torch.Tensor:
    return torch.where(word >= 2**31, 2**32 - 1 - word, word).to(torch.float32) * 4.6566127342e-10


@helion.kernel(config={"block_sizes": [4, 8, 8]})
def in_loops(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.empty_like(x), torch.empty_like(x)
    for tile_m in hl.tile(x.size(0)):
        for tile_n in hl.tile(x.size(1)):
            a[tile_m, tile_n] = torch.rand_like(x[tile_m, tile_n])
    b = b + 0
    for tile in hl.tile(x.size(0)):
        b[tile, :] = torch.rand([tile, x.size(1)])
    return a, b


def test_launches_draw_one_after_the_other() -> None:
    x = torch.empty(9, 19)
    torch.manual_seed(1)
    expected = [_uniform(_words(torch.randint(2**63 - 1, [1]), x.numel())[0]).reshape(x.shape) for _ in range(2)]
    for run in (in_loops, in_loops.bind((x,)).run_ref, lambda x: run_reference(in_loops, (x,), [4, 8, 8])):
        torch.manual_seed(1)
        for found, right in zip(run(x), expected, strict=True):
            assert torch.equal(found, right)


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
