"""Matmuls with collective operations, made of plain products: each product runs as fast as it does alone.

A product of few rows of a peer stores them into memory of that peer. Copies to peers run at the same time as later
products, on the copy engine of the GPU. Kernels of one program send and receive the messages between them. So no product
waits inside, and each one may run on any backend.

This suits products that take longer than their messages. The kernels in `matmul_reduce_scatter.py`, `matmul_all_reduce.py`
and `all_gather_matmul.py` send single tiles.

    python examples/distributed/overlapped_matmul.py
    torchrun --nproc-per-node 2 examples/distributed/overlapped_matmul.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: The fewest rows of a part of the sums that a rank sends to its peers at once.
PART_ROWS = 512
#: The fewest rows of a peer whose products are copied, since stores of a product to a peer take longer than own ones.
COPIED_ROWS = 512
#: The same for an all-reduce, whose sums are copied, too, and in more parts.
COPIED_ROWS_OF_SUMS = 4096
#: The fewest rows of a peer that are computed in two halves: products of the other half hide the copies.
HALVED_ROWS = 2048


@helion.kernel()
def product(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    """Write `x[M, K] @ w[K, N]` to `out[M, N]`."""
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)


@helion.kernel()
def product_plus(x: torch.Tensor, w: torch.Tensor, parts: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
    """Write the sum of `x[M, K] @ w[K, N]` and of all `parts[M, N]` to `out[M, N]`."""
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        for part in parts:
            acc = acc + part[tile_m, tile_n].to(torch.float32)
        out[tile_m, tile_n] = acc.to(out.dtype)


#: Kernels of messages have one warp, which fits on an SM next to a CTA of a matmul.
ONE_WARP = helion.Config(block_sizes=[1], num_warps=1)


@helion.kernel(config=ONE_WARP)
def tell(ch: hl.Channel) -> None:
    """Send a message to each peer, after all earlier kernels of this stream."""
    for _ in hl.tile(1):
        for peer in hl.static_range(1, ch.world_size):
            hl.signal(ch, [0], to=peer)


@helion.kernel(config=ONE_WARP)
def hear(ch: hl.Channel, first: hl.constexpr, last: hl.constexpr) -> None:
    """Let later kernels of this stream wait for a message of each peer from `first` to `last`."""
    for _ in hl.tile(1):
        for peer in hl.static_range(first, last + 1):
            hl.wait(ch, [0], sender=peer)


class Memory:
    """Symmetric memory of one of the functions below: `[ranks, rows, columns]`, and its messages.

    `ready`: the memory may be written again. `sent`: it has been written. `own`: memory of products to copy, by peer.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.n, self.me = dist.world_size(), dist.rank()
        self.inbox = dist.empty([self.n, rows, columns], dtype)
        self.own = torch.empty([self.n if rows >= COPIED_ROWS else 0, rows, columns], dtype=dtype, device=DEVICE)
        self.ready, self.sent = dist.channel([1]), dist.channel([1])
        tell(self.ready)
        self.side = torch.cuda.Stream(priority=-1) if DEVICE.type == "cuda" else None

    def beside(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which work runs at the same time as later products; `join` ends it."""
        if self.side is None:
            return contextlib.nullcontext()
        self.side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.side)

    def join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)

    def hear(self, ch: hl.Channel) -> None:
        hear(ch, 1, self.n - 1)

    def check(self) -> None:
        dist.check(self.ready)
        dist.check(self.sent)


def all_gather_matmul(x: torch.Tensor, w: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Return the rows `x[M, K]` of all ranks, in their order, times `w[K, N]`. `memory`: of `[M, K]`."""
    n, me, rows = memory.n, memory.me, x.size(0)
    out = torch.empty([n, rows, w.size(1)], dtype=x.dtype, device=x.device)
    memory.hear(memory.ready)  # before the product, which leaves no SM for other kernels
    with memory.beside():
        for peer in range(1, n):
            memory.inbox[peer][n - peer].copy_(x)
        tell(memory.sent)
    product(x, w, out[me])
    for peer in range(1, n):
        hear(memory.sent, peer, peer)
        product(memory.inbox[0][peer], w, out[(me + peer) % n])
    memory.join()
    tell(memory.ready)
    return out.flatten(0, 1)


def send_products(x: torch.Tensor, w: torch.Tensor, memory: Memory, copied_rows: int) -> list[slice]:
    """Write `x @ w` to the peers, each one its block of rows, and return the parts of the rows. A message follows each.

    Blocks of at least `copied_rows` are copied.
    """
    n, me, rows = memory.n, memory.me, x.size(0) // memory.n
    blocks = {peer: x.narrow(0, (me + peer) % n * rows, rows) for peer in range(1, n)}
    memory.hear(memory.ready)
    if rows < copied_rows:
        for peer, theirs in blocks.items():
            product(theirs, w, memory.inbox[peer][n - peer])
        tell(memory.sent)
        return [slice(0, rows)]
    parts = [slice(0, rows // 2), slice(rows // 2, rows)] if rows >= HALVED_ROWS else [slice(0, rows)]
    for part in parts:
        for peer, theirs in blocks.items():
            product(theirs[part], w, memory.own[peer, part])
            with memory.beside():
                memory.inbox[peer][n - peer, part].copy_(memory.own[peer, part])
        with memory.beside():
            tell(memory.sent)
    return parts


def product_plus_theirs(x: torch.Tensor, w: torch.Tensor, memory: Memory, some: slice, out: torch.Tensor) -> None:
    """Write `x @ w` of some of this rank's rows, plus what the peers have written of them."""
    own = x.narrow(0, memory.me * (x.size(0) // memory.n), x.size(0) // memory.n)
    product_plus(own[some], w, tuple(memory.inbox[0][peer, some] for peer in range(1, memory.n)), out)


def matmul_reduce_scatter(x: torch.Tensor, w: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Return this rank's rows of the sum of `x[M, K] @ w[K, N]` over all ranks. `memory`: of `[M / ranks, N]`."""
    out = torch.empty([x.size(0) // memory.n, w.size(1)], dtype=x.dtype, device=x.device)
    for part in send_products(x, w, memory, COPIED_ROWS):
        memory.hear(memory.sent)
        product_plus_theirs(x, w, memory, part, out[part])
    memory.join()
    tell(memory.ready)
    return out


def parts_of_sums(rows: int) -> Iterator[slice]:
    """Yield parts of the rows, each sent while the next one is computed: for many rows half, then half of the rest ...

    The last part is sent after all products, and should be small.
    """
    first = 0
    while first < rows:
        half = (rows - first) // 2 // PART_ROWS * PART_ROWS if rows >= COPIED_ROWS_OF_SUMS else 0
        step = max(half, PART_ROWS)
        yield slice(first, min(first + step, rows))
        first += step


def matmul_all_reduce(x: torch.Tensor, w: torch.Tensor, memory: Memory, sums: Memory) -> torch.Tensor:
    """Return the sum of `x[M, K] @ w[K, N]` over all ranks. `memory` and `sums`: of `[M / ranks, N]`.

    The result is in `sums`, and valid until the next call: a peer writes there after it has this rank's products of that
    call.
    """
    n, me, rows = memory.n, memory.me, x.size(0) // memory.n
    heard = 0
    starts = [part.start for part in send_products(x, w, memory, COPIED_ROWS_OF_SUMS)]
    for some in parts_of_sums(rows):
        while heard < len(starts) and starts[heard] < some.stop:
            memory.hear(memory.sent)
            heard += 1
        product_plus_theirs(x, w, memory, some, sums.inbox[0][me, some])
        with sums.beside():
            for peer in range(1, n):
                sums.inbox[peer][me, some].copy_(sums.inbox[0][me, some])
    with sums.beside():
        tell(sums.sent)
    sums.join()
    memory.join()
    tell(memory.ready)
    sums.hear(sums.sent)
    return sums.inbox[0].flatten(0, 1)


def inputs(seed: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def on_rank(rows: int = 48, columns: int = 80, k: int = 130, calls: int = 3) -> float:
    """Compare all three functions with products in fp64, and return the largest error."""
    ranks, me = dist.world_size(), dist.rank()
    gathered, scattered = Memory(rows, k), Memory(rows, columns)
    parts, sums = Memory(rows, columns), Memory(rows, columns)
    pairs = [(inputs(rank, ranks * rows, k), inputs(rank + 100, k, columns)) for rank in range(ranks)]
    total = torch.stack([x.double() @ w.double() for x, w in pairs]).sum(0)
    (x, w), some = pairs[me], [x[:rows].contiguous() for x, _ in pairs]
    everyone = torch.cat(some).double() @ w.double()
    worst = 0.0
    for function, args, expected in (
        (all_gather_matmul, (some[me], w, gathered), everyone),
        (matmul_reduce_scatter, (x, w, scattered), total.chunk(ranks)[me]),
        (matmul_all_reduce, (x, w, parts, sums), total),
    ):
        for _ in range(calls):
            result = function(*args)
            torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
            worst = max(worst, float((result - expected).abs().max()))
    for memory in (gathered, scattered, parts, sums):
        memory.check()
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"overlapped_matmul: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
