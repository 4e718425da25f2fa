"""Matmul with all-reduce, reduce-scatter or all-gather, in which matmuls send and receive tiles while they compute others.

The first kernels compute the rows of the peers. Each tile is stored to the peer, and a message tells that it is complete.
The last one computes the rank's own rows. It adds the tiles of the peers, each after its message, and for an all-reduce
sends the sums to all ranks. On Hopper the kernels of the cute backend run at the rate of a matmul alone: stores to a peer
take place during the next tile's matmul.

For an all-gather rows are copied to the peers. The matmul of those of a peer waits for them when it loads its first ones.

A tile has to have one size in all kernels, since a word of the channel belongs to it.

    python examples/distributed/sending_matmul.py
    torchrun --nproc-per-node 2 examples/distributed/sending_matmul.py
"""

from __future__ import annotations

import contextlib

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Rows and columns of a tile.
ROWS, COLUMNS = 128, 128


@helion.kernel(backend="cute", ignore_warnings=[helion.exc.UnacknowledgedReuse])
def send_product(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, peer: hl.constexpr
) -> None:
    """Write `x[M, K] @ w[K, N]` to part `ranks - peer` of the `inbox` of a peer, symmetric: `[ranks, M, N]`."""
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)], block_size=[ROWS, COLUMNS]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        inbox[peer][len(inbox) - peer, tile_m, tile_n] = acc.to(x.dtype)
        hl.signal(ch, [tile_m.id, tile_n.id], to=peer)


@helion.kernel(backend="cute")
def product_plus_received(
    x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, out: torch.Tensor
) -> None:
    """Write `x[M, K] @ w[K, N]` plus what all peers have sent to `inbox` to `out[M, N]`."""
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)], block_size=[ROWS, COLUMNS]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        for sender in hl.static_range(1, len(inbox)):
            hl.wait(ch, [tile_m.id, tile_n.id], sender=sender)
            acc = acc + inbox[0][sender, tile_m, tile_n]
        out[tile_m, tile_n] = acc.to(x.dtype)


@helion.kernel(backend="cute", ignore_warnings=[helion.exc.UnacknowledgedReuse])
def send_sums(
    x: torch.Tensor,
    w: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    ch: hl.Channel,
    sums: tuple[torch.Tensor, ...],
    done: hl.Channel,
    rank: hl.constexpr,
) -> None:
    """Write the same to part `rank` of `sums` of all ranks, symmetric: `[ranks, M, N]`."""
    n = len(inbox)
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)], block_size=[ROWS, COLUMNS]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        for sender in hl.static_range(1, n):
            hl.wait(ch, [tile_m.id, tile_n.id], sender=sender)
            acc = acc + inbox[0][sender, tile_m, tile_n]
        for peer in hl.static_range(n):
            sums[peer][rank, tile_m, tile_n] = acc.to(x.dtype)
        for peer in hl.static_range(1, n):
            hl.signal(done, [0], to=peer)


@helion.kernel(backend="cute")
def product(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    """Write `x[M, K] @ w[K, N]` to `out[M, N]`."""
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)


