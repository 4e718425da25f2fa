"""Sum of a large tensor over all ranks: each rank adds up one part of it, and sends the sums to the others.

Each rank sends its tensor once, and the sums of its part once to each peer. The kernel in `all_reduce.py` sends the tensor
to every peer: it has fewer steps, and is for small tensors.

    python examples/distributed/all_reduce_two_shots.py
    torchrun --nproc-per-node 2 examples/distributed/all_reduce_two_shots.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Elements that one message covers.
BLOCK = 4096


@helion.kernel()
def all_reduce(
    x: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    out: tuple[torch.Tensor, ...],
    ch: hl.Channel,
    done: hl.Channel,
    rank: int,
) -> torch.Tensor:
    """Sum `x[N]` over all ranks in fp32. `inbox` and `out`: symmetric, `[ranks, N / ranks]`.

    The result is in `out`, and valid until the next call: a peer writes there after it has the messages of that call.
    """
    n, part = inbox[0].size()
    assert n * part == x.size(0), f"{x.size(0)} elements are not {n} parts of {part}"
    parts = x.view([n, part])
    for tile in hl.tile(part, block_size=BLOCK):
        for peer in hl.static_range(1, n):
            inbox[peer][n - peer, tile] = parts[(rank + peer) % n, tile]
        for peer in hl.static_range(1, n):  # after the stores to all peers, so that one trip is awaited
            hl.signal(ch, [tile.id], to=peer)
    hl.barrier()
    for tile in hl.tile(part, block_size=BLOCK):
        acc = parts[rank, tile].to(torch.float32)
        for sender in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=sender)
        for sender in hl.static_range(1, n):
            acc = acc + inbox[0][sender, tile]
        for receiver in hl.static_range(n):
            out[receiver][rank, tile] = acc.to(x.dtype)
        for receiver in hl.static_range(1, n):
            hl.signal(done, [tile.id], to=receiver)
    hl.barrier()
    for tile in hl.tile(part, block_size=BLOCK):
        for sender in hl.static_range(1, n):
            hl.wait(done, [tile.id], sender=sender)
    return out[0].view([x.size(0)])


def inputs(rank: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn([count], generator=generator) + 0.5).bfloat16().to(DEVICE)


def on_rank(part: int = 5000, calls: int = 3) -> float:
    """Compare with the sum of all ranks' tensors, and return the largest error."""
    ranks = dist.world_size()
    inbox, out = (dist.empty([ranks, part], torch.bfloat16) for _ in range(2))
    ch, done = (dist.channel([helion.cdiv(part, BLOCK)]) for _ in range(2))
    x = inputs(dist.rank(), ranks * part)
    expected = sum(inputs(rank, ranks * part).double() for rank in range(ranks))
    worst = 0.0
    for _ in range(calls):
        result = all_reduce(x, inbox, out, ch, done, dist.rank())
        torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=3e-2)
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(ch)
    dist.check(done)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"all_reduce_two_shots: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
