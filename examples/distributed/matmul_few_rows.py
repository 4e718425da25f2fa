"""Matmul with all-reduce or reduce-scatter for few rows, in one loop: no program waits for other tiles than its own.

Each program computes a tile of this rank's product and sends it to the peers. Then it adds the same tile of their
products. So weights are read once, and a program that waits leaves its SM to others. With many rows, most messages of
`matmul_reduce_scatter.py` and `overlapped_matmul.py` arrive while products are computed, which is faster.

    python examples/distributed/matmul_few_rows.py
    torchrun --nproc-per-node 2 examples/distributed/matmul_few_rows.py
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
def matmul_all_reduce(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel
) -> torch.Tensor:
    """Return the sum of `x[M, K] @ w[K, N]` over all ranks. `inbox`: symmetric, `[2, ranks, M, N]`."""
    n, (rows, k), columns = len(inbox), x.size(), w.size(1)
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([rows, columns]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        half = ch.seen[n - 1, tile_m.id, tile_n.id] % 2
        mine = acc.to(x.dtype)
        for peer in hl.static_range(1, n):
            inbox[peer][half, n - peer, tile_m, tile_n] = mine
        for peer in hl.static_range(1, n):  # after the stores to all peers, so that one trip is awaited
            hl.signal(ch, [tile_m.id, tile_n.id], to=peer)
        for sender in hl.static_range(1, n):
            hl.wait(ch, [tile_m.id, tile_n.id], sender=sender)
        for sender in hl.static_range(1, n):
            acc = acc + inbox[0][half, sender, tile_m, tile_n]
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, rank: int
) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, K] @ w[K, N]` over all ranks.

    `inbox`: symmetric, `[2, ranks, M, N]`; a rank gets its own rows only.
    """
    n, (total, k), columns = len(inbox), x.size(), w.size(1)
    rows = total // n
    assert rows * n == total, f"{total} rows are not a multiple of {n} ranks"
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([total, columns]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        owner = (tile_m.index // rows + (n - rank)) % n  # of each row, as a peer
        half = ch.seen[n - 1, tile_m.id, tile_n.id] % 2
        mine = acc.to(x.dtype)
        for peer in hl.static_range(1, n):
            theirs = (owner == peer)[:, None]
            hl.store(inbox[peer], [half, n - peer, tile_m, tile_n], mine, extra_mask=theirs)
        for peer in hl.static_range(1, n):
            hl.signal(ch, [tile_m.id, tile_n.id], to=peer)
        own = (owner == 0)[:, None]
        for sender in hl.static_range(1, n):
            hl.wait(ch, [tile_m.id, tile_n.id], sender=sender)
        for sender in hl.static_range(1, n):
            part = hl.load(inbox[0], [half, sender, tile_m, tile_n], extra_mask=own)
            acc = acc + part.to(torch.float32)
        hl.store(out, [tile_m.index - rank * rows, tile_n], acc.to(x.dtype), extra_mask=own)
    return out


def inputs(seed: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 40, columns: int = 80, k: int = 130, calls: int = 3) -> float:
    """Compare both kernels with products in fp64, and return the largest error."""
    ranks, me = dist.world_size(), dist.rank()
    rows = rows // ranks * ranks
    pairs = [(inputs(rank, rows, k), inputs(rank + 100, k, columns)) for rank in range(ranks)]
    total = torch.stack([x.double() @ w.double() for x, w in pairs]).sum(0)
    worst = 0.0
    for kernel, more, expected in (
        (matmul_all_reduce, (), total),
        (matmul_reduce_scatter, (me,), total.chunk(ranks)[me]),
    ):
        inbox, ch = dist.empty([2, ranks, rows, columns], torch.bfloat16), dist.channel(WORDS)
        for _ in range(calls):
            result = kernel(*pairs[me], inbox, ch, *more)
            torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
            worst = max(worst, float((result - expected).abs().max()))
        dist.check(ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"matmul_few_rows: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