@helion.kernel(backend="cute")
def product_of_received(
    inbox: tuple[torch.Tensor, ...], w: torch.Tensor, ch: hl.Channel, out: torch.Tensor, peer: hl.constexpr
) -> None:
    """Write part `peer` of `inbox`, symmetric: `[ranks, M, K]`, times `w[K, N]` to `out[M, N]`, after its message."""
    for tile_m, tile_n in hl.tile([out.size(0), w.size(1)]):
        hl.wait(ch, [0], sender=peer, keep=True)
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(w.size(0)):
            acc = torch.addmm(acc, inbox[0][peer, tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)


@helion.kernel(config=helion.Config(block_sizes=[1], num_warps=1))
def tell(ch: hl.Channel) -> None:
    """Send a message to each peer, after all earlier kernels and copies of this stream."""
    for _ in hl.tile(1):
        for peer in hl.static_range(1, ch.world_size):
            hl.signal(ch, [0], to=peer)


@helion.kernel(config=helion.Config(block_sizes=[1], num_warps=1))
def hear(ch: hl.Channel, count: int) -> None:
    """Let later kernels of this stream wait for some messages of each peer."""
    for _ in hl.tile(1):
        for peer in hl.static_range(1, ch.world_size):
            hl.wait(ch, [0], sender=peer, count=count)


class Memory:
    """Memory of one of the functions below: two inboxes of `[ranks, rows, columns]`, used in turn, and their messages.

    A peer may be one call ahead. For an all-reduce there are two results as well.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype = torch.bfloat16, *, sums: bool = False) -> None:
        self.n, self.me, self.call = dist.world_size(), dist.rank(), 0
        tiles = helion.cdiv(rows, ROWS), helion.cdiv(columns, COLUMNS)
        self.tiles = tiles[0] * tiles[1]
        self.inboxes = [dist.empty([self.n, rows, columns], dtype) for _ in range(2)]
        self.results = [dist.empty([self.n, rows, columns], dtype) for _ in range(2 if sums else 0)]
        self.sent, self.done = dist.channel(tiles), dist.channel([1])
        self.side = torch.cuda.Stream(priority=-1) if DEVICE.type == "cuda" else None

    def beside(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which copies run at the same time as later matmuls; `join` ends it."""
        if self.side is None:
            return contextlib.nullcontext()
        self.side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.side)

    def join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)

    def check(self) -> None:
        dist.check(self.sent)
        dist.check(self.done)


def _send(x: torch.Tensor, w: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, int]:
    """Send the products of the peers' blocks of rows, and return the own block and the number of the inbox."""
    n, me, rows = memory.n, memory.me, x.size(0) // memory.n
    memory.call += 1
    half = memory.call % 2
    for peer in range(1, n):
        send_product(x.narrow(0, (me + peer) % n * rows, rows), w, memory.inboxes[half], memory.sent, peer)
    return x.narrow(0, me * rows, rows), half


def matmul_reduce_scatter(x: torch.Tensor, w: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, K] @ w[K, N]` over all ranks. `memory`: of `[M / ranks, N]`."""
    own, half = _send(x, w, memory)
    out = torch.empty([own.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    product_plus_received(own, w, memory.inboxes[half], memory.sent, out)
    return out


def matmul_all_reduce(x: torch.Tensor, w: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Return the sum of `x[M, K] @ w[K, N]` over all ranks. `memory`: of `[M / ranks, N]`, with `sums`.

    The result is valid until the next call but one.
    """
    own, half = _send(x, w, memory)
    sums = memory.results[half]
    send_sums(own, w, memory.inboxes[half], memory.sent, sums, memory.done, memory.me)
    hear(memory.done, memory.tiles)
    return sums[0].flatten(0, 1)


def all_gather_matmul(x: torch.Tensor, w: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Return the rows `x[M, K]` of all ranks, in their order, times `w[K, N]`. `memory`: of `[M, K]`."""
    n, me = memory.n, memory.me
    memory.call += 1
    inbox = memory.inboxes[memory.call % 2]
    out = torch.empty([n, x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    with memory.beside():
        for peer in range(1, n):
            inbox[peer][n - peer].copy_(x)
        tell(memory.done)
    product(x, w, out[me])
    for peer in range(1, n):
        product_of_received(inbox, w, memory.done, out[(me + peer) % n], peer)
    memory.done.seen.add_(1)
    memory.join()
    return out.flatten(0, 1)


def inputs(seed: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 200, columns: int = 264, k: int = 136, calls: int = 3) -> float:
    """Compare all functions with products in fp64, and return the largest error."""
    ranks, me = dist.world_size(), dist.rank()
    pairs = [(inputs(rank, ranks * rows, k), inputs(rank + 100, k, columns)) for rank in range(ranks)]
    total = torch.stack([x.double() @ w.double() for x, w in pairs]).sum(0)
    (x, w), some, worst = pairs[me], [x[:rows].contiguous() for x, _ in pairs], 0.0
    for function, mine, memory, expected in (
        (matmul_reduce_scatter, x, Memory(rows, columns), total.chunk(ranks)[me]),
        (matmul_all_reduce, x, Memory(rows, columns, sums=True), total),
        (all_gather_matmul, some[me], Memory(rows, k), torch.cat(some).double() @ w.double()),
    ):
        for _ in range(calls):
            result = function(mine, w, memory)
            torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
            worst = max(worst, float((result - expected).abs().max()))
        memory.check()
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"sending_matmul: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
