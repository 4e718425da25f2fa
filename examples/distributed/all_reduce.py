"""Sum of a tensor over all ranks, in one kernel: each tile is sent to the peers and added to what they send.

    python examples/distributed/all_reduce.py                              2 simulated ranks, without a GPU
    torchrun --nproc-per-node 2 examples/distributed/all_reduce.py         one GPU for each rank

The inbox has two halves, used in turn: a peer may be one call ahead, and then writes the other half. The number of
messages seen so far tells which half it is, so calls can be captured in CUDA graphs.

Little data is faster in marked mail, whose elements are their own signals.
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Words for each peer, at least one per tile.
WORDS = 2**16


@helion.kernel()
def all_reduce(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    """Sum `x[N]` over all ranks in fp32. `inbox`: symmetric, `[2, ranks, N]`."""
    n = len(inbox)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        mine = x[tile]
        half = ch.seen[n - 1, tile.id] % 2
        for peer in hl.static_range(1, n):
            inbox[peer][half, n - peer, tile] = mine
            hl.signal(ch, [tile.id], to=peer)
        acc = mine.to(torch.float32)
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=peer)
            acc += inbox[0][half, peer, tile]
        out[tile] = acc.to(x.dtype)
    return out


@helion.kernel()
def all_reduce_by_mail(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    """Sum `x[N]` over all ranks in fp32. `mail`: of `[N]` and the dtype of `x`."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        mine = x[tile]
        for peer in hl.static_range(1, mail.world_size):
            mail.send(peer, [tile], mine)
        acc = mine.to(torch.float32)
        for peer in hl.static_range(1, mail.world_size):
            acc += mail.receive(peer, [tile])
        out[tile] = acc.to(x.dtype)
    return out


def inputs(rank: int, count: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the tensor of a rank, which every rank can compute."""
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn([count], generator=generator) + 0.5).to(dtype).to(DEVICE)


def one_shot_memory(count: int) -> tuple[tuple[torch.Tensor, ...], hl.Channel]:
    return dist.empty([2, dist.world_size(), count], torch.bfloat16), dist.channel([WORDS])


def mail_memory(count: int) -> tuple[hl.Mailbox]:
    return (dist.mailbox([count], torch.bfloat16, marked=None),)


def on_rank(count: int = 5000, calls: int = 3) -> float:
    """Compare with the sum of all ranks' tensors, and return the largest error."""
    expected = sum(inputs(rank, count).double() for rank in range(dist.world_size()))
    worst = 0.0
    for kernel, make in ((all_reduce, one_shot_memory), (all_reduce_by_mail, mail_memory)):
        memory = make(count)
        for _ in range(calls):
            result = kernel(inputs(dist.rank(), count), *memory)
            torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=3e-2)
            worst = max(worst, float((result - expected).abs().max()))
        dist.check(memory[-1])
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"all_reduce: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
