"""Matmul and reduce-scatter: the products of all ranks are summed, and each rank keeps its block of rows.

The first loop computes the rows of the peers and sends each tile as soon as it is done. The second one computes the
rank's own rows, and adds the tiles of the peers, which have arrived in the meantime. Both loops have the same tiles.

    python examples/distributed/matmul_reduce_scatter.py
    torchrun --nproc-per-node 2 examples/distributed/matmul_reduce_scatter.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Words for each peer in each dimension, at least the number of tiles.
WORDS = (256, 1024)


@helion.kernel()
def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, rank: int
) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, K] @ w[K, N]` over all ranks.

    `inbox`: symmetric, `[2, ranks, M / ranks, N]`.
    """
    n, k, columns = len(inbox), x.size(1), w.size(1)
    rows = x.size(0) // n
    assert rows * n == x.size(0), f"{x.size(0)} rows are not a multiple of {n} ranks"
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    block_m, block_n = hl.register_block_size(rows), hl.register_block_size(columns)
    for peer in range(1, n):
        theirs = x.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, theirs[tile_m, tile_k], w[tile_k, tile_n])
            half = ch.seen[n - 1, tile_m.id, tile_n.id] % 2
            inbox[peer][half, n - peer, tile_m, tile_n] = acc.to(x.dtype)
            hl.signal(ch, [tile_m.id, tile_n.id], to=peer)
    hl.barrier()
    own = x.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, own[tile_m, tile_k], w[tile_k, tile_n])
        half = ch.seen[n - 1, tile_m.id, tile_n.id] % 2
        for sender in hl.static_range(1, n):
            hl.wait(ch, [tile_m.id, tile_n.id], sender=sender)
        for sender in hl.static_range(1, n):
            acc = acc + inbox[0][half, sender, tile_m, tile_n]
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def inputs(rank: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 96, columns: int = 80, k: int = 130, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    rows = rows // ranks * ranks
    inbox, ch = dist.empty([2, ranks, rows // ranks, columns], torch.bfloat16), dist.channel(WORDS)
    pairs = [(inputs(rank, rows, k), inputs(rank + 100, k, columns)) for rank in range(ranks)]
    expected = sum(x.double() @ w.double() for x, w in pairs).chunk(ranks)[me]
    worst = 0.0
    for _ in range(calls):
        result = matmul_reduce_scatter(*pairs[me], inbox, ch, me)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"matmul_reduce_scatter: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
