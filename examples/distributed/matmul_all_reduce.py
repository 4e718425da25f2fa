"""Matmul and all-reduce: the sum of the products of all ranks, on every rank.

The first loop computes tiles and sends each one to all peers as soon as it is done. The second one adds the tiles of
the peers. Both loops have the same tiles.

    python examples/distributed/matmul_all_reduce.py
    torchrun --nproc-per-node 2 examples/distributed/matmul_all_reduce.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

WORDS = (256, 1024)


@helion.kernel()
def matmul_all_reduce(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel
) -> torch.Tensor:
    """Return the sum of `x[M, K] @ w[K, N]` over all ranks. `inbox`: symmetric, `[2, ranks, M, N]`."""
    n, (rows, k), columns = len(inbox), x.size(), w.size(1)
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    block_m, block_n = hl.register_block_size(rows), hl.register_block_size(columns)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        half = ch.seen[n - 1, tile_m.id, tile_n.id] % 2
        mine = acc.to(x.dtype)
        out[tile_m, tile_n] = mine
        for peer in hl.static_range(1, n):
            inbox[peer][half, n - peer, tile_m, tile_n] = mine
        for peer in hl.static_range(1, n):
            hl.signal(ch, [tile_m.id, tile_n.id], to=peer)
    hl.barrier()
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        half = ch.seen[n - 1, tile_m.id, tile_n.id] % 2
        acc = out[tile_m, tile_n].to(torch.float32)
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile_m.id, tile_n.id], sender=peer)
        for peer in hl.static_range(1, n):
            acc = acc + inbox[0][half, peer, tile_m, tile_n]
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def inputs(rank: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 70, columns: int = 96, k: int = 130, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    inbox, ch = dist.empty([2, ranks, rows, columns], torch.bfloat16), dist.channel(WORDS)
    pairs = [(inputs(rank, rows, k), inputs(rank + 100, k, columns)) for rank in range(ranks)]
    expected = sum(x.double() @ w.double() for x, w in pairs)
    worst = 0.0
    for _ in range(calls):
        result = matmul_all_reduce(*pairs[me], inbox, ch)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"matmul_all_reduce: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
