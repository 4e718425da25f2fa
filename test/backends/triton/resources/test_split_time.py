"""Predicted times of a loop over K that several programs share: each has its part of the work."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl


def scaled_groups(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, group: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1), block_size=group):
            part = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n].to(x.dtype))
            acc += part * scales[tile_k.id, tile_n][None, :]
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def product(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, group: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n].to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(("fn", "sizes"), [(scaled_groups, [16, 64]), (product, [16, 64, 64])])
def test_parts_of_k_share_the_work(fn: object, sizes: list[int]) -> None:
    """Tiles of K that the kernel fixes count as those that a config chooses."""
    x = torch.empty(16, 8192, dtype=torch.bfloat16, device="meta")
    w = torch.empty(8192, 1024, dtype=torch.int8, device="meta")
    scales = torch.empty(128, 1024, device="meta")
    bound = helion.kernel(fn, backend="triton").bind((x, w, scales, 64), target="h200")  # type: ignore[call-overload]
    config = {"block_sizes": sizes, "num_warps": 4, "num_stages": 3}
    one, eight = (
        bound._analysis.predict(bound.config_spec.normalize({**config, "split_k": parts})) for parts in (1, 8)
    )
    before, after = dict(one.units), dict(eight.units)
    assert after["matrix units"] == pytest.approx(before["matrix units"])
    assert after["instructions"] < 1.3 * before["instructions"]
    assert after["latency"] < before["latency"] / 3 and eight.time_us < one.time_us / 2


def test_shared_groups_are_right() -> None:
    x, w, scales = torch.randn(5, 448), torch.randint(-8, 8, (448, 33)).to(torch.int8), torch.rand(7, 33)
    bound = helion.kernel(scaled_groups, backend="triton").bind((x, w, scales, 64))
    config = helion.Config(block_sizes=[16, 32], split_k=4, num_warps=4)
    expected = x.double() @ (w.double() * scales.double().repeat_interleave(64, 0))
    torch.testing.assert_close(bound.compile_config(config)(x, w, scales, 64).double(), expected, atol=1e-3, rtol=1e-4)
