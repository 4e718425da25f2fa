"""Sum over all ranks, plus a bias and a residual, and root-mean-square normalization, in one kernel.

A layer of a tensor-parallel model ends with it. Each program has whole rows, so that it normalizes them as soon as the
rows of the peers are there.

    python examples/distributed/all_reduce_rms_norm.py
    torchrun --nproc-per-node 2 examples/distributed/all_reduce_rms_norm.py
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

WORDS = 2**14


@helion.kernel()
def all_reduce_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    bias: torch.Tensor,
    weight: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    ch: hl.Channel,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `rms_norm(h) * weight` and `h`, the sum of `x[M, D]` over all ranks, `bias[D]` and `residual[M, D]`.

    `inbox`: symmetric, `[2, ranks, M, D]`.
    """
    n = len(inbox)
    out, total = torch.empty_like(x), torch.empty_like(residual)
    for tile in hl.tile(x.size(0)):
        mine = x[tile, :]
        half = ch.seen[n - 1, tile.id] % 2
        for peer in hl.static_range(1, n):
            inbox[peer][half, n - peer, tile, :] = mine
            hl.signal(ch, [tile.id], to=peer)
        h = mine.to(torch.float32) + residual[tile, :] + bias[:].to(torch.float32)
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=peer)
            h += inbox[0][half, peer, tile, :]
        total[tile, :] = h.to(residual.dtype)
        scale = torch.rsqrt(torch.mean(h * h, dim=-1, keepdim=True) + eps)
        out[tile, :] = (h * scale * weight[:].to(torch.float32)).to(x.dtype)
    return out, total


@helion.kernel(config=helion.Config(num_warps=16))
def all_reduce_rms_norm_two_shots(
    x: torch.Tensor,
    residual: torch.Tensor,
    bias: torch.Tensor,
    weight: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    out: tuple[torch.Tensor, ...],
    total: tuple[torch.Tensor, ...],
    ch: hl.Channel,
    done: hl.Channel,
    rank: int,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same for many rows of more than two ranks: each rank sums and normalizes its rows, and sends both results.

    `inbox`, `out` and `total`: symmetric, `[ranks, M / ranks, D]`. The results are in the latter, and valid until the next
    call.
    """
    n, part, columns = inbox[0].size()
    assert n * part == x.size(0), f"{x.size(0)} rows are not {n} parts of {part}"
    parts, residuals = x.view([n, part, columns]), residual.view([n, part, columns])
    for tile in hl.tile(part, block_size=1):
        for peer in hl.static_range(1, n):
            inbox[peer][n - peer, tile, :] = parts[(rank + peer) % n, tile, :]
        for peer in hl.static_range(1, n):
            hl.signal(ch, [tile.id], to=peer)
    hl.barrier()
    for tile in hl.tile(part, block_size=1):
        h = parts[rank, tile, :].to(torch.float32) + residuals[rank, tile, :] + bias[:].to(torch.float32)
        for sender in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=sender)
        for sender in hl.static_range(1, n):
            h += inbox[0][sender, tile, :]
        scale = torch.rsqrt(torch.mean(h * h, dim=-1, keepdim=True) + eps)
        y = h * scale * weight[:].to(torch.float32)
        for receiver in hl.static_range(n):
            total[receiver][rank, tile, :] = h.to(residual.dtype)
            out[receiver][rank, tile, :] = y.to(x.dtype)
        for receiver in hl.static_range(1, n):
            hl.signal(done, [tile.id], to=receiver)
    hl.barrier()
    for tile in hl.tile(part, block_size=1):
        for sender in hl.static_range(1, n):
            hl.wait(done, [tile.id], sender=sender)
    return out[0].view([n * part, columns]), total[0].view([n * part, columns])


def two_shots_memory(rows: int, columns: int) -> tuple[Any, ...]:
    """Return the memory of the kernel above, and this rank."""
    n = dist.world_size()
    memory = (dist.empty([n, rows // n, columns], torch.bfloat16) for _ in range(3))
    return (*memory, dist.channel([rows // n]), dist.channel([rows // n]), dist.rank())


def inputs(rank: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn([rows, columns], generator=generator) + 0.5).bfloat16().to(DEVICE)


def on_rank(rows: int = 37, columns: int = 500, calls: int = 3) -> float:
    ranks = dist.world_size()
    rows = rows // ranks * ranks
    inbox, ch = dist.empty([2, ranks, rows, columns], torch.bfloat16), dist.channel([WORDS])
    more = two_shots_memory(rows, columns)
    residual, (bias, weight) = inputs(100, rows, columns), inputs(101, 2, columns)
    h = sum(inputs(rank, rows, columns).double() for rank in range(ranks)) + residual.double() + bias.double()
    expected = torch.nn.functional.rms_norm(h, [columns], weight.double(), 1e-6)
    worst = 0.0
    x = inputs(dist.rank(), rows, columns)
    for call in range(2 * calls):
        if call // 2 % 2:  # twice each: messages of the other kernel would order its calls
            out, total = all_reduce_rms_norm_two_shots(x, residual, bias, weight, *more)
        else:
            out, total = all_reduce_rms_norm(x, residual, bias, weight, inbox, ch)
        torch.testing.assert_close(total.double(), h, rtol=1e-2, atol=3e-2)
        torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=3e-2)
        worst = max(worst, float((out - expected).abs().max()))
    dist.check(ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"all_reduce_rms_norm: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
