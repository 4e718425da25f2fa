"""All-gather and matmul: the product of the rows of all ranks with this rank's columns.

One kernel copies rows to the peers. Another one computes the rank's own rows, and then the rows of each peer, waiting
for every block of rows. On GPUs the copies run on a stream of their own, at the same time as the first products.

    python examples/distributed/all_gather_matmul.py
    torchrun --nproc-per-node 2 examples/distributed/all_gather_matmul.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Rows that one message covers.
ROWS = 128


@helion.kernel()
def send_rows(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> None:
    """Copy `x[M, K]` to `inbox[peer]` of each peer: symmetric, `[2, ranks, M, K]`, its halves used in turn."""
    n = len(inbox)
    for tile in hl.tile(x.size(0), block_size=ROWS):
        half = ch.seen[0, tile.id] % 2
        for peer in hl.static_range(1, n):
            for tile_k in hl.tile(x.size(1)):
                inbox[peer][half, n - peer, tile, tile_k] = x[tile, tile_k]
            hl.signal(ch, [tile.id], to=peer)


@helion.kernel()
def matmul_of_rows(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, rank: int
) -> torch.Tensor:
    """Return `y[ranks * M, N]`: the rows `x[M, K]` of all ranks, in their order, times `w[K, N]`."""
    n, (rows, k), columns = len(inbox), x.size(), w.size(1)
    out = torch.empty([n * rows, columns], dtype=x.dtype, device=x.device)
    own = out.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        own[tile_m, tile_n] = acc.to(x.dtype)
    hl.barrier()
    for peer in range(1, n):
        theirs = out.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[ROWS, None]):
            half = ch.seen[0, tile_m.id] % 2
            hl.wait(ch, [tile_m.id], sender=peer, keep=True)
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, inbox[0][half, peer, tile_m, tile_k], w[tile_k, tile_n])
            theirs[tile_m, tile_n] = acc.to(x.dtype)
    return out


def all_gather_matmul(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, rank: int
) -> torch.Tensor:
    """Return the product of all ranks' rows with `w`; one message for each block of rows is seen by many programs."""
    if x.is_cuda:
        here, side = torch.cuda.current_stream(), _side_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            send_rows(x, inbox, ch)
    else:
        send_rows(x, inbox, ch)
    out = matmul_of_rows(x, w, inbox, ch, rank)
    if x.is_cuda:
        here.wait_stream(side)
    ch.seen.add_(1)
    return out


_STREAMS: list[torch.cuda.Stream] = []


def _side_stream() -> torch.cuda.Stream:
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream(priority=-1))
    return _STREAMS[0]


def inputs(rank: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 200, columns: int = 80, k: int = 130, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    inbox, ch = dist.empty([2, ranks, rows, k], torch.bfloat16), dist.channel([helion.cdiv(rows, ROWS)])
    everyone = torch.cat([inputs(rank, rows, k) for rank in range(ranks)])
    w = inputs(me + 100, k, columns)
    expected = everyone.double() @ w.double()
    worst = 0.0
    for _ in range(calls):
        result = all_gather_matmul(inputs(me, rows, k), w, inbox, ch, me)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"all_gather_matmul: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
