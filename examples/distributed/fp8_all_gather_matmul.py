"""All-gather and matmul of fp8 operands: the rows of all ranks, with their scales, times this rank's columns.

Rows travel as fp8, with the scale of each row. One kernel sends them, another one multiplies: first the rank's own rows,
then those of each peer. On GPUs the first one runs on a stream of its own.

    python examples/distributed/fp8_all_gather_matmul.py
    torchrun --nproc-per-node 2 examples/distributed/fp8_all_gather_matmul.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Rows that one message covers.
ROWS = 64
LARGEST = torch.finfo(torch.float8_e4m3fn).max


@helion.kernel()
def send_rows(
    x: torch.Tensor,
    scale: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    scales: tuple[torch.Tensor, ...],
    ch: hl.Channel,
) -> None:
    """Copy `x[M, K]` and `scale[M]` to each peer: symmetric, `[2, ranks, M, K]` and `[2, ranks, M]`."""
    n = len(inbox)
    for tile in hl.tile(x.size(0), block_size=ROWS):
        half = ch.seen[0, tile.id] % 2
        for peer in hl.static_range(1, n):
            scales[peer][half, n - peer, tile] = scale[tile]
            for tile_k in hl.tile(x.size(1)):
                inbox[peer][half, n - peer, tile, tile_k] = x[tile, tile_k]
            hl.signal(ch, [tile.id], to=peer)


@helion.kernel()
def matmul_of_rows(
    x: torch.Tensor,
    scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    scales: tuple[torch.Tensor, ...],
    ch: hl.Channel,
    rank: int,
) -> torch.Tensor:
    """Return `y[ranks * M, N]` in bf16: the rows `x[M, K]` of all ranks, in their order, times `w[N, K].T`."""
    n, (rows, k), columns = len(inbox), x.size(), w.size(0)
    out = torch.empty([n * rows, columns], dtype=torch.bfloat16, device=x.device)
    own = out.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        own[tile_m, tile_n] = (acc * scale[tile_m][:, None] * w_scale[tile_n][None, :]).to(torch.bfloat16)
    hl.barrier()
    for peer in range(1, n):
        theirs = out.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[ROWS, None]):
            half = ch.seen[0, tile_m.id] % 2
            hl.wait(ch, [tile_m.id], sender=peer, keep=True)
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(inbox[0][half, peer, tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
            acc = acc * scales[0][half, peer, tile_m][:, None] * w_scale[tile_n][None, :]
            theirs[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


_STREAMS: list[torch.cuda.Stream] = []


def all_gather_matmul(
    x: torch.Tensor,
    scale: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    scales: tuple[torch.Tensor, ...],
    ch: hl.Channel,
    rank: int,
) -> torch.Tensor:
    """Return the product of all ranks' rows with `w`; many programs see the message of a block of rows."""
    if x.is_cuda:
        _STREAMS[:] = _STREAMS or [torch.cuda.Stream(priority=-1)]
        here, side = torch.cuda.current_stream(), _STREAMS[0]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            send_rows(x, scale, inbox, scales, ch)
    else:
        send_rows(x, scale, inbox, scales, ch)
    out = matmul_of_rows(x, scale, w, w_scale, inbox, scales, ch, rank)
    if x.is_cuda:
        here.wait_stream(side)
    ch.seen.add_(1)
    return out


def quantized(rank: int, rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in fp8, and the scale of each row."""
    generator = torch.Generator().manual_seed(rank)
    values = (torch.randn([rows, k], generator=generator) + 0.25) / k**0.25
    scale = values.abs().amax(1) / LARGEST
    return (values / scale[:, None]).to(torch.float8_e4m3fn).to(DEVICE), scale.to(DEVICE)


def on_rank(rows: int = 100, columns: int = 48, k: int = 144, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    inbox, scales = dist.empty([2, ranks, rows, k], torch.float8_e4m3fn), dist.empty([2, ranks, rows])
    ch = dist.channel([helion.cdiv(rows, ROWS)])
    w, w_scale = quantized(me + 100, columns, k)
    everyone = [quantized(rank, rows, k) for rank in range(ranks)]
    exact = torch.cat([values.double() * scale.double()[:, None] for values, scale in everyone])
    expected = exact @ (w.double() * w_scale.double()[:, None]).T
    worst = 0.0
    for _ in range(calls):
        result = all_gather_matmul(*everyone[me], w, w_scale, inbox, scales, ch, me)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(ch)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"fp8_all_gather_matmul: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
