"""Reduce-scatter and all-gather with gradients: each one is the gradient of the other.

The gradient of a sum over ranks, of which each rank keeps a block of rows, is the gradients of all blocks. So the
backward of one collective operation is the other one, with a mailbox of its own.

    python examples/distributed/gradients.py
    torchrun --nproc-per-node 2 examples/distributed/gradients.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel()
def reduce_scatter_kernel(x: torch.Tensor, mail: hl.Mailbox, rank: int) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, D]` over all ranks. `mail`: of `[M / ranks, D]`."""
    n, columns = mail.world_size, x.size(1)
    rows = x.size(0) // n
    assert rows * n == x.size(0), f"{x.size(0)} rows are not a multiple of {n} ranks"
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    block_m, block_n = hl.register_block_size(rows), hl.register_block_size(columns)
    for peer in range(1, n):
        theirs = x.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
            mail.send(peer, [tile_m, tile_n], theirs[tile_m, tile_n])
    hl.barrier()
    own = x.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        acc = own[tile_m, tile_n].to(torch.float32)
        for sender in hl.static_range(1, n):
            acc = acc + mail.receive(sender, [tile_m, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel()
def all_gather_kernel(x: torch.Tensor, mail: hl.Mailbox, rank: int) -> torch.Tensor:
    """Return the rows `x[M, D]` of all ranks, in their order: `[ranks * M, D]`. `mail`: of `[M, D]`."""
    n, (rows, columns) = mail.world_size, x.size()
    out = torch.empty([n * rows, columns], dtype=x.dtype, device=x.device)
    own = out.narrow(0, rank * rows, rows)
    block_m, block_n = hl.register_block_size(rows), hl.register_block_size(columns)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        own[tile_m, tile_n] = x[tile_m, tile_n]
        for peer in hl.static_range(1, n):
            mail.send(peer, [tile_m, tile_n], x[tile_m, tile_n])
    hl.barrier()
    for peer in range(1, n):
        theirs = out.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
            theirs[tile_m, tile_n] = mail.receive(peer, [tile_m, tile_n])
    return out


class Mailboxes(NamedTuple):
    """Mailboxes of `[M / ranks, D]`, for a collective operation and for its gradient."""

    forward: hl.Mailbox
    backward: hl.Mailbox


class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mails: Mailboxes) -> torch.Tensor:
        ctx.mails = mails
        return reduce_scatter_kernel(x, mails.forward, dist.rank())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_gather_kernel(gradient.contiguous(), ctx.mails.backward, dist.rank()), None


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mails: Mailboxes) -> torch.Tensor:
        ctx.mails = mails
        return all_gather_kernel(x, mails.forward, dist.rank())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return reduce_scatter_kernel(gradient.contiguous(), ctx.mails.backward, dist.rank()), None


def inputs(seed: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn([rows, columns], generator=generator) + 0.5).to(DEVICE)


def on_rank(rows: int = 30, columns: int = 40, calls: int = 2) -> float:
    """Compare with the gradients of the sum of all ranks' losses, and return the largest error."""
    ranks, me = dist.world_size(), dist.rank()
    scattered, gathered = (Mailboxes(*(dist.mailbox([rows, columns]) for _ in range(2))) for _ in range(2))
    xs = [inputs(rank, ranks * rows, columns).double().requires_grad_() for rank in range(ranks)]
    weights = [inputs(rank + 100, ranks * rows, columns) for rank in range(ranks)]
    summed = torch.stack(xs).sum(0).tanh()  # every rank's loss is of all rows
    torch.stack([(summed * weight.double()).sum() for weight in weights]).sum().backward()
    worst = 0.0
    for _ in range(calls):
        x = inputs(me, ranks * rows, columns).requires_grad_()
        part = ReduceScatter.apply(x, scattered).tanh()
        everyone = AllGather.apply(part, gathered)
        (everyone * weights[me]).sum().backward()
        assert x.grad is not None and xs[me].grad is not None
        torch.testing.assert_close(everyone.double(), summed.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(x.grad.double(), xs[me].grad, rtol=1e-4, atol=1e-4)
        worst = max(worst, float((x.grad - xs[me].grad).abs().max()))
    for mail in (*scattered, *gathered):
        dist.check(mail)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"gradients: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
