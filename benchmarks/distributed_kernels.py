"""Kernels that `benchmarks/distributed.py` checks on GPUs, one for each way in which ranks may exchange data."""

from __future__ import annotations

import torch

import helion
import helion.language as hl
from helion.runtime.triton.dist_utils import symm_mem_sync

#: Elements that one message of `any_size` covers, for any number of elements: a tile has the same word in all calls.
BLOCK = 1024


@helion.kernel()
def by_mail(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    """Sum `x[M, N]` over all ranks by a mailbox of `[M, N]`."""
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        total = x[tile_m, tile_n].to(torch.float32)
        for peer in hl.static_range(1, mail.world_size):
            mail.send(peer, [tile_m, tile_n], x[tile_m, tile_n])
        for peer in hl.static_range(1, mail.world_size):
            total = total + mail.receive(peer, [tile_m, tile_n])
        out[tile_m, tile_n] = total.to(x.dtype)
    return out


@helion.kernel()
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `rms_norm(h) * weight` and `h = x + residual + bias`, of `[M, D]`: what follows an all-reduce by NCCL."""
    out, total = torch.empty_like(x), torch.empty_like(residual)
    for tile in hl.tile(x.size(0)):
        h = x[tile, :].to(torch.float32) + residual[tile, :] + bias[:].to(torch.float32)
        total[tile, :] = h.to(residual.dtype)
        scale = torch.rsqrt(torch.mean(h * h, dim=-1, keepdim=True) + eps)
        out[tile, :] = (h * scale * weight[:].to(torch.float32)).to(x.dtype)
    return out, total


@helion.kernel()
def pulled(x: torch.Tensor, buffer: torch.Tensor, GROUP: hl.ProcessGroupName, RANKS: hl.constexpr) -> torch.Tensor:
    """Sum `x[M, N]` over all ranks: loads from the peers' buffers, between two barriers."""
    out = torch.empty_like(x)
    buffers = torch.ops.symm_mem.get_remote_tensors(buffer, GROUP)
    for tile in hl.tile(x.size(0)):
        buffer[tile, :] = x[tile, :]
        hl.remote_barrier(list(range(RANKS)))
        acc = hl.zeros([tile, x.size(1)], dtype=torch.float32)
        for remote in buffers:
            acc = acc + remote[tile, :].to(torch.float32)
        out[tile, :] = acc.to(x.dtype)
        hl.remote_barrier(list(range(RANKS)))
    return out


@helion.kernel()
def rotated(x: torch.Tensor, buffer: torch.Tensor, RANK: int, RANKS: hl.constexpr) -> torch.Tensor:
    """Return `2 * x[M, N]` of the rank before this one. Barriers around the copy keep calls apart."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        copy = hl.make_async_remote_copy(x, [tile, slice(None)], (RANK + 1) % RANKS, buffer, [tile, slice(None)])
        copy.start()
        copy.wait_send()
        copy.wait_recv()
        out[tile, :] = buffer[tile, :] * 2
        hl.remote_barrier(list(range(RANKS)))
    return out


@helion.kernel()
def synchronized(
    x: torch.Tensor,
    buffer: torch.Tensor,
    pads: torch.Tensor,
    GROUP: hl.ProcessGroupName,
    RANK: hl.constexpr,
    WORLD_SIZE: hl.constexpr,
) -> torch.Tensor:
    """Sum `x[M, N]` over all ranks: loads from the peers' buffers, between synchronizations through signal pads."""
    out = torch.empty_like(x)
    buffers = torch.ops.symm_mem.get_remote_tensors(buffer, GROUP)
    for tile in hl.tile(x.size(0)):
        buffer[tile, :] = x[tile, :]
        hl.triton_kernel(symm_mem_sync, args=(pads, None, RANK, WORLD_SIZE, True, True), output_like=None)
        acc = hl.zeros([tile, x.size(1)], dtype=torch.float32)
        for remote in buffers:
            acc = acc + remote[tile, :].to(torch.float32)
        out[tile, :] = acc.to(x.dtype)
        hl.triton_kernel(symm_mem_sync, args=(pads, None, RANK, WORLD_SIZE, True, False), output_like=None)
    return out


@helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[BLOCK]))
def any_size(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    """Sum `x[N]` over all ranks, for any `N` up to the size of `inbox`: symmetric, `[2, ranks, most]`."""
    n = len(inbox)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        mine = x[tile]
        half = ch.seen[n - 1, tile.id] % 2
        for peer in hl.static_range(1, n):
            inbox[peer][half, n - peer, tile] = mine
            hl.signal(ch, [tile.id], to=peer)
        acc = mine
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=peer)
            acc = acc + inbox[0][half, peer, tile]
        out[tile] = acc
    return out
