"""Few rows times 4-bit weights, low and high halves by a dot each: programs share K, whose tiles the kernel fixes."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel(backend="triton")
def halves(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = packed.size(1)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k // 2, block_size=64):
            byte = packed[tile_k, tile_n].to(torch.int32)
            scale = scales[tile_k.id, tile_n].to(torch.float32)[None, :]
            low = ((byte & 15).to(torch.float32) * scale).to(x.dtype)
            high = (((byte >> 4) & 15).to(torch.float32) * scale).to(x.dtype)
            acc = hl.dot(pairs[tile_m, tile_k, 0], low, acc=acc)
            acc = hl.dot(pairs[tile_m, tile_k, 1], high, acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def test_programs_share_k() -> None:
    x = torch.empty(64, 4096, dtype=torch.bfloat16, device="meta")
    packed = torch.empty(2048, 4096, dtype=torch.uint8, device="meta")
    scales = torch.empty(32, 4096, dtype=torch.bfloat16, device="meta")
    seed = halves.bind((x, packed, scales), target="h200").seeds[0]
    assert seed.config["split_k"] == 4, seed.reason


def test_shared_sums_are_right() -> None:
    x, packed = torch.randn(5, 512), torch.randint(0, 256, [256, 33], dtype=torch.uint8)
    scales = torch.rand(4, 33)
    kernel = helion.kernel(halves.fn, config=helion.Config(block_sizes=[16, 16], num_warps=4, split_k=4))
    weights = torch.stack([packed & 15, packed >> 4], 1).view(4, 128, 33) * scales[:, None]
    torch.testing.assert_close(kernel(x, packed, scales), x @ weights.view(512, 33), rtol=1e-4, atol=1e-2)
