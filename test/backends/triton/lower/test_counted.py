"""Indices along a merged dimension are ranges, so that Triton sees which elements are neighbours."""

from __future__ import annotations

import re

import pytest
import torch

import helion
import helion.language as hl


@helion.kernel
def pairs(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """``x[M, K] @ w[K, N]`` of weights of 4 bits, two neighbours along K in a byte."""
    m, n, half = x.size(0), packed.size(1), packed.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    block = hl.register_block_size(16, 64)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(half, block_size=block):
            both = packed[tile_p, tile_n]
            halves = hl.join((both << 4) >> 4, both >> 4).permute(0, 2, 1).reshape(block * 2, tile_n)
            at = tile_p.begin * 2 + hl.arange(block * 2)
            rows = hl.load(x, [tile_m, at], extra_mask=(at < half * 2)[None, :])
            acc = hl.dot(rows, halves.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def backwards(x: torch.Tensor) -> torch.Tensor:
    """Merged dimensions that are not counted in order: the faster digit is the first one."""
    out = torch.empty([x.size(0) * 2], dtype=x.dtype, device=x.device)
    block = hl.register_block_size(16, 64)
    for tile in hl.tile(x.size(0), block_size=block):
        digits = hl.arange(block)[:, None] + hl.arange(2)[None, :] * block
        at = digits.reshape(block * 2)
        value = hl.load(x, [tile.begin + at % block])
        hl.store(out, [tile.begin * 2 + at], value + at // block * 100)
    return out


@helion.kernel
def every_other(x: torch.Tensor) -> torch.Tensor:
    """Counted with a step and a start, by hand."""
    out = torch.empty([x.size(0) // 2], dtype=x.dtype, device=x.device)
    block = hl.register_block_size(16, 64)
    for tile in hl.tile(x.size(0) // 4, block_size=block):
        at = (hl.arange(block)[:, None] * 4 + hl.arange(2)[None, :] * 2 + 1).reshape(block * 2)
        hl.store(out, [tile.begin * 2 + hl.arange(block * 2)], hl.load(x, [tile.begin * 4 + at]))
    return out


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(("m", "half", "n"), [(17, 63, 33), (1, 64, 16)])
def test_pairs(m: int, half: int, n: int, block: int) -> None:
    stream = torch.Generator().manual_seed(m)
    x = (torch.randn(m, 2 * half, generator=stream) + 0.5).to(torch.bfloat16)
    packed = torch.randint(-128, 128, (half, n), dtype=torch.int8, generator=stream)
    bound = pairs.bind((x, packed))
    found = bound.compile_config(helion.Config(block_sizes=[block, 16, 16], num_warps=4))(x, packed)
    weights = torch.stack([(packed << 4) >> 4, packed >> 4], 1).flatten(0, 1)
    expected = x.double() @ weights.double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_a_merged_range_is_one_range() -> None:
    x, packed = torch.empty(64, 128, dtype=torch.bfloat16), torch.empty(64, 64, dtype=torch.int8)
    bound = pairs.bind((x, packed), target="sm_90")
    code = bound.to_triton_code(helion.Config(block_sizes=[32, 64, 64], num_warps=4))
    assert re.search(r"tl\.arange\(0, _BLOCK_SIZE_\d+ \* \w+\)", code) and code.count("tl.reshape") == 1


def test_other_orders_are_kept() -> None:
    x = torch.arange(128.0)
    bound = backwards.bind((x,))
    config = helion.Config(block_sizes=[32], num_warps=4)
    assert "tl.reshape" in bound.to_triton_code(config)
    expected = torch.cat([torch.cat([part, part + 100]) for part in x.split(32)])
    torch.testing.assert_close(bound.compile_config(config)(x), expected)


def test_steps_and_starts() -> None:
    x = torch.arange(256.0)
    bound = every_other.bind((x,))
    config = helion.Config(block_sizes=[16], num_warps=4)
    assert "tl.reshape" not in bound.to_triton_code(config)
    torch.testing.assert_close(bound.compile_config(config)(x), x[1::2])
