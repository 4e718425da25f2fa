"""Matmul over a grid of ranks: the weight is split in both dimensions, the input and the output in one each.

Rank `(i, j)` of the grid has the block `w[i, j]` of the weight, of K and of N, and block `j` of the rows of `x[:, i]`. The
ranks of row `i` gather these rows. Each rank multiplies them by its block. The ranks of column `j` sum their products,
and each keeps a block of rows of `y[:, j]`.

    python examples/distributed/two_dimensional_matmul.py
    torchrun --nproc-per-node 4 examples/distributed/two_dimensional_matmul.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel()
def gather_rows(x: torch.Tensor, mail: hl.Mailbox, rank: int) -> torch.Tensor:
    """Return the rows `x[M, K]` of all ranks of the mailbox, in their order: `[ranks * M, K]`. `mail`: of `[M, K]`."""
    n, (rows, k) = mail.world_size, x.size()
    out = torch.empty([n * rows, k], dtype=x.dtype, device=x.device)
    own = out.narrow(0, rank * rows, rows)
    block_m, block_k = hl.register_block_size(rows), hl.register_block_size(k)
    for tile_m, tile_k in hl.tile([rows, k], block_size=[block_m, block_k]):
        own[tile_m, tile_k] = x[tile_m, tile_k]
        for peer in hl.static_range(1, n):
            mail.send(peer, [tile_m, tile_k], x[tile_m, tile_k])
    hl.barrier()
    for peer in range(1, n):
        theirs = out.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_k in hl.tile([rows, k], block_size=[block_m, block_k]):
            theirs[tile_m, tile_k] = mail.receive(peer, [tile_m, tile_k])
    return out


@helion.kernel()
def matmul_reduce_scatter(x: torch.Tensor, w: torch.Tensor, mail: hl.Mailbox, rank: int) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, K] @ w[K, N]` over the ranks of the mailbox, of `[M / ranks, N]`."""
    n, k, columns = mail.world_size, x.size(1), w.size(1)
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
            mail.send(peer, [tile_m, tile_n], acc)
    hl.barrier()
    own = x.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, own[tile_m, tile_k], w[tile_k, tile_n])
        for sender in hl.static_range(1, n):
            acc = acc + mail.receive(sender, [tile_m, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def inputs(seed: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 64, columns: int = 40, k: int = 48, calls: int = 3) -> float:
    ranks = dist.world_size()
    height = 2 if ranks % 2 == 0 and ranks > 2 else 1
    width = ranks // height
    column, row = dist.mesh([height, width])  # ranks of one column differ in the first dimension
    i, j = dist.rank(column), dist.rank(row)
    m = rows // ranks * height  # rows of x on this rank
    gathered, summed = (
        dist.mailbox([m, k], torch.bfloat16, group=row),
        dist.mailbox([m * width // height, columns], torch.bfloat16, group=column),
    )
    x, w = inputs(0, m * width, k * height), inputs(1, k * height, columns * width)
    mine = x[j * m : (j + 1) * m, i * k : (i + 1) * k].contiguous()
    block = w[i * k : (i + 1) * k, j * columns : (j + 1) * columns].contiguous()
    expected = (x.double() @ w.double()).chunk(height)[i][:, j * columns : (j + 1) * columns]
    worst = 0.0
    for _ in range(calls):
        everyone = gather_rows(mine, gathered, j)
        result = matmul_reduce_scatter(everyone, block, summed, i)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(gathered, row)
    dist.check(summed, column)
    return worst


def main() -> None:
    errors = dist.run(on_rank, ranks=4)
    print(f"two_dimensional_matmul: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
