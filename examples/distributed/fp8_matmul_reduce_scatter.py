"""Matmul of fp8 operands and reduce-scatter: the scaled products of all ranks are summed, each rank keeps its rows.

Each row of `x` and each column of `w` has a scale. Tiles are scaled in fp32 and sent in bf16, by mail.

    python examples/distributed/fp8_matmul_reduce_scatter.py
    torchrun --nproc-per-node 2 examples/distributed/fp8_matmul_reduce_scatter.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

LARGEST = torch.finfo(torch.float8_e4m3fn).max


@helion.kernel()
def fp8_matmul_reduce_scatter(
    x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, mail: hl.Mailbox, rank: int
) -> torch.Tensor:
    """Return this rank's rows of the sum over all ranks of `(x[M, K] @ w[N, K].T) * x_scale[M, None] * w_scale[N]`.

    `mail`: of `[M / ranks, N]`.
    """
    n, k, columns = mail.world_size, x.size(1), w.size(0)
    rows = x.size(0) // n
    assert rows * n == x.size(0), f"{x.size(0)} rows are not a multiple of {n} ranks"
    out = torch.empty([rows, columns], dtype=torch.bfloat16, device=x.device)
    block_m, block_n = hl.register_block_size(rows), hl.register_block_size(columns)
    for peer in range(1, n):
        start = (rank + peer) % n * rows
        theirs, scales = x.narrow(0, start, rows), x_scale.narrow(0, start, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(theirs[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
            mail.send(peer, [tile_m, tile_n], acc * scales[tile_m][:, None] * w_scale[tile_n][None, :])
    hl.barrier()
    own, own_scale = x.narrow(0, rank * rows, rows), x_scale.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(own[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        acc = acc * own_scale[tile_m][:, None] * w_scale[tile_n][None, :]
        for sender in hl.static_range(1, n):
            acc = acc + mail.receive(sender, [tile_m, tile_n])
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


def quantized(rank: int, rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in fp8, and the scale of each row."""
    generator = torch.Generator().manual_seed(rank)
    values = (torch.randn([rows, k], generator=generator) + 0.25) / k**0.25
    scale = values.abs().amax(1) / LARGEST
    return (values / scale[:, None]).to(torch.float8_e4m3fn).to(DEVICE), scale.to(DEVICE)


def exact(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return values.double() * scale.double()[:, None]


def on_rank(rows: int = 96, columns: int = 80, k: int = 144, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    rows = rows // ranks * ranks
    mail = dist.mailbox([rows // ranks, columns], torch.bfloat16)
    pairs = [(quantized(rank, rows, k), quantized(rank + 100, columns, k)) for rank in range(ranks)]
    expected = sum(exact(*x) @ exact(*w).T for x, w in pairs).chunk(ranks)[me]
    worst = 0.0
    for _ in range(calls):
        (x, x_scale), (w, w_scale) = pairs[me]
        result = fp8_matmul_reduce_scatter(x, x_scale, w, w_scale, mail, me)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(mail)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"fp8_matmul_reduce_scatter: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
