"""Matmul with all-reduce or reduce-scatter for few rows, in one loop: no program waits for tiles that start later.

Each program computes a tile of this rank's product, or a part of its sum over K, and sends it to the peers. The program
with the last part adds the same tile of all ranks. So weights are read once, by all SMs. With many rows, most messages of
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
WORDS = (32, 1024)


class Memory:
    """Symmetric memory of a kernel below, for `[M, N]` and a number of parts of K, and the calls of each program."""

    def __init__(self, rows: int, columns: int, parts: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.inbox = dist.empty([2, dist.world_size(), parts, rows, columns], dtype)
        self.ch = dist.channel([*WORDS, parts])
        self.calls = torch.zeros([*WORDS, parts], dtype=torch.int32, device=DEVICE)

    @property
    def arguments(self) -> tuple[tuple[torch.Tensor, ...], hl.Channel, torch.Tensor]:
        return self.inbox, self.ch, self.calls


@helion.kernel()
def matmul_all_reduce(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, calls: torch.Tensor
) -> torch.Tensor:
    """Return the sum of `x[M, K] @ w[K, N]` over all ranks. `inbox`: symmetric, `[2, ranks, parts, M, N]`."""
    n, parts, (rows, k), columns = len(inbox), inbox[0].size(2), x.size(), w.size(1)
    step = k // parts
    assert step * parts == k, f"K = {k} is not a multiple of {parts} parts"
    x_of, w_of = x.view(-1, parts, step), w.view(parts, step, -1)
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    for tile_m, tile_n, part in hl.tile([rows, columns, parts], block_size=[None, None, 1]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(step):
            acc = torch.addmm(acc, x_of[tile_m, part.begin, tile_k], w_of[part.begin, tile_k, tile_n])
        half = calls[tile_m.id, tile_n.id, part.id] % 2
        calls[tile_m.id, tile_n.id, part.id] += 1
        mine = acc.to(x.dtype)
        for peer in hl.static_range(1, n):
            inbox[peer][half, n - peer, part.begin, tile_m, tile_n] = mine
            hl.signal(ch, [tile_m.id, tile_n.id, part.id], to=peer)
        if part.begin < parts - 1:
            inbox[0][half, 0, part.begin, tile_m, tile_n] = mine
            hl.signal(ch, [tile_m.id, tile_n.id, part.id], to=0)
        else:
            for sender in hl.static_range(n):
                for other in hl.static_range(parts if sender else parts - 1):
                    hl.wait(ch, [tile_m.id, tile_n.id, other], sender=sender)
                    acc = acc + inbox[0][half, sender, other, tile_m, tile_n]
            out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, calls: torch.Tensor, rank: int
) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, K] @ w[K, N]` over all ranks.

    `inbox`: symmetric, `[2, ranks, parts, M, N]`; a rank gets its own rows only.
    """
    n, parts, (total, k), columns = len(inbox), inbox[0].size(2), x.size(), w.size(1)
    rows, step = total // n, k // parts
    assert rows * n == total, f"{total} rows are not a multiple of {n} ranks"
    assert step * parts == k, f"K = {k} is not a multiple of {parts} parts"
    x_of, w_of = x.view(-1, parts, step), w.view(parts, step, -1)
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    for tile_m, tile_n, part in hl.tile([total, columns, parts], block_size=[None, None, 1]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(step):
            acc = torch.addmm(acc, x_of[tile_m, part.begin, tile_k], w_of[part.begin, tile_k, tile_n])
        owner = (tile_m.index // rows + (n - rank)) % n  # of each row, as a peer
        own = (owner == 0)[:, None]
        half = calls[tile_m.id, tile_n.id, part.id] % 2
        calls[tile_m.id, tile_n.id, part.id] += 1
        mine = acc.to(x.dtype)
        for peer in hl.static_range(1, n):
            theirs = (owner == peer)[:, None]
            hl.store(inbox[peer], [half, n - peer, part.begin, tile_m, tile_n], mine, extra_mask=theirs)
            hl.signal(ch, [tile_m.id, tile_n.id, part.id], to=peer)
        if part.begin < parts - 1:
            hl.store(inbox[0], [half, 0, part.begin, tile_m, tile_n], mine, extra_mask=own)
            hl.signal(ch, [tile_m.id, tile_n.id, part.id], to=0)
        else:
            for sender in hl.static_range(n):
                for other in hl.static_range(parts if sender else parts - 1):
                    hl.wait(ch, [tile_m.id, tile_n.id, other], sender=sender)
                    more = hl.load(inbox[0], [half, sender, other, tile_m, tile_n], extra_mask=own)
                    acc = acc + more.to(torch.float32)
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
    for kernel, parts, more, expected in (
        (matmul_all_reduce, 1, (), total),
        (matmul_all_reduce, 2, (), total),
        (matmul_reduce_scatter, 2, (me,), total.chunk(ranks)[me]),
    ):
        memory = Memory(rows, columns, parts)
        for _ in range(calls):
            result = kernel(*pairs[me], *memory.arguments, *more)
            torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
            worst = max(worst, float((result - expected).abs().max()))
        dist.check(memory.ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"matmul_few_rows: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
